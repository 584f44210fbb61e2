#!/usr/bin/env python3
"""Does the folder that `bakeoff reproduce` writes for a cell measure what the report says?

    python benchmarks/reproduces.py
    python benchmarks/reproduces.py --configurations inductor,aotinductor
    python benchmarks/reproduces.py --device cuda --models mlp --configurations eager,eager/cuda-graph,inductor,onnx

Each repetition measures a model's cells with the harness, in one process each, and then with their folders, so that the
machine's drift is in both. A ratio is folder over report: the median over repetitions, with its 95 % interval from
order statistics (a dash below six repetitions). Equal processes differ too: the last column is the harness's slowest
repetition over its fastest. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from bakeoff.judging.intervals import median_interval
from bakeoff.records import report_file
from bakeoff.records.schema import Report
from bakeoff.shipping import export, script_parts
from benchmarks.common import ROOT, say, table

PRINTED = re.compile(r"median latency (\S+) ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default="mlp,transformer")
    parser.add_argument("--configurations", default="eager,torchscript,onnx,openvino")
    parser.add_argument("--repetitions", type=int, default=6, help="[6]")
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error("--repetitions: at least 1")
    configurations = options.configurations.split(",")
    rows = []
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            rows += compare(model, configurations, options.device, options.repetitions, Path(folder))
    columns = [
        "model",
        "configuration",
        "report (ms):",
        "folder (ms):",
        "folder / report [95 %]",
        "report / report, at most",
    ]
    say(table(columns, rows))


def compare(model: str, configurations: Sequence[str], device: str, repetitions: int, folder: Path) -> list[list[str]]:
    """Return a row for each of a model's configurations."""
    told: dict[str, list[float]] = {configuration: [] for configuration in configurations}
    printed: dict[str, list[float]] = {configuration: [] for configuration in configurations}
    for number in range(repetitions):
        run = folder / str(number)
        report = measured_by_harness(model, configurations, device, run)
        for configuration in configurations:
            record = script_parts.find_record(report, configuration)
            if record.latency is None:
                sys.exit(f"{record.cell.id} has no latency: {record.reason}")
            told[configuration].append(record.latency.median_ms)
            _, script = export.export(run, record.cell.id, run / f"folder-{record.cell.id}", with_models=True)
            printed[configuration].append(measured_by_script(script, folder))
    return [row(model, configuration, told[configuration], printed[configuration]) for configuration in configurations]


def measured_by_harness(model: str, configurations: Sequence[str], device: str, folder: Path) -> Report:
    """Run the cells in one process each, as a script does, and return the report."""
    command = [sys.executable, str(ROOT / "runner.py"), "run", "--model", model, "--backends", ",".join(configurations)]
    command += ["--devices", device, "--processes", "1", "--out", str(folder), "--quiet"]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return report_file.read(folder)


def measured_by_script(path: Path, folder: Path) -> float:
    """Run `load.py` and return the median latency in milliseconds that it prints. It finds its compilers' caches."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache")}
    command = [sys.executable, str(path)]
    said = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = PRINTED.search(said)
    if not found:
        sys.exit(f"the script printed no latency: {said!r}")
    return float(found[1])


def row(model: str, configuration: str, told: Sequence[float], printed: Sequence[float]) -> list[str]:
    ratios = [script / report for script, report in zip(printed, told, strict=True)]
    interval = median_interval(ratios)
    spelled = f"[{interval.low:.2f}, {interval.high:.2f}]" if interval else "-"
    medians = [f"{statistics.median(values):.4g}" for values in (told, printed)]
    ratio = f"{statistics.median(ratios):.2f} {spelled}"
    return [model, configuration, *medians, ratio, f"{max(told) / min(told):.2f}"]


if __name__ == "__main__":
    main()
