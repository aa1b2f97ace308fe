"""Regular expressions as GBNF, for what stands between the quotes of a JSON string, or for a bare number. Pure.

What llama.cpp cannot hold an output to (look-around, back references, word boundaries) is refused. Where a set of
characters is open (`.`, `[^a]`, `\\D`), it is narrowed to what a JSON string may contain as it is.
"""

from __future__ import annotations

import json
import re
from typing import NamedTuple, NoReturn

from celery_llama_worker.errors import BadGrammar

#: Most repetitions in a pattern.
MAX_REPETITIONS = 1_000
#: What must not stand in a JSON string as it is, or is no character: as part of a set of GBNF.
NOT_PLAIN = r'"\\\x00-\x1F\x7F\uD800-\uDFFF\U00110000-\U001FFFFF'
PLAIN = f"[^{NOT_PLAIN}]"

_MAX_NESTING = 100
_LAST = 0x10FFFF
_NOT_PLAIN = [(0, 0x1F), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F), (0xD800, 0xDFFF)]
_SHORTHANDS = {"d": "[0-9]", "w": "[a-zA-Z0-9_]", "s": "[ ]", "D": "[ !#-/:-[^-~]", "W": "[ !#-/:-@[^`{-~]"}
_SHORTHANDS |= {"S": "[!#-[^-~]"}
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v"}
_QUANTIFIER = re.compile(r"([*+?]|\{(\d{1,9})(?:(,)(\d{1,9})?)?\})\??")
_CODE = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})")

Ranges = list[tuple[int, int]]


class Pattern(NamedTuple):
    """A pattern's GBNF, and how many characters what it matches may have."""

    gbnf: str
    least: int
    most: int | None


def compile_pattern(pattern: str) -> Pattern:
    """The GBNF of a regular expression that matches from `^` to `$`; raises BadGrammar."""
    if not (len(pattern) > 1 and pattern.startswith("^") and pattern.endswith("$")):
        raise BadGrammar("a pattern in the JSON schema must begin with ^ and end with $")
    return _Parser(pattern[1:-1]).parse()


def literal(text: str) -> str:
    """Text as GBNF."""
    return '"' + "".join(_escaped(ord(character), '"\\') for character in text) + '"'


def in_string(text: str) -> str:
    """Text as it stands between the quotes of a JSON string, as GBNF."""
    return literal(json.dumps(text, ensure_ascii=False)[1:-1])


def _escaped(code: int, special: str) -> str:
    if 0x20 <= code < 0x7F or 0xA0 <= code < 0xD800:
        return f"\\{chr(code)}" if chr(code) in special else chr(code)
    return f"\\x{code:02X}" if code < 0x100 else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"


def _set(ranges: Ranges, *, negated: bool = False) -> str:
    edges = ("-".join(_escaped(edge, "]\\-[") for edge in sorted({low, high})) for low, high in ranges)
    text = "".join(edges)
    return f"[^{text}{NOT_PLAIN}]" if negated else f"[{text}]".replace("[^", r"[\x5E")


