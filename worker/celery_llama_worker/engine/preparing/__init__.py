"""From a job to an attempt: prompts, samplers and text streams. On the admit thread."""
