"""Rewrites a JSON schema into what llama.cpp's converter translates faithfully. Pure, any thread.

The converter names rules after the last word of a `$ref`, so two references may meet in one rule; ignores what stands
beside a list of types; reads an empty schema as "an object"; and writes repetitions out, however many there are.
"""

from __future__ import annotations

import re
from typing import Any

from worker.errors import BadGrammar

#: Longer strings and arrays are not counted, as in llama.cpp: the limit on tokens comes first.
MAX_COUNT = 1_000

#: What must not stand in a JSON string as it is, as part of a set of characters.
_NOT_IN_A_STRING = r'"\\\x00-\x1F\x7F'
_CLASSES = {"d": "0-9", "w": "a-zA-Z0-9_", "s": " "}
_PATTERN_PARTS = re.compile(r"\\.|\[\^|.", re.DOTALL)

_ANY_TYPE = ["object", "array", "string", "number", "boolean", "null"]
_SAYS_NOTHING = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment", "$schema", "$id"}
    | {"$defs", "definitions", "$anchor"}
)
#: Keywords whose value is a schema, a list of schemas, schemas by name.
_ONE = ("items", "additionalProperties", "not")
_MANY = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties",)


def mend(grammar: str) -> str:
    """The converter's GBNF with its two rules that let control characters and quotes into strings put right."""
    lines = grammar.split("\n")
    for at, line in enumerate(lines):
        if line.startswith("char ::= "):
            lines[at] = line.replace(r'[^"\\]', f"[^{_NOT_IN_A_STRING}]", 1)
        elif line.startswith("dot ::= "):
            lines[at] = f"dot ::= [^{_NOT_IN_A_STRING}]"
    return "\n".join(lines)


def normalise(schema: Any) -> dict[str, Any]:
    """An equivalent schema whose references are all of the form `#/$defs/ref-0`; raises BadGrammar."""
    rewriter = _Rewriter(schema)
    root = rewriter.rewrite(schema)
    rewriter.rewrite_targets()
    while "$ref" in root:  # the converter looks no further than a reference at the root
        root = rewriter.definitions[root["$ref"].rpartition("/")[2]]
    return {**root, "$defs": rewriter.definitions}


class _Rewriter:
    def __init__(self, document: Any) -> None:
        self._document = document
        self._names: dict[str, str] = {}
        self.definitions: dict[str, Any] = {}

    def rewrite(self, schema: Any) -> dict[str, Any]:
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise BadGrammar("the JSON schema has something that is no schema where one belongs")
        if "$ref" in schema:
            return {"$ref": f"#/$defs/{self._name(schema['$ref'])}"}
        if len(schema.get("allOf", ())) == 1:
            rest = {key: value for key, value in schema.items() if key != "allOf"}
            return self.rewrite({**rest, **schema["allOf"][0]})
        if "const" in schema or "enum" in schema:
            return {key: schema[key] for key in ("const", "enum") if key in schema}
        if schema.keys() <= _SAYS_NOTHING:
            schema = {"type": _ANY_TYPE}
        if isinstance(schema.get("type"), list):
            return {"anyOf": [self.rewrite({**schema, "type": name}) for name in schema["type"]]}
        return {key: self._value(key, value) for key, value in schema.items() if key not in _SAYS_NOTHING}

    def _value(self, key: str, value: Any) -> Any:
        if key in ("minLength", "minItems", "maxLength", "maxItems"):
            return _count(key, value)
        if key == "pattern" and isinstance(value, str):
            return _pattern(value)
        if key == "additionalProperties" and isinstance(value, bool):
            return value
        if key in _ONE and not isinstance(value, list):
            return self.rewrite(value)
        if key in _MANY or key in _ONE:
            return [self.rewrite(part) for part in value]
        if key in _NAMED:
            return {name: self.rewrite(part) for name, part in value.items()}
        return value

    def _name(self, reference: Any) -> str:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise BadGrammar("the JSON schema refers to another document; only references within it can be used")
        return self._names.setdefault(reference, f"ref-{len(self._names)}")

    def rewrite_targets(self) -> None:
        """Rewrite what is referred to, which may refer to more."""
        while len(self.definitions) < len(self._names):
            for reference, name in list(self._names.items())[len(self.definitions) :]:
                self.definitions[name] = self.rewrite(self._target(reference))

    def _target(self, reference: str) -> Any:
        target = self._document
        for part in reference.removeprefix("#").split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key)] if isinstance(target, list) else target[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise BadGrammar(f"the JSON schema refers to {reference[:80]}, which it does not contain") from None
        return target


def _count(key: str, value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or value < 0:
        raise BadGrammar(f"the JSON schema has a {key} that is no number of things")
    if value <= MAX_COUNT:
        return value
    if key.startswith("min"):
        raise BadGrammar(f"the JSON schema has a {key} above {MAX_COUNT}")
    return None


def _pattern(pattern: str) -> str:
    """A regular expression that the converter understands, and that matches nothing a JSON string cannot contain."""
    numbers = "".join(character if character.isdigit() else " " for character in pattern).split()
    if any(len(number) > 3 and int(number[:9]) > MAX_COUNT for number in numbers):
        raise BadGrammar(f"the JSON schema has a pattern with a number above {MAX_COUNT}")
    in_set, parts = False, []
    for part in _PATTERN_PARTS.findall(pattern):
        if part[1:] in _CLASSES and part[0] == "\\":
            parts.append(_CLASSES[part[1:]] if in_set else f"[{_CLASSES[part[1:]]}]")
        elif part == "[^" and not in_set:
            parts.append(f"[^{_NOT_IN_A_STRING}")
        else:
            parts.append(part)
        in_set = part in ("[", "[^") or (in_set and part != "]")
    return "".join(parts)
