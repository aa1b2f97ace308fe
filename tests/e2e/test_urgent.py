"""A more urgent job does not wait for somebody to finish, although Celery takes no more messages than it has room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from celery_llama import Client
from celery_llama.settings import Settings
from tests.scene import Server, Worker, scene
from tests.tiny_model import tiny_model


def test_an_urgent_job_is_run_at_once_although_every_place_is_taken(tmp_path: Path) -> None:
    server = Server(tmp_path / "server")
    settings = Settings(redis_url=server.url)
    options: dict[str, object] = {"slots": 2, "lookahead": 1, "ctx_per_slot": 2048}
    worker = Worker("worker", settings, tiny_model(), tmp_path, options, step_seconds=0.02)
    with scene(server, [worker]):
        server.start()
        worker.start()
        with Client(settings=settings) as client:
            fields: dict[str, Any] = {"prompt": "x", "temperature": 0.0, "ignore_eos": True}
            patient = [client.submit(max_tokens=1500, priority=9, **fields) for _ in range(3)]
            next(event for event in patient[0].stream(timeout=30) if event.type == "token")

            urgent = client.submit(max_tokens=10, priority=0, **fields).result(timeout=30)

            assert len(urgent.choices[0].text) > 0
            assert [job.status().status for job in patient].count("running") == 3
            for job in patient:
                job.cancel()
            texts = [job.result(timeout=30) for job in patient]
            assert {result.status for result in texts} == {"cancelled"}
