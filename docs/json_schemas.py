"""Writes the JSON Schemas of the wire formats to docs/schemas, for `make format`. A test compares."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from celery_llama.protocol.embedding import EmbedJob
from celery_llama.protocol.events import AnyEvent
from celery_llama.protocol.jobs import GenerateJob
from celery_llama.protocol.results import JobInfo, Result

FOLDER = Path(__file__).parent / "schemas"
FORMATS: dict[str, Any] = {
    "generate_job": GenerateJob,
    "embed_job": EmbedJob,
    "event": AnyEvent,
    "result": Result,
    "job_info": JobInfo,
}


def schemas() -> dict[str, str]:
    """Each file's name and text."""
    return {
        f"{name}.json": json.dumps(TypeAdapter(kind).json_schema(), indent=2, ensure_ascii=False) + "\n"
        for name, kind in FORMATS.items()
    }


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
