#!/usr/bin/env python3
"""How much too high is a speed-up that is measured with the samples by which the best cell was chosen?

    python benchmarks/winners_curse.py [REPORT ...]

The best of many cells is partly the one that chance favoured, so that its speed-up is too high on the average (the
winner's curse: Capen, Clapp and Campbell, Journal of Petroleum Technology 23, 1971). Here the best cell is chosen on
one half of the samples, and its speed-up over the baseline is measured on the other half (sample splitting: Cox, A note
on data-splitting, Biometrika 62, 1975). The bias is the mean of the logarithm of the ratio of both speed-ups. It is
measured twice: with halves of the processes, which differ as two runs do, and with halves of each process's rounds.

A half has errors that are larger by the root of two than those of all samples, and so has the bias. The last column is
for all samples.

The second table draws contests of equal cells, of which each one's speed-up is 1, from the processes of the trials in
`benchmarks/equals.npz`. There the best one leads by chance alone.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.estimate import Series
from bakeoff.judging.fit import Fit, fit
from bakeoff.judging.intervals import half_width_of
from bakeoff.judging.judgement import contests_of
from bakeoff.records import report_file
from bakeoff.records.schema import Ratio
from benchmarks.replay import stored_trials

ROOT = Path(__file__).resolve().parent.parent

STORED = (*ROOT.glob("docs/showcase/*/report.json.gz"), *sorted(ROOT.glob("tests/judging/stored/*.json.gz")))

MOST_SPLITS = 20
"""Halves of the processes are tried in so many ways at most."""

PROCESSES = 5
"""A narrow lead is called with this many processes of each cell."""

DRAWS = 4000

Part = Callable[[int, int], bool]
"""Returns True for a process and a round of it that belong to one half."""


@dataclass(frozen=True)
class Row:
    """The bias of one contest: means over its splits."""

    title: str
    cells: int
    certainty: Certainty
    shown: Ratio  # the speed-up by all samples
    by_processes: float | None
    by_rounds: float | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="*", type=Path, default=STORED, help="report.json or .json.gz [stored ones]")
    rows = [
        row
        for path in parser.parse_args().reports
        for contest in contests_of(report_file.read(path))
        if (row := row_of(contest))
    ]
    lines = [
        "| contest | cells | answer | speed-up | half its interval | bias, halves of processes | of rounds | of all |",
        "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |",
        *(
            line_of(f"{row.title} | {row.cells} | {row.certainty}", row.shown, row.by_processes, row.by_rounds)
            for row in rows
        ),
        *(
            mean_line(f"mean of {name} | |", [row for row in rows if (row.certainty in CALLED) is is_called])
            for name, is_called in (("called winners", True), ("the others", False))
        ),
        "",
        "| equal cells from | process (standard deviation) | best of 2 | best of 6 | best of 13 |",
        "| --- | ---: | ---: | ---: | ---: |",
        *lines_of_equals(np.random.default_rng(1)),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


CALLED = (Certainty.SURE, Certainty.DOUBTED)


def mean_line(name: str, rows: Sequence[Row]) -> str:
    biases = ([row.by_processes for row in rows], [row.by_rounds for row in rows])
    return line_of(name, None, *map(mean_of, biases))


def line_of(begin: str, shown: Ratio | None, by_processes: float | None, by_rounds: float | None) -> str:
    known = [bias for bias in (by_processes, by_rounds) if bias is not None]
    of_all = known[0] / math.sqrt(2) if known else None
    half = half_width_of(shown.ci95) if shown else None
    speedup = f"{shown.value:.2f}" if shown else ""
    shares = [percent(half).lstrip("+"), *map(percent, (by_processes, by_rounds, of_all))]
    return f"| {begin} | {speedup} | {' | '.join(shares)} |"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.2f} %"


def mean_of(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def row_of(contest: ContestJudgement) -> Row | None:
    """Return the bias of a contest, or None where no cell but the baseline is ranked."""
    series = {label: contest.fit.series[label] for label in contest.contenders}
    if contest.baseline not in series or len(series) < 2:
        return None
    whole = speedup_of_best(contest.fit, contest.baseline)
    of_processes = [bias_of(series, contest.baseline, half) for half in halves_of_processes(series[contest.baseline])]
    of_rounds = [bias_of(series, contest.baseline, half) for half in (is_even, is_odd)]
    biases = mean_of(of_processes), mean_of(of_rounds)
    return Row(contest.title, len(series), contest.fastest.certainty, whole[1], *biases)


def halves_of_processes(baseline: Series) -> Iterator[Part]:
    """Yield ways to take half of the processes; of one alone, none."""
    for chosen in itertools.islice(itertools.combinations(sorted(baseline), len(baseline) // 2), MOST_SPLITS):
        if chosen:
            yield lambda process, number, chosen=chosen: process in chosen  # type: ignore[misc]


def is_even(process: int, number: int) -> bool:
    return number % 2 == 0


def is_odd(process: int, number: int) -> bool:
    return number % 2 == 1


def bias_of(series: dict[str, Series], baseline: str, is_chosen: Part) -> float | None:
    """Return the logarithm of the speed-up in the half that chose the best cell, over that in the other half.

    Return None where a half lacks the baseline, or the other half the cell that was chosen.
    """
    first, second = (fit(half_of(series, is_chosen, wanted)) for wanted in (True, False))
    if baseline not in first.latency_ms or baseline not in second.latency_ms:
        return None
    best, speedup = speedup_of_best(first, baseline)
    if best not in second.latency_ms:
        return None
    return math.log(speedup.value / second.ratio(best, baseline).value)


def speedup_of_best(fitted: Fit, baseline: str) -> tuple[str, Ratio]:
    best = min(fitted.latency_ms, key=lambda label: fitted.latency_ms[label])
    return best, fitted.ratio(best, baseline)


def half_of(series: dict[str, Series], is_chosen: Part, wanted: bool) -> dict[str, Series]:
    halves = {
        label: {
            process: {key: turn for key, turn in turns.items() if is_chosen(process, key[1]) is wanted}
            for process, turns in of_cell.items()
        }
        for label, of_cell in series.items()
    }
    return {label: {process: turns for process, turns in half.items() if turns} for label, half in halves.items()}


def lines_of_equals(random: np.random.Generator) -> Iterator[str]:
    """Yield a line for each set of trials: how far the best of equal cells leads by chance."""
    logs: dict[str, list[float]] = {}
    for trial in stored_trials():
        logs.setdefault(trial.source, []).extend(process_logs(trial.first, trial.again, trial.first))
    for source, of_pairs in logs.items():
        # the ratio of two equal processes has twice the variance of one of them
        centred = (np.asarray(of_pairs) - np.median(of_pairs)) / math.sqrt(2)
        leads = [percent(lead_by_chance(centred, cells, random)) for cells in (2, 6, 13)]
        yield f"| {source} | {percent(float(np.std(centred)))[1:]} | {' | '.join(leads)} |"


def process_logs(first: Series, again: Series, processes: Collection[int]) -> list[float]:
    """Return the logarithm of the ratio of both copies in each process."""
    return [
        math.log(statistics.median(again[process][key].ms / first[process][key].ms for key in first[process]))
        for process in processes
    ]


def lead_by_chance(deviations: np.ndarray, cells: int, random: np.random.Generator) -> float:
    """Return the mean logarithm of the speed-up of the best of so many equal cells. The baseline has errors, too."""
    drawn = random.choice(deviations, size=(DRAWS, cells + 1, PROCESSES)).mean(axis=2)
    return float(np.mean(drawn[:, -1] - drawn[:, :-1].min(axis=1)))


if __name__ == "__main__":
    main()
