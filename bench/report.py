"""Results to `docs/benchmarks.json`, and from there to `docs/benchmarks.md` and `docs/benchmarks.svg`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.targets import TARGETS, Target

DOCS = Path(__file__).parents[1] / "docs"


def load(path: Path) -> dict[str, Any]:
    """The results so far: a part that is measured again replaces only itself."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def save(path: Path, results: dict[str, Any]) -> None:
    """Write the results, and the page and the plot beside them."""
    path.write_text(json.dumps(results, indent=1) + "\n")
    path.with_suffix(".md").write_text(page(results, path.with_suffix(".svg").name))
    path.with_suffix(".svg").write_text(plot(results))


def page(results: dict[str, Any], plot_name: str) -> str:
    """The page in Markdown."""
    return "\n".join([*_head(results), *_targets(results), f"![Tokens per second]({plot_name})", "", *_tables(results)])


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
    yield f"- versions: {versions}"
    yield ""
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
    yield ""


def _verdict(target: Target, results: dict[str, Any]) -> str:
    value = target.value(results)
    if value is None:
        return "not measured | "
    verdict = "met" if target.met(value) else f"**not met**. {target.reason}".strip()
    return f"{value:.3g} {target.unit} | {verdict}"


def _tables(results: dict[str, Any]) -> Iterator[str]:
    throughput = {key: value for key, value in results.get("throughput", {}).items() if key.isdigit()}
    if throughput:
        yield from ("## Tokens per second, prompts included", "")
        sides = list(next(iter(throughput.values()))["medians"])
        ratios = [key for key in next(iter(throughput.values())) if "/" in key]
        yield f"| at a time | {' | '.join([*sides, *ratios])} | rounds, discarded |"
        yield f"| --- |{' --- |' * (len(sides) + len(ratios) + 1)}"
        for slots, figures in throughput.items():
            values = [f"{figures['medians'][side]:.0f}" for side in sides] + [f"{figures[key]:.3f}" for key in ratios]
            yield f"| {slots} | {' | '.join(values)} | {figures['rounds']}, {figures['discarded']} |"
        yield ""
        if "one_by_one" in results["throughput"]:
            yield from _medians("One job after another", results["throughput"]["one_by_one"], "tokens/s")
    scenarios = results.get("scenarios", {})
    for key, title in (
        ("shared_prefix", "One long shared prefix, cold, all at once"),
        ("mixed_lengths", "Mixed lengths, generous `max_tokens`"),
        ("burst", "Longest gap of decoding jobs while a prompt of 1,500 tokens is read"),
        ("backlog", "10,000 queued jobs"),
    ):
        if key in scenarios:
            yield from _medians(title, scenarios[key], scenarios[key]["unit"])
    if results.get("weights"):
        yield from _weights(results["weights"])
    for name, figures in results.get("spin", {}).items():
        yield from _medians(f"GOMP_SPINCOUNT, {name}", figures, figures["unit"])
    for title, part in (
        ("Delays", results.get("latency", {})),
        ("Profile of a step", {"": results.get("profile", {})}),
    ):
        if any(part.values()):
            yield from (f"## {title}", "", "| figure | value |", "| --- | --- |")
            for name, figures in part.items():
                yield from (f"| {name} {key} | {value} |" for key, value in _plain(figures))
            yield ""
    yield from _gpu(results.get("gpu", {"measured": False, "why": "not measured"}))


def _weights(weights: dict[str, Any]) -> Iterator[str]:
    sides = list(next(iter(weights.values()))["medians"])
    yield from ("## What batching buys: decode steps of the bare loop, tokens per second", "")
    yield f"| weights | {' | '.join(f'{side} at a time' for side in sides)} | gain |"
    yield f"| --- |{' --- |' * (len(sides) + 1)}"
    for name, figures in weights.items():
        values = " | ".join(f"{figures['medians'][side]:.0f}" for side in sides)
        yield f"| {name} | {values} | {figures['gain']:.1f}x |"
    yield ""


