"""Write the JSON Schemas of the wire formats to docs/schemas. Run it after a change to producer's models."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import TypeAdapter

from producer.events import AnyEvent
from producer.jobs import GenerateJob
from producer.results import JobInfo, Result

FOLDER = Path(__file__).parents[1] / "docs" / "schemas"
FORMATS = {"generate_job": GenerateJob, "event": AnyEvent, "result": Result, "job_info": JobInfo}


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
