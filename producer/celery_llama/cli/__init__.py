"""The command `celery-llama`."""
