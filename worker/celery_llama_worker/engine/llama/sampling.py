"""Choosing the next token: llama.cpp's sampler chain in llama-server's order, grammar, log-probabilities.

A sampler is built on the admit thread and from then on used by the engine thread only. It sees a row of logits and
nothing of the context, so a test needs a vocabulary but no decoding.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import llama_cpp.llama_cpp as lib
import numpy as np

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob
from celery_llama_worker.engine.llama.candidates import Candidates, Logits
from celery_llama_worker.engine.llama.dry import MAX_WINDOW_TOKENS
from celery_llama_worker.engine.llama.model import LlamaModel, complaint
from celery_llama_worker.engine.plan import Alternative, Sampled
from celery_llama_worker.errors import BadGrammar, EngineFault

#: Below this a temperature is 0: dividing logits by less overflows float32, and llama.cpp then chooses the last token.
_GREEDY_BELOW = 1e-6
#: CPU time that a grammar may take over one token; usually microseconds. llama.cpp keeps every way in which the text so
#: far can be read, and with `root ::= "a" root "b" | "a" root "c" | "a"` there are twice as many after every letter.
_GRAMMAR_SECONDS = 0.1
#: How many of the likeliest tokens are offered to a grammar first.
_LIKELIEST = 512


class LlamaSampler:
    """One sequence's sampler; without a chain it takes the likeliest token."""

    def __init__(self, chain: Any, grammar: Any, top_logprobs: int | None) -> None:
        self._chain = chain
        self._grammar = grammar
        self._top_logprobs = top_logprobs

    @property
    def quick(self) -> bool:
        """Whether it only looks for the likeliest token."""
        return self._chain is None and self._grammar is None and self._top_logprobs is None

    def sample(self, row: Logits, candidates: Candidates) -> Sampled:
        """Choose a token from raw logits, shape (n_vocab,), and take note of it; raises EngineFault if none is."""
        token = self._choose(row, candidates)
        if self._grammar is not None and not candidates.allowed(self._grammar, token):
            # As llama.cpp's common_sampler: nearly always the first choice fits, and only if it does not is the grammar
            # held against the whole vocabulary.
            token = self._choose_within_grammar(row, candidates)
        if math.isnan(row[token]):
            raise EngineFault("the model computed logits that are not numbers")
        self._take_note(token)
        if self._top_logprobs is None:
            return Sampled(token)
        return _with_logprobs(token, row, self._top_logprobs)

    def accept(self, token: int) -> None:
        """Take note of a token delivered by an earlier attempt; raises EngineFault if the grammar forbids it."""
        if self._grammar is not None and not Candidates(1).allowed(self._grammar, token):
            raise EngineFault("the text delivered so far does not follow the grammar")
        self._take_note(token)

    def prime(self, prompt: Sequence[int]) -> None:
        """Count the prompt's last tokens among those that repetition penalties look at, as llama-server does."""
        if self._chain is not None:
            for token in prompt[-MAX_WINDOW_TOKENS:]:
                lib.llama_sampler_accept(self._chain, token)

    def _choose(self, row: Logits, candidates: Candidates) -> int:
        if self._chain is None:
            return int(row.argmax())  # of equals the first, as llama.cpp's greedy sampler; a tenth of its cost
        candidates.load(row)
        candidates.apply(self._chain)
        return candidates.selected()

    def _choose_within_grammar(self, row: Logits, candidates: Candidates) -> int:
        if not self._likeliest_suffice(row, candidates):
            candidates.load(row)
            candidates.apply(self._grammar)
            if candidates.logits.max() == -math.inf:
                raise EngineFault("the grammar admits no token of this vocabulary here")
        if self._chain is None:
            return candidates.best()
        candidates.apply(self._chain)
        token = candidates.selected()
        # llama.cpp ends the process when a grammar is given a token that it forbids, so this is never left to chance
        if not candidates.allowed(self._grammar, token):
            raise EngineFault("the sampling options leave no token that the grammar admits")
        return token

    def _likeliest_suffice(self, row: Logits, candidates: Candidates) -> bool:
        """Load a few hundred of the likeliest tokens; whether the likeliest that the grammar admits is among them.

        Only without a chain: what is left of a chain's candidates depends on all of them. Asking the grammar about the
        whole vocabulary takes ten times as long.
        """
        if self._chain is not None or len(row) <= _LIKELIEST:
            return False
        candidates.load(row, np.sort(np.argpartition(row, -_LIKELIEST)[-_LIKELIEST:]))
        edge = candidates.logits.min()  # what was left out may be as likely, but no likelier
        candidates.apply(self._grammar)
        return bool(candidates.logits.max() > edge)

    def _take_note(self, token: int) -> None:
        if self._grammar is not None:
            begun = time.thread_time()
            lib.llama_sampler_accept(self._grammar, token)
            if time.thread_time() - begun > _GRAMMAR_SECONDS:
                raise EngineFault(
                    "the grammar is too ambiguous: it can be read in more and more ways as the text grows"
                )
        if self._chain is not None:
            lib.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        """Free llama.cpp's objects; safe to call twice."""
        for sampler in (self._chain, self._grammar):
            if sampler is not None:
                lib.llama_sampler_free(sampler)
        self._chain = self._grammar = None


