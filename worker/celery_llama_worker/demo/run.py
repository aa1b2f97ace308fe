"""`celery-llama-worker demo`: server, worker and Flower as processes of their own, and a handful of jobs on the screen.

Uses the product as anybody would: through the client and the command line. Main thread, and one reader thread a job.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_llama import Client, JobHandle, Result
from celery_llama.protocol.errors import CeleryLlamaError, MissingExtra
from celery_llama.protocol.events import AnyEvent
from celery_llama_worker.demo.jobs import JOBS
from celery_llama_worker.embedded.ensure import EMBEDDED_URL, ensure_server, local_port, stop_server
from celery_llama_worker.embedded.supervisor import probe
from celery_llama_worker.errors import StartupError
from celery_llama_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from celery_llama_worker.demo.screen import Screen

_READY_SECONDS = 120.0
#: -P: a worker.py in the current folder, which nearly every Celery project has, must not be taken for ours.
PYTHON = (sys.executable, "-P", "-m")


def run_demo(settings: WorkerSettings, *, stay: bool) -> int:
    """Run it; returns the exit code. Raises CeleryLlamaError. `stay` keeps everything running until Ctrl-C."""
    try:
        from celery_llama_worker.demo.screen import make_screen
    except ImportError as error:
        raise MissingExtra("rich", "demo") from error
    screen = make_screen(JOBS)
    # Like Ctrl-C, so that the way out is taken: the other processes are in sessions of their own and would stay.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    if "worker_name" not in settings.model_fields_set:
        settings = settings.model_copy(update={"worker_name": f"demo-{os.getpid()}"})
    with ExitStack() as stack:
        url = stack.enter_context(_server(settings))
        environment = {**os.environ, "CELERY_LLAMA_REDIS_URL": url, "CELERY_LLAMA_NAMESPACE": settings.namespace}
        log = settings.cache_dir / f"{settings.worker_name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        screen.say(f"Redis     {url}")
        worker = stack.enter_context(_process(worker_command(settings), environment, log))
        port = _free_port(5555)
        flower = [*PYTHON, "celery", "-A", "celery_llama.celery_app", "flower"]
        flower += [f"--port={port}", "--address=127.0.0.1"]
        # Without it Flower's buttons do nothing; it listens on this machine only.
        buttons = {"FLOWER_UNAUTHENTICATED_API": "true"}
        # Celery puts the current folder first whatever Python is told, so it had better be an empty one.
        stack.enter_context(_process(flower, environment | buttons, log.with_suffix(".flower.log"), log.parent))
        screen.say(f"Flower    http://127.0.0.1:{port}")
        screen.say(f"Worker    {settings.model}, its log is {log}")
        with Client(settings=settings.model_copy(update={"redis_url": url})) as client:
            results = _run_jobs(client, worker, screen, log)
            screen.summary(results, _engine_figures(settings, url))
        _say_how_to_go_on(screen, url, port, stay)
        if stay:
            _wait_for_interrupt()
            screen.say("Stopping; what still runs goes back to the queue.")
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
    from celery_llama.celery_app import make_app

    app = make_app(settings.model_copy(update={"redis_url": url}))
    try:
        stats: dict[str, Any] = app.control.inspect(timeout=2.0).stats() or {}
    finally:
        app.close()
    answer: dict[str, Any] = stats.get(f"celery-llama@{settings.worker_name}", {})
    return answer.get("pool", {})  # type: ignore[no-any-return]


def worker_command(settings: WorkerSettings) -> list[str]:
    """The worker's command line: every setting that was given, but for those that all processes share."""
    command = [*PYTHON, "celery_llama_worker.cli", "start"]
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
def _process(
    command: list[str], environment: dict[str, str], log: Path, folder: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, so that Ctrl-C reaches this one only; stopped on the way out."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
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
        screen.say("Stopped. To keep everything running: make demo ARGS=--stay; then, in another terminal:")
    screen.say(f"  export CELERY_LLAMA_REDIS_URL={url}")
    screen.say('  .venv/bin/celery-llama submit --system "You are a helpful assistant." "What is a queue?"')
    screen.say(f"Flower, at http://127.0.0.1:{port}, shows workers and tasks, and the engine in a worker's Pool tab.")


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        return
