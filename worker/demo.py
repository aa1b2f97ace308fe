"""`celery-llama-worker demo`: server, worker and Flower as processes of their own, and a handful of jobs on the screen.

Uses the product as anybody would: through the client and the command line. Main thread, and one reader thread a job.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from producer import Client, JobHandle, Result
from producer.errors import CeleryLlamaError, MissingExtra
from producer.events import AnyEvent
from worker.demo_screen import Screen, make_screen
from worker.embedded import EMBEDDED_URL, ensure_server, local_port, stop_server
from worker.errors import StartupError
from worker.settings import WorkerSettings
from worker.supervisor import probe

#: Of different kinds, so that prompts and outputs have different lengths and leave the batch at different steps.
JOBS: dict[str, dict[str, Any]] = {
    "story": {"prompt": "Once upon a time, in a village by the sea,", "max_tokens": 96, "seed": 7},
    "summary": {
        "messages": [
            {
                "role": "user",
                "content": "Summarise in one sentence: Redis keeps the queue, so a job outlives the web server that "
                "sent it. A worker decodes all jobs that are ready together, and publishes each job's words as they "
                "come.",
            },
        ],
        "max_tokens": 64,
        "temperature": 0.0,
    },
    "extraction": {
        "prompt": "Text: Ada Lovelace was born in London in 1815.\nJSON with name, city and year: ",
        "response_format": {
            "type": "json_schema",
            "json_schema": {
                "name": "person",
                "schema": {
                    "type": "object",
                    "properties": {
                        "name": {"type": "string", "maxLength": 40},
                        "city": {"type": "string", "maxLength": 40},
                        "year": {"type": "integer"},
                    },
                    "required": ["name", "city", "year"],
                    "additionalProperties": False,
                },
            },
        },
        "max_tokens": 96,
        "temperature": 0.0,
    },
    "classification": {
        "prompt": "Review: I love it, works great.\nSentiment: positive\n\n"
        "Review: The battery died after a day. Awful.\nSentiment: ",
        "grammar": 'root ::= "positive" | "negative"',
        "temperature": 0.0,
    },
    "poem": {
        "messages": [{"role": "user", "content": "Write a short poem about the rain."}],
        "max_tokens": 80,
        "temperature": 0.3,
        "seed": 4,
    },
    "list": {"prompt": "Days of the week:\n1. Monday\n2.", "stop": ["8."], "max_tokens": 64, "temperature": 0.0},
    "code": {
        "prompt": "# Python: is a number even?\ndef is_even(n):",
        "stop": ["\n\n"],
        "max_tokens": 60,
        "temperature": 0.0,
    },
    "translation": {
        "prompt": "English: Good morning. French: Bonjour.\nEnglish: Thank you. French: Merci.\n"
        "English: Good night. French:",
        "stop": ["\n"],
        "max_tokens": 16,
        "temperature": 0.0,
    },
}
_READY_SECONDS = 120.0


def run_demo(settings: WorkerSettings, *, stay: bool) -> int:
    """Run it; returns the exit code. Raises CeleryLlamaError. `stay` keeps everything running until Ctrl-C."""
    try:
        screen = make_screen(JOBS)
    except ImportError as error:
        raise MissingExtra("rich", "demo") from error
    with ExitStack() as stack:
        url = stack.enter_context(_server(settings))
        environment = {**os.environ, "CELERY_LLAMA_REDIS_URL": url, "CELERY_LLAMA_NAMESPACE": settings.namespace}
        log = settings.cache_dir / "demo-worker.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        screen.say(f"Redis     {url}")
        worker = stack.enter_context(_process(worker_command(settings), environment, log))
        port = _free_port(5555)
        flower = [sys.executable, "-m", "celery", "-A", "producer.celery_app", "flower"]
        flower += [f"--port={port}", "--address=127.0.0.1"]
        stack.enter_context(_process(flower, environment, settings.cache_dir / "demo-flower.log"))
        screen.say(f"Flower    http://127.0.0.1:{port}")
        screen.say(f"Worker    {settings.model}, its log is {log}")
        with Client(settings=settings.model_copy(update={"redis_url": url})) as client:
            results = _run_jobs(client, worker, screen, log)
            screen.summary(results, _engine_figures(settings, url))
        _say_how_to_go_on(screen, url, port, stay)
        if stay:
            _wait_for_interrupt()
    return 0 if len(results) == len(JOBS) else 1


def _run_jobs(client: Client, worker: subprocess.Popen[bytes], screen: Screen, log: Path) -> dict[str, Result]:
    """Submit all jobs, show their events as they come, return their results."""
    feed: queue.SimpleQueue[tuple[str, AnyEvent | CeleryLlamaError]] = queue.SimpleQueue()
    handles = {name: client.submit(**fields) for name, fields in JOBS.items()}
    for name, handle in handles.items():
        threading.Thread(target=_read, args=(name, handle, feed), daemon=True).start()
    waiting = set(handles)
    with screen.live():
        while waiting:
            try:
                name, event = feed.get(timeout=0.2)
            except queue.Empty:
                if worker.poll() is not None:
                    raise StartupError(f"the worker ended with code {worker.returncode}; {_last_line(log)}") from None
                continue
            if isinstance(event, CeleryLlamaError):
                raise event
            screen.show(name, event)
            if event.terminal:
                waiting.discard(name)
    return {name: handle.result(timeout=_READY_SECONDS) for name, handle in handles.items()}


def _read(name: str, handle: JobHandle, feed: queue.SimpleQueue[tuple[str, AnyEvent | CeleryLlamaError]]) -> None:
    try:
        for event in handle.stream():
            feed.put((name, event))
    except CeleryLlamaError as error:
        feed.put((name, error))


def _engine_figures(settings: WorkerSettings, url: str) -> dict[str, Any]:
    """The pool's figures, as Flower shows them; of one worker."""
    from producer.celery_app import make_app

    app = make_app(settings.model_copy(update={"redis_url": url}))
    try:
        stats: dict[str, Any] = app.control.inspect(timeout=2.0).stats() or {}
    finally:
        app.close()
    return next((answer["pool"] for answer in stats.values()), {})


