"""Keeps text that looks like a control token text, in a chat whose own control tokens are to be tokens. Any thread.

The template writes both into one text. So each control token's text in what a job brings is hidden before the template
sees it: its first character is replaced by half of a surrogate pair, which no job's text can hold (`parse_body`), and
which trimming, searching and counting treat as the character that it stands for. In what the template wrote, every
control token that can still be read is the template's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from celery_llama.protocol.errors import InvalidJob
from celery_llama_worker.engine.llama.model import ControlToken, LlamaModel

_FIRST_SURROGATE, _SURROGATES = 0xD800, 0x800
#: What llama.cpp's isspace() strips around tokens that want it.
_SPACE = " \t\n\v\f\r"


class SpecialTexts:
    """The texts of one model's control tokens."""

    def __init__(self, model: LlamaModel) -> None:
        self._model = model
        self._texts: Mapping[str, ControlToken] = model.control_tokens
        self._names = {token.token: text for text, token in self._texts.items() if not token.unknown}
        firsts = sorted({text[0] for text in self._texts})[:_SURROGATES]
        masks = {first: chr(_FIRST_SURROGATE + rank) for rank, first in enumerate(firsts)}
        self._hide = str.maketrans(masks)
        self._reveal = str.maketrans({mask: first for first, mask in masks.items()})
        self._masks = re.compile(f"[{''.join(masks.values())}]" if masks else r"(?!)")
        self._firsts = re.compile(f"[{''.join(map(re.escape, firsts))}]" if masks else r"(?!)")
        # By first character, the longest first: one may be the beginning of another.
        self._lengths: dict[str, list[int]] = {
            first: sorted({len(text) for text in self._texts if text[0] == first}, reverse=True) for first in firsts
        }

    def hide(self, value: Any) -> Any:
        """The same value with the control tokens hidden in every text of it, names of fields included."""
        match value:
            case str():
                return self._hide_in(value)
            case list():
                return [self.hide(item) for item in value]
            case dict():
                return {self.hide(name): self.hide(item) for name, item in value.items()}
            case _:
                return value

    def tokenize(self, text: str) -> list[int]:
        """Tokens of a text in which control tokens are tokens, and hidden ones text.

        Without hidden ones llama.cpp reads it in one go. With some, it reads what lies between two control tokens as
        text, as it would itself: what is tokenised together stays together.
        """
        tokens: list[int] = []
        read = at = 0
        before: ControlToken | None = None
        for start, end in [*(self._found(text) if self._masks.search(text) else ()), (len(text), len(text))]:
            after = self._texts.get(text[start:end])
            if self._masks.search(text, at, start):
                tokens += self._model.tokenize(text[read:at], add_special=False, parse_special=True)
                tokens += self._plain(self._stripped(text[at:start].translate(self._reveal), before, after))
                read = start
            at, before = end, after
        return tokens + self._model.tokenize(text[read:], add_special=False, parse_special=True)

    def _plain(self, text: str) -> list[int]:
        """The text's tokens, none of them a control token.

        SentencePiece's vocabularies join whatever two pieces make a third, and do not ask which kind that is: with `</`
        and `s>` in it, `</s>` would be one after all.
        """
        tokens = self._model.tokenize(text, add_special=False, parse_special=False)
        if self._names.keys().isdisjoint(tokens):
            return tokens
        return [part for token in tokens for part in (self._spelled(token) if token in self._names else (token,))]

    def _spelled(self, token: int) -> Iterator[int]:
        for character in self._names[token]:
            data = character.encode()
            parts = [data] if data in self._letters else [bytes([value]) for value in data]
            for part in parts:
                if part not in self._letters:
                    raise InvalidJob(f"this model has no tokens to write {self._names[token]} as text")
                yield self._letters[part]

    @cached_property
    def _letters(self) -> dict[bytes, int]:
        """Tokens of a character or a byte; most vocabularies that have a byte's token, too, have it before."""
        pieces = ((self._model.piece(token), token) for token in range(self._model.n_vocab))
        return {piece: token for piece, token in pieces if piece and _is_letter(piece)}

    def _stripped(self, text: str, before: ControlToken | None, after: ControlToken | None) -> str:
        if before is not None and before.strips_right:
            text = text.lstrip(_SPACE)
        return text.rstrip(_SPACE) if after is not None and after.strips_left else text

    def _hide_in(self, text: str) -> str:
        parts: list[str] = []
        at = 0
        for start, _ in self._found(text, overlapping=True):
            parts += [text[at:start], text[start].translate(self._hide)]
            at = start + 1
        return "".join([*parts, text[at:]]) if parts else text

    def _found(self, text: str, *, overlapping: bool = False) -> Iterator[tuple[int, int]]:
        """Where a control token's text begins and ends, from left to right, the longest that begins there."""
        at = 0
        while match := self._firsts.search(text, at):
            at = match.start()
            lengths = self._lengths[match.group()]
            length = next((length for length in lengths if text[at : at + length] in self._texts), 0)
            if length:
                yield at, at + length
            at += 1 if overlapping else length or 1


def _is_letter(piece: bytes) -> bool:
    return len(piece) == 1 or len(piece.decode(errors="replace")) == 1
