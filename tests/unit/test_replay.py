"""What the events of a job add up to."""

from __future__ import annotations

from celery_llama.protocol.delivered import Delivered, delivered
from celery_llama.protocol.events import Finished, Started, Token
from celery_llama.protocol.results import TokenLogprob


def test_nothing_was_delivered_by_no_events() -> None:
    assert delivered([]) == Delivered()


def test_texts_and_tokens_add_up_for_each_choice() -> None:
    logprob = TokenLogprob(id=3, token="c", bytes=[99], logprob=-0.5)
    events = [
        Started(attempt=1, seq=1, type="started", prompt_tokens=9, cached_tokens=4),
        Token(attempt=1, seq=2, type="token", text="a", tokens=[1]),
        Token(attempt=1, seq=3, type="token", choice=1, text="b", tokens=[2]),
        Started(attempt=2, seq=4, type="started", prompt_tokens=9, cached_tokens=8),
        Token(attempt=2, seq=5, type="token", text="c", tokens=[3], logprobs=[logprob]),
        Token(attempt=2, seq=6, type="token", text="", tokens=[4]),
    ]

    total = delivered(events)

    assert total.last_seq == 6
    assert (total.started, total.prompt_tokens, total.cached_tokens) == (True, 9, 8)
    assert (total.choices[0].text, total.choices[0].tokens, total.choices[0].logprobs) == ("ac", [1, 3, 4], [logprob])
    assert (total.choices[1].text, total.choices[1].tokens) == ("b", [2])
    assert not total.ended


def test_the_terminal_event_says_that_the_job_ended() -> None:
    total = delivered([Finished(attempt=1, seq=1, type="finished", status="cancelled", finish_reason=["cancelled"])])

    assert total.ended
