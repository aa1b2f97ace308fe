"""A worker that fails on request: `python -m tests.faulty_worker start ...`, as `celery-llama-worker start ...`.

Nothing in the product knows of this. The engine is subclassed; what it shall do comes from the environment:

- `FAULTY_STEP_SECONDS`: every decode call takes this much longer: jobs last as long as with a real model.
- `FAULTY_FOLDER`: a file `decode-<pid>` there holds the code that the next decode call shall answer; it is removed.

A prompt that contains one of the words below makes the process end, or hang, when it is decoded.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.tiny_model import vocabulary
from worker import assembly
from worker.cli import main
from worker.engine.llama import LlamaEngine

#: Ends the process, as a bug in llama.cpp would.
POISON = "~" * 16
#: Never comes back from the decode call, as a lost GPU would.
WEDGE = "^" * 16
#: So many of a word's tokens in one call are no coincidence.
_MEANT = 12

logger = logging.getLogger(__name__)


def _token(word: str) -> int:
    return vocabulary()[0].index(word[0])


class FaultyEngine(LlamaEngine):
    """Decodes, unless it was told not to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._delay_seconds = float(os.environ.get("FAULTY_STEP_SECONDS", "0"))
        folder = os.environ.get("FAULTY_FOLDER")
        self._order = Path(folder) / f"decode-{os.getpid()}" if folder else None
        self._poison, self._wedge = _token(POISON), _token(WEDGE)
        super().__init__(*args, **options)

    def _decode(self, batch: Any) -> int:
        tokens = [batch.token[row] for row in range(batch.n_tokens)]
        if threading.current_thread().name == "engine":  # not during the probe, which decodes all kinds of tokens
            if tokens.count(self._poison) >= _MEANT:
                os._exit(9)
            if tokens.count(self._wedge) >= _MEANT:
                threading.Event().wait()
            time.sleep(self._delay_seconds)
            if self._order is not None and self._order.exists():
                code = int(self._order.read_text())
                self._order.unlink()
                logger.warning("a decode call answers %d, as ordered", code)
                return code
        return super()._decode(batch)


if __name__ == "__main__":
    vars(assembly)["LlamaEngine"] = FaultyEngine
    main()
