"""Runs a call on a thread of its own whose stack is as deep as the call needs. Any thread may ask; it waits meanwhile.

Half of llama.cpp's pre-tokenisers match with std::regex, and libstdc++'s calls itself for every character of a run:
some 26,000 equal letters overflow the usual 8 MiB, and the process is gone
(https://github.com/ggml-org/llama.cpp/issues/27783).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

#: What Python and llama.cpp need besides.
_BASE_BYTES = 1 << 20
_PAGE_BYTES = 1 << 12
#: The size of new threads' stacks is one setting for the whole interpreter.
_stack_size = threading.Lock()


def on_deep_stack(call: Callable[[], T], stack_bytes: int) -> T:
    """What `call` returns or raises; raises MemoryError if there is no room for the stack.

    Only what the call touches of the stack becomes memory, and it is given back with the thread.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name="deep stack", daemon=True)
    with _stack_size:
        usual = threading.stack_size((_BASE_BYTES + stack_bytes) // _PAGE_BYTES * _PAGE_BYTES)
        try:
            thread.start()
        except (RuntimeError, ValueError) as error:
            raise MemoryError(f"no room for a stack of {stack_bytes} bytes") from error
        finally:
            threading.stack_size(usual)
    thread.join()
    return outcome.result()
