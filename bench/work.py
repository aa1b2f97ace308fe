"""What is measured: prompts of given lengths as token ids, so that every side gets the very same tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from celery_llama_worker.engine.llama.model import LlamaModel

Prompt = list[int]

_WORDS = """
river market winter garden letter captain window harbour mountain teacher bridge village doctor summer station forest
painter island engine library kitchen soldier orchard lantern valley printer sailor museum railway farmer clock
"""
_QUALITIES = "old quiet bright narrow distant simple curious gentle heavy hidden common early modern careful warm"


def _word(chance: random.Random, words: str = _WORDS) -> str:
    return chance.choice(words.split())


_QUESTIONS = [
    "What is the capital of {}?",
    "Name one use of a {}.",
    "Explain in two sentences why a {} is useful.",
    "Write a short story about a {}.",
    "Give three reasons to visit a {}.",
    "Describe the history of the {} in detail.",
]


@dataclass(frozen=True)
class Work:
    """Jobs that are ready at the same time."""

    prompts: Sequence[Prompt]
    max_tokens: int

    def __str__(self) -> str:
        lengths = sorted(len(prompt) for prompt in self.prompts)
        return f"{len(lengths)} jobs, prompts of {lengths[0]} to {lengths[-1]} tokens, up to {self.max_tokens} out"


def text_tokens(model: LlamaModel, tokens: int, seed: int) -> Prompt:
    """A text of exactly so many tokens; different from the first token on for most seeds."""
    chance = random.Random(seed)
    found: Prompt = []
    text = ""
    while len(found) < tokens:
        quality, one, other = (
            chance.choice(_QUALITIES.split()),
            chance.choice(_WORDS.split()),
            chance.choice(_WORDS.split()),
        )
        text += f"{quality.capitalize()} was the {one} near the {other} of number {chance.randrange(1000)}. "
        found = model.tokenize(text, add_special=True, parse_special=False)
    return found[:tokens]


def distinct(model: LlamaModel, jobs: int, prompt_tokens: int, max_tokens: int, seed: int = 0) -> Work:
    """Jobs with nothing in common."""
    return Work([text_tokens(model, prompt_tokens, seed * 10_000 + job) for job in range(jobs)], max_tokens)


def shared_prefix(model: LlamaModel, jobs: int, prefix_tokens: int, max_tokens: int, seed: int) -> Work:
    """Jobs that begin alike and end differently; another seed, another beginning, so that no cache knows it."""
    prefix = text_tokens(model, prefix_tokens, 777_000 + seed)
    return Work([prefix + text_tokens(model, 16, seed * 10_000 + job) for job in range(jobs)], max_tokens)


def mixed(model: LlamaModel, jobs: int, max_tokens: int, seed: int = 0) -> Work:
    """Questions of different lengths whose answers end by themselves, most of them far below `max_tokens`."""
    chance = random.Random(seed)
    prompts = []
    for job in range(jobs):
        quality, word = _word(chance, _QUALITIES), _word(chance)
        question = _QUESTIONS[job % len(_QUESTIONS)].format(f"{quality} {word}")
        body = model.tokenize(f"{question}<|im_end|>\n<|im_start|>assistant\n", add_special=False, parse_special=True)
        filler = text_tokens(model, chance.randrange(8, 200), 555_000 + 100 * seed + job) if job % 2 else []
        prompts.append([*model.tokenize("<|im_start|>user\n", add_special=True, parse_special=True), *filler, *body])
    return Work(prompts, max_tokens)
