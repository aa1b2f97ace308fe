"""A JSON schema as GBNF: what the grammar admits is valid by the schema, its properties in the schema's order. Pure.

In place of llama-cpp-python's converter, which ignores bounds, what stands beside a pattern or a list of types, and
properties that are required but not described, and which writes names and constants with quotes, backslashes, line
breaks or emoji wrongly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any

from celery_llama_worker.engine.constraint.patterns import NOT_PLAIN, PLAIN, compile_pattern, literal
from celery_llama_worker.engine.constraint.ranges import FORMATS, bound_of, decimals, integers
from celery_llama_worker.engine.constraint.schema import Schemas
from celery_llama_worker.errors import BadGrammar

#: Longer maxima are not counted: no context is as long.
MAX_COUNT = 1_000_000
#: Repetitions are written in blocks: llama.cpp unrolls each, and takes no more than 2,000.
_BLOCK = 1_000
#: One space at most, so that a model cannot go on with white space for ever.
_SPACE = 'space ::= " "?'
_COMMA = ' "," space '
_BASIC = {
    "char": rf'{PLAIN} | "\\" (["\\/bfnrt] | "u" ([0-9A-CE-Fa-ce-f] [0-9A-Fa-f]{{3}} | [Dd] [0-7] [0-9A-Fa-f]{{2}}))',
    "string": r'"\"" char* "\"" space',
    "boolean": '("true" | "false") space',
    "null": '"null" space',
    "object": '"{" space (member ("," space member)*)? "}" space',
    "member": 'string ":" space value',
    "array": '"[" space (value ("," space value)*)? "]" space',
    "value": "object | array | string | number | boolean | null",
}


def schema_grammar(schema: Any) -> str:
    """The grammar of a schema; raises BadGrammar with what cannot be held to."""
    writer = _Writer(Schemas(schema))
    root = writer.value(schema)
    return "\n".join([f"root ::= {root}", _SPACE, *(f"{name} ::= {body}" for name, body in writer.rules.items())])


class _Writer:
    """Writes rules; those of the same contents are one. Every method returns a rule's name."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._references: dict[str, str] = {}
        self._names: dict[str, str] = {}
        self.rules = dict(_BASIC)
        number = decimals(None, None, low_open=False, high_open=False)
        self.rules["number"] = f"{compile_pattern(f'^{number}$').gbnf} space"

    def _rule(self, body: str) -> str:
        if body not in self._names:
            self._names[body] = f"r{len(self._names)}"
            self.rules[self._names[body]] = body
        return self._names[body]

    def value(self, schema: Any) -> str:
        """Any schema."""
        plain = self._schemas.plain(schema)
        if "$ref" in plain:
            return self._reference(plain["$ref"])
        if "anyOf" in plain:
            return self._rule(" | ".join(dict.fromkeys(map(self.value, plain["anyOf"]))))
        if "values" in plain:
            texts = dict.fromkeys(literal(json.dumps(value, ensure_ascii=False)) for value in plain["values"])
            return self._rule(f"({' | '.join(texts)}) space")
        kind = str(plain.get("type", "value"))
        if not plain or (len(plain) == 1 and kind != "integer"):
            return kind
        writers = {"object": self._object, "array": self._array, "string": self._string}
        return writers.get(kind, self._number)(plain)

    def _reference(self, reference: Any) -> str:
        if not isinstance(reference, str) or reference not in self._references:
            target = self._schemas.target(reference)
            self._references[reference] = name = f"ref-{len(self._references)}"
            self.rules[name] = self.value(target)
        return self._references[reference]

    # ---- numbers and strings

    def _number(self, plain: dict[str, Any]) -> str:
        if plain.get("multipleOf", 1) != 1 or (plain["type"] == "number" and "multipleOf" in plain):
            _refuse("`multipleOf`")
        low, low_open = bound_of(plain, "minimum", "exclusiveMinimum", max)
        high, high_open = bound_of(plain, "maximum", "exclusiveMaximum", min)
        if plain["type"] == "number":
            pattern = decimals(low, high, low_open=low_open, high_open=high_open)
        else:
            least = None if low is None else math.ceil(low) + (low_open and low == math.ceil(low))
            most = None if high is None else math.floor(high) - (high_open and high == math.floor(high))
            pattern = integers(least, most)
        return self._rule(f"{compile_pattern(f'^{pattern}$').gbnf} space")

    def _string(self, plain: dict[str, Any]) -> str:
        least, most = _counts(plain, "Length")
        pattern, format_ = plain.get("pattern"), FORMATS.get(str(plain.get("format")))
        if pattern is None and format_ is None:
            return self._rule(rf'"\"" {self._repeated("char", least, most)} "\"" space')
        if pattern is not None and (format_ is not None or not isinstance(pattern, str)):
            raise BadGrammar("the JSON schema has a pattern beside a format, or one that is no text")
        compiled = compile_pattern(pattern if pattern is not None else f"^{format_}$")
        if least > compiled.least or (most is not None and (compiled.most is None or compiled.most > most)):
            raise BadGrammar("the JSON schema has a length that its pattern or format does not keep; put it there")
        return self._rule(rf'"\"" ({compiled.gbnf}) "\"" space')

    def _repeated(self, symbol: str, least: int, most: int | None) -> str:
        """From `least` to `most` times a symbol, one way to read each; its expression may be empty."""
        blocks, rest = divmod(least, _BLOCK)
        parts = [f"{self._rule(f'{symbol}{{{_BLOCK}}}')}{{{blocks}}}"] if blocks else []
        parts += [f"{symbol}{{{rest}}}"] if rest else []
        if most is None:
            return " ".join([*parts, f"{symbol}*"])
        blocks, rest = divmod(most - least, _BLOCK)
        tail = f"{symbol}{{0,{rest}}}" if rest else ""
        for _ in range(blocks):
            whole, fewer = self._rule(f"{symbol}{{{_BLOCK}}}"), self._rule(f"{symbol}{{0,{_BLOCK - 1}}}")
            tail = self._rule(f"{whole} {tail} | {fewer}")
        return " ".join([*parts, tail]).strip() or '""'

    # ---- arrays and objects

    def _array(self, plain: dict[str, Any]) -> str:
        items, prefix = plain.get("items", True), plain.get("prefixItems", [])
        if isinstance(items, list):  # drafts before 2020-12
            items, prefix = plain.get("additionalItems", True), items
        least, most = _counts(plain, "Items")
        if plain.get("uniqueItems") and most not in (0, 1):
            _refuse("`uniqueItems`")
        if "prefixItems" in plain or isinstance(plain.get("items"), list):
            most = max(least, len(prefix)) if most is None else most  # more are allowed, none is needed
        first = [self.value(part) for part in prefix[:most]]
        if items is False and least > len(first):
            raise BadGrammar("the JSON schema has a minItems above the items it admits")
        if items is False or most == len(first):
            return self._rule(f'"[" space {_COMMA.join(first)} "]" space')
        more = self._rule(f'"," space {self.value(items)}')
        if first:
            rest = self._repeated(more, max(0, least - len(first)), None if most is None else most - len(first))
            return self._rule(f'"[" space {_COMMA.join(first)} {rest} "]" space')
        some = f"{self.value(items)} {self._repeated(more, max(0, least - 1), None if most is None else most - 1)}"
        return self._rule(f'"[" space {some if least else f"({some})?"} "]" space')

    def _object(self, plain: dict[str, Any]) -> str:
        named, required = plain.get("properties", {}), plain.get("required", [])
        if not isinstance(named, dict) or not isinstance(required, list):
            raise BadGrammar("the JSON schema has properties that are none")
        other = plain.get("additionalProperties", "propertyNames" in plain or not named)
        if plain.get("unevaluatedProperties", True) is not True:
            other = False if plain["unevaluatedProperties"] is False else _refuse("unevaluatedProperties")
        names = plain.get("propertyNames")
        if names is not None and (named or required):
            _refuse("propertyNames beside properties")
        undescribed = [name for name in required if name not in named]
        if undescribed and "additionalProperties" in plain and other is False:
            raise BadGrammar("the JSON schema requires a property that it does not admit")
        properties = {**named, **dict.fromkeys(undescribed, other if isinstance(other, dict) else True)}
        member = None
        if other is not False:
            key = self.value(names) if names is not None else self._other_name(properties)
            member = self._rule(f'{key} ":" space {self.value(other)}')
        self._check_size(plain, properties, len(set(required)), open_=member is not None)
        if not properties and member is not None:
            return self._rule(self._map(member, *_counts(plain, "Properties")))
        return self._rule(self._members(properties, set(required), member))

    def _map(self, member: str, least: int, most: int | None) -> str:
        """Any properties, by number."""
        if most == 0:
            return '"{" space "}" space'
        rest = self._repeated(self._rule(f'"," space {member}'), 0, None if most is None else most - 1)
        return f'"{{" space {member} {rest} "}}" space' if least else f'"{{" space ({member} {rest})? "}}" space'

    def _members(self, properties: dict[str, Any], required: set[str], member: str | None) -> str:
        """Properties in their order, then others; `first` follows if nothing came before, `more` if something did."""
        more = first = ""
        if member is not None:
            more = self._rule(f'("," space {member})*')
            first = self._rule(f"({member} {more})?")
        for name, schema in reversed(properties.items()):
            pair = self._rule(f'{literal(json.dumps(name, ensure_ascii=False))} space ":" space {self.value(schema)}')
            if name in required:
                first, more = self._rule(f"{pair} {more}"), self._rule(f'"," space {pair} {more}')
            else:
                first = self._rule(f"{pair} {more} | {first}" if first else f"({pair} {more})?")
                more = self._rule(f'("," space {pair})? {more}')
        return f'"{{" space {first} "}}" space'

    def _check_size(self, plain: dict[str, Any], properties: dict[str, Any], required: int, *, open_: bool) -> None:
        """Names may be repeated, and count once: so only what holds anyway can be promised."""
        least, most = _counts(plain, "Properties")
        if least > max(required, 1 if open_ and not properties else 0):
            _refuse("minProperties")
        if most is not None and properties and (open_ or len(properties) > most):
            _refuse("maxProperties beside properties")

    def _other_name(self, names: Iterable[str]) -> str:
        """Any name but these, without escapes: in them it could be one of these after all."""
        return self._rule(rf'"\"" {self._unlike(list(names))} "\"" space')

    def _unlike(self, endings: list[str]) -> str:
        """Text that equals none of these."""
        if not endings:
            return self._rule(f"{PLAIN}*")
        by_first: dict[str, list[str]] = {}
        for ending in endings:
            if ending:
                by_first.setdefault(ending[0], []).append(ending[1:])
        usual = [character for character in by_first if character not in '"\\' and character.isprintable()]
        codes = "".join(f"\\U{ord(character):08X}" for character in usual)
        choices = [f"[^{codes}{NOT_PLAIN}] {PLAIN}*"]
        choices += [f"{literal(character)} {self._unlike(by_first[character])}" for character in usual]
        text = " | ".join(choices)
        return self._rule(text if "" in endings else f"({text})?")


def _refuse(what: str) -> Any:
    raise BadGrammar(f"the JSON schema has {what}, which output cannot be held to")


def _counts(plain: dict[str, Any], what: str) -> tuple[int, int | None]:
    """How many there are at least and at most: items, properties, or characters."""
    least, most = _count(plain, f"min{what}") or 0, _count(plain, f"max{what}")
    if most is not None and most < least:
        raise BadGrammar("the JSON schema has a minimum above its maximum")
    return least, most


def _count(plain: dict[str, Any], key: str) -> int | None:
    value = plain.get(key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise BadGrammar(f"the JSON schema has a {key} that is no number of things")
    if value <= MAX_COUNT:
        return value
    if key.startswith("min"):
        raise BadGrammar(f"the JSON schema has a {key} above {MAX_COUNT}")
    return None
