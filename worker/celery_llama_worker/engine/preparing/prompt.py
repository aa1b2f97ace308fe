"""From a job to what the scheduler needs: prompt tokens, how many may follow, stop strings, grammar.

Runs on the admit thread; it reads the model, which is constant, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llama_cpp.llama_chat_format import Jinja2ChatFormatter

from celery_llama.protocol.errors import InvalidJob
from celery_llama.protocol.jobs import GenerateJob, Message
from celery_llama_worker.engine.constraint.grammar import job_grammar
from celery_llama_worker.engine.llama.model import LlamaModel
from celery_llama_worker.engine.llama.sampling import LlamaSampler, make_sampler
from celery_llama_worker.errors import BadTemplate, PromptTooLong

#: More than any context holds; a template that writes more than this has run away.
_MAX_RENDERED_CHARACTERS = 16_000_000
#: What the template is given by us, and so not by a job.
_RESERVED = frozenset(
    {"messages", "bos_token", "eos_token", "add_generation_prompt", "raise_exception", "strftime_now"}
)


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
    """Prepares jobs for one model; `slot_tokens` is what a slot holds, prompt and output together. Any thread."""

    def __init__(self, model: LlamaModel, slot_tokens: int, *, shared_cells: bool = False) -> None:
        self._model = model
        self._slot_tokens, self._shared_cells = slot_tokens, shared_cells
        self._formatter: Jinja2ChatFormatter | None = None
        self._why_no_template = "this model has no chat template; send `prompt` in place of `messages`"
        if model.chat_template is not None:
            try:
                self._formatter = Jinja2ChatFormatter(
                    template=model.chat_template,
                    eos_token=model.special_text(model.eos),
                    bos_token=model.special_text(model.bos),
                )
            except Exception as error:  # a model with a broken template can still serve prompts
                self._why_no_template = f"this model's chat template is broken: {_one_line(error)}"

    def prepare(self, job: GenerateJob) -> PreparedPrompt:
        """Render, tokenise and check; raises InvalidJob or one of its kinds, whose message the job's sender sees."""
        prompts = [self._tokens(job.prompt, job.messages, job.chat_template_kwargs)]
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
        self, prompt: str | list[int] | None, messages: Sequence[Message] | None, options: dict[str, Any]
    ) -> list[int]:
        if isinstance(prompt, list):
            unknown = [token for token in prompt if token >= self._model.n_vocab]
            if unknown:
                raise InvalidJob(f"prompt: the vocabulary has {self._model.n_vocab} tokens, so {unknown[0]} is none")
            return list(prompt)
        text = prompt if messages is None else self._render(messages, options)
        tokens = self._model.tokenize(text or "", add_special=False, parse_special=True)
        # Many templates write BOS themselves, so it is added here, by what the tokens say, and never twice.
        if self._model.adds_bos and tokens[:1] != [self._model.bos]:
            tokens.insert(0, self._model.bos)
        if not tokens:
            raise InvalidJob("the prompt has no tokens")
        return tokens

    def _negative(self, job: GenerateJob, negative_prompt: str) -> list[int]:
        """The negative prompt where the prompt was, or where the system message was."""
        if job.messages is None:
            return self._tokens(negative_prompt, None, {})
        others = [message for message in job.messages if message.role not in {"system", "developer"}]
        system = Message(role="system", content=negative_prompt)
        return self._tokens(None, [system, *others], job.chat_template_kwargs)

    def _cut(self, tokens: list[int], cells: int, max_tokens: int | None) -> list[int]:
        """Drop the beginning, but for BOS, so that `max_tokens` fit behind, or a quarter of the slot."""
        wanted = cells // 4 if max_tokens is None else min(max_tokens, cells - 1)
        kept = max(1, cells - wanted)
        if len(tokens) <= kept:
            return tokens
        if tokens[0] == self._model.bos and kept > 1:
            return [tokens[0], *tokens[len(tokens) - kept + 1 :]]
        return tokens[len(tokens) - kept :]

    def _render(self, messages: Sequence[Message], options: dict[str, Any]) -> str:
        if self._formatter is None:
            raise BadTemplate(self._why_no_template)
        if reserved := _RESERVED & options.keys():
            raise BadTemplate(f"chat_template_kwargs: {', '.join(sorted(reserved))} cannot be given")
        try:
            text = self._formatter(messages=[self._plain(message) for message in messages], **options).prompt
        except Exception as error:  # a template is a program and may raise anything
            raise BadTemplate(f"the chat template refused the messages: {_one_line(error)}") from error
        if len(text) > _MAX_RENDERED_CHARACTERS:
            raise BadTemplate(f"the chat template wrote more than {_MAX_RENDERED_CHARACTERS} characters")
        return text

    def _plain(self, message: Message) -> Any:
        """The message as templates expect it."""
        role: str = message.role
        if role == "developer" and "developer" not in (self._model.chat_template or ""):
            role = "system"  # OpenAI's newer name for the same; most templates know only the older
        plain = {"role": role, "content": message.text}
        return plain if message.name is None else {**plain, "name": message.name}


def _one_line(error: Exception) -> str:
    return " ".join((str(error) or type(error).__name__).split())[:200]
