"""Redis keys: one place for each, and no job id that would break one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.names import Names, check_job_id


def test_the_keys_of_a_job_share_one_cluster_slot() -> None:
    names = Names("space")

    assert names.job("j-1") == "space:{j-1}"
    assert names.events("j-1") == "space:{j-1}:events"
    assert names.ended("j-1") == "space:{j-1}:ended"


def test_every_key_begins_with_the_namespace() -> None:
    names = Names("space")
    properties = [name for name in dir(Names) if isinstance(getattr(Names, name), property)]

    keys = [getattr(names, name) for name in properties]
    keys += [names.job("j"), names.events("j"), names.ended("j"), names.lease("w"), names.idempotency("key")]

    assert all(key.startswith("space:") for key in keys)
    assert len(set(keys)) == len(keys)


def test_an_idempotency_key_does_not_show_in_redis() -> None:
    assert "secret" not in Names("space").idempotency("secret")


@pytest.mark.parametrize("job_id", ["", "a" * 129, "-a", "a b", "a{b}", "a*", "a:b", "a\n", "ä", "../a"])
def test_what_would_break_a_key_is_no_job_id(job_id: str) -> None:
    with pytest.raises(InvalidJob):
        check_job_id(job_id)


@given(st.text())
def test_any_text_is_a_job_id_of_plain_characters_or_is_refused(text: str) -> None:
    try:
        key = Names("space").job(text)
    except InvalidJob:
        return
    assert key == "space:{" + text + "}"
    assert not set(text) & set("{}:*?[]\\ \n\r\0")
