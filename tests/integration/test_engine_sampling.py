"""Samplers on the tiny model's vocabulary, with made-up logits: they must choose what llama.cpp's own call would."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.constraint.grammar import job_grammar
from celery_llama_worker.engine.llama import dry
from celery_llama_worker.engine.llama.candidates import Candidates, Logits
from celery_llama_worker.engine.llama.engine import LlamaEngine, LlamaModel
from celery_llama_worker.engine.llama.sampling import LlamaSampler, make_sampler
from celery_llama_worker.engine.plan import Piece, Sampled
from celery_llama_worker.errors import EngineFault
from celery_llama_worker.settings import WorkerSettings
from tests.decoding import run
from tests.tiny_model import EOS, TURN_END, tiny_model

OPTIONS: dict[str, dict[str, Any]] = {
    "llama-server's defaults": {},
    "plain temperature": {"top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "repetition": {"repeat_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "typical": {"typical_p": 0.5},
    "xtc": {"xtc_probability": 0.9, "xtc_threshold": 0.01},
    "dry": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "mirostat 1": {"mirostat": 1},
    "mirostat 2": {"mirostat": 2},
    "bias": {"logit_bias": {"7": 5.0, "8": -5.0}},
    "no temperature but a penalty": {"temperature": 0, "repeat_penalty": 1.5},
}


@pytest.fixture(scope="module")
def model() -> Iterator[LlamaModel]:
    with LlamaModel(tiny_model()) as model:
        yield model


def sampler(model: LlamaModel, seed: int = 1, **options: Any) -> LlamaSampler:
    """A sampler with these sampling options."""
    job = GenerateJob(prompt="x", **options)
    return make_sampler(job, model, seed=seed, grammar=job_grammar(job, model))


def logits(model: LlamaModel, seed: int = 0) -> Logits:
    """A row of made-up logits."""
    return (np.random.default_rng(seed).standard_normal(model.n_vocab) * 4).astype(np.float32)


def sampled(model: LlamaModel, subject: LlamaSampler, rows: int = 20) -> list[int]:
    """The tokens chosen from one made-up row after another."""
    candidates = Candidates(model.n_vocab)
    return [subject.sample(logits(model, seed), candidates).token for seed in range(rows)]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_the_chain_chooses_what_llama_sampler_sample_chooses(model: LlamaModel, options: dict[str, Any]) -> None:
    """Through an engine, because llama_sampler_sample reads its logits from a context."""
    ours, theirs = ([sampler(model, **options, seed=slot) for slot in range(8)] for _ in range(2))
    worker_settings = WorkerSettings(slots=8, ctx_per_slot=64, threads=1)
    with LlamaEngine(model, worker_settings) as engine:
        chosen = []
        for round_ in range(3):
            pieces = [Piece(slot, round_, [40 + slot + round_], ours[slot]) for slot in range(8)]
            result = run(engine, *pieces)
            chosen += [result.sampled[slot].token for slot in range(8)]
        again = []
        with LlamaEngine(model, worker_settings) as other:
            for round_ in range(3):
                run(other, *[Piece(slot, round_, [40 + slot + round_], _Nothing()) for slot in range(8)])
                again += [
                    lib.llama_sampler_sample(theirs[slot]._chain, other._context.pointer, slot) for slot in range(8)
                ]

    assert chosen == again


class _Nothing:
    quick = True

    def sample(self, _row: Logits, _candidates: Candidates) -> Sampled:
        return Sampled(0)

    def accept(self, token: int) -> None: ...

    def close(self) -> None: ...


def test_greedy_takes_the_first_of_equals_as_llama_cpp_does(model: LlamaModel) -> None:
    row = np.zeros(model.n_vocab, dtype=np.float32)
    row[[50, 60]] = 3.0
    candidates = Candidates(model.n_vocab)
    candidates.load(row)
    theirs = lib.llama_sampler_init_greedy()
    candidates.apply(theirs)

    assert sampler(model, temperature=0).sample(row, candidates).token == 50 == candidates.selected()
    lib.llama_sampler_free(theirs)


@pytest.mark.parametrize("temperature", [0, 1e-7, 1e-30, 1e-300])
def test_no_temperature_however_it_is_written_is_greedy(model: LlamaModel, temperature: float) -> None:
    assert sampled(model, sampler(model, temperature=temperature)) == [
        int(logits(model, seed).argmax()) for seed in range(20)
    ]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(model: LlamaModel) -> None:
    first, second, other = (sampled(model, sampler(model, seed, temperature=2.0)) for seed in (1, 1, 2))

    assert first == second != other


def test_extreme_options_choose_a_token_all_the_same(model: LlamaModel) -> None:
    most = 2**31 - 1
    extreme: list[dict[str, Any]] = [
        {"top_k": most},
        {"repeat_penalty": 1e-300, "repeat_last_n": 65_536},
        {"dry_multiplier": 100.0, "dry_base": 100.0, "dry_allowed_length": most, "dry_penalty_last_n": most},
        {"dry_multiplier": 0.8, "dry_sequence_breakers": []},
        {"mirostat": 1, "mirostat_tau": 100.0, "mirostat_eta": 10.0},
        {"mirostat": 2, "mirostat_tau": 0.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"top_p": 0.0, "min_p": 1.0, "typical_p": 0.0},
        {"temperature": 100.0},
    ]
    for options in extreme:
        assert all(0 <= token < model.n_vocab for token in sampled(model, sampler(model, **options), 5)), options


def test_a_dry_sampler_begins_afresh_although_it_is_a_copy(model: LlamaModel) -> None:
    options: dict[str, Any] = {"dry_multiplier": 2.0, "dry_allowed_length": 1, "temperature": 0.0}

    assert sampled(model, sampler(model, **options)) == sampled(model, sampler(model, **options))


def test_sequence_breakers_that_are_all_over_the_vocabulary_are_refused(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp keeps an entry for each token that has one, for each choice."""
    options: dict[str, Any] = {"dry_multiplier": 0.8, "dry_sequence_breakers": ["b"], "n": 2}
    having = sum(b"b" in model.piece(token) for token in range(model.n_vocab))
    monkeypatch.setattr(dry, "_MOST_ENTRIES", 2 * having)
    sampler(model, **options)
    monkeypatch.setattr(dry, "_MOST_ENTRIES", 2 * having - 1)

    with pytest.raises(InvalidJob, match="too many"):
        sampler(model, **options)


