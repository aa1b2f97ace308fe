"""What `import celery_llama` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import celery_llama


def test_all_is_exactly_what_is_visible() -> None:
    visible = {
        name
        for name, value in vars(celery_llama).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert visible - {"annotations"} == set(celery_llama.__all__)
    assert list(celery_llama.__all__) == sorted(celery_llama.__all__)


def test_every_public_name_says_what_it_is() -> None:
    assert all(getattr(celery_llama, name).__doc__ for name in celery_llama.__all__)


def test_importing_the_client_imports_neither_celery_nor_an_engine() -> None:
    heavy = "{'celery', 'kombu', 'llama_cpp', 'worker', 'rich'}"
    code = f"import sys, producer, celery_llama.cli.commands; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"

    process = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)

    assert (process.returncode, process.stderr) == (0, "")
