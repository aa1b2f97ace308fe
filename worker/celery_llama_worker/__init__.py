"""The GPU worker: one process, one continuous batch. `celery_llama_worker.assembly` builds its parts."""
