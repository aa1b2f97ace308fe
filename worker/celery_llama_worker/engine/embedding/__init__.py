"""Embedding models: scheduler, binding, and from a job to tokens."""
