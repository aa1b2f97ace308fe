"""From a job to what the scheduler needs: prompt tokens, how many may follow, stop strings, grammar.

Runs on the admit thread; it reads the model, which is constant, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob, Message
from celery_llama_worker.engine.constraint.grammar import job_grammar
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.llama.sampling import LlamaSampler, make_sampler
from celery_llama_worker.engine.preparing.special_texts import SpecialTexts
from celery_llama_worker.engine.preparing.template import ChatTemplate
from celery_llama_worker.errors import BadTemplate, PromptTooLong


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A job made ready for decoding."""

    #: The prompt, at least one token.
    tokens: Sequence[int]
    #: The negative prompt's tokens, where guidance does anything.
    negative: Sequence[int] | None
    #: Most tokens that may be generated; prompt and output fit into a slot.
    max_tokens: int
    stop: Sequence[str]
    #: GBNF, checked; None without a constraint.
    grammar: str | None


class PromptBuilder:
    """Prepares jobs for one model. Any thread."""

    def __init__(
        self, model: LlamaModel, slot_tokens: int, *, shared_cells: bool = False, most_characters: int = 4_194_304
    ) -> None:
        """`slot_tokens` is what a slot holds, prompt and output; `most_characters` what a template may write."""
        self._model = model
        self._slot_tokens, self._shared_cells, self._most_characters = slot_tokens, shared_cells, most_characters
        self._special_texts = SpecialTexts(model)
        self._template: ChatTemplate | BadTemplate
        try:
            self._template = _template_of(model)
        except BadTemplate as error:  # such a model can still serve prompts
            self._template = error

    def prepare(self, job: GenerateJob) -> PreparedPrompt:
        """Render, tokenise and check; raises InvalidJob or one of its kinds, whose message the job's sender sees."""
        prompts = [self._tokens(job, job.prompt, job.messages)]
        if job.guidance is not None and job.guidance.scale != 1.0:
            prompts.append(self._negative(job, job.guidance.negative_prompt))
        # A guided pair that shares one pool of cells has half of it for each.
        cells = self._slot_tokens // len(prompts) if self._shared_cells else self._slot_tokens
        if job.truncate == "left":
            prompts = [self._cut(tokens, cells, job.max_tokens) for tokens in prompts]
        longest = max(len(tokens) for tokens in prompts)
        room = cells - longest
        if room < 1:
            raise PromptTooLong(longest, cells)
        max_tokens = room if job.max_tokens is None else min(job.max_tokens, room)
        negative = prompts[1] if len(prompts) > 1 else None
        return PreparedPrompt(prompts[0], negative, max_tokens, tuple(job.stop), job_grammar(job, self._model))

    def sampler(self, job: GenerateJob, prepared: PreparedPrompt, seed: int) -> LlamaSampler:
        """The sampler of one of the job's choices; raises InvalidJob or BadGrammar."""
        return make_sampler(job, self._model, seed=seed, grammar=prepared.grammar, prompt=prepared.tokens)

    def _tokens(
        self, job: GenerateJob, prompt: str | list[int] | None, messages: Sequence[Message] | None
    ) -> list[int]:
        if isinstance(prompt, list):
            unknown = [token for token in prompt if token >= self._model.n_vocab]
            if unknown:
                raise InvalidJob(f"prompt: the vocabulary has {self._model.n_vocab} tokens, so {unknown[0]} is none")
            return list(prompt)
        if messages is not None:
            tokens = self._chat(messages, job.chat_template_kwargs, parse_special=job.special_tokens == "parse")
        else:
            parse = job.special_tokens != "text"
            tokens = self._model.tokenize(prompt or "", add_special=False, parse_special=parse)
        # Many templates write BOS themselves, so it is added here, by what the tokens say, and never twice.
        if self._model.adds_bos and tokens[:1] != [self._model.bos]:
            tokens.insert(0, self._model.bos)
        if not tokens:
            raise InvalidJob("the prompt has no tokens")
        return tokens

    def _negative(self, job: GenerateJob, negative_prompt: str) -> list[int]:
        """The negative prompt where the prompt was, or where the system message was."""
        if job.messages is None:
            return self._tokens(job, negative_prompt, None)
        others = [message for message in job.messages if message.role not in {"system", "developer"}]
        return self._tokens(job, None, [Message(role="system", content=negative_prompt), *others])

    def _cut(self, tokens: list[int], cells: int, max_tokens: int | None) -> list[int]:
        """Drop the beginning, but for BOS, so that `max_tokens` fit behind, or a quarter of the slot."""
        wanted = cells // 4 if max_tokens is None else min(max_tokens, cells - 1)
        kept = max(1, cells - wanted)
        if len(tokens) <= kept:
            return tokens
        if tokens[0] == self._model.bos and kept > 1:
            return [tokens[0], *tokens[len(tokens) - kept + 1 :]]
        return tokens[len(tokens) - kept :]

    def _chat(self, messages: Sequence[Message], options: Mapping[str, Any], *, parse_special: bool) -> list[int]:
        if isinstance(self._template, BadTemplate):
            raise BadTemplate(str(self._template))
        hide = _as_it_is if parse_special else self._special_texts.hide
        plain = [self._plain(message, hide) for message in messages]
        hidden = {name: hide(value) for name, value in options.items()}
        text = self._template.render(plain, hidden, self._most_characters)
        return self._special_texts.tokenize(text)

    def _plain(self, message: Message, hide: Callable[[Any], Any]) -> dict[str, str]:
        """The message as templates expect it."""
        role: str = message.role
        if role == "developer" and "developer" not in (self._model.chat_template or ""):
            role = "system"  # OpenAI's newer name for the same; most templates know only the older
        plain = {"role": role, "content": hide(message.text)}
        return plain if message.name is None else {**plain, "name": hide(message.name)}


def _template_of(model: LlamaModel) -> ChatTemplate:
    if model.chat_template is None:
        raise BadTemplate("this model has no chat template; send `prompt` in place of `messages`")
    bos, eos = model.special_text(model.bos), model.special_text(model.eos)
    return ChatTemplate(model.chat_template, bos_token=bos, eos_token=eos)


def _as_it_is(value: Any) -> Any:
    return value
