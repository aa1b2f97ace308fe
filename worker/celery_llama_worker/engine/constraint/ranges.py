"""Numbers between bounds, and strings of a known format, as regular expressions. Pure, any thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

from celery_llama_worker.errors import BadGrammar

#: Decimal digits that a double tells apart: with more, a number could round across its bound.
DIGITS = 15
#: Digits of an integer without bounds.
INTEGER_DIGITS = 16

_DAY_31, _DAY_30, _DAY_28 = "(0[1-9]|[12][0-9]|3[01])", "(0[1-9]|[12][0-9]|30)", "(0[1-9]|1[0-9]|2[0-8])"
_LEAP_YEAR = "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)"
_DATE = f"([1-9][0-9]{{3}}-((0[13578]|1[02])-{_DAY_31}|(0[469]|11)-{_DAY_30}|02-{_DAY_28})|{_LEAP_YEAR}-02-29)"
_HOUR, _OCTET, _HEX = "([01][0-9]|2[0-3])", "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])", "[0-9a-f]"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_HOUR}:[0-5][0-9])"
_HOST = r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?){0,3}"
_CLOCK = "([0-9]{1,2}H([0-9]{1,2}M)?([0-9]{1,2}S)?|[0-9]{1,2}M([0-9]{1,2}S)?|[0-9]{1,2}S)"

#: A subset of what each format admits; other formats are notes to the reader, as JSON Schema has it.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P([0-9]{{1,3}}D(T{_CLOCK})?|T{_CLOCK})",
    "uuid": f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    **{f"uuid{n}": f"{_HEX}{{8}}-{_HEX}{{4}}-{n}{_HEX}{{3}}-[89ab]{_HEX}{{3}}-{_HEX}{{12}}" for n in (1, 3, 4, 5)},
    "email": rf"[a-zA-Z0-9]{{1,32}}([._+-][a-zA-Z0-9]{{1,15}})?@{_HOST}\.[a-z]{{2,12}}",
    "hostname": _HOST,
    "ipv4": rf"{_OCTET}\.{_OCTET}\.{_OCTET}\.{_OCTET}",
    "ipv6": f"{_HEX}{{1,4}}(:{_HEX}{{1,4}}){{7}}",
    "uri": rf"https?://{_HOST}\.[a-z]{{2,12}}(/[a-zA-Z0-9._~-]{{1,64}}){{0,8}}/?",
}

#: A number of digits, each between two.
Digits = list[tuple[int, int]]


def integers(low: int | None, high: int | None) -> str:
    """The integers from `low` to `high`, None being no bound; raises BadGrammar if there are none."""
    if low is None and high is None:
        return f"-?(0|[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}})"
    reach = 10 ** max(INTEGER_DIGITS, *(len(str(abs(bound))) for bound in (low, high) if bound is not None)) - 1
    low, high = -reach if low is None else low, reach if high is None else high
    negative = _whole(max(1, -high), -low)
    choices = [f"-({'|'.join(negative)})"] if negative else []
    choices += _whole(max(0, low), high)
    return _one_of(choices)


def decimals(low: Decimal | None, high: Decimal | None, *, low_open: bool, high_open: bool) -> str:
    """The numbers from `low` to `high`, which are themselves excluded if open; raises BadGrammar if there are none."""
    if low is None and high is None:
        return rf"-?(0|[1-9][0-9]{{0,{INTEGER_DIGITS - 1}}})(\.[0-9]{{1,16}})?([eE][+-]?[0-9]{{1,2}})?"
    zero = Decimal(0)
    choices = []
    if high is None or high >= 0:
        choices += _magnitudes(
            max(low, zero) if low is not None else zero, high, low_open and low is not None and low >= 0, high_open
        )
    if low is None or low < 0:
        bottom = zero if high is None else max(-high, zero)
        negative = _magnitudes(
            bottom, None if low is None else -low, high_open and high is not None and high <= 0, low_open
        )
        choices += [f"-({'|'.join(negative)})"] if negative else []
    return _one_of(choices)


def bound_of(
    plain: dict[str, Any], closed: str, open_: str, tighter: Callable[[Iterable[Decimal]], Decimal]
) -> tuple[Decimal | None, bool]:
    """A schema's bound, None if it has none, and whether it is itself excluded."""
    limit, excluded = plain.get(closed), plain.get(open_)
    for value in (limit, excluded):
        if isinstance(value, float) and not math.isfinite(value):
            raise BadGrammar("the JSON schema has a bound that is no number")
    if isinstance(excluded, bool):  # draft 4
        return (None if limit is None else Decimal(repr(limit))), excluded
    bounds = [Decimal(repr(value)) for value in (limit, excluded) if value is not None]
    if not bounds:
        return None, False
    bound = tighter(bounds)
    return bound, excluded is not None and bound == Decimal(repr(excluded))


