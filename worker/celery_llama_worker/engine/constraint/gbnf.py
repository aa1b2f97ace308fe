"""Checks a GBNF grammar before llama.cpp sees it. Pure, any thread.

llama.cpp prints a grammar that it cannot parse to stderr, and some grammars end or stall the process: deep nesting
overflows its stack, `{5,2}` and nested repetitions exhaust memory, left recursion through rules that may be empty never
ends, and its search for left recursion takes exponential time. So what it is given has been parsed here first, by the
same rules (`llama_grammar_parser` in src/llama-grammar.cpp), and measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple, NoReturn

from celery_llama_worker.errors import BadGrammar

MAX_CHARACTERS = 1_000_000
MAX_NESTING = 2_000
MAX_ELEMENTS = 200_000
MAX_REPETITIONS = 2_000  #: llama.cpp's own limit, MAX_REPETITION_THRESHOLD
#: Ways to begin a rule: llama.cpp follows each of them, and keeps those that differ.
MAX_BEGINNINGS = 10_000

_ESCAPE = r'\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[trn\\"\[\]-])'
_CHARACTER = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_SPACE_AND_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_NAME = re.compile(r"[a-zA-Z0-9-]+")
_LITERAL = re.compile(rf'"((?:{_ESCAPE}|[^"\\])*)"')
_CLASS = re.compile(rf"\[\^?((?:{_ESCAPE}|[^\]\\])+)\]")
_TOKEN = re.compile(r"!?(<[^<>\r\n]+>)")
_REPEAT = re.compile(r"[*+?]|\{\s*(\d{1,9})\s*(?:(,)\s*(\d{1,9})?\s*)?\}")
_NEWLINE = re.compile(r"\r\n|\r|\n")


class _Item(NamedTuple):
    """One element of a sequence: a reference to a rule, or something that matches characters."""

    rule: str | None
    #: Elements that llama.cpp makes of it; also of each of its repetitions.
    size: int
    #: Symbols that llama.cpp has made for it; it refuses when they are repeated too often.
    symbols: int
    optional: bool = False


@dataclass(slots=True)
class _Rule:
    name: str
    alternatives: list[list[_Item]] = field(default_factory=lambda: [[]])
    symbols_before: int = 0


class _Facts(NamedTuple):
    """What is known of a rule: whether it may match nothing, and in how many ways it can begin."""

    empty: bool
    beginnings: int


def check_gbnf(text: str, is_token: Callable[[str], bool]) -> None:
    """Raise BadGrammar unless llama.cpp can parse and hold the grammar; `is_token`: whether `<text>` is one token."""
    if len(text) > MAX_CHARACTERS or "\0" in text:
        raise BadGrammar(f"the grammar has more than {MAX_CHARACTERS} characters, or a NUL among them")
    rules = _Parser(text, is_token).parse()
    if "root" not in rules:
        raise BadGrammar("the grammar has no rule `root`")
    for item in chain.from_iterable(alternative for rule in rules.values() for alternative in rule.alternatives):
        if item.rule is not None and item.rule not in rules:
            raise BadGrammar(f"the grammar has no rule `{item.rule[:64]}`")
    _measure(rules)


class _Parser:
    """One pass over the text, without recursion; groups become rules of their own, as in llama.cpp."""

    def __init__(self, text: str, is_token: Callable[[str], bool]) -> None:
        self._text = text
        self._is_token = is_token
        self._at = 0
        self._rules: dict[str, _Rule] = {}
        self._names: set[str] = set()
        self._made = 0
        self._elements = 0
        self._open: list[_Rule] = []

    def parse(self) -> dict[str, _Rule]:
        self._skip(_SPACE_AND_LINES)
        while self._at < len(self._text):
            name = self._expect(_NAME, "a rule's name").group()
            self._names.add(name)
            self._skip(_SPACE)
            self._expect(re.compile("::="), "`::=`")
            self._skip(_SPACE_AND_LINES)
            self._open = [_Rule(name)]
            self._body()
            if self._at < len(self._text):
                self._expect(_NEWLINE, "the end of the line")
            self._skip(_SPACE_AND_LINES)
        return self._rules

    def _body(self) -> None:
        """A rule up to its end; `_open` are the rule and the groups that are not yet closed."""
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "|":
                self._open[-1].alternatives.append([])
                self._at += 1
                self._skip(_SPACE_AND_LINES)
                continue
            if character == "(":
                self._open_group()
                continue
            if character == ")" and len(self._open) > 1:
                self._close_group()
            elif character in "*+?{":
                self._repetition()
            elif not self._element(character):
                break
            self._skip(_SPACE_AND_LINES if len(self._open) > 1 else _SPACE)
        if len(self._open) > 1:
            self._fail("`)`")
        rule = self._open.pop()
        self._rules[rule.name] = rule

    def _element(self, character: str) -> bool:
        if character == '"':
            size = len(_CHARACTER.findall(self._expect(_LITERAL, "a string in quotes").group(1)))
            self._add(_Item(None, size, 1, optional=size == 0))
        elif character == "[":
            self._add(_Item(None, len(self._expect(_CLASS, "a set of characters").group(1)), 1))
        elif character in "<!":
            token = self._expect(_TOKEN, "a token in angle brackets").group(1)
            if not re.fullmatch(r"<\[\d{1,9}\]>", token) and not self._is_token(token):
                self._fail("a token of this vocabulary in angle brackets before this")
            self._add(_Item(None, 1, 1))
        elif character == ".":
            self._at += 1
            self._add(_Item(None, 1, 1))
        elif match := _NAME.match(self._text, self._at):
            self._at = match.end()
            self._names.add(match.group())
            self._add(_Item(match.group(), 1, 1))
        else:
            return False
        return True

    def _add(self, item: _Item) -> None:
        self._open[-1].alternatives[-1].append(item)
        self._count(item.size)

    def _count(self, elements: int) -> None:
        self._elements += elements
        if self._elements > MAX_ELEMENTS:
            raise BadGrammar(f"the grammar is too large: its repetitions make more than {MAX_ELEMENTS} elements")

    def _open_group(self) -> None:
        if len(self._open) > MAX_NESTING:
            raise BadGrammar(f"the grammar is nested more than {MAX_NESTING} deep")
        self._open.append(_Rule(f"({self._made}", symbols_before=len(self._names) + self._made))
        self._made += 1
        self._at += 1
        self._skip(_SPACE_AND_LINES)

    def _close_group(self) -> None:
        group = self._open.pop()
        self._rules[group.name] = group
        self._add(_Item(group.name, 1, max(1, len(self._names) + self._made - group.symbols_before)))
        self._at += 1

    def _repetition(self) -> None:
        sequence = self._open[-1].alternatives[-1]
        if not sequence or not sequence[-1].size:
            self._fail("something to repeat before this")
        match = self._expect(_REPEAT, "a repetition such as {2,5}")
        least, most = _bounds(match)
        item = sequence[-1]
        times = most or least or 1
        if (most is not None and most < least) or max(least, most or 0) > MAX_REPETITIONS:
            self._fail(f"a repetition of at most {MAX_REPETITIONS}, the smaller number first, before this")
        if item.symbols * times > MAX_REPETITIONS:
            self._fail(f"fewer repetitions before this: rules times repetitions must not exceed {MAX_REPETITIONS}")
        optional_copies = 1 if most is None else most - least
        self._made += optional_copies
        self._count(item.size * max(least - 1, 0) + optional_copies * (item.size + 3))
        # llama.cpp repeats what the sequence ends with now, so a second repetition repeats the first one's outcome
        sequence[-1] = item._replace(symbols=item.symbols * times, optional=item.optional or least == 0)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        self._at = match.end() if match else self._at

    def _expect(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(what)
        self._at = match.end()
        return match

    def _fail(self, expected: str) -> NoReturn:
        before = self._text[: self._at]
        column = self._at - before.rfind("\n")
        raise BadGrammar(f"the grammar, line {before.count(chr(10)) + 1}, column {column}: expected {expected}")


def _bounds(match: re.Match[str]) -> tuple[int, int | None]:
    simple = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    if match.group() in simple:
        return simple[match.group()]
    least, comma, most = match.groups()
    return int(least), int(most) if most else None if comma else int(least)


def _measure(rules: dict[str, _Rule]) -> None:
    """Refuse left recursion and grammars that can begin in too many ways. Depth first, without recursion."""
    facts: dict[str, _Facts] = {}
    for start in rules:
        path = {} if start in facts else {start: _facts(rules[start], facts)}
        while path:
            name, visit = next(reversed(path.items()))
            try:
                needed = next(visit)
            except StopIteration as done:
                facts[name] = done.value
                del path[name]
                continue
            if needed in path:
                where = next(rule for rule in reversed([*path, needed]) if not rule.startswith("("))
                raise BadGrammar(f"the grammar is left-recursive in rule `{where[:64]}`")
            path[needed] = _facts(rules[needed], facts)


def _facts(rule: _Rule, facts: dict[str, _Facts]) -> Generator[str, None, _Facts]:
    """Work out a rule's facts; yields the rules whose facts are needed first."""
    empty, beginnings = False, 1
    for alternative in rule.alternatives:
        for item in alternative:
            if item.rule is not None and item.rule not in facts:
                yield item.rule
            of_item = facts[item.rule] if item.rule is not None else _Facts(False, 1)
            beginnings += of_item.beginnings
            if not (item.optional or of_item.empty):
                break
        else:
            empty = True
        if beginnings > MAX_BEGINNINGS:
            raise BadGrammar(f"the grammar is too ambiguous: a rule can begin in more than {MAX_BEGINNINGS} ways")
    return _Facts(empty, beginnings)
