"""Results to `docs/benchmarks.json`, and from there to `docs/benchmarks.md`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.targets import DROPPED, TARGETS, Target

DOCS = Path(__file__).parents[1] / "docs"
#: What a round had to do with, not what came of it.
_HIDDEN = {"work", "unit", "medians", "values", "disturbed", "neighbours_cores"}

_DEVICE = """\
Milliseconds are those of a call of the device. *idle*: it had nothing to do. Then where they went: the parts of the
engine thread (*late*: it waited for the interpreter's lock or for a core), and what each thread used of a core."""


def load(path: Path) -> dict[str, Any]:
    """The results so far: a part that is measured again replaces only itself."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def save(path: Path, results: dict[str, Any]) -> None:
    """Write the results, and the page beside them."""
    path.write_text(json.dumps(results, indent=1) + "\n")
    path.with_suffix(".md").write_text("\n".join([*_head(results), *_targets(results), *_tables(results)]))


def _head(results: dict[str, Any]) -> Iterator[str]:
    machine = results.get("machine", {})
    yield from (
        "# Benchmarks",
        "",
        "Written by `make bench`; how each figure is measured is in [bench/README.md](../bench/README.md). Ratios are",
        "medians of rounds in which all sides took turns; absolute figures hold for this machine only.",
        "",
    )
    versions = ", ".join(f"{name} {number}" for name, number in machine.get("versions", {}).items())
    for name in ("processor", "cores", "threads", "system", "model", "llama.cpp", "llama-server", "commit"):
        yield f"- {name}: {machine.get(name, 'unknown')}"
    yield from (f"- versions: {versions}", "")
    if disturbed := sorted(_disturbed(results)):
        yield f"**Disturbed**, because other processes computed meanwhile, so preliminary: {', '.join(disturbed)}."
        yield ""


def _disturbed(results: Any, name: str = "") -> Iterator[str]:
    if isinstance(results, dict):
        if results.get("disturbed"):
            yield name
        for key, value in results.items():
            yield from _disturbed(value, f"{name} {key}".strip())


def _targets(results: dict[str, Any]) -> Iterator[str]:
    yield from ("## Targets", "", "| figure | target | measured | |", "| --- | --- | --- | --- |")
    for target in TARGETS:
        sign = ">=" if target.at_least else "<="
        yield f"| {target.name} | {sign} {target.bound:g} {target.unit} | {_verdict(target, results)} |"
    yield from ("", DROPPED, "")


def _verdict(target: Target, results: dict[str, Any]) -> str:
    value = target.value(results)
    if value is None:
        return "not measured | "
    verdict = "met" if target.met(value) else f"**not met**. {target.reason}".strip()
    return f"{value:.3g} {target.unit} | {verdict}"


def _tables(results: dict[str, Any]) -> Iterator[str]:
    yield from _grid("Tokens per second at a time, prompts included", results.get("throughput", {}))
    for key, title in (
        ("shared_prefix", "One long shared prefix, cold, all at once"),
        ("mixed_lengths", "Mixed lengths, generous `max_tokens`"),
        ("backlog", "10,000 queued jobs"),
    ):
        if key in results:
            yield from _medians(title, results[key])
    yield from _grid("A pretended device: what the host costs", results.get("device", {}), _DEVICE)
    yield from _grid("What batching buys: decode steps of the bare loop, tokens per second", results.get("weights", {}))
    yield from _grid("GOMP_SPINCOUNT, tokens per second", results.get("spin", {}))
    delays = {
        f"{name} {key}": value for name, found in results.get("latency", {}).items() for key, value in _plain(found)
    }
    yield from _list("Delays", delays)
    yield from _list("Profile of a step", dict(_plain(results.get("profile", {}))))
    gpu = results.get("gpu", {"measured": False, "why": "not measured"})
    if gpu["measured"]:
        sizes = {slots: found for slots, found in gpu.items() if slots.isdigit()}
        device = ", ".join(gpu["devices"]) or "device unknown"
        yield from _grid("GPU, tokens per second at a time", sizes, f"{gpu['model']}; {device}. Probe: {gpu['probe']}.")
    else:
        yield from ("## GPU", "", f"{gpu['why'].capitalize()}.", "")


def _grid(title: str, rows: Mapping[str, Mapping[str, Any]], note: str = "") -> Iterator[str]:
    """A line for each of several measurements that have the same figures."""
    if not rows:
        return
    lines = {name: {**figures["medians"], **dict(_plain(figures))} for name, figures in rows.items()}
    columns = list(dict.fromkeys(column for line in lines.values() for column in line))
    yield from (f"## {title}", "", *((note, "") if note else ()))
    yield from (f"| | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}")
    for name, line in lines.items():
        yield f"| {name} | {' | '.join(_shown(line.get(column, '-')) for column in columns)} |"
    yield ""


def _medians(title: str, figures: Mapping[str, Any]) -> Iterator[str]:
    medians = {side: f"{value:.4g} {figures['unit']}" for side, value in figures["medians"].items()}
    yield from _list(title, medians | dict(_plain(figures)), f"{figures['work']}." if "work" in figures else "")


def _list(title: str, figures: Mapping[str, Any], note: str = "") -> Iterator[str]:
    if figures:
        yield from (f"## {title}", "", *((note, "") if note else ()), "| figure | value |", "| --- | --- |")
        yield from (f"| {name} | {_shown(value)} |" for name, value in figures.items())
        yield ""


def _plain(figures: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What was measured beside the sides' medians."""
    return ((key.replace("_", " "), value) for key, value in figures.items() if key not in _HIDDEN)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_shown(number)}" for name, number in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
