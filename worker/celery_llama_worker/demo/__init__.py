"""`celery-llama-worker demo`: everything on one machine, from nothing."""
