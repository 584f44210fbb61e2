#!/usr/bin/env python3
"""Which engine wins the models that people ship? A run of each model, and one table.

    python benchmarks/shipped_models.py --device cuda --precision fp16 --out results/shipped-gpu
    python benchmarks/shipped_models.py --device cpu --set batch=1 --out results/shipped-cpu
    python benchmarks/shipped_models.py --table --figure shipped.svg --out results/shipped-gpu

The models are those of a preset (`bakeoff/presets/shipped.toml`), with random weights. Each has a run of its own with a
budget, so that one that fails or takes long stops no other. Results are appended to `results.jsonl` in `--out`. The
same command goes on where it was stopped, and prints the tables.

"Best" is the lowest median of a model, whether or not it is surely the fastest. A backend is within 1 % of the best
where its median is at most 1.01 times that. Means are geometric, over the models on which a backend is right.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff import backends
from bakeoff.planning.config import PRESETS
from bakeoff.records.schema import Cell, Record, Status
from bakeoff.reports.charts.chart import BAR_Y, Axis, Chart, Dots, Mark
from bakeoff.reports.charts.paint import save_svg
from bakeoff.reports.charts.palette import Palette
from benchmarks.common import Limit, Lines, add_limits, limits_of, machine, run, say, table

NEAR = 1.01
"""A backend is near the best one within this factor."""

ENDS_S = 45.0
"""A run that has a budget ends at most this long after it."""

MAX_REASON = 100
"""Characters of a reason in the table; the run's report has the whole."""


@dataclass(frozen=True)
class Asked:
    """One model of the preset, with its sizes and task."""

    model: str
    sizes: Mapping[str, int | str]
    task: str

    @property
    def name(self) -> str:
        """The model's short name, such as `bert`, with its task where that is not inference."""
        short = self.model.rpartition("/")[2].rpartition(":")[2]
        return short if self.task == "inference" else f"{short} ({self.task})"

    def arguments(self, typed: list[str]) -> list[str]:
        """Return the options of its run. What was `typed` wins over the preset's sizes."""
        sizes = {key: str(value) for key, value in self.sizes.items()} | dict(size.split("=", 1) for size in typed)
        options = [option for key, value in sizes.items() for option in ("--set", f"{key}={value}")]
        return ["--model", self.model, "--task", self.task, *options]


def asked_in(preset: str) -> Iterator[Asked]:
    """Yield the models of a preset."""
    document = tomllib.loads((PRESETS / f"{preset}.toml").read_text(encoding="utf-8"))
    for part in document["run"]:
        models = part["model"] if isinstance(part["model"], list) else [part["model"]]
        for model in models:
            yield Asked(model, part.get("set", {}), part.get("task", "inference"))


def measure(options: argparse.Namespace, models: list[Asked], results: Lines) -> None:
    """Run the models that have no result yet, until the time is over."""
    limit = Limit(options.limit)
    done = {result["model"] for result in results.read() if not options.retry or medians(result)}
    for number, asked in enumerate(models):
        if asked.name in done:
            continue
        if limit.left_s < options.budget + ENDS_S:
            say(f"{asked.name}: not begun, {limit.left_s:.0f} s are left")
            continue
        arguments = [*asked.arguments(options.set), "--backends", options.backends, "--devices", options.device]
        arguments += ["--precision", options.precision, "--no-artifacts", *limits_of(options)]
        found = run(arguments, options.out / "runs" / f"{number}-{asked.name.partition(' ')[0]}", limit.left_s)
        results.append({"model": asked.name, "arguments": arguments} | found)
        best = found.get("failure") or f"{found['winner'] or ' or '.join(found['candidates'])}, {found['outcome']}"
        say(f"{asked.name}: {best}, {found['seconds']:.0f} s; {limit.left_s:.0f} s are left")


