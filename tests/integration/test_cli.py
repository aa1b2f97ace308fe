"""The command `celery-llama`, as a user or a program sees it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
import redis
from click.testing import CliRunner, Result

from celery_llama.cli.commands import main
from celery_llama.client.client import Client
from celery_llama.protocol.names import Names
from celery_llama.settings import Settings
from tests.integration.hand import Hand, free_port

Command = Callable[..., Result]


@pytest.fixture
def environment(settings: Settings) -> dict[str, str]:
    """What the command finds in its environment."""
    return {"CELERY_LLAMA_REDIS_URL": settings.redis_url, "CELERY_LLAMA_NAMESPACE": settings.namespace}


@pytest.fixture
def command(environment: dict[str, str]) -> Command:
    """Runs the command in this process."""

    def run(*arguments: str, input: bytes | None = None) -> Result:
        return CliRunner(env=environment).invoke(main, arguments, input=input)

    return run


@pytest.fixture
def ended(client: Client, hand: Hand) -> str:
    """A job that ended after two tokens."""
    job = client.submit(prompt="x")
    hand.claim(job.id)
    hand.say(job.id, "hello ", "world")
    hand.finish(job.id, "hello world", seq=3)
    return job.id


def lines(result: Result) -> list[dict[str, object]]:
    assert result.stderr == ""
    return [json.loads(line) for line in result.stdout.splitlines()]


def body_of(connection: redis.Redis, names: Names, job_id: str) -> dict[str, object]:
    body: dict[str, object] = json.loads(connection.hget(names.job(job_id), "body") or b"null")
    return body


# submit


def test_submit_sends_every_option_it_was_given_and_no_other(
    command: Command, connection: redis.Redis, names: Names, tmp_path: Path
) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}')
    options = "--max-tokens 3 --temperature 0 --stop a --stop b --seed 1 --n 2 --priority 3 --timeout 9 --detach"

    result = command(
        "submit", "hello", "--system", "be kind", "--json-schema", str(tmp_path / "schema.json"), *options.split()
    )

    assert result.exit_code == 0
    assert body_of(connection, names, result.stdout.strip()) == {
        "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}],
        "max_tokens": 3,
        "temperature": 0,
        "stop": ["a", "b"],
        "seed": 1,
        "n": 2,
        "priority": 3,
        "timeout": 9,
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
    }


@pytest.mark.parametrize("arguments", [["-"], []])
def test_submit_reads_the_prompt_from_standard_input(
    command: Command, connection: redis.Redis, names: Names, arguments: list[str]
) -> None:
    [answer] = lines(command("submit", *arguments, "--detach", "--json", input="süß\n\n".encode()))

    assert body_of(connection, names, str(answer["id"])) == {"prompt": "süß\n"}


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        (["-"], b"\xff"),
        (["-"], b""),
        (["x", "--max-tokens", "0"], None),
        (["x", "--max-tokens", "many"], None),
        (["x", "--json-schema", os.devnull], None),
        (["x", "--json-schema", "no such file"], None),
        (["x", "--colour", "blue"], None),
    ],
    ids=str,
)
def test_a_job_that_is_not_valid_is_wrong_use(command: Command, arguments: list[str], input: bytes | None) -> None:
    result = command("submit", *arguments, input=input)

    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr


# stream and result


def test_stream_prints_the_text(command: Command, ended: str) -> None:
    result = command("stream", ended)

    assert (result.exit_code, result.stdout, result.stderr) == (0, "hello world\n", "")


def test_stream_with_json_prints_one_event_a_line(command: Command, ended: str) -> None:
    events = lines(command("stream", ended, "--after", "1", "--json"))

    assert [(event["seq"], event["type"], event["job_id"]) for event in events] == [
        (2, "token", ended),
        (3, "finished", ended),
    ]


def test_result_prints_the_text_or_the_whole_result(command: Command, ended: str) -> None:
    assert command("result", ended).stdout == "hello world\n"

    [result] = lines(command("result", ended, "--json"))
    assert (result["id"], result["status"]) == (ended, "completed")


def test_a_failed_job_is_exit_code_1(command: Command, client: Client, hand: Hand) -> None:
    job = client.submit(prompt="x")
    hand.claim(job.id)
    hand.finish(job.id, seq=1, status="failed")

    for name in ("stream", "result"):
        result = command(name, job.id)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", "Error: it broke\n")
        as_json = command(name, job.id, "--json")
        assert as_json.exit_code == 1
        assert lines(as_json)[-1]["error"] == {"code": "engine_error", "message": "it broke"}


def test_a_cancelled_job_is_exit_code_1(command: Command, client: Client) -> None:
    job = client.submit(prompt="x")

    assert command("cancel", job.id).stdout == "cancelled\n"
    assert command("cancel", job.id).stdout == "it had ended before\n"
    for name in ("stream", "result"):
        result = command(name, job.id)
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", "cancelled\n")


def test_all_jobs_that_wait_may_be_cancelled_at_once(command: Command, client: Client) -> None:
    jobs = [client.submit("x", metadata={"run": run, "tenant": "a"}) for run in ("1", "2", "2")]

    assert command("cancel", "--queued", "--metadata", "run=2", "--metadata", "tenant=a").stdout == "2 cancelled\n"
    assert [job.status().status for job in jobs] == ["queued", "cancelled", "cancelled"]
    assert lines(command("cancel", "--queued", "--json")) == [{"cancelled": 1}]


@pytest.mark.parametrize(
    "arguments", [[], ["job", "--queued"], ["job", "--metadata", "a=b"], ["--queued", "--metadata", "a"]], ids=str
)
def test_what_to_cancel_is_said_in_one_way(command: Command, arguments: list[str]) -> None:
    assert command("cancel", *arguments).exit_code == 2


def test_who_does_not_wait_is_told_at_once_that_there_is_no_worker(command: Command, names: Names, hand: Hand) -> None:
    alone = command("submit", "x", "--detach")
    assert alone.stderr == f"queued; no worker of namespace '{names.namespace}' is alive\n"
    assert command("submit", "x", "--detach", "--json").stderr == ""
    hand.vouch()
    assert command("submit", "x", "--detach").stderr == ""


@pytest.mark.parametrize(
    ("reason", "words"), [("length", "length: max_tokens, or its slot is full"), ("timeout", "timeout")]
)
def test_a_text_that_was_cut_is_printed_and_why(
    command: Command, client: Client, connection: redis.Redis, names: Names, hand: Hand, reason: str, words: str
) -> None:
    job = client.submit("x")
    hand.claim(job.id)
    hand.say(job.id, "hello")
    hand.finish(job.id, "hello", seq=2, status="incomplete", reason=reason)  # type: ignore[arg-type]

    for name in ("stream", "result"):
        result = command(name, job.id)
        assert (result.exit_code, result.stdout, result.stderr) == (0, "hello\n", f"incomplete ({words})\n")


def test_a_job_for_which_there_is_no_worker_is_queued_and_says_so_once(
    command: Command,
    connection: redis.Redis,
    names: Names,
    client: Client,
    hand: Hand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("celery_llama.cli.commands.LONELY_SECONDS", 0.1)
    asked = threading.Event()
    has_worker = Client.has_worker

    def ask(self: Client) -> bool:
        answer = has_worker(self)
        asked.set()
        return answer

    monkeypatch.setattr(Client, "has_worker", ask)

    def cancel() -> None:
        assert asked.wait(30), "the command wonders whether anybody works"
        asked.clear()
        (job_id,) = cast(list[bytes], connection.zrange(names.open, 0, 0))
        client.job(job_id.decode()).cancel()

    alone = f"queued; no worker of namespace '{names.namespace}' is alive\n"
    for said in (alone, ""):
        thread = threading.Thread(target=cancel)
        thread.start()
        result = command("submit", "x")
        thread.join()
        assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"{said}cancelled\n")
        connection.delete(names.open)
        hand.vouch()


def test_a_result_that_does_not_come_in_time_is_exit_code_1(command: Command, client: Client) -> None:
    job = client.submit(prompt="x")

    result = command("result", job.id, "--timeout", "0", "--json")

    assert result.exit_code == 1
    assert lines(result)[0]["error"] == {
        "code": "result_timeout",
        "message": f"job {job.id} did not end within 0 s; it goes on",
    }


# status and retry


def test_status_prints_the_state(command: Command, ended: str) -> None:
    assert "completed" in command("status", ended).stdout

    [state] = lines(command("status", ended, "--json"))
    assert (state["id"], state["status"], state["attempts"]) == (ended, "completed", 1)


def test_status_says_in_words_what_there_is_to_say(command: Command, client: Client, hand: Hand) -> None:
    plain = client.submit(prompt="x")
    failed = client.submit(prompt="x", metadata={"tenant": "a", "run": "7"})
    for job in (plain, failed):
        hand.claim(job.id)
    plain.cancel()
    hand.finish(failed.id, seq=1, status="failed")

    def told(job_id: str) -> dict[str, str]:
        return {line[:16].strip(): line[17:] for line in command("status", job_id).stdout.splitlines()}

    assert told(plain.id).keys() == {
        *("id", "status", "attempts", "created", "started", "worker", "priority", "cancel requested")
    }
    assert told(plain.id)["cancel requested"] == "yes"
    assert told(failed.id)["metadata"] == "tenant=a, run=7"
    assert told(failed.id)["error"] == "engine_error: it broke"
    assert "cancel requested" not in told(failed.id)


def test_every_json_line_is_spelled_alike(command: Command, ended: str) -> None:
    commands = (["stream", ended], ["result", ended], ["status", ended], ["cancel", ended], ["status", "nobody-s"])
    printed = "".join(command(*arguments, "--json").stdout for arguments in commands)

    for line in printed.splitlines():
        assert line == json.dumps(json.loads(line), separators=(",", ":"))


def test_failed_jobs_are_listed_and_retried(command: Command, client: Client, hand: Hand) -> None:
    assert lines(command("status", "--failed", "--json")) == []
    job = client.submit(prompt="x")
    hand.claim(job.id)
    hand.finish(job.id, seq=1, status="failed")
    assert "engine_error: it broke" in command("status", "--failed").stdout

    assert command("retry", job.id).stdout == "queued\n"

    assert command("status", "--failed").stdout == ""
    assert command("retry", job.id).exit_code == 2


@pytest.mark.parametrize("arguments", [[], ["j", "--failed"]])
def test_status_is_of_a_job_or_of_the_failed_ones(command: Command, arguments: list[str]) -> None:
    assert command("status", *arguments).exit_code == 2


# what goes wrong


@pytest.mark.parametrize("name", ["stream", "result", "status", "cancel", "retry"])
def test_a_job_that_is_not_there_is_wrong_use(command: Command, name: str) -> None:
    assert command(name, "nobody-s").exit_code == 2
    assert command(name, "no id").exit_code == 2
    [answer] = lines(command(name, "nobody-s", "--json"))
    assert answer == {
        "error": {"code": "job_not_found", "message": "there is no job nobody-s, or its data has expired"}
    }


def test_a_server_that_cannot_be_reached_is_exit_code_3(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_llama.client.connection.RETRIES", 0)
    url = f"redis://:secret@127.0.0.1:{free_port()}/0"

    for arguments in (["submit", "x"], ["stream", "j"], ["result", "j"], ["status", "j"], ["cancel", "j"]):
        result = command("--redis-url", url, *arguments)
        assert result.exit_code == 3
        assert result.stderr.startswith("Error: cannot reach Redis at redis://127.0.0.1:")
        assert "secret" not in result.stderr


def test_a_server_that_refuses_is_exit_code_3(command: Command, connection: redis.Redis, names: Names) -> None:
    connection.set(names.job("j"), "not a hash")

    result = command("status", "j")

    assert result.exit_code == 3
    assert result.stderr.startswith("Error: Redis refused: WRONGTYPE")


@pytest.mark.parametrize(
    "arguments", [["--redis-url", "http://x"], ["--redis-url", "redis://:secret@x:y"], ["--namespace", "a b"]]
)
def test_settings_that_cannot_work_are_wrong_use(command: Command, arguments: list[str]) -> None:
    result = command(*arguments, "status", "j")

    assert result.exit_code == 2
    assert "secret" not in result.stderr


def test_a_terminal_is_not_given_what_it_would_obey(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from celery_llama.cli.output import _shown

    assert _shown("a\x1b[2Jb\n\tc\x9b", to_terminal=True) == "a�[2Jb\n\tc�"
    assert _shown("a\x1b[2J", to_terminal=False) == "a\x1b[2J"


def process(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "celery_llama.cli", *arguments]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ctrl_c_leaves_the_job_running_and_says_how_to_come_back(
    environment: dict[str, str], client: Client, hand: Hand
) -> None:
    job = client.submit(prompt="x")
    hand.claim(job.id)
    hand.say(job.id, "hello\n", "world\n")

    with process(environment, "stream", job.id) as running:
        assert running.stdout is not None
        assert [running.stdout.readline() for _ in range(2)] == ["hello\n", "world\n"]
        running.send_signal(signal.SIGINT)
        _, stderr = running.communicate(timeout=60)

    assert running.returncode == 130
    # Whoever interrupts the printing of an event sees it again.
    assert re.search(f"celery-llama stream {job.id} --after [12]\n", stderr)
    assert "Traceback" not in stderr
    assert job.status().status == "running"


@pytest.mark.parametrize(
    ("given", "repeated"),
    [
        ([], ""),
        (["--namespace", "mine"], "--namespace mine "),
        (["--redis-url", "redis://h:1/2"], "--redis-url redis://h:1/2 "),
        (["--redis-url", "unix:///a b", "--namespace", "mine"], "--redis-url 'unix:///a b' --namespace mine "),
        (["--redis-url", "redis://:secret@h"], "--redis-url ... "),
    ],
    ids=str,
)
def test_the_way_back_repeats_the_options_that_were_given_but_no_password(
    command: Command, given: list[str], repeated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("celery_llama.client.client.JobHandle.result", interrupt)

    result = command(*given, "result", "job-1")

    assert result.exit_code == 130
    assert f" celery-llama {repeated}result job-1\n" in result.stderr


def test_a_closed_pipe_is_quiet(environment: dict[str, str], client: Client, hand: Hand) -> None:
    job = client.submit(prompt="x")
    hand.claim(job.id)
    hand.say(job.id, "first\n")

    with process(environment, "stream", job.id) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == "first\n"
        running.stdout.close()
        hand.say(job.id, "second\n", first_seq=2)
        hand.finish(job.id, seq=3)
        assert running.stderr.read() == ""
    assert running.returncode == 141
