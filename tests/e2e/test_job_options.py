"""What llama-server lacks, or leaves to chance, on a real model: guidance, log-probabilities, characters in parts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from celery_llama.protocol.errors import InvalidJob
from celery_llama_worker.engine.llama.candidates import Candidates, Logits
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.plan import Piece, Plan, Sampled, Trim
from tests.whole_engine import WholeEngine, whole_engine

WEATHER = "The weather in the north today is"
SETTINGS: dict[str, Any] = {"slots": 8, "ctx_per_slot": 256, "chunk_tokens": 32}
TORTURE = "👩‍👩‍👧‍👦 🏳️‍🌈 e\u0301 中文 שלום مرحبا क्षि"


@pytest.fixture(scope="module")
def whole(demo_model: LlamaModel) -> Iterator[WholeEngine]:
    with whole_engine(demo_model, **SETTINGS) as whole:
        yield whole


class Rows:
    """A sampler that keeps the logits it is shown and goes on as it was told."""

    quick = True

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = iter(tokens)
        self.rows: list[Logits] = []

    def sample(self, row: Logits, _candidates: Candidates) -> Sampled:
        self.rows.append(row.astype(np.float64))
        return Sampled(next(self._tokens))

    def accept(self, token: int) -> None: ...

    def close(self) -> None: ...


def rows_of(whole: WholeEngine, prompt: str, tokens: list[int]) -> list[Logits]:
    """The logits from which each token was chosen, computed once more without a scheduler."""
    sampler, read = Rows(tokens), whole.model.tokenize(prompt, add_special=False, parse_special=True)
    list(whole.engine.execute(Plan([Trim(0, 0)], [[Piece(0, 0, read, sampler)]])))
    for at, token in enumerate(tokens[:-1], len(read)):
        list(whole.engine.execute(Plan((), [[Piece(0, at, [token], sampler)]])))
    return sampler.rows


def log_softmax(row: Logits) -> Logits:
    return np.asarray(row - row.max() - np.log(np.exp(row - row.max()).sum()))


@pytest.mark.parametrize("fields", [{"temperature": 0.0}, {"temperature": 1.5, "seed": 3, "top_k": 5, "min_p": 0.2}])
def test_log_probabilities_are_those_of_the_model_before_sampling(
    demo_model: LlamaModel, whole: WholeEngine, fields: dict[str, Any]
) -> None:
    bias = {str(demo_model.tokenize(" cold", add_special=False, parse_special=False)[0]): 3.0}
    options = {"max_tokens": 6, "logprobs": True, "top_logprobs": 4, "repeat_penalty": 1.2, "logit_bias": bias}
    answer = whole.one(prompt=WEATHER, **options, **fields)

    with whole_engine(demo_model, **SETTINGS) as other:
        rows = [log_softmax(row) for row in rows_of(other, WEATHER, answer.tokens)]

    for row, entry, token in zip(rows, answer.logprobs, answer.tokens, strict=True):
        best = np.argsort(-row, kind="stable")[:4]
        assert entry.id == token
        assert entry.logprob == pytest.approx(row[token], abs=1e-4)
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(row[best], abs=1e-4)
        assert {top.id for top in entry.top_logprobs} == set(best.tolist())


def test_guidance_of_scale_one_is_no_guidance_and_more_changes_the_text(whole: WholeEngine) -> None:
    fields = {"prompt": WEATHER, "temperature": 0.0, "max_tokens": 12}
    guidance = {"negative_prompt": "The weather today is cold, wet and"}
    scales = {str(scale): {**fields, "guidance": {**guidance, "scale": scale}} for scale in (0.0, 1.0, 3.0)}

    answers = whole.run({"none": fields, **scales})

    assert answers["1.0"].tokens == answers["none"].tokens
    assert len({answer.text for answer in answers.values()}) == 3
    assert len({answer.result.usage.completion_tokens for answer in answers.values()}) <= 2


def test_guidance_chooses_from_both_prompts_logits(demo_model: LlamaModel, whole: WholeEngine) -> None:
    negative, scale = "The weather today is cold, wet and", 2.0
    fields = {"prompt": WEATHER, "temperature": 0.0, "max_tokens": 6}
    tokens = whole.one(**fields, guidance={"negative_prompt": negative, "scale": scale}).tokens

    with whole_engine(demo_model, **SETTINGS) as other:
        towards = [log_softmax(row) for row in rows_of(other, WEATHER, tokens)]
        away = [log_softmax(row) for row in rows_of(other, negative, tokens)]

    assert tokens == [int((no + scale * (yes - no)).argmax()) for yes, no in zip(towards, away, strict=True)]


def test_a_chats_negative_prompt_stands_in_place_of_its_system_message(whole: WholeEngine) -> None:
    chat = [{"role": "system", "content": "Be glad."}, {"role": "user", "content": "How are you?"}]
    fields = {"messages": chat, "temperature": 0.0, "max_tokens": 8}

    equal = {"negative_prompt": "Be glad.", "scale": 4.0}
    answers = whole.run({"none": fields, "equal": {**fields, "guidance": equal}})

    assert answers["equal"].tokens == answers["none"].tokens


def test_a_prompt_cut_at_its_left_is_the_prompts_end(whole: WholeEngine) -> None:
    tokens = whole.model.tokenize("One two three. " * 100, add_special=False, parse_special=True)
    fields = {"temperature": 0.0, "max_tokens": 8}

    cut = whole.one(prompt=tokens, truncate="left", **fields)
    end = whole.one(prompt=tokens[-(SETTINGS["ctx_per_slot"] - 8) :], **fields)

    assert (cut.tokens, cut.result.usage.prompt_tokens) == (end.tokens, end.result.usage.prompt_tokens)


def test_a_job_that_requires_it_is_reproducible_where_neighbours_would_change_it(demo_model: LlamaModel) -> None:
    fields = {"prompt": WEATHER, "temperature": 0.0, "max_tokens": 6}
    with whole_engine(demo_model, reproducible=False, **SETTINGS) as whole:
        jobs = {"a": fields, "b": fields, "required": {**fields, "reproducible": "require"}}
        answers = whole.run(jobs)

    assert {job_id: answer.result.reproducible for job_id, answer in answers.items()} == {
        "a": False,
        "b": False,
        "required": True,
    }


def test_where_memory_is_one_pool_a_reproducible_job_is_refused(demo_model: LlamaModel) -> None:
    with whole_engine(demo_model, memory="unified", **SETTINGS) as whole, pytest.raises(InvalidJob, match="unified"):
        whole.add("job", {"prompt": WEATHER, "reproducible": "require"})


def test_sampled_choices_differ_and_each_is_the_same_again(whole: WholeEngine) -> None:
    fields = {"prompt": WEATHER, "temperature": 1.0, "seed": 5, "n": 4, "max_tokens": 10}

    first, second = ([choice.text for choice in whole.one(**fields).result.choices] for _ in range(2))

    assert first == second
    assert len(set(first)) == 4


def test_text_of_many_bytes_a_character_comes_whole_from_a_real_vocabulary(whole: WholeEngine) -> None:
    answer = whole.one(prompt="x", temperature=0.0, grammar=f'root ::= "{TORTURE}"')

    pieces = [whole.model.piece(token) for token in answer.tokens]
    assert answer.text == answer.streamed() == TORTURE
    assert any(not _is_text(piece) for piece in pieces), "some character spans tokens"
    assert all(event.text or event.finish_reason for event in answer.token_events())


def test_a_stop_string_of_many_bytes_a_character_ends_the_text(whole: WholeEngine) -> None:
    for stop in ("🏳️‍🌈", "\u0301", "文 ש", "ب"):
        answer = whole.one(prompt="x", temperature=0.0, grammar=f'root ::= "{TORTURE}"', stop=[stop])

        assert answer.text == answer.streamed() == TORTURE.partition(stop)[0]
        assert answer.result.finish_reason == "stop"


def _is_text(piece: bytes) -> bool:
    try:
        return bool(piece.decode())
    except UnicodeDecodeError:
        return False
