"""The engine thread, step by step: the engine waits for the test before every plan."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import pytest

from celery_llama_worker.engine.outputs import Began, Ended, Output, Text
from celery_llama_worker.engine.plan import CallResult, Limits, Plan
from celery_llama_worker.engine.scheduling.scheduler import GenerateScheduler
from celery_llama_worker.engine.scheduling.sequence import Attempt
from celery_llama_worker.runner import Add, End, EndAll, Ping, Runner, Stop
from tests.fakes import FakeEngine, FakeSampler
from tests.stepping import VOCABULARY, attempt, sequence
from tests.waiting import wait_until

PROMPT = [11, 12, 13]
#: A deadline for what must happen; nothing waits for it to pass.
SECONDS = 30.0


class GatedEngine(FakeEngine):
    """Shows each plan, and waits for leave to carry it out."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.shown: queue.SimpleQueue[Plan] = queue.SimpleQueue()
        self.leave = threading.Semaphore(0)
        self.broken = False

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        self.shown.put(plan)
        self.leave.acquire()
        if self.broken:
            raise RuntimeError("the engine is broken")
        yield from super().execute(plan)


class CallByCall(GatedEngine):
    """Shows each plan, and waits for leave before each of its calls."""

    def execute(self, plan: Plan) -> Iterator[CallResult]:
        self.shown.put(plan)
        for result in FakeEngine.execute(self, plan):
            self.leave.acquire()
            yield result


class Stage:
    """A runner with everything around it played by the test."""

    def __init__(self, engine: type[GatedEngine] = GatedEngine, *, slots: int = 2) -> None:
        limits = Limits(slots, 64, 16, can_trim=True, spare_slots=1)
        self.engine = engine(limits)
        self.said: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self.crashes: queue.SimpleQueue[BaseException] = queue.SimpleQueue()
        self.full = False
        scheduler = GenerateScheduler(limits, VOCABULARY, chunk_tokens=4, prefill_tokens=8)
        self.runner = Runner(self.engine, scheduler, self._emit, lambda: self.full, self.crashes.put)

    def _emit(self, outputs: list[Output]) -> None:
        assert outputs, "nothing is said only if there is something to say"
        for output in outputs:
            self.said.put(output)

    def plan(self) -> Plan:
        """The plan that the engine has been given."""
        return self.engine.shown.get(timeout=SECONDS)

    def step(self) -> None:
        """Let the engine carry it out."""
        self.engine.leave.release()

    def next(self) -> Output:
        """What is said next."""
        return self.said.get(timeout=SECONDS)

    def run_freely(self) -> None:
        """Let the engine do what it likes from now on."""
        self.engine.leave.release(10_000)


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    stage.runner.start()
    yield stage
    stage.run_freely()
    stage.runner.stop()
    assert "engine" not in {thread.name for thread in threading.enumerate()}


def job(name: str, max_tokens: int = 5, priority: int = 5) -> Attempt:
    return attempt(name, sequence(PROMPT, max_tokens=max_tokens, sampler=FakeSampler(says=[1] * 50)), priority=priority)


def test_an_attempt_is_decoded_to_its_end(stage: Stage) -> None:
    stage.run_freely()
    stage.runner.send(Add(job("a")))

    outputs = [stage.next() for _ in range(7)]

    assert [type(output) for output in outputs] == [Began, *[Text] * 5, Ended]
    assert stage.runner.counters.generated_tokens == 5


def test_commands_are_obeyed_between_steps(stage: Stage) -> None:
    stage.runner.send(Add(job("a")))
    stage.plan()
    stage.runner.send(Add(job("b")))
    stage.runner.send(End("a", "cancelled"))
    stage.step()

    assert [type(stage.next()) for _ in range(2)] == [Began, Text]
    assert isinstance(stage.next(), Text), "what was held back, and why it ends"
    assert stage.next() == Ended("a", 1, "cancelled")
    assert [[piece.start for piece in call] for call in stage.plan().calls] == [[0]]


def test_all_commands_that_have_come_are_obeyed_before_the_next_step(stage: Stage) -> None:
    stage.runner.send(Add(job("first")))
    stage.plan()
    for number in range(20):
        stage.runner.send(Add(job(f"gone-{number}")))
        stage.runner.send(End(f"gone-{number}", "dropped"))
    stage.runner.send(Add(job("second")))
    stage.step()

    assert sum(len(call) for call in stage.plan().calls) == 2


def test_everything_can_be_ended_at_once(stage: Stage) -> None:
    for name in "abc":
        stage.runner.send(Add(job(name)))
    stage.plan()
    stage.runner.send(EndAll("handed_back"))
    stage.run_freely()
    ended: list[tuple[str, str]] = []
    while len(ended) < 3:
        output = stage.next()
        if isinstance(output, Ended):
            ended.append((output.job_id, output.reason))

    assert sorted(ended) == [(name, "handed_back") for name in "abc"]


