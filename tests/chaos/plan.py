"""Which fault comes when: drawn from a seed before anything starts, so that a run can be repeated. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

FaultKind = Literal["kill", "stop", "freeze", "cut", "restart", "stall", "decode"]
KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
#: Those that happen to a worker; the others happen to the server, and so to everybody.
WORKER_FAULTS = frozenset[FaultKind]({"kill", "stop", "freeze", "decode"})
#: How often each kind is drawn; what takes long comes less often.
_WEIGHTS: dict[FaultKind, int] = {"kill": 5, "stop": 3, "freeze": 3, "cut": 4, "restart": 2, "stall": 2, "decode": 5}
#: What `llama_decode` may answer: no room, aborted, invalid batch, and an error that costs the context.
_DECODE_CODES = (1, 2, -1, -3)


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: FaultKind
    #: Seconds since the fault before.
    gap_seconds: float
    #: Which worker; taken modulo their number.
    worker: int
    #: How long it lasts: until the worker is started again or thawed, until the server is back.
    seconds: float
    #: What a decode call answers.
    code: int


def draw_faults(seed: int, count: int, lease_seconds: float, timeout_seconds: float) -> Iterator[Fault]:
    """Draw the faults of a run. Every kind comes at least once if there are enough."""
    random_ = random.Random(seed)
    kinds = list(KINDS)[:count]
    kinds += random_.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=count - len(kinds))
    random_.shuffle(kinds)
    for kind in kinds:
        seconds = {
            "kill": random_.uniform(0, 2),
            "stop": random_.uniform(0, 1),
            "freeze": lease_seconds + random_.uniform(0, 3),
            "restart": random_.uniform(0, 4),
            "stall": random_.uniform(0.2, 2.5) * timeout_seconds,
        }.get(kind, 0.0)
        yield Fault(kind, random_.uniform(0.2, 2.5), random_.randrange(1_000), seconds, random_.choice(_DECODE_CODES))
