"""Writes README.md's table of settings from the settings class: `python -m docs.settings_table`. A test compares."""

from __future__ import annotations

from pathlib import Path

from pydantic.fields import FieldInfo

from celery_llama_worker.settings import WorkerSettings

README = Path(__file__).parents[1] / "README.md"


def replace_block(document: str, name: str, block: str) -> str:
    """The document with this between its comments `name` and `/name`."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, found_begin, rest = document.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"the document has lost its {begin.strip()} ... {end} block")
    return f"{before}{begin}{block}{end}{after}"


def row(name: str, field: FieldInfo) -> str:
    """One setting's row; a default that depends on the machine is left to the description."""
    default = "" if field.default_factory or field.default == "" else f"`{field.default}`"
    return f"| `{WorkerSettings.model_config['env_prefix']}{name.upper()}` | {default} | {field.description} |\n"


def render(readme: str) -> str:
    """The README with the table as it should be."""
    rows = "".join(row(name, field) for name, field in WorkerSettings.model_fields.items())
    return replace_block(readme, "settings", f"| variable | default | meaning |\n| --- | --- | --- |\n{rows}")


if __name__ == "__main__":
    README.write_text(render(README.read_text()))
