"""What `import producer` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import producer


def test_all_is_exactly_what_is_visible() -> None:
    visible = {
        name for name, value in vars(producer).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert visible - {"annotations"} == set(producer.__all__)
    assert list(producer.__all__) == sorted(producer.__all__)


def test_every_public_name_says_what_it_is() -> None:
    assert all(getattr(producer, name).__doc__ for name in producer.__all__)


def test_importing_the_client_imports_neither_celery_nor_an_engine() -> None:
    heavy = "{'celery', 'kombu', 'llama_cpp', 'worker', 'rich'}"
    code = f"import sys, producer, producer.cli; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"

    process = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)

    assert (process.returncode, process.stderr) == (0, "")
