"""Regular expressions on their way into a grammar: what they become, and which cannot be held to."""

from __future__ import annotations

import pytest

from celery_llama_worker.engine.constraint.gbnf import check_gbnf
from celery_llama_worker.engine.constraint.patterns import NOT_PLAIN, PLAIN, compile_pattern, literal
from celery_llama_worker.errors import BadGrammar

GOOD = {
    "^abc$": '"a" "b" "c"',
    "^$": '""',
    "^a|b$": '"a" | "b"',
    "^(a|)$": '("a" | "")',
    "^(?:ab)+$": '(("a" "b")){1,}',
    r"^\d{4}$": "([0-9]){4,4}",
    r"^[\d_]\w$": "[0-9_] [0-9A-Z_a-z]",
    "^a{2,}?$": '("a"){2,}',
    "^a{0}$": '""',
    "^.$": PLAIN,
    "^[^a]$": f"[^a{NOT_PLAIN}]",
    '^"$': r'"\\\""',
    r"^\\$": r'"\\\\"',
    r"^\n$": r'"\\n"',
    r"^\x41\u00e9$": '"A" "é"',
    r"^\.\/\-$": '"." "/" "-"',
    '^["-$]$': r'([#-$] | "\\\"")',
    r"^[\^\]-]$": r"[\-\]^]",
    "^😀$": r'"\U0001F600"',
}

BAD = [
    "no anchors",
    "^",
    "$",
    r"^a\$",
    "^*$",
    "^a**$",
    "^(a$",
    "^a)$",
    "^[a$",
    "^[b-a]$",
    "^[]$",
    "^(?=a)$",
    "^(?!a)b$",
    "^(?P<n>a)$",
    r"^(a)\1$",
    r"^\bword$",
    r"^\p{L}$",
    r"^\ud800$",
    "^a^b$",
    "^a{2000}$",
    "^a{3,2}$",
    r"^[\0]$",
    "^" + "(" * 2_000 + ")" * 2_000 + "$",
]


@pytest.mark.parametrize("pattern", GOOD)
def test_a_pattern_becomes_a_grammar_that_can_be_used(pattern: str) -> None:
    check_gbnf(f"root ::= {compile_pattern(pattern).gbnf}", lambda _: False)


@pytest.mark.parametrize(("pattern", "expected"), GOOD.items())
def test_a_pattern_says_the_same_as_gbnf(pattern: str, expected: str) -> None:
    assert compile_pattern(pattern).gbnf == expected


@pytest.mark.parametrize("pattern", BAD, ids=lambda pattern: str(pattern)[:20])
def test_a_pattern_that_cannot_be_held_to_is_refused(pattern: str) -> None:
    with pytest.raises(BadGrammar, match="pattern in the JSON schema"):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "least", "most"),
    [("^ab?$", 1, 2), ("^(a|bcd){2}$", 2, 6), ("^a+b$", 2, None), ("^a*$", 0, None), ("^(ab|c)$", 1, 2)],
)
def test_how_long_a_match_may_be_is_known(pattern: str, least: int, most: int | None) -> None:
    assert compile_pattern(pattern)[1:] == (least, most)


def test_any_text_can_be_a_literal() -> None:
    text = "".join(map(chr, [*range(1, 0x180), 0x2028, 0xFEFF, 0x1F600, 0x10FFFF]))

    check_gbnf(f"root ::= {literal(text)}", lambda _: False)
