#!/usr/bin/env python3
"""Is it true what is said of models that are easily misjudged, and are planted faults found?

    python benchmarks/truth.py --out results/truth

Every case of tests/cases is a run of its own, as a user would start it. So is every model in which faults are planted.
tests/cases/must_be.toml says what must come of each of them. The tables in Markdown tell what came: what passed, what
was refused or told as wrong, and in bold what is not true. The exit status is 1 if something is not true.

A run that is in `--out` already is not repeated, so that you can stop and continue. `--only early` takes the cases
whose names contain that.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff import backends as known_backends
from bakeoff.backends.base import DEFAULT
from bakeoff.records import report_file
from bakeoff.records.doubts import Dropped
from bakeoff.records.schema import Record, Status
from benchmarks.common import ROOT, machine, say, table

CASES = ROOT / "tests/cases"
PLUGIN = ROOT / "tests/support/plugin"
"""The tests' plug-in, with the planted faults. On the path it is installed."""

BACKENDS = "eager,torchscript,inductor,aotinductor,onnx,openvino"
REASON_CHARACTERS = 160


@dataclass(frozen=True)
class Case:
    """A model, and the ways in which each backend may end with it."""

    model: str
    kind: str
    eager: Sequence[str] = ("right",)
    others: Sequence[str] = ("right",)
    backends: Mapping[str, Sequence[str]] = field(default_factory=dict)
    said: str = ""  # must stand in what is said of the model
    unsaid: str = ""  # must not stand there
    sure: bool = True  # False: no winner may be sure
    dropped_by: Sequence[str] = ()  # the backends whose builds drop what the model reads or does outside

    def allowed(self, backend: str) -> Sequence[str]:
        return self.backends.get(backend, self.eager if backend == "eager" else self.others)


@dataclass(frozen=True)
class Plant:
    """A model in which faults are planted."""

    model: str
    set: str = ""