def medians(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the median in ms of each cell that is right."""
    return {row["label"]: row["median_ms"] for row in result["rows"] if row["status"] == "ok" and row["median_ms"]}


def models_table(results: list[dict[str, Any]]) -> str:
    """Return a row for each model: what is best, and by how much."""
    rows = []
    for result in results:
        ordered = sorted(medians(result).items(), key=lambda item: item[1])
        if not ordered:
            rows.append([result["model"], f"nothing: {result.get('failure') or _reason(result)}", *[""] * 7])
            continue
        (_, best_ms), right = ordered[0], dict(ordered)
        candidates = [result["winner"]] if result["winner"] else result["candidates"]
        other = next((item for item in ordered if _engine(item[0]) not in map(_engine, candidates)), None)
        rows.append(
            [
                result["model"],
                " or ".join(f"`{label}`" for label in candidates) or f"`{ordered[0][0]}`",
                result["outcome"],
                f"{best_ms:.4g}",
                _times(right.get("eager"), best_ms),
                _times(right.get("inductor"), best_ms),
                f"`{other[0]}` {_times(other[1], best_ms)}" if other else "",
                ", ".join(f"{row['label']} ({row['status']})" for row in result["rows"] if row["status"] != "ok"),
                f"{result['seconds']:.0f}",
            ]
        )
    columns = ["model", "best", "outcome", "ms:", "over eager:", "over Inductor:", "best of another engine"]
    return table([*columns, "without numbers", "s:"], rows)


def backends_table(results: list[dict[str, Any]]) -> str:
    """Return a row for each backend and mode: how often it is best, near the best, and right."""
    cells: dict[str, list[tuple[dict[str, Any], dict[str, float]]]] = {}
    for result in results:
        for row in result["rows"]:
            cells.setdefault(row["label"], []).append((row, medians(result)))
    rows = []
    for label, of_label in cells.items():
        right = [(row, those) for row, those in of_label if label in those]
        over_best = [those[label] / min(those.values()) for _, those in right]
        gains = [those["eager"] / those[label] for _, those in right if "eager" in those]
        builds = [row["build_s"] for row, _ in right if row["build_s"]]
        rows.append(
            (
                -sum(factor <= NEAR for factor in over_best),
                [
                    f"`{label}`",
                    f"{len(right)} of {len(of_label)}",
                    sum(factor == 1.0 for factor in over_best),
                    f"{sum(factor <= NEAR for factor in over_best) / len(of_label):.0%}",
                    f"{statistics.geometric_mean(gains):.2f}" if gains else "",
                    f"{statistics.geometric_mean(over_best):.2f}" if over_best else "",
                    f"{statistics.median(builds):.0f}" if builds else "",
                ],
            )
        )
    columns = ["backend", "right:", "best:", "within 1 %:", "over eager, mean:", "over the best, mean:", "build (s):"]
    return table(columns, [row for _, row in sorted(rows, key=lambda item: item[0])])


def figure(results: list[dict[str, Any]], path: Path) -> None:
    """Draw how many times as fast as eager each right build of each model is."""
    shown = [result for result in results if "eager" in medians(result)]
    best = {result["model"]: min(medians(result).items(), key=lambda item: item[1]) for result in shown}
    wins = Counter(_engine(label) for label, _ in best.values()).most_common()
    firsts = ", ".join(f"{engine} on {count} of {len(shown)}" for engine, count in wins)
    labels = sorted({label for result in shown for label in medians(result)} - {"eager"})
    palette = Palette(map(_record_of, labels))
    marks, gains = [], [1.0]
    for place, result in enumerate(shown):
        for label, median_ms in medians(result).items():
            if label != "eager":
                gains.append(medians(result)["eager"] / median_ms)
                dots = Dots((gains[-1],), (place + BAR_Y,), is_filled=label == best[result["model"]][0])
                marks.append(Mark((dots,), f"{result['model']}, {label}: {gains[-1]:.2f}x", palette(label)))
    chart = Chart(
        name="shipped",
        subject="models that people ship",
        finding=f"The best build (filled): {firsts}",
        caption="How many times as fast as eager one call is, by medians",
        x=Axis("times as fast as eager", 0.9, 1.1 * max(gains), is_log=True),
        marks=tuple(marks),
        rows=tuple(result["model"] for result in shown),
        legend=tuple((label, palette(label)) for label in labels),
        width_in=7.2,
    )
    save_svg([chart], "Times as fast as eager, by model and build", path)


def _record_of(label: str) -> Record:
    backend, _, mode = label.partition("/")
    cell = Cell(model="mlp", dimensions={}, backend=backend, mode=mode or "default")
    return Record(cell=cell, status=Status.OK, colour=backends.create(backend).colour)


def _engine(label: str) -> str:
    return label.partition("/")[0]


def _reason(result: Mapping[str, Any]) -> str:
    said = next((f"{row['status']}, {row['reason']}" for row in result["rows"] if row["reason"]), "not measured")
    return said if len(said) <= MAX_REASON else f"{said[:MAX_REASON]}..."


def _times(ms: float | None, best_ms: float) -> str:
    return f"{ms / best_ms:.2f}" if ms else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="shipped")
    parser.add_argument("--only", default="", help="names of models, separated by commas, such as resnet50,bert")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="fp32")
    parser.add_argument("--backends", default="best")
    parser.add_argument("--set", action="append", default=[], help="KEY=VALUE of every model, in place of the preset's")
    add_limits(parser, 60.0)
    parser.add_argument("--limit", type=float, default=570.0, help="seconds of all, within which everything ends [570]")
    parser.add_argument("--retry", action="store_true", help="run what has no numbers once more")
    parser.add_argument("--table", action="store_true", help="only print the tables of what was measured")
    parser.add_argument("--figure", type=Path, help="also draw the table, into this file")
    parser.add_argument("--out", type=Path, default=Path("results/shipped"))
    options = parser.parse_args()
    options.out = options.out.resolve()
    wanted = set(filter(None, options.only.split(",")))
    models = [asked for asked in asked_in(options.preset) if not wanted or asked.name.partition(" ")[0] in wanted]
    results = Lines(options.out / "results.jsonl")
    if not options.table:
        measure(options, models, results)
    found = list({result["model"]: result for result in results.read()}.values())  # the last of each
    took = f"{sum(result['seconds'] for result in found) / 60:.0f} minutes in all"
    about = f"{options.device}, {options.precision}, `--backends {options.backends}`, {took}; {machine()}"
    text = f"{models_table(found)}\n\n{backends_table(found)}\n\n{about}"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "tables.md").write_text(text + "\n", encoding="utf-8")
    if options.figure:
        figure(found, options.figure)
    say(f"\n{text}")


if __name__ == "__main__":
    main()
