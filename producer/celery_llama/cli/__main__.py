"""`python -m celery_llama.cli` is the command `celery-llama`."""

from __future__ import annotations

from celery_llama.cli.commands import main

main(prog_name="celery-llama")
