"""The GPU worker: one process, one continuous batch. Its parts are built in `celery_llama_worker.cli`."""
