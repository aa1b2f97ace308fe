"""Text to tokens: however long and monotonous, on whatever thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.scene import ROOT
from tests.tiny_kinds import write_tiny_bytes

#: Twenty times what overflows 8 MiB, the usual stack.
LONG = 500_000
#: Prints how many tokens a text has, as the main thread sees it and as another does.
COUNT = """
import sys, threading
from pathlib import Path
from celery_llama_worker.engine.llama.model import LlamaModel

def count():
    print(len(model.tokenize(sys.argv[2] * int(sys.argv[3]), add_special=False, parse_special=True)))

with LlamaModel(Path(sys.argv[1])) as model:
    count()
    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(
    ("pre_tokeniser", "run"),
    [("tekken", "a"), ("gpt-4o", " "), ("deepseek-v3", "aB"), ("default", "!")],
)
def test_a_long_run_of_like_characters_does_not_end_the_process(tmp_path: Path, pre_tokeniser: str, run: str) -> None:
    """Half of llama.cpp's pre-tokenisers call themselves for every character of a run."""
    model = write_tiny_bytes(tmp_path / "bytes.gguf", pre_tokeniser)
    times = LONG // len(run)
    command = [sys.executable, "-c", COUNT, str(model), run, str(times)]

    child = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=100, check=False)

    tokens = times // 2 if run == " " else times * len(run)
    assert (child.returncode, child.stdout.split()) == (0, [str(tokens)] * 2), child.stderr