def test_ignoring_the_end_no_end_token_is_chosen(model: LlamaModel) -> None:
    row = np.zeros(model.n_vocab, dtype=np.float32)
    row[[EOS, TURN_END]] = 50.0
    row[9] = 1.0

    for temperature in (0.0, 0.01):
        subject = sampler(model, ignore_eos=True, temperature=temperature)
        assert subject.sample(row, Candidates(model.n_vocab)).token == 9


def test_a_bias_for_a_token_that_does_not_exist_is_refused(model: LlamaModel) -> None:
    with pytest.raises(InvalidJob, match="the vocabulary has 373 tokens, so 373 is none"):
        sampler(model, logit_bias={"373": 1.0})


def test_penalties_see_the_end_of_the_prompt(model: LlamaModel) -> None:
    row = np.zeros(model.n_vocab, dtype=np.float32)
    row[[50, 60]] = 3.0, 2.9
    job = GenerateJob(prompt="x", temperature=0, repeat_penalty=2.0)

    assert make_sampler(job, model, seed=1, prompt=[50]).sample(row, Candidates(model.n_vocab)).token == 60


def test_log_probabilities_are_the_models_own(model: LlamaModel) -> None:
    row = logits(model)
    subject = sampler(model, logprobs=True, top_logprobs=3, logit_bias={"5": 100.0})

    result = subject.sample(row, Candidates(model.n_vocab))

    expected = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
    best = np.argsort(-row)[:3]
    assert result.token == 5
    assert result.logprob == pytest.approx(expected[5])
    assert [alternative.token for alternative in result.alternatives] == best.tolist()
    assert [alternative.logprob for alternative in result.alternatives] == pytest.approx(expected[best])


