"""Writes README.md's table of settings from the settings class: `python -m docs.settings_table`. A test compares."""

from __future__ import annotations

from pathlib import Path

from pydantic.fields import FieldInfo

from worker.settings import WorkerSettings

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- settings -->\n", "<!-- /settings -->"


def row(name: str, field: FieldInfo) -> str:
    """One setting's row; a default that depends on the machine is left to the description."""
    default = "" if field.default_factory or field.default == "" else f"`{field.default}`"
    return f"| `{WorkerSettings.model_config['env_prefix']}{name.upper()}` | {default} | {field.description} |\n"


def render(readme: str) -> str:
    """The README with the table as it should be."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"README.md has lost its {BEGIN.strip()} ... {END} block")
    rows = "".join(row(name, field) for name, field in WorkerSettings.model_fields.items())
    return f"{before}{BEGIN}| variable | default | meaning |\n| --- | --- | --- |\n{rows}{END}{after}"


if __name__ == "__main__":
    README.write_text(render(README.read_text()))
