"""The jobs that the demo submits: of the kinds that services have, and such that a small model answers them well."""

from __future__ import annotations

from typing import Any

#: Of different kinds, so that prompts and outputs have different lengths and leave the batch at different steps.
JOBS: dict[str, dict[str, Any]] = {
    "story": {"prompt": "Once upon a time, in a village by the sea,", "max_tokens": 96, "seed": 7},
    "summary": {
        "messages": [
            {
                "role": "user",
                "content": "Summarise in one sentence: Redis keeps the queue, so a job outlives the web server that "
                "sent it. A worker decodes all jobs that are ready together, and publishes each job's words as they "
                "come.",
            },
        ],
        "max_tokens": 64,
        "temperature": 0.0,
    },
    "extraction": {
        "prompt": "Text: Ada Lovelace was born in London in 1815.\nJSON with name, city and year: ",
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "person",
                "schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "maxLength": 40},
                        "city": {"type": "string", "maxLength": 40},
                        "year": {"type": "integer"},
                    },
                    "required": ["name", "city", "year"],
                    "additionalProperties": False,
                },
            },
        },
        "max_tokens": 96,
        "temperature": 0.0,
    },
    "classification": {
        "prompt": "Review: I love it, works great.\nSentiment: positive\n\n"
        "Review: The battery died after a day. Awful.\nSentiment: ",
        "grammar": 'root ::= "positive" | "negative"',
        "temperature": 0.0,
    },
    "poem": {
        "messages": [{"role": "user", "content": "Write a short poem about the rain."}],
        "max_tokens": 80,
        "temperature": 0.3,
        "seed": 4,
    },
    "list": {"prompt": "Days of the week:\n1. Monday\n2.", "stop": ["8."], "max_tokens": 64, "temperature": 0.0},
    "code": {
        "prompt": "# Python: is a number even?\ndef is_even(n):",
        "stop": ["\n\n"],
        "max_tokens": 60,
        "temperature": 0.0,
    },
    "translation": {
        "prompt": "English: Good morning. French: Bonjour.\nEnglish: Thank you. French: Merci.\n"
        "English: Good night. French:",
        "stop": ["\n"],
        "max_tokens": 16,
        "temperature": 0.0,
    },
}
