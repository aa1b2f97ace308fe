"""Celery's side of the worker: the pool, deliveries, and whatever is mended in Celery and kombu."""