def test_log_probabilities_without_alternatives(model: LlamaModel) -> None:
    result = sampler(model, temperature=0, logprobs=True).sample(logits(model), Candidates(model.n_vocab))

    assert result.logprob is not None
    assert result.logprob < 0
    assert result.alternatives == []


def test_logits_that_are_not_numbers_are_a_fault(model: LlamaModel) -> None:
    row = np.full(model.n_vocab, math.nan, dtype=np.float32)

    with pytest.raises(EngineFault, match="not numbers"):
        sampler(model, temperature=0).sample(row, Candidates(model.n_vocab))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000), temperature=st.sampled_from([0.0, 0.8, 5.0]))
def test_a_grammar_is_followed_whatever_the_model_prefers(model: LlamaModel, seed: int, temperature: float) -> None:
    subject = sampler(model, temperature=temperature, grammar='root ::= ("ab" | "cd"){2} "."')
    text, candidates = b"", Candidates(model.n_vocab)
    for step in range(20):
        token = subject.sample(logits(model, seed + step), candidates).token
        if model.is_end(token):
            break
        text += model.piece(token)

    assert text in {b"abab.", b"abcd.", b"cdab.", b"cdcd."}
    assert model.is_end(token)
    subject.close()


def test_greedy_within_a_grammar_is_the_likeliest_token_that_fits(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ties included: of equals the first."""
    monkeypatch.setattr("celery_llama_worker.engine.llama.sampling._LIKELIEST", 100)
    grammar = "root ::= [a-m] .*"
    for seed in range(20):
        row = np.round(logits(model, seed))  # many ties
        shortcut, whole = sampler(model, temperature=0, grammar=grammar), Candidates(model.n_vocab)
        whole.load(row)
        whole.apply(sampler(model, temperature=0, grammar=grammar)._grammar)

        assert shortcut.sample(row, Candidates(model.n_vocab)).token == whole.best()


def test_a_grammar_that_no_token_can_continue_is_a_fault_and_not_the_end_of_the_process(model: LlamaModel) -> None:
    subject = sampler(model, temperature=0, ignore_eos=True, grammar='root ::= "a"')
    row, candidates = logits(model), Candidates(model.n_vocab)
    subject.sample(row, candidates)

    with pytest.raises(EngineFault, match=r"leave no token|admits no token"):
        subject.sample(row, candidates)


def test_delivered_tokens_rebuild_the_grammars_state(model: LlamaModel) -> None:
    subject = sampler(model, temperature=0, grammar='root ::= "abc"')
    for token in model.tokenize("ab", add_special=False, parse_special=False):
        subject.accept(token)

    token = subject.sample(logits(model), Candidates(model.n_vocab)).token

    assert model.piece(token) == b"c"


def test_delivered_tokens_that_the_grammar_forbids_are_a_fault_and_not_the_end_of_the_process(
    model: LlamaModel,
) -> None:
    subject = sampler(model, grammar='root ::= "abc"')

    with pytest.raises(EngineFault, match="does not follow the grammar"):
        subject.accept(model.tokenize("x", add_special=False, parse_special=False)[0])


def test_a_sampler_may_be_closed_twice(model: LlamaModel) -> None:
    subject = sampler(model, grammar='root ::= "a"')
    subject.close()
    subject.close()


def test_a_grammar_that_can_be_read_in_ever_more_ways_is_a_fault_before_it_stalls_the_others(model: LlamaModel) -> None:
    subject = sampler(model, grammar='root ::= "a" root "b" | "a" root "c" | "a"')
    (letter,) = model.tokenize("a", add_special=False, parse_special=False)

    def accept_twenty() -> None:
        for _ in range(20):
            subject.accept(letter)

    with pytest.raises(EngineFault, match="too ambiguous"):
        accept_twenty()
