#!/usr/bin/env python3
"""What do pages from the kernel do to a contest of two equal cells? Trials of `conv` in eager on a CPU, and two tables.

    taskset -c 0,1 python benchmarks/pages.py --limit 570 --out results/pages
    python benchmarks/pages.py --table --out results/pages

Each trial is a contest of eager and its copy, as in `aa.py`. Its processes' median calls and pages are appended to
`trials.jsonl` in `--out`. The first table has the time that a page takes, by least squares over all processes. The
second one says how often the rules call a winner, with and without what they know of pages: in these trials, and in
contests that are drawn from the trials' pairs of processes, so that neither cell is faster.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.commands import selfcheck
from bakeoff.judging.decision import CALLED, ENOUGH_PROCESSES, FEWEST_PROCESSES, is_decided, relation
from bakeoff.judging.estimate import MOST_FOR_PAGES, PAGE_FAULT_NS, process_medians_ms, ratio_over_processes
from bakeoff.records.schema import Record
from benchmarks import aa
from benchmarks.common import Limit, Lines, machine, say, table

USUAL_S = 120.0
"""A trial begins if so much time is left."""

MOST_PROCESSES = ENOUGH_PROCESSES + FEWEST_PROCESSES
"""Drawn contests end after so many processes. On such a machine no more are likely to decide."""


def trial() -> dict[str, Any]:
    """Measure two copies of eager until they are decided. Return each process's median in ms, and its pages a call."""
    model, labels = aa.Model("conv"), ("eager", "eager-again")
    with tempfile.TemporaryDirectory(prefix="bakeoff-pages-") as name:
        folder = Path(name)
        contest = aa.contest_of([aa.cell_of(model, "cpu", label) for label in labels], "cpu")
        measured = selfcheck.trial_of(*contest, folder / "run", folder / "reference.safetensors", (1.0,))
    ms = [list(process_medians_ms(record.bursts).values()) for record in measured.records]
    return {"ms": ms, "pages": [pages_of(record) for record in measured.records]}


def pages_of(record: Record) -> list[float]:
    found: dict[int, list[float]] = {}
    for burst in record.bursts:
        pages = (burst.conditions and burst.conditions.page_faults) or 0
        found.setdefault(burst.process, []).append(pages / len(burst.samples_ns))
    return [statistics.median(found[process]) for process in sorted(found)]


def time_of_page(trials: Sequence[dict[str, Any]]) -> tuple[int, float, float, float]:
    """Return the number of processes, the ms of a call without pages, the µs of a page, and the correlation."""
    ms, pages = (
        np.array([value for one in trials for values in one[key] for value in values]) for key in ("ms", "pages")
    )
    slope, start = np.polyfit(pages, ms, 1)
    return len(ms), float(start), 1e3 * float(slope), float(np.corrcoef(pages, ms)[0, 1])


def is_called(logs: Sequence[float], by_pages: Sequence[float]) -> bool:
    """Return True if a winner is called after some number of processes. `by_pages` has a factor for each number."""
    for processes in range(FEWEST_PROCESSES, len(logs) + 1):
        ratio = ratio_over_processes(logs[:processes]).model_copy(update={"by_pages": by_pages[processes - 1]})
        if is_decided(ratio):
            return relation(ratio) in CALLED
    return False


def factors(one: dict[str, Any]) -> list[float]:
    """Return what pages may make of the slower cell after each number of processes, as the rules have it."""
    found = []
    for processes in range(1, len(one["ms"][0]) + 1):
        totals_ms = [sum(values[:processes]) for values in one["ms"]]
        slower = int(totals_ms[1] > totals_ms[0])
        pairs = zip(one["pages"][slower][:processes], one["ms"][slower][:processes], strict=True)
        share = max(min(pages * PAGE_FAULT_NS / (ms * 1e6), MOST_FOR_PAGES) for pages, ms in pairs)
        found.append(1 / (1 - share))
    return found


def called_table(trials: Sequence[dict[str, Any]], drawn: int, seed: int) -> str:
    logs = [np.log(one["ms"][0]) - np.log(one["ms"][1]) for one in trials]
    pool = np.concatenate([*logs, *(-each for each in logs)])  # neither of two equal cells comes first
    contests = np.random.default_rng(seed).choice(pool, (drawn, MOST_PROCESSES)).tolist()
    usual = statistics.median(factors(one)[-1] for one in trials)

    def share(of: Sequence[bool]) -> str:
        return f"{sum(of)} ({100 * sum(of) / len(of):.2g} %)"

    rows = [
        [
            rules,
            share([is_called(each.tolist(), known(one)) for each, one in zip(logs, trials, strict=True)]),
            share([is_called(each, [factor] * MOST_PROCESSES) for each in contests]),
        ]
        for rules, known, factor in (
            ("without pages", lambda one: [1.0] * len(one["ms"][0]), 1.0),
            ("with pages", factors, usual),
        )
    ]
    return table(["rules", f"winners in {len(trials)} trials:", f"in {drawn} of {len(pool) // 2} pairs:"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=float, default=570.0, help="seconds of all [570]")
    parser.add_argument("--drawn", type=int, default=4000, help="contests to draw [4000]")
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--table", action="store_true", help="only print the tables of what was measured")
    parser.add_argument("--out", type=Path, default=Path("results/pages"))
    options = parser.parse_args()
    results, limit = Lines(options.out / "trials.jsonl"), Limit(options.limit)
    aa.use_plugin(aa.COPIES)
    while not options.table and limit.left_s > USUAL_S:
        results.append(trial())
        say(f"{len(results.read())} trials, {limit.left_s:.0f} s are left")
    if not (trials := results.read()):
        raise SystemExit("no trial has ended")
    count, start_ms, page_us, correlation = time_of_page(trials)
    columns = ["processes:", "a call without pages (ms):", "a page (µs):", "correlation:"]
    say(table(columns, [[count, f"{start_ms:.3g}", f"{page_us:.3g}", f"{correlation:.2f}"]]))
    say(f"\n{called_table(trials, options.drawn, options.seed)}\n\n{machine()}")


if __name__ == "__main__":
    main()