def _medians(title: str, figures: dict[str, Any], unit: str) -> Iterator[str]:
    yield from (f"## {title}", "")
    if "work" in figures:
        yield from (f"{figures['work']}.", "")
    yield from ("| side | median |", "| --- | --- |")
    yield from (f"| {side} | {value:.4g} {unit} |" for side, value in figures["medians"].items())
    yield from (f"| {key} | {value} |" for key, value in _plain(figures))
    yield ""


def _plain(figures: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    hidden = {"work", "unit", "medians", "values", "disturbed", "neighbours_cores"}
    for key, value in figures.items():
        if key not in hidden:
            shown = (
                ", ".join(f"{name} {number:g}" for name, number in value.items()) if isinstance(value, dict) else value
            )
            yield key.replace("_", " "), shown


def _gpu(figures: dict[str, Any]) -> Iterator[str]:
    yield from ("## GPU", "")
    if not figures["measured"]:
        yield from (f"{figures['why'][0].upper()}{figures['why'][1:]}.", "")
        return
    yield f"{figures['model']}; {', '.join(figures['devices']) or 'device unknown'}. Probe: {figures['probe']}."
    yield from ("", "| at a time | bare loop | queue | queue / bare loop |", "| --- | --- | --- | --- |")
    for slots, found in figures.items():
        if slots.isdigit():
            cells = (
                [found[key] for key in ("limit", "queue", "queue/limit")]
                if isinstance(found, dict)
                else [found, "", ""]
            )
            yield f"| {slots} | {' | '.join(map(str, cells))} |"
    yield ""


# ---- the plot, by hand: a few bars need no library

_COLOURS = {"limit": "#b0b7c3", "queue": "#2f6fde", "llama-server": "#e08a2e"}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 260, 56, 44


def plot(results: dict[str, Any]) -> str:
    """Tokens per second by sequences at a time, as SVG."""
    groups = {key: value["medians"] for key, value in results.get("throughput", {}).items() if key.isdigit()}
    top = max((value for medians in groups.values() for value in medians.values()), default=1.0) * 1.1
    parts = list(_frame(top))
    space = (_WIDTH - _LEFT - 16) / max(1, len(groups))
    for number, (slots, medians) in enumerate(groups.items()):
        bar = space * 0.8 / len(medians)
        for at, (side, value) in enumerate(medians.items()):
            height = value / top * (_HEIGHT - _BOTTOM - 24)
            x, y = _LEFT + number * space + space * 0.1 + at * bar, _HEIGHT - _BOTTOM - height
            colour = _COLOURS.get(side, "#888")
            parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{bar - 3:.1f}" height="{height:.1f}" fill="{colour}"/>')
            parts.append(_label(x + bar / 2 - 1.5, y - 4, f"{value:.0f}"))
        parts.append(_label(_LEFT + (number + 0.5) * space, _HEIGHT - _BOTTOM + 16, f"{slots} at a time"))
    for at, side in enumerate(next(iter(groups.values()), {})):
        x = _LEFT + 150 * at
        parts.append(f'<rect x="{x}" y="{_HEIGHT - 16}" width="10" height="10" fill="{_COLOURS.get(side, "#888")}"/>')
        parts.append(_label(x + 16, _HEIGHT - 7, {"limit": "bare loop"}.get(side, side), "start"))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#fff"/>', *parts, "</svg>\n"])


def _frame(top: float) -> Iterator[str]:
    yield _label(8, 14, "tokens/s", "start")
    step = next(size for size in (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e9) if top / size <= 6)
    value = 0.0
    while value <= top:
        y = _HEIGHT - _BOTTOM - value / top * (_HEIGHT - _BOTTOM - 24)
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - 16}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e3e6eb"/>'
        yield _label(_LEFT - 6, y + 4, f"{value:.0f}", "end")
        value += step


def _label(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="11" fill="#333" text-anchor="{anchor}">{text}</text>'
