"""The GPU worker: one process, one continuous batch. Its parts are built in `worker.cli`."""