def test_the_engine_pauses_while_the_outbox_is_full_and_still_obeys(stage: Stage) -> None:
    stage.full = True
    stage.run_freely()
    stage.runner.send(Add(job("a")))
    stage.runner.send(Add(job("b")))
    stage.runner.send(End("a", "dropped"))

    assert stage.next() == Ended("a", 1, "dropped")
    assert stage.engine.plans == []
    stage.full = False
    assert isinstance(stage.next(), Began)


def test_an_idle_engine_shows_that_it_is_alive_when_asked(stage: Stage) -> None:
    for _ in range(3):
        before = stage.runner.progress_at
        stage.runner.send(Ping())
        wait_until(lambda before=before: stage.runner.progress_at > before, "the engine has come round")  # type: ignore[misc]


def test_an_engine_in_a_step_makes_no_progress(stage: Stage) -> None:
    stage.runner.send(Add(job("a")))
    stage.plan()
    before = stage.runner.progress_at
    stage.runner.send(Ping())

    assert stage.runner.progress_at == before
    stage.step()
    stage.plan()
    assert stage.runner.progress_at > before


def test_every_call_of_a_step_is_progress() -> None:
    """On a slow machine, a step of several calls may take longer than a lease."""
    stage = Stage(CallByCall)
    for name, prompt in ("a", PROMPT), ("b", PROMPT[:2]):
        stage.runner.send(Add(attempt(name, sequence(prompt, max_tokens=1, sampler=FakeSampler(says=[1])))))
    stage.runner.start()
    assert [len(call) for call in stage.plan().calls] == [1, 1]
    before = stage.runner.progress_at

    stage.step()
    assert [type(stage.next()) for _ in range(3)] == [Began, Text, Ended]

    assert stage.runner.progress_at > before
    assert stage.runner._scheduler.job_ids == ["b"]
    stage.run_freely()
    stage.runner.stop()


def test_time_limits_are_looked_at_before_every_step(stage: Stage) -> None:
    late = job("late", max_tokens=50)
    stage.runner.send(Add(late))
    stage.plan()
    late.deadline = 0.0
    stage.step()

    assert [type(stage.next()) for _ in range(3)] == [Began, Text, Text]
    assert stage.next() == Ended("late", 1, "timeout")


def test_cells_in_host_memory_are_dropped_although_nothing_is_left_to_compute() -> None:
    stage = Stage(slots=1)
    stage.runner.start()
    slow, urgent = job("slow", max_tokens=50, priority=9), job("urgent", max_tokens=50, priority=0)
    stage.runner.send(Add(slow))
    for _ in range(3):
        stage.plan()
        stage.step()
    stage.plan()
    stage.runner.send(Add(urgent))
    stage.step()
    stage.plan()
    stage.step()
    stage.plan()
    assert stage.engine.saved
    slow.deadline = urgent.deadline = 0.0
    stage.run_freely()
    wait_until(lambda: not stage.engine.saved, "the copy is dropped", SECONDS)
    stage.runner.stop()


def test_samplers_are_freed_when_their_job_has_ended(stage: Stage) -> None:
    sampler = FakeSampler(says=[1] * 50)
    stage.runner.send(Add(attempt("a", sequence(PROMPT, max_tokens=50, sampler=sampler))))
    stage.plan()
    stage.runner.send(End("a", "cancelled"))
    stage.run_freely()

    wait_until(lambda: sampler.closed, "the sampler is freed", SECONDS)


def test_a_broken_engine_ends_the_process_rather_than_go_on_half_dead(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    stage.engine.broken = True
    stage.runner.start()
    stage.run_freely()
    stage.runner.send(Add(job("a")))

    assert str(stage.crashes.get(timeout=SECONDS)) == "the engine is broken"
    stage.runner.stop()
    assert "the engine thread has failed" in caplog.text


def test_stopping_finishes_the_step_and_no_more(stage: Stage) -> None:
    stage.runner.send(Add(job("a")))
    stage.plan()
    stage.runner.send(Stop())
    stage.step()
    stage.runner.stop()

    assert len(stage.engine.plans) == 1


def test_a_stopped_runner_does_not_compute_any_more(stage: Stage) -> None:
    """Its engine is closed next."""
    stage.runner.send(Add(job("a")))
    stage.plan()
    stopping = threading.Thread(target=stage.runner.stop)
    stopping.start()
    stopping.join(0.1)
    assert stopping.is_alive(), "the step is in progress"

    stage.step()
    stopping.join(SECONDS)

    assert not stopping.is_alive()


def test_a_runner_that_was_never_started_can_be_stopped() -> None:
    Stage().runner.stop()
