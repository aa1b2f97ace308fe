"""The ledger against a small model of it: any operations, by any worker, alive or not, in any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import uuid4

import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from celery_llama.ledger import queries
from celery_llama.ledger.cursor import EventCursor
from celery_llama.ledger.replay import read_events
from celery_llama.protocol.delivered import delivered
from celery_llama.protocol.results import END_STATUSES
from celery_llama.settings import Settings
from tests.integration.hand import Hand

OWNERS = st.sampled_from(["w1", "w2", "w3"])
JOBS = st.sampled_from(["j1", "j2"])
TEXTS = st.lists(st.text(st.characters(codec="utf-8"), max_size=3), min_size=1, max_size=3)


@dataclass
class Modelled:
    """What must be true of one job."""

    expires: bool
    status: str = "queued"
    owner: str = ""
    attempt: int = 0
    released: int = 0
    cancel: bool = False
    #: Whether Celery knows how it ended.
    acknowledged: bool = False
    #: Ended without a worker.
    closed: bool = False
    texts: list[str] = field(default_factory=list)
    #: The last flush, to be repeated as after a lost answer.
    flushed: tuple[int, int, list[str]] | None = None
    finished: tuple[int, int, str] | None = None
    reader: EventCursor = field(default_factory=EventCursor)
    read: list[str] = field(default_factory=list)

    @property
    def next_seq(self) -> int:
        return len(self.texts) + 1

    @property
    def ended(self) -> bool:
        return self.status in END_STATUSES

    def owned(self, attempt: int) -> bool:
        return self.status == "running" and attempt == self.attempt


class LedgerAgainstModel(RuleBasedStateMachine):
    """Every rule does something to the server and to the model, and compares the answers."""

    def __init__(self, connection: redis.Redis) -> None:
        super().__init__()
        self.names = Settings(namespace=f"model-{uuid4().hex}").names
        self.ledger = Settings(namespace=self.names.namespace).ledger
        self.hand = Hand(connection, self.ledger)
        self.jobs: dict[str, Modelled] = {}
        self.alive: set[str] = set()

    def held(self, job: Modelled) -> bool:
        return job.status == "running" and job.owner in self.alive

    @rule(job_id=JOBS, expires=st.booleans())
    def submit(self, job_id: str, expires: bool) -> None:
        known = job_id in self.jobs
        operation = self.ledger.submit(
            job_id, {"prompt": "x"}, priority=5, expires_seconds=1000.0 if expires else None, idempotency_key=None
        )
        assert self.hand.do(operation).outcome == ("existing" if known else "created")
        if not known:
            self.jobs[job_id] = Modelled(expires)

    @rule(job_id=JOBS, owner=OWNERS)
    def deliver(self, job_id: str, owner: str) -> None:
        """A message arrives: the first time, or again."""
        claim = self.hand.claim(job_id, owner)
        self.alive.add(owner)
        job = self.jobs.setdefault(job_id, Modelled(expires=False))
        if job.ended:
            assert claim.outcome == "ended"
            assert (claim.result and claim.result.status) == (None if job.acknowledged else job.status)
        elif self.held(job) and job.owner != owner:
            assert claim.outcome == "busy"
        else:
            job.attempt, job.status, job.owner, job.expires = job.attempt + 1, "running", owner, False
            assert (claim.outcome, claim.attempt, claim.released) == ("claimed", job.attempt, job.released)
            assert claim.cancel_requested == job.cancel

    @rule(owner=OWNERS)
    def lapse(self, owner: str) -> None:
        """A worker dies, or is silent for too long and does not know it."""
        self.hand.connection.delete(self.names.lease(owner))
        self.alive.discard(owner)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), texts=TEXTS, late=st.integers(0, 2), ahead=st.integers(0, 3))
    def emit(self, data: st.DataObject, texts: list[str], late: int, ahead: int) -> None:
        """The owner writes on, or a former owner writes what nobody may see."""
        job_id, job = data.draw(st.sampled_from(sorted(self.jobs.items())))
        attempt = job.attempt - late
        first = job.next_seq if job.owned(attempt) else job.next_seq + ahead
        answer = self.hand.say(job_id, *texts, attempt=attempt, first_seq=first)
        if job.owned(attempt):
            assert answer == ("cancel" if job.cancel else "ok")
            job.texts += texts
            job.flushed = (attempt, first, texts)
        else:
            assert answer == "fenced"

    @precondition(lambda self: any(job.flushed for job in self.jobs.values()))
    @rule(data=st.data())
    def emit_again(self, data: st.DataObject) -> None:
        """The answer was lost, so the flush is repeated; by now the job may be somebody else's."""
        job_id, job = data.draw(st.sampled_from([item for item in self.jobs.items() if item[1].flushed]))
        assert job.flushed is not None
        attempt, first, texts = job.flushed
        answer = self.hand.say(job_id, *texts, attempt=attempt, first_seq=first)
        assert (answer != "fenced") == job.owned(attempt)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), late=st.integers(0, 2), status=st.sampled_from(["completed", "cancelled", "failed"]))
    def finish(self, data: st.DataObject, late: int, status: str) -> None:
        job_id, job = data.draw(st.sampled_from(sorted(self.jobs.items())))
        attempt, text = job.attempt - late, "".join(job.texts)
        arguments = {"seq": job.next_seq, "attempt": attempt, "status": status}
        answer = self.hand.finish(job_id, text, **arguments)  # type: ignore[arg-type]
        if job.owned(attempt):
            assert answer == "finished"
            job.status, job.cancel, job.finished = status, False, (attempt, job.next_seq, text)
            assert self.hand.finish(job_id, text, **arguments) == "repeated"  # type: ignore[arg-type]
        else:
            assert answer in {"fenced", "repeated"}

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), late=st.integers(0, 2))
    def release(self, data: st.DataObject, late: int) -> None:
        job_id, job = data.draw(st.sampled_from(sorted(self.jobs.items())))
        answer = self.hand.do(self.ledger.release(job_id, job.attempt - late))
        assert answer == ("released" if job.owned(job.attempt - late) else "fenced")
        if answer == "released":
            job.status, job.released = "queued", job.released + 1

    @rule(job_id=JOBS)
    def cancel(self, job_id: str) -> None:
        answer = self.hand.do(self.ledger.cancel(job_id))
        job = self.jobs.get(job_id)
        if job is None:
            assert answer == "unknown"
        elif job.ended:
            assert answer == "ended"
        elif self.held(job):
            assert answer == "requested"
            job.cancel = True
        else:
            assert answer == "closed"
            job.status, job.cancel, job.expires, job.closed = "cancelled", False, False, True

    @rule(job_id=JOBS)
    def expire(self, job_id: str) -> None:
        answer = self.hand.do(self.ledger.expire(job_id))
        job = self.jobs.get(job_id)
        if job is None:
            assert answer == "unknown"
        elif job.ended:
            assert answer == "ended"
        elif job.attempt > 0:
            assert answer == "begun"
        else:
            assert answer == "closed"
            job.status, job.closed = "failed", True
        if job is not None:
            job.expires = False

    @rule(job_id=JOBS)
    def tell(self, job_id: str) -> None:
        """A worker has told Celery how the job ended, or says so late."""
        answer = self.hand.do(self.ledger.acknowledge(job_id))
        job = self.jobs.get(job_id)
        assert answer == ("acknowledged" if job is None or job.ended else "open")
        if job is not None and job.ended:
            job.acknowledged = True

    @rule(job_id=JOBS)
    def retry(self, job_id: str) -> None:
        outcome = self.hand.do(self.ledger.retry(job_id)).outcome
        job = self.jobs.get(job_id)
        assert outcome == ("unknown" if job is None else "queued" if job.status == "failed" else "not_failed")
        if job is not None and job.status == "failed":
            self.jobs[job_id] = Modelled(expires=False, attempt=job.attempt, released=job.attempt, flushed=job.flushed)

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        """A reader looks in, takes what is new, and goes away again."""
        job_id, job = data.draw(st.sampled_from(sorted(self.jobs.items())))
        page = queries.ask(
            self.hand.connection, queries.events(self.names, job_id, job.reader.position, data.draw(st.integers(1, 5)))
        )
        job.read += [event.text for _, event in page if job.reader.feed(event)]
        assert not job.reader.gap
        assert not job.reader.restarted
        assert job.read == [*job.texts, ""][: len(job.read)]

    @invariant()
    def the_streams_are_complete(self) -> None:
        for job_id, job in self.jobs.items():
            events = list(read_events(self.hand.connection, self.names, job_id))
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [event.text for event in events if event.type == "token"] == job.texts
            assert [event.terminal for event in events].count(True) == job.ended
            assert not job.ended or events[-1].terminal

    @invariant()
    def the_results_are_what_was_streamed(self) -> None:
        for job_id, job in self.jobs.items():
            result = queries.ask(self.hand.connection, queries.outcome(self.names, job_id))
            assert (result.status if result else None) == (job.status if job.ended else None)
            if result is not None and result.status != "failed":
                total = delivered(read_events(self.hand.connection, self.names, job_id))
                assert result.text == "".join(choice.text for choice in total.choices.values())

    @invariant()
    def the_sets_name_the_right_jobs(self) -> None:
        def members(key: str) -> set[str]:
            query = queries.Query(["ZRANGE", key, 0, -1], lambda reply: {member.decode() for member in reply})
            return queries.ask(self.hand.connection, query)

        open_jobs = {job_id for job_id, job in self.jobs.items() if not job.ended or not job.acknowledged}
        assert members(self.names.open) == open_jobs
        for job_id, job in self.jobs.items():
            kept = not job.ended or (job.closed and not job.acknowledged)
            assert (self.hand.connection.ttl(self.names.job(job_id)) == -1) == kept
        assert members(self.names.failed) == {job_id for job_id, job in self.jobs.items() if job.status == "failed"}
        assert members(self.names.expiring) == {job_id for job_id, job in self.jobs.items() if job.expires}

    @invariant()
    def the_states_are_the_model_s(self) -> None:
        for job_id, job in self.jobs.items():
            info = queries.ask(self.hand.connection, queries.job_info(self.names, job_id))
            assert (info.status, info.attempts, info.cancel_requested) == (job.status, job.attempt, job.cancel)
            assert info.worker == (job.owner if job.status == "running" else None)


def test_the_ledger_does_what_the_model_says_whatever_happens(connection: redis.Redis) -> None:
    run_state_machine_as_test(
        lambda: LedgerAgainstModel(connection),  # type: ignore[arg-type]
        settings=settings(max_examples=60, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]),
    )
