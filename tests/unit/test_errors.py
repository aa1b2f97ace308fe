"""An error that crosses a process's border is the same error on the other side."""

from __future__ import annotations

import copy
import inspect
import json
import multiprocessing
import pickle
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st

import celery_llama_worker.errors
from celery_llama.protocol.errors import CeleryLlamaError, ResultTimeout
from celery_llama.protocol.results import Choice, JobError, Result

RESULTS = [
    Result(id="j", status="failed", error=JobError(code="engine_error", message="it broke")),
    Result(id="j", status="completed", choices=[Choice(text="a text of the user's")]),
]
BACKEND = Celery(backend="cache+memory://", set_as_current=False).backend
#: What an argument of this type may be.
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(),
    "int": st.integers(),
    "float": st.floats(allow_nan=False),
    "object": st.text().map(ConnectionError),
    "Result | None": st.sampled_from([None, *RESULTS]),
}


def family(kind: type[CeleryLlamaError]) -> Iterator[type[CeleryLlamaError]]:
    """A class and all below it."""
    yield kind
    for child in kind.__subclasses__():
        yield from family(child)


KINDS = sorted(set(family(CeleryLlamaError)), key=lambda kind: kind.__name__)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def any_of(kind: type[CeleryLlamaError]) -> st.SearchStrategy[CeleryLlamaError]:
    """Errors of a class, with whatever arguments it takes."""
    if kind.__init__ is Exception.__init__:
        return st.text().map(kind)
    return st.builds(
        kind, *[ARGUMENTS[argument.annotation] for argument in inspect.signature(kind).parameters.values()]
    )


def test_the_worker_s_errors_are_among_them() -> None:
    assert {celery_llama_worker.errors.PromptTooLong, ResultTimeout} <= set(KINDS)


@every_kind
@settings(max_examples=20)
@given(data=st.data())
def test_an_error_survives_being_copied(kind: type[CeleryLlamaError], data: st.DataObject) -> None:
    error = data.draw(any_of(kind))

    pickled = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
    for other in [copy.copy(error), copy.deepcopy(error), *pickled]:
        assert (type(other), other.code, str(other), other.args) == (kind, error.code, str(error), error.args)
        assert vars(other) == vars(error)


@every_kind
@settings(max_examples=20)
@given(data=st.data())
def test_an_error_survives_celery_s_results(kind: type[CeleryLlamaError], data: st.DataObject) -> None:
    error = data.draw(any_of(kind))

    stored = json.loads(json.dumps(BACKEND.prepare_exception(error)))
    other = BACKEND.exception_to_python(stored)

    assert (type(other), other.code, str(other), other.args) == (kind, error.code, str(error), error.args)
    assert "a text of the user's" not in f"{stored} {error!r} {error}"


def fail(error: CeleryLlamaError) -> None:
    """What a process of the pool does."""
    raise error


def test_an_error_survives_a_process_pool() -> None:
    errors = [kind("x") for kind in KINDS if kind.__init__ is Exception.__init__]
    errors += [ResultTimeout("j", 3.0), celery_llama_worker.errors.PromptTooLong(9, 8)]
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        for error in errors:
            with pytest.raises(type(error)) as caught:
                pool.submit(fail, error).result()
            assert (str(caught.value), caught.value.code) == (str(error), error.code)


def test_a_timeout_has_no_operating_system_s_error_number() -> None:
    assert ResultTimeout("j", 3.0).errno is None