def worker_command(settings: WorkerSettings) -> list[str]:
    """The worker's command line: every setting that was given, but for those that all processes share."""
    command = [sys.executable, "-m", "worker.cli", "start"]
    for name in sorted(settings.model_fields_set - {"redis_url", "namespace"}):
        value = getattr(settings, name)
        text = ",".join(f"{key}={path}" for key, path in value.items()) if isinstance(value, dict) else str(value)
        command += [f"--{name.replace('_', '-')}", text]
    return command


@contextmanager
def _server(settings: WorkerSettings) -> Iterator[str]:
    """The server's URL: the one that was given, or the embedded one, which is stopped again if it was started here."""
    if "redis_url" in settings.model_fields_set and settings.redis_url != "embedded":
        yield settings.redis_url
        return
    started_here = probe(local_port(EMBEDDED_URL)) == "free"
    url = ensure_server()
    try:
        yield url
    finally:
        if started_here:
            stop_server()


@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, so that Ctrl-C reaches this one only; stopped on the way out."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port(preferred: int) -> int:
    for port in (preferred, 0):
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(listener.getsockname()[1])
    raise StartupError("there is no free port for Flower")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"its log {log} is empty"


def _say_how_to_go_on(screen: Screen, url: str, port: int, stay: bool) -> None:
    screen.say("")
    if stay:
        screen.say("Everything keeps running until Ctrl-C. In another terminal:")
    else:
        screen.say("Stopped. To keep everything running, use a terminal or --stay; then, in another one:")
    screen.say(f"  export CELERY_LLAMA_REDIS_URL={url}")
    screen.say('  .venv/bin/celery-llama submit "Tell me about batching." --max-tokens 60')
    screen.say(f"  open http://127.0.0.1:{port} for Flower: workers, tasks, and the engine in the Pool tab")


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return
