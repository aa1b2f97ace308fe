"""Which grammars are refused before llama.cpp sees them, and that refusing is quick."""

from __future__ import annotations

import pytest

from celery_llama_worker.engine.constraint.gbnf import check_gbnf
from celery_llama_worker.errors import BadGrammar

GOOD = {
    "a literal": 'root ::= "yes" | "no"',
    "several rules": 'root ::= item ("," item)*\nitem ::= [a-z]+ # a comment\n',
    "escapes": r'root ::= "\"\\\n\x41\u00e9\U0001F600" [\]\-\x00-\x1f^]',
    "any character": "root ::= .*",
    "repetitions": 'root ::= "a"{3} "b"{2,} "c"{0,5} "d"? [e]{ 1 , 2 }',
    "lines inside a group": 'root ::= (\n  "a" |\n  "b"\n)',
    "an alternative on the next line": 'root ::= "a" |\n "b"',
    "recursion on the right": 'root ::= "a" root | "b"',
    "recursion in the middle": 'root ::= "(" root ")" | "x"',
    "an empty alternative": 'root ::= "a" |',
    "tokens": 'root ::= <[12]> !<think> "x"',
    "windows line ends": 'root ::= a\r\na ::= "x"\r\n',
    "a rule that is defined twice": 'root ::= "a"\nroot ::= "b"',
    "json": (
        'root ::= object\nvalue ::= object | array | string | "null"\nws ::= [ \\t\\n]*\n'
        'object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws\n'
        'array ::= "[" ws (value ("," ws value)*)? "]" ws\nstring ::= "\\"" [^"\\\\]* "\\"" ws'
    ),
}

BAD = {
    "": "no rule `root`",
    "# only a comment": "no rule `root`",
    'other ::= "a"': "no rule `root`",
    "root ::= missing": "no rule `missing`",
    'root "a"': "line 1, column 6: expected `::=`",
    'root ::= "a': "line 1, column 10: expected a string in quotes",
    r'root ::= "\q"': "expected a string in quotes",
    "root ::= [a-z": "expected a set of characters",
    "root ::= []": "expected a set of characters",
    'root ::= ("a"': r"expected `\)`",
    'root ::= "a")': "expected the end of the line",
    'root ::= "a"\n  oops': "line 2, column 7: expected `::=`",
    "root ::= *": "expected something to repeat",
    'root ::= "" *': "expected something to repeat",
    'root ::= "a"{x}': "expected a repetition",
    'root ::= "a"{,2}': "expected a repetition",
    'root ::= "a"{5,2}': "the smaller number first",
    'root ::= "a"{2001}': "a repetition of at most 2000",
    'root ::= "a"{1,99999999}': "a repetition of at most 2000",
    'root ::= "a"{100}{100}': "fewer repetitions",
    'root ::= ("a" ("b" ("c")))  {1000}': "fewer repetitions",
    "root ::= <unknown>": "expected a token",
    "root ::= \x00": "NUL",
    'root ::= root "a" | "b"': "left-recursive in rule `root`",
    'root ::= a "x"\na ::= b\nb ::= root | "y"': "left-recursive in rule `root`",
    'root ::= e root "x" | "y"\ne ::= f\nf ::= "z" |': "left-recursive in rule `root`",
    'root ::= ("a"? root)? "b"': "left-recursive in rule `root`",
}


def is_token(text: str) -> bool:
    return text == "<think>"


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
def test_a_sound_grammar_passes(text: str) -> None:
    check_gbnf(text, is_token)


@pytest.mark.parametrize(("text", "reason"), BAD.items())
def test_an_unsound_grammar_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(BadGrammar, match=reason):
        check_gbnf(text, is_token)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadGrammar, match="nested more than"):
        check_gbnf("root ::= " + "(" * 50_000 + '"a"' + ")" * 50_000, is_token)


def test_a_long_chain_of_rules_needs_no_deep_stack() -> None:
    chain = "".join(f"r{n} ::= r{n + 1}\n" for n in range(5_000))

    check_gbnf(f'root ::= r0\n{chain}r5000 ::= "x"', is_token)


def test_repetitions_that_multiply_are_refused() -> None:
    with pytest.raises(BadGrammar, match="too large"):
        check_gbnf(f'root ::= "{"x" * 10_000}"{{2000}}', is_token)


def test_a_rule_that_can_begin_in_exponentially_many_ways_is_refused() -> None:
    doubling = "".join(f'r{n} ::= r{n + 1} "a" | r{n + 1} "b"\n' for n in range(60))

    with pytest.raises(BadGrammar, match="too ambiguous"):
        check_gbnf(f'root ::= r0\n{doubling}r60 ::= "x"', is_token)


def test_an_oversized_grammar_is_refused() -> None:
    with pytest.raises(BadGrammar, match="characters"):
        check_gbnf("#" * 1_000_001, is_token)