class _Parser:
    """Recursive descent over the pattern; every part is a Pattern."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def parse(self) -> Pattern:
        result = self._alternatives()
        if self._at < len(self._text):
            self._fail("an unbalanced `)`")
        return result

    def _alternatives(self) -> Pattern:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise BadGrammar(f"a pattern in the JSON schema is nested more than {_MAX_NESTING} deep")
        branches = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence())
        self._depth -= 1
        lengths = [branch.most for branch in branches]
        most = None if None in lengths else max(length or 0 for length in lengths)
        return Pattern(" | ".join(b.gbnf for b in branches), min(b.least for b in branches), most)

    def _sequence(self) -> Pattern:
        parts: list[Pattern] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated(self._atom()))
        lengths = [part.most for part in parts]
        most = None if None in lengths else sum(length or 0 for length in lengths)
        return Pattern(" ".join(part.gbnf for part in parts) or '""', sum(part.least for part in parts), most)

    def _repeated(self, atom: Pattern) -> Pattern:
        match = _QUANTIFIER.match(self._text, self._at)
        if match is None:
            return atom
        self._at = match.end()
        kind, low, comma, high = match.groups()
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(kind, (int(low or 0), None))
        if low is not None:
            most = int(high) if high else None if comma else least
        if max(least, most or 0) > MAX_REPETITIONS or (most is not None and most < least):
            self._fail(f"a repetition above {MAX_REPETITIONS}, or one whose smaller number is not first")
        if most == 0:
            return Pattern('""', 0, 0)
        if _QUANTIFIER.match(self._text, self._at):
            self._fail("a repetition of a repetition")
        bounds = f"{{{least},{'' if most is None else most}}}"
        longest = None if most is None or atom.most is None else most * atom.most
        return Pattern(f"({atom.gbnf}){bounds}", least * atom.least, longest)

    def _atom(self) -> Pattern:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._class()
        if character == ".":
            return Pattern(PLAIN, 1, 1)
        if character == "\\":
            return self._escape()
        if character in "^$*+?":
            self._fail(f"`{character}` where it cannot be")
        return Pattern(in_string(character), 1, 1)

    def _group(self) -> Pattern:
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            self._fail("look-around, or a named group")
        inner = self._alternatives()
        if self._next() != ")":
            self._fail("an unbalanced `(`")
        return inner._replace(gbnf=f"({inner.gbnf})")

    def _escape(self) -> Pattern:
        name = self._peek()
        if name in _SHORTHANDS and name:
            self._at += 1
            return Pattern(_Parser(_SHORTHANDS[name]).parse().gbnf, 1, 1)
        return Pattern(in_string(chr(self._escaped_code())), 1, 1)

    def _escaped_code(self) -> int:
        """The character that an escape stands for, in a set or outside."""
        if match := _CODE.match(self._text, self._at):
            self._at = match.end()
            code = int(match[1] or match[2], 16)
            if 0xD800 <= code <= 0xDFFF:
                self._fail("half of a surrogate pair")
            return code
        name = self._next()
        if name.isalnum() and name not in _CONTROLS:
            self._fail(f"`\\{name}`")
        return ord(_CONTROLS.get(name, name))

    def _class(self) -> Pattern:
        negated = self._peek() == "^"
        self._at += negated
        ranges: Ranges = []
        while (character := self._next()) != "]":
            name = self._peek()
            if character == "\\" and name in ("d", "w", "s"):
                self._at += 1
                ranges += {"d": [(48, 57)], "w": [(48, 57), (65, 90), (95, 95), (97, 122)], "s": [(32, 32)]}[name]
                if name == "s" and negated:
                    ranges += [(9, 13), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x202F), (0x205F, 0x3000)]
                continue
            low = self._escaped_code() if character == "\\" else ord(character)
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("]", ""):
                self._at += 1
                character = self._next()
                high = self._escaped_code() if character == "\\" else ord(character)
            if high < low:
                self._fail("a set of characters whose range goes backwards")
            ranges.append((low, high))
        return Pattern(_set(ranges, negated=True) if negated else self._admitted(ranges), 1, 1)

    def _admitted(self, ranges: Ranges) -> str:
        """The set, and beside it what a JSON string can contain only as an escape."""
        plain = ranges
        for low, high in _NOT_PLAIN:
            plain = [
                part
                for begin, end in plain
                for part in ((begin, min(end, low - 1)), (max(begin, high + 1), end))
                if part[0] <= part[1]
            ]
        plain = sorted({part for part in plain if part[0] <= _LAST})
        escaped = [code for code in (0x22, 0x5C, 9, 10, 13) if any(low <= code <= high for low, high in ranges)]
        choices = ([_set(plain)] if plain else []) + [in_string(chr(code)) for code in escaped]
        if not choices:
            self._fail("a set of characters that is empty")
        return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        if self._at >= len(self._text):
            self._fail("an end before something was closed")
        self._at += 1
        return self._text[self._at - 1]

    def _fail(self, problem: str) -> NoReturn:
        raise BadGrammar(f"a pattern in the JSON schema has {problem}, at character {self._at + 1}")
