#!/usr/bin/env python3
"""Is the process that builds a cell as fast as those that load what it has built?

    python benchmarks/first_process.py [REPORT ...]

Later processes load a build from a cache, where other code may run (torch-xpu-ops issue 4051 reports 15 %). The table
has the latency in the first process over that in the later ones, for each engine, with Student's t-interval over cells.
It is taken of latencies, and of ratios to eager in the same rounds: in those the machine's drift divides out, but the
processes of eager differ, too, by more than those of a CUDA graph. A cell is `clear` if a further value of its later
processes would be so far off at most once in a hundred times (prediction interval: Hahn, Factors for calculating
two-sided prediction intervals for samples from a normal distribution, JASA 64, 1969). Without any effect, chance makes
one in a hundred. The last row counts contests, each by the mean of its cells: they share eager's processes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.judging.contest import CellJudgement, ContestJudgement
from bakeoff.judging.estimate import ratio_over_processes, shared_logs
from bakeoff.judging.intervals import student_quantile
from bakeoff.judging.judgement import contests_of
from bakeoff.records import report_file
from bakeoff.records.grouping import grouped
from benchmarks.winners_curse import STORED

FAR = 0.03
"""A smaller difference is not worth a doubt."""

FEWEST_LATER = 3
"""Fewer later processes say too little about their spread."""

Logs = Mapping[int, float]
"""The logarithm of a latency, or of its ratio to eager's, by process."""


@dataclass(frozen=True)
class First:
    """How the first process of a cell compares with the later ones, as logarithms."""

    engine: str
    beyond: float
    beyond_eager: float | None  # of ratios to eager
    is_clear: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", type=Path, default=STORED, help="report.json or .json.gz [stored ones]")
    contests = [contest for path in parser.parse_args().reports for contest in contests_of(report_file.read(path))]
    of_contests = [firsts for contest in contests if (firsts := list(firsts_of(contest)))]
    firsts = list(itertools.chain.from_iterable(of_contests))
    lines = [
        "| engine | cells | first / later | 95 % | lowest | highest | of ratios to eager | 95 % | over 3 % | clear |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(line_of(engine, group) for engine, group in grouped(firsts, lambda first: first.engine).items()),
        line_of("all", firsts),
        line_of("contests", [mean_of(firsts) for firsts in of_contests]),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def firsts_of(contest: ContestJudgement) -> Iterator[First]:
    """Yield what is known of each cell whose first process built it, and of which enough later ones loaded it."""
    eager = contest.fit.series.get(contest.baseline or "", {})
    for cell in contest.cells:
        if cell.label not in contest.fit.series:
            continue
        series = contest.fit.series[cell.label]
        own = {
            process: statistics.median([math.log(turn.ms) for turn in turns.values()])
            for process, turns in series.items()
        }
        if (found := beyond_later(cell, own)) is None:
            continue
        pairs = {process: shared_logs(eager[process], series[process]) for process in series.keys() & eager.keys()}
        over_eager = None
        if cell.label != contest.baseline:
            over_eager = beyond_later(
                cell, {process: statistics.median(logs) for process, logs in pairs.items() if logs}
            )
        engine = f"{cell.cell.backend} on {cell.cell.device.kind}"
        yield First(engine, found[0], over_eager and over_eager[0], found[1])


def beyond_later(cell: CellJudgement, logs: Logs) -> tuple[float, bool] | None:
    """Return by how much the first process is beyond the mean of the later ones of its build, and if that is clear."""
    processes = {process.index: process for process in cell.record.processes if process.build == 0}
    first = min(processes, default=-1)
    later = [log for index, log in logs.items() if index in processes and processes[index].warm]
    if first not in logs or processes[first].warm or len(later) < FEWEST_LATER:
        return None
    beyond = logs[first] - statistics.fmean(later)
    # the error of a single value beside the mean of the others
    error = statistics.stdev(later) * math.sqrt(1 + 1 / len(later))
    return beyond, abs(beyond) > student_quantile(0.99, len(later) - 1) * error


def mean_of(firsts: Sequence[First]) -> First:
    """Return the mean over the cells of a contest, whose ratios have the same eager processes in common."""
    of_pairs = [first.beyond_eager for first in firsts if first.beyond_eager is not None]
    beyond = statistics.fmean(first.beyond for first in firsts)
    return First("contest", beyond, statistics.fmean(of_pairs) if of_pairs else None, any(f.is_clear for f in firsts))


def line_of(engine: str, firsts: Sequence[First]) -> str:
    ratios = [math.exp(first.beyond) for first in firsts]
    of_pairs = [first.beyond_eager for first in firsts if first.beyond_eager is not None]
    far, clear = sum(abs(first.beyond) > math.log1p(FAR) for first in firsts), sum(first.is_clear for first in firsts)
    latency = mean_with_ends([first.beyond for first in firsts])
    ends = f"{min(ratios):.3f} | {max(ratios):.3f}"
    return f"| {engine} | {len(firsts)} | {latency} | {ends} | {mean_with_ends(of_pairs)} | {far} | {clear} |"


def mean_with_ends(logs: Sequence[float]) -> str:
    if not logs:
        return "- | -"
    mean = ratio_over_processes(logs)
    return f"{mean.value:.3f} | {f'{mean.ci95.low:.3f} to {mean.ci95.high:.3f}' if mean.ci95 else '-'}"


if __name__ == "__main__":
    main()