def _one_of(choices: list[str]) -> str:
    if not choices:
        raise BadGrammar("the JSON schema has bounds that no number meets")
    return f"({'|'.join(choices)})"


def _magnitudes(low: Decimal, high: Decimal | None, low_open: bool, high_open: bool) -> list[str]:
    """Numbers of no sign: whole ones, and ones with at least as many decimal places as the bounds have."""
    places = max(1, *(-int(bound.normalize().as_tuple().exponent) for bound in (low, high) if bound is not None))
    if places > DIGITS - 2:
        raise BadGrammar(f"the JSON schema has bounds with more than {DIGITS - 2} decimal places")
    top = Decimal(10 ** (DIGITS - places) - 1)
    if high is None or high > top:
        high, high_open = top, False
    if low > high or (low == high and (low_open or high_open)):
        return []
    first, last = int(low.to_integral_value("ROUND_CEILING")), int(high.to_integral_value("ROUND_FLOOR"))
    choices = _whole(first + (low_open and first == low), last - (high_open and last == high))
    bottom, ceiling = int(low.scaleb(places)), int(high.scaleb(places))
    for digits in _padded(bottom + low_open, ceiling - 1, places):
        more = DIGITS - len(digits)
        choices.append(_point(digits, places) + (f"[0-9]{{0,{more}}}" if more else ""))
    if low_open:
        (digits,) = _padded(bottom, bottom, places)
        if more := DIGITS - len(digits):
            choices.append(_point(digits, places) + _not_all_zero(more))
    if not high_open:
        (digits,) = _padded(ceiling, ceiling, places)
        choices.append(f"{_point(digits, places)}0{{0,{DIGITS - len(digits)}}}")
    return choices


def _not_all_zero(most: int) -> str:
    """At most so many digits, one of which is not zero; in a form that never leaves two ways to go on."""
    digits = "[1-9]"
    for more in range(1, most):
        digits = f"([1-9][0-9]{{0,{more}}}|0{digits})"
    return digits


def _whole(low: int, high: int) -> list[str]:
    return [_render(digits) for digits in _padded(low, high, 0)]


def _padded(low: int, high: int, places: int) -> list[Digits]:
    """The numbers from `low` to `high`, neither negative, in so many digits as they have but at least `places` + 1."""
    result: list[Digits] = []
    for width in range(max(places + 1, len(str(low))), max(places + 1, len(str(high))) + 1):
        least = max(low, 10 ** (width - 1) if width > places + 1 else 0)
        most = min(high, 10**width - 1)
        if least <= most:
            result += _between(str(least).zfill(width), str(most).zfill(width))
    return result


def _between(low: str, high: str) -> list[Digits]:
    """The numbers between two of the same number of digits."""
    if not low:
        return [[]]
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    if first == last:
        return [[(first, first), *tail] for tail in _between(low[1:], high[1:])]
    result: list[Digits] = []
    if low[1:].strip("0"):
        result += [[(first, first), *tail] for tail in _between(low[1:], "9" * rest)]
        first += 1
    ending: list[Digits] = []
    if high[1:].strip("9"):
        ending = [[(last, last), *tail] for tail in _between("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        result.append([(first, last), *[(0, 9)] * rest])
    return result + ending


def _point(digits: Digits, places: int) -> str:
    return rf"{_render(digits[:-places])}\.{_render(digits[-places:])}"


def _render(digits: Digits) -> str:
    parts: list[str] = []
    for low, high in digits:
        parts.append(str(low) if low == high else f"[{low}-{high}]")
    tail = len(parts) - len("".join("x" if part == "[0-9]" else " " for part in parts).rstrip("x"))
    return "".join(parts[: len(parts) - tail]) + (f"[0-9]{{{tail}}}" if tail > 1 else "[0-9]" * tail)
