"""What the scripts of this folder share: files of results that a stop keeps, tables, and runs."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

LIBRARIES = ("torch", "onnxruntime-gpu", "onnxruntime", "openvino", "tensorrt", "transformers", "timm")
"""The libraries whose versions stand below a table."""

STOPS_S = 30.0
"""A run that is over its limit gets this long to write what it has measured."""


def say(text: str = "") -> None:
    """Print this at once, also into a pipe."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown. Columns whose heading ends with ":" are numbers, which stand on the right."""
    lines = [
        f"| {' | '.join(column.removesuffix(':') for column in columns)} |",
        f"| {' | '.join('---:' if column.endswith(':') else '---' for column in columns)} |",
    ]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


@dataclass(frozen=True)
class Lines:
    """A file of results, one in a line of JSON. A script that is started again goes on behind the last one."""

    path: Path

    def read(self) -> list[dict[str, Any]]:
        """Return all results. A last line that a stop has cut is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def append(self, result: dict[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        if text and not text.endswith("\n"):
            self.path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")


@dataclass(frozen=True)
class Limit:
    """The seconds that a script may take. Nothing begins that would end after them."""

    seconds: float
    begun_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.seconds - (time.monotonic() - self.begun_s)


def machine() -> str:
    """Return the date, the commit, the machine and the versions, in one line for below a table."""
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    versions = []
    for name in LIBRARIES:
        try:
            versions.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    parts = [
        time.strftime("%Y-%m-%d"),
        commit or "no commit",
        _gpu(),
        f"{len(os.sched_getaffinity(0))} cores of {_cpu()}",
    ]
    return ", ".join([*filter(None, parts), f"Python {platform.python_version()}", *versions])


def _gpu() -> str:
    try:
        names = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return " and ".join(dict.fromkeys(names))


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "one CPU")


def add_limits(parser: argparse.ArgumentParser, budget_s: float) -> None:
    """Add the options that `limits_of` reads, for how long each run of Bakeoff takes."""
    parser.add_argument("--processes", type=int, help="as for bakeoff")
    of_runs = f"seconds of each run of Bakeoff; 0: as long as it takes [{budget_s:.0f}]"
    parser.add_argument("--budget", type=float, default=budget_s, help=of_runs)
    parser.add_argument("--time-limit", type=int, help="as for bakeoff")


def limits_of(options: argparse.Namespace) -> list[str]:
    arguments = ["--budget", f"{options.budget:.0f}s"] if options.budget else []
    arguments += ["--processes", str(options.processes)] if options.processes else []
    return arguments + (["--time-limit", str(options.time_limit)] if options.time_limit else [])


def run(arguments: Sequence[str], out: Path, limit_s: float) -> dict[str, Any]:
    """Run Bakeoff with these arguments into the folder `out`, and return what it says.

    After `limit_s` it is interrupted, which leaves a report of what was measured so far. The result has a row for each
    cell, the verdict of the first contest, and why it has none.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(out, ignore_errors=True)  # of a script that was stopped in it
    begun_s = time.monotonic()
    log = out.with_suffix(".log")
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / "runner.py"), "run", *arguments, "--out", str(out)],
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
        )
        status = _ended(process, limit_s)
    taken: dict[str, Any] = {"seconds": round(time.monotonic() - begun_s, 1), "exit_status": status}
    if not (out / "report.json").exists():
        said = log.read_text(encoding="utf-8").strip().splitlines()
        return taken | {"rows": [], "failure": said[-1] if said else "it said nothing"}
    return taken | answer_at(out)


def answer_at(out: Path) -> dict[str, Any]:
    """Return a row for each cell of a finished run, and the verdict of its first contest."""
    from bakeoff.api.result import result_at

    result = result_at(out)
    answer = result.contests[0] if result.contests else None
    return {
        "rows": [{name: row.get(name) for name in COLUMNS} | {"label": label_of(row)} for row in result.rows],
        "outcome": answer and answer.outcome,
        "winner": answer and answer.winner,
        "candidates": answer.candidates if answer else [],
        "doubts_of_winner": answer.doubts_of_winner if answer else [],
    }


COLUMNS = (
    "status", "reason", "median_ms", "median_ci95_low_ms", "median_ci95_high_ms", "speedup", "speedup_ci95_low",
    "speedup_ci95_high", "speedup_paired", "build_s", "relative_rmse", "calls",
)  # fmt: skip
"""The columns of `cells.csv` that a result keeps."""


def label_of(row: dict[str, Any]) -> str:
    """Return the cell's name, such as `inductor/cuda-graph`."""
    return row["backend"] if row["mode"] == "default" else f"{row['backend']}/{row['mode']}"


def _ended(process: subprocess.Popen[Any], limit_s: float) -> int | None:
    """Wait until the process ends, for `limit_s` at most, and return its exit status; None if it had to be killed."""
    try:
        return process.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.terminate()
    try:
        return process.wait(timeout=STOPS_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None
