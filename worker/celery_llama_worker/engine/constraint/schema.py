"""What a JSON schema says, in the few plain forms of which `json_grammar.py` makes a grammar. Pure, any thread.

A plain schema is one of: `{}`, any value; `{"$ref"}`; `{"anyOf"}`; `{"values"}`; or a type and that type's keywords.
What cannot be held to is refused, never ignored. Where a schema leaves something open, the plain one may say less than
it: an object has the properties that are named, `oneOf` is `anyOf` of alternatives that exclude each other.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

from celery_llama_worker.errors import BadGrammar

#: Steps of rewriting: schemas whose parts refer to each other several times can be exponentially long.
MAX_STEPS = 50_000

TYPES = ("object", "array", "string", "number", "integer", "boolean", "null")
_ALL = [name for name in TYPES if name != "integer"]
KEYWORDS: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties", "propertyNames", "minProperties", "maxProperties"}
    | {"unevaluatedProperties", "patternProperties", "dependentRequired", "dependentSchemas", "dependencies"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"}
    | {"additionalItems", "unevaluatedItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "boolean": set(),
    "null": set(),
}
KEYWORDS["integer"] = KEYWORDS["number"]
_COMBINED = {"$ref", "allOf", "anyOf", "oneOf", "const", "enum", "type"}
#: Everything else is a note to the reader.
_MEANINGFUL = set().union(_COMBINED, *KEYWORDS.values())
_REFUSED = {"not", "if", "then", "else", "$dynamicRef", "$recursiveRef"}
_REFUSED |= {"patternProperties", "dependentRequired", "dependentSchemas", "dependencies", "contains", "minContains"}
_REFUSED |= {"maxContains", "unevaluatedItems"}


class Schemas:
    """One document's schemas, made plain when asked for."""

    def __init__(self, document: Any) -> None:
        self._document = document
        self._steps = 0

    def plain(self, schema: Any, *, valid: bool = False) -> dict[str, Any]:
        """The schema in a plain form; raises BadGrammar.

        Without a type, `minLength` is valid for numbers too, and yet it is about strings: only with `valid` are other
        types among the plain schema's.
        """
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise BadGrammar("the JSON schema is too large once its parts are put together")
        said = _said(schema)
        if said.keys() == {"$ref"}:
            return said
        if "$ref" in said or "allOf" in said:
            rest = {key: value for key, value in said.items() if key not in ("$ref", "allOf")}
            parts = [*([said["$ref"]] if "$ref" in said else []), *_list(said.get("allOf", []), "allOf")]
            opened = [self.target(part) if isinstance(part, str) else self._opened(part) for part in parts]
            return self.plain(reduce(_merged, opened, rest), valid=valid)
        for key in ("anyOf", "oneOf"):
            if key in said:
                return self._union(key, said)
        types = _types(said) if "type" in said or not valid else _ALL
        if "const" in said or "enum" in said:
            return {"values": _values(said, types)}
        if len(types) == 1:
            return {"type": types[0], **{key: said[key] for key in said if key in KEYWORDS[types[0]]}}
        if said.keys() - {"type"} or "type" in said:
            rest = {key: value for key, value in said.items() if key != "type"}
            return {"anyOf": [{"type": name, **rest} for name in types]}
        return {}

    def target(self, reference: Any) -> dict[str, Any]:
        """What a reference within the document leads to, not itself a reference."""
        for _ in range(100):
            found = _said(self._target(reference))
            if found.keys() != {"$ref"}:
                return found
            reference = found["$ref"]
        raise BadGrammar("the JSON schema has references that lead to each other and nowhere else")

    def _target(self, reference: Any) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise BadGrammar("the JSON schema refers to another document; only `#/...` within it can be used")
        target = self._document
        for part in reference.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            try:
                target = target[int(key)] if isinstance(target, list) else target[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise BadGrammar(f"the JSON schema refers to {reference[:80]}, which it does not contain") from None
        return target

    def _opened(self, schema: Any) -> dict[str, Any]:
        said = _said(schema)
        return self.target(said["$ref"]) if said.keys() == {"$ref"} else said

    def _union(self, key: str, said: dict[str, Any]) -> dict[str, Any]:
        rest = {name: value for name, value in said.items() if name != key}
        alternatives = _list(said[key], key)
        if key == "oneOf":
            for at, one in enumerate(alternatives):
                others = alternatives[:at] + alternatives[at + 1 :]
                if not all(self.excludes(one, other) for other in others):
                    raise BadGrammar("the JSON schema has a oneOf whose alternatives may hold at once; use anyOf")
        return {"anyOf": [{"allOf": [rest, one]} if rest else one for one in alternatives]}

    def excludes(self, made: Any, other: Any) -> bool:
        """Whether no text that is made for one schema can be valid by the other; False if that is not plain to see."""
        one, two = self.plain(made), self.plain(other, valid=True)
        one = self.plain(self.target(one["$ref"])) if "$ref" in one else one
        two = self.plain(self.target(two["$ref"]), valid=True) if "$ref" in two else two
        if "anyOf" in one:
            return all(self.excludes(part, two) for part in one["anyOf"])
        if "anyOf" in two:
            return all(self.excludes(one, part) for part in two["anyOf"])
        if not one or not two:
            return False
        if "values" in one and "values" in two:
            return not {_key(value) for value in one["values"]} & {_key(value) for value in two["values"]}
        if _type_names(one).isdisjoint(_type_names(two)):
            return True
        if one.get("type") != "object" or two.get("type") != "object":
            return False
        named, required = one.get("properties", {}), set(one.get("required", []))
        if two.get("additionalProperties") is False and required - two.get("properties", {}).keys():
            return True
        closed = one.get("additionalProperties", not named) is False
        if closed and set(two.get("required", [])) - named.keys() - required:
            return True
        both = named.keys() & required & two.get("properties", {}).keys()
        return any(self.excludes(named[name], two["properties"][name]) for name in both)


def _said(schema: Any) -> dict[str, Any]:
    """The keywords that mean something."""
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise BadGrammar("the JSON schema has something that admits nothing, or is no schema, where one belongs")
    if refused := _REFUSED & schema.keys():
        raise BadGrammar(f"the JSON schema has `{min(refused)}`, which output cannot be held to")
    return {key: value for key, value in schema.items() if key in _MEANINGFUL}


def _list(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list) or (key != "allOf" and not value):
        raise BadGrammar(f"the JSON schema has {key} that is no list of schemas")
    return value


def _types(said: dict[str, Any]) -> list[str]:
    """The types that are named; if none is, those that the keywords are about, or all."""
    named = said.get("type")
    if named is None:
        return [name for name in _ALL if KEYWORDS[name] & said.keys()] or _ALL
    names = named if isinstance(named, list) else [named]
    if not names or any(not isinstance(name, str) or name not in TYPES for name in names):
        raise BadGrammar(f"the JSON schema has a type that is none of {', '.join(TYPES)}")
    return [name for name in names if not (name == "integer" and "number" in names)]


def _values(said: dict[str, Any], types: list[str]) -> list[Any]:
    """What `const` or `enum` leave, of the types that are named."""
    values = _list(said["enum"], "enum") if "enum" in said else [said["const"]]
    if "const" in said:
        values = [value for value in values if _key(value) == _key(said["const"])]
    if beside := said.keys() - {"const", "enum", "type"}:
        raise BadGrammar(f"the JSON schema has `{min(beside)}` beside an enumeration")
    if "type" in said:
        values = [value for value in values if not _value_types(value).isdisjoint(types)]
    if not values:
        raise BadGrammar("the JSON schema has an enumeration of which no value is left")
    return values


def _key(value: Any) -> str:
    """The same for equal values: 1 and 1.0 are."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _value_types(value: Any) -> set[str]:
    kinds: list[tuple[type, set[str]]] = [(bool, {"boolean"}), (int, {"integer", "number"}), (str, {"string"})]
    kinds += [(dict, {"object"}), (list, {"array"}), (type(None), {"null"})]
    if isinstance(value, float):
        return {"integer", "number"} if value.is_integer() else {"number"}
    return next(names for kind, names in kinds if isinstance(value, kind))


def _type_names(form: dict[str, Any]) -> set[str]:
    if "values" in form:
        return set().union(*map(_value_types, form["values"]))
    return {"integer", "number"} if form["type"] in ("integer", "number") else {form["type"]}


def _merged(one: dict[str, Any], two: dict[str, Any]) -> dict[str, Any]:
    """What holds if both do."""
    for this, that in ((one, two), (two, one)):
        if this.get("additionalProperties", True) is not True or "propertyNames" in this:
            unknown = that.get("properties", {}).keys() - this.get("properties", {}).keys()
            if unknown or set(that.get("required", [])) - this.get("properties", {}).keys():
                raise BadGrammar("the JSON schema joins one that has additionalProperties with other properties")
    result = dict(one)
    for key, value in two.items():
        result[key] = value if key not in result or result[key] == value else _joined(key, result[key], value)
    return result


def _joined(key: str, one: Any, two: Any) -> Any:
    if key in ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties") and not isinstance(one, bool):
        return max(one, two)
    if key in ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties") and not isinstance(one, bool):
        return min(one, two)
    if key == "type":
        first, second = _types({"type": one}), _types({"type": two})
        names = [name for name in first if name in second or (name == "integer" and "number" in second)]
        names += ["integer"] if "number" in first and "integer" in second and "integer" not in first else []
        return names
    if key == "required":
        return [*one, *(name for name in two if name not in one)]
    if key == "properties":
        both = {name: {"allOf": [one[name], two[name]]} for name in one.keys() & two.keys()}
        return {**one, **two, **both}
    if key == "allOf":
        return [*one, *two]
    if key == "enum":
        known = {_key(value) for value in two}
        return [value for value in one if _key(value) in known]
    raise BadGrammar(f"the JSON schema joins two that each have a `{key}`")
