#!/usr/bin/env python3
"""What would today's rules have said in the stored trials of a backend against itself?

    python benchmarks/replay.py                     # a row for each device, with and without a program beside it
    python benchmarks/replay.py --sets              # a row for each machine, model and mode
    python benchmarks/replay.py --planted 1.03      # the same samples, with the second copy made 3 % slower

`benchmarks/equals.npz` holds 1,320 trials in which the second copy was equal, and 80 in which it was slower by itself
(docs/evidence.md says where they and their raw data are from). Of every round it keeps the median
latency of both copies, to 0.02 %, and whether something disturbed them. A replay asks after every process, from the
third on, whether the contest is decided, as a run does, and leaves out the rounds that a run would not take today. It
cannot ask for more processes than a trial had: trials that were stored after three processes often stay undecided when
a slowdown is planted in them. Near a threshold a replay may differ from what the trial itself said, because it knows a
burst by its stored quantiles only.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.judging.decision import FEWEST_PROCESSES, Relation, is_decided, relation
from bakeoff.judging.estimate import Series, Turn
from bakeoff.judging.fit import fit
from bakeoff.judging.gaps import gap, is_clear
from bakeoff.measuring.controller.rounds import MAX_ERROR_AT_HALF
from bakeoff.planning.sampling_plan import MIN_ROUNDS_PER_EPOCH
from bakeoff.records.schema import Ratio
from benchmarks.common import say, table

STORED = Path(__file__).with_name("equals.npz")
LOG_STEP = 2e-4
"""The stored logarithms are multiples of this."""


Turns = Mapping[tuple[int, int], Turn]


@dataclass(frozen=True)
class StoredTrial:
    """One contest of two copies. `source` names the machine, model, device, mode and neighbour of its set."""

    source: str
    first: Series
    again: Series


@dataclass(frozen=True)
class Outcome:
    """What the rules said when they had seen enough processes, or all that the trial had."""

    ratio: Ratio  # latency of the second copy over that of the first
    relation: Relation
    decided: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", type=float, default=1.0, help="how many times slower the second copy is made")
    parser.add_argument("--sets", action="store_true", help="a row for each set of trials")
    options = parser.parse_args()
    by_group: dict[str, list[Outcome]] = {}
    for trial in stored_trials():
        outcome = replay(trial, options.planted)
        for group in [trial.source] if options.sets else [group_of(trial), f"all, {second_copy(trial)}"]:
            by_group.setdefault(group, []).append(outcome)
    columns = ["trials of", "number:", "first is faster:", "second is faster:", "tie:", "undecided:", "processes:"]
    say(table(columns, [row(group, by_group[group]) for group in sorted(by_group)]))


def group_of(trial: StoredTrial) -> str:
    """Return the device, whether something ran beside it, and what the second copy is."""
    _, _, device, _, place, *_ = trial.source.split()
    return f"{device}, {place}, {second_copy(trial)}"


def second_copy(trial: StoredTrial) -> str:
    *_, last = trial.source.split()
    return f"slower by itself, {last.removeprefix('slower-')} times" if last.startswith("slower") else "equal"


def row(name: str, outcomes: list[Outcome]) -> list[object]:
    counts = [
        sum(one.relation is Relation.FASTER for one in outcomes),
        sum(one.relation is Relation.SLOWER for one in outcomes),
        sum(one.relation is Relation.TIE and one.decided for one in outcomes),
        sum(not one.decided for one in outcomes),
    ]
    processes = sum(one.ratio.processes for one in outcomes) / len(outcomes)
    return [name, len(outcomes), *counts, f"{processes:.1f}"]


def replay(trial: StoredTrial, planted: float = 1.0) -> Outcome:
    """Decide the trial as a run would, with the second copy's latencies multiplied by `planted`."""
    again: dict[int, Turns] = {
        process: {key: Turn(turn.ms * planted, turn.disturbed) for key, turn in turns.items()}
        for process, turns in trial.again.items()
    }
    processes = sorted(trial.first)
    first: dict[int, Turns] = dict(trial.first)
    for process in processes:
        first[process], again[process] = as_taken_today(first[process], again[process])
    for count in range(min(FEWEST_PROCESSES, len(processes)), len(processes) + 1):
        seen = processes[:count]
        found = fit({"first": {one: first[one] for one in seen}, "again": {one: again[one] for one in seen}})
        ratio = found.ratio("first", "again")
        if is_decided(ratio):
            break
    return Outcome(ratio, relation(ratio), is_decided(ratio))


def as_taken_today(first: Turns, again: Turns) -> tuple[Turns, Turns]:
    """Return the rounds of two processes of an epoch, without those that today's rules would not have taken."""
    half = MIN_ROUNDS_PER_EPOCH // 2
    halves = [{key: turn for key, turn in turns.items() if key[1] < half} for turns in (first, again)]
    fast, slow = sorted(halves, key=lambda turns: statistics.median(turn.ms for turn in turns.values()))
    known = gap(fast, slow)
    return (halves[0], halves[1]) if known and is_clear(known, MAX_ERROR_AT_HALF) else (first, again)


def stored_trials(path: Path = STORED) -> Iterator[StoredTrial]:
    """Read the trials in the order in which they were measured, set by set."""
    with np.load(path) as stored:
        sets, trials, rounds, disturbed = (stored[name] for name in ("sets", "trials", "rounds", "disturbed"))
        first, again = (_joined(stored[name]) for name in ("first", "again"))
    next_process = next_round = 0
    for number, processes in trials.tolist():
        copies: tuple[dict[int, dict[tuple[int, int], Turn]], ...] = {}, {}
        for process in range(processes):
            for round_number in range(int(rounds[next_process])):
                log = float(first[next_round]) * LOG_STEP
                logs = log, log + float(again[next_round]) * LOG_STEP
                for bit, (copy, log_ms) in enumerate(zip(copies, logs, strict=True)):
                    turn = Turn(math.exp(log_ms), bool(disturbed[next_round] >> bit & 1))
                    copy.setdefault(process, {})[0, round_number] = turn
                next_round += 1
            next_process += 1
        yield StoredTrial(str(sets[number]), *copies)


def _joined(planes: np.ndarray) -> np.ndarray:
    """The 16-bit numbers whose low bytes and high bytes are stored apart, which compresses better."""
    return np.ascontiguousarray(planes.T).view("<i2").ravel()


if __name__ == "__main__":
    main()
