"""A worker that fails on request: `python -m tests.faulty_worker start ...`, as `celery-llama-worker start ...`.

Nothing in the product knows of this. The engine is subclassed; what it shall do comes from the environment:

- `FAULTY_STEP_SECONDS`: every decode call takes this much longer: jobs last as long as with a real model.
- `FAULTY_FOLDER`: a file `decode-<pid>` there holds the code that the next decode call shall answer, or `hang`: then it
  never comes back, as with a lost GPU. The file is removed.

A prompt that contains the word below makes the process end when it is decoded.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Any

from celery_llama_worker.assembly import Parts
from celery_llama_worker.cli import main
from celery_llama_worker.engine.llama.engine import LlamaEngine
from tests.tiny_model import vocabulary

#: Ends the process, as a bug in llama.cpp would.
POISON = "~" * 16
#: So many of its tokens in one call are no coincidence.
_MEANT = 12
#: What a file orders in place of a code.
HANG = "hang"

logger = logging.getLogger(__name__)


class FaultyEngine(LlamaEngine):
    """Decodes, unless it was told not to."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._delay_seconds = float(os.environ.get("FAULTY_STEP_SECONDS", "0"))
        folder = os.environ.get("FAULTY_FOLDER")
        self._order = Path(folder) / f"decode-{os.getpid()}" if folder else None
        self._poison = vocabulary()[0].index(POISON[0])
        super().__init__(*args, **options)

    def _decode(self, batch: Any) -> int:
        tokens = [batch.token[row] for row in range(batch.n_tokens)]
        if threading.current_thread().name == "engine":  # not during the probe, which decodes all kinds of tokens
            if tokens.count(self._poison) >= _MEANT:
                os._exit(9)
            time.sleep(self._delay_seconds)
            if self._order is not None and self._order.exists():
                order = self._order.read_text()
                self._order.unlink()
                logger.warning("a decode call answers %s, as ordered", order)
                if order == HANG:
                    threading.Event().wait()
                return int(order)
        return super()._decode(batch)


if __name__ == "__main__":
    main(Parts(engine=FaultyEngine))