def make_sampler(
    job: GenerateJob, model: LlamaModel, *, seed: int, grammar: str | None = None, prompt: Sequence[int] = ()
) -> LlamaSampler:
    """The sampler a job asks for; `grammar` is GBNF that `grammar.py` has checked. Raises InvalidJob, BadGrammar."""
    biases = _biases(job, model)
    chain = None if _plainly_greedy(job, biases) else _make_chain(job, model, biases, seed)
    rules = None
    if grammar is not None:
        rules = lib.llama_sampler_init_grammar(model.vocab, grammar.encode(), b"root")
        if not rules:
            if chain is not None:
                lib.llama_sampler_free(chain)
            raise BadGrammar(f"llama.cpp cannot use the grammar{complaint()}")
    sampler = LlamaSampler(chain, rules, job.top_logprobs if job.logprobs else None)
    if _penalises(job) or job.dry_multiplier:
        sampler.prime(prompt)
    return sampler


def _biases(job: GenerateJob, model: LlamaModel) -> dict[int, float]:
    """What is added to which token's logit."""
    biases = {int(token): value for token, value in job.logit_bias.items()}
    if biases and max(biases) >= model.n_vocab:
        raise InvalidJob(f"logit_bias: the vocabulary has {model.n_vocab} tokens, so {max(biases)} is none")
    biases.update(dict.fromkeys(model.suppressed_tokens, -math.inf))
    if job.ignore_eos:
        biases.update(dict.fromkeys(model.end_tokens, -math.inf))
    return biases


def _penalises(job: GenerateJob) -> bool:
    penalties = job.repeat_penalty != 1.0 or job.presence_penalty != 0.0 or job.frequency_penalty != 0.0
    return penalties and job.repeat_last_n > 0


def _plainly_greedy(job: GenerateJob, biases: dict[int, float]) -> bool:
    """Whether the job wants the likeliest token and nothing changes which that is; truncation never removes it."""
    altered = biases or _penalises(job) or job.dry_multiplier or job.xtc_probability or job.mirostat
    return job.temperature < _GREEDY_BELOW and not altered


def _make_chain(job: GenerateJob, model: LlamaModel, biases: dict[int, float], seed: int) -> Any:
    """llama.cpp's chain, in llama-server's order; the chain owns its samplers."""
    temperature = job.temperature if job.temperature >= _GREEDY_BELOW else 0.0
    repetition = [] if job.mirostat else _repetition(job, model)
    samplers: list[Any] = []
    if biases:
        array = (lib.llama_logit_bias * len(biases))(*(lib.llama_logit_bias(*bias) for bias in biases.items()))
        samplers.append(lib.llama_sampler_init_logit_bias(model.n_vocab, len(biases), array))
    if job.mirostat == 1:
        mirostat = lib.llama_sampler_init_mirostat(model.n_vocab, seed, job.mirostat_tau, job.mirostat_eta, 100)
        samplers += [lib.llama_sampler_init_temp(temperature), mirostat]
    elif job.mirostat == 2:
        mirostat = lib.llama_sampler_init_mirostat_v2(seed, job.mirostat_tau, job.mirostat_eta)
        samplers += [lib.llama_sampler_init_temp(temperature), mirostat]
    else:
        samplers += [*repetition, *_truncation(job, model, seed)]
        samplers += [lib.llama_sampler_init_temp(temperature), lib.llama_sampler_init_dist(seed)]
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    for sampler in samplers:
        lib.llama_sampler_chain_add(chain, sampler)
    return chain


def _repetition(job: GenerateJob, model: LlamaModel) -> list[Any]:
    # The only one that may be refused is made first, so that there is nothing to free.
    dry = [model.dry_samplers.make(job)] if job.dry_multiplier else []
    samplers: list[Any] = []
    if _penalises(job):
        repeat = max(job.repeat_penalty, 1e-6)  # llama.cpp asserts that its reciprocal is finite
        penalties = (job.repeat_last_n, repeat, job.frequency_penalty, job.presence_penalty)
        samplers.append(lib.llama_sampler_init_penalties(model.n_vocab, *penalties))
    return samplers + dry


def _truncation(job: GenerateJob, model: LlamaModel, seed: int) -> list[Any]:
    samplers: list[Any] = []
    if job.top_k:
        samplers.append(lib.llama_sampler_init_top_k(min(job.top_k, model.n_vocab)))
    if job.typical_p < 1.0:
        samplers.append(lib.llama_sampler_init_typical(job.typical_p, 1))
    if job.top_p < 1.0:
        samplers.append(lib.llama_sampler_init_top_p(job.top_p, 1))
    if job.min_p > 0.0:
        samplers.append(lib.llama_sampler_init_min_p(job.min_p, 1))
    if job.xtc_probability > 0.0:
        samplers.append(lib.llama_sampler_init_xtc(job.xtc_probability, job.xtc_threshold, 1, seed))
    return samplers


def _with_logprobs(token: int, row: Logits, top: int) -> Sampled:
    """Log-probabilities of the model itself, before any sampling option, as OpenAI's; alternatives likeliest first."""
    logits = row.astype(np.float64)
    peak = logits.max()
    logits -= peak + math.log(np.exp(logits - peak).sum())
    best = np.argpartition(row, -top)[-top:] if top else np.empty(0, dtype=np.intp)
    best = best[np.lexsort((best, -row[best]))]
    return Sampled(token, float(logits[token]), [Alternative(int(id), float(logits[id])) for id in best])


def guided(positive: Logits, negative: Logits, scale: float) -> Logits:
    """Classifier-free guidance on log-probabilities: away from the negative prompt by `scale`; 1 is the positive alone.

    Sanchez et al., "Stay on topic with Classifier-Free Guidance", 2023, equation 7.
    """
    towards, away = _log_softmax(positive), _log_softmax(negative)
    return away + np.float32(scale) * (towards - away)


def _log_softmax(row: Logits) -> Logits:
    shifted = row - row.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float32)