@dataclass(frozen=True)
class Told:
    """What a run said: its records, and its answer as JSON."""

    records: Sequence[Record]
    answer: Mapping[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How one backend ended, and whether that is right."""

    word: str  # "right", "wrong" or "refused"
    is_true: bool
    reason: str

    @property
    def cell(self) -> str:
        return self.word if self.is_true else f"**{self.word}**"


def main() -> int:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", default=BACKENDS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="the cases whose names contain this")
    parser.add_argument("--out", type=Path, default=Path("results/truth"), help="folder of the runs")
    options = parser.parse_args()
    cases, plants = expected(CASES / "must_be.toml")
    backends = options.backends.split(",")
    rows, problems, count = [], [], Counter[str]()
    for case in cases:
        if options.only not in case.model:
            continue
        told = run(model_path(case.model), "", options.backends, options.device, options.out)
        outcomes = {backend: outcome(case.allowed(backend), record_of(backend, told.records)) for backend in backends}
        rows.append([case.kind, *(found.cell for found in outcomes.values())])
        count.update(verdicts(outcomes.values()))
        problems += [f"{case.model}, {name}: {one.reason}" for name, one in outcomes.items() if not one.is_true]
        problems += [f"{case.model}: {problem}" for problem in untrue_of_model(case, told)]
    say(table(["model", *backends], rows))
    for plant in plants:
        if options.only not in plant.model:
            continue
        planted = faults()
        names = ",".join(["eager", *(f"planted/{fault}" for fault in planted)])
        told = run(model_path(plant.model), plant.set, names, options.device, options.out, "planted-")
        found = {fault: planted_outcome(record_of(f"planted/{fault}", told.records)) for fault in planted}
        say(f"\nFaults planted in `{plant.model}`: " + told_of(found))
        count.update(verdicts(one for one in found.values() if one.word != "not planted"))
        problems += [f"{plant.model}, {name}: {one.reason}" for name, one in found.items() if not one.is_true]
    rightly = f"Rightly passed: {count['passed']}. Rightly refused or told as wrong: {count['refused']}."
    say(f"\n{rightly} Untrue: {len(problems)}.")
    say(machine())
    say("\n".join(["", *(f"- {problem}" for problem in problems)]))
    return 1 if problems else 0


def expected(path: Path) -> tuple[list[Case], list[Plant]]:
    """Read what must come of each case."""
    data = tomllib.loads(path.read_text())
    return [Case(**case) for case in data["case"]], [Plant(**plant) for plant in data["planted"]]


def faults() -> list[str]:
    """Return the names of the faults that can be planted."""
    sys.path.append(str(PLUGIN))
    return [name for name in known_backends.create("planted").mode_names() if name != DEFAULT]


def model_path(model: str) -> str:
    """Return what `--model` takes: a file of tests/cases, or a model of ours."""
    return str((CASES / model).relative_to(ROOT)) if ".py:" in model else model


def run(model: str, sizes: str, backends: str, device: str, out: Path, prefix: str = "") -> Told:
    """Run Bakeoff, unless this run is in `out` already, and return what it said."""
    folder = (out / (prefix + re.sub(r"[^\w.-]+", "-", model))).resolve()
    answer = folder / "answer.json"
    if not answer.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "runner.py", "run", "--model", model, "--backends", backends, "--devices", device]
        command += ["--processes", "1", "--min-time", "0.05", "--no-artifacts", "--json", "--out", str(folder)]
        for size in filter(None, sizes.split(",")):
            command += ["--set", size]
        paths = os.pathsep.join(filter(None, (str(PLUGIN), os.environ.get("PYTHONPATH", ""))))
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
        )
        if not (folder / "report.json").exists():
            return Told([], {"refused": done.stderr.strip().splitlines()[-1:] or ["no report"]})
        answer.write_text(done.stdout)
    return Told(report_file.read(folder / "report.json", with_samples=False).records, json.loads(answer.read_text()))


def record_of(label: str, records: Sequence[Record]) -> Record | None:
    return next((record for record in records if record.cell.label == label), None)


def outcome(allowed: Sequence[str], record: Record | None) -> Outcome:
    """Compare how a backend ended with the ways in which it may end."""
    if record is None:
        return Outcome("refused", "refused" in allowed, "there is no record: the model did not load")
    word = {Status.OK: "right", Status.INCORRECT: "wrong"}.get(record.status, "refused")
    return Outcome(word, word in allowed, f"{record.status}: {record.reason[:REASON_CHARACTERS]}")


def planted_outcome(record: Record | None) -> Outcome:
    """A planted fault must be told as wrong. A model in which it cannot be planted is no evidence."""
    if record is not None and record.status is Status.UNSUPPORTED:
        return Outcome("not planted", True, record.reason)
    return outcome(["wrong"], record)


def untrue_of_model(case: Case, told: Told) -> list[str]:
    """Return what is said of the model and is not true, or is missing."""
    problems = []
    said = " ".join([*told.answer.get("about_models", []), *(text for one in contests(told) for text in one["doubts"])])
    if case.said and case.said not in said:
        problems.append(f"nothing is said of {case.said!r}")
    if case.unsaid and case.unsaid in said:
        problems.append(f"{case.unsaid!r} is said")
    if not case.sure and any(one["outcome"] == "sure" for one in contests(told)):
        problems.append("a winner is sure")
    droppers = {each.cell.label for each in told.records if any(isinstance(one, Dropped) for one in each.doubts)}
    measured = {each.cell.label for each in told.records if each.status is Status.OK}
    if droppers != measured.intersection(case.dropped_by):
        problems.append(f"{sorted(droppers)} drop what the model reads or does, and not {sorted(case.dropped_by)}")
    return problems


def contests(told: Told) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = told.answer.get("contests", [])
    return found


def told_of(planted: Mapping[str, Outcome]) -> str:
    """Return in words what came of each planted fault."""
    words = {name: outcome.cell for name, outcome in planted.items() if outcome.word != "not planted"}
    return "; ".join(f"{name}: {word}" for name, word in words.items())


def verdicts(outcomes: Iterable[Outcome]) -> list[str]:
    """Return "passed", "refused" or "untrue" for each outcome."""
    return ["untrue" if not one.is_true else "passed" if one.word == "right" else "refused" for one in outcomes]


if __name__ == "__main__":
    sys.exit(main())
