#!/usr/bin/env python3
"""Does a 95 % interval over 3 to 5 processes hold the truth, and does the whole procedure call the right winner?

    python benchmarks/coverage.py

simulates contests and prints six tables in Markdown. docs/evidence.md has their main numbers. In the simulation, a
process is off by a bias for as long as it lives. A round's ratio adds noise to the biases of its two processes. In a
disturbed round, one side is up to twice as slow. The decisions are those of judging/decision.py itself.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.judging.decision import CALLED, FEWEST_PROCESSES, MAX_PROCESSES, TIE_MARGIN, Relation, is_decided, relation
from bakeoff.judging.estimate import Turn, ratio_over_processes
from bakeoff.judging.fit import Fit, fit
from bakeoff.judging.intervals import student_quantile
from bakeoff.judging.ranking import is_known_well
from bakeoff.records.schema import Ratio
from benchmarks.common import say

Array = npt.NDArray[np.float64]

ROUNDS = 12
ROUND_NOISE = 0.01
"""The standard deviation of the logarithm of one round's ratio."""

RIVALS = 4
"""The number of cells beside the baseline. The pooled interval averages their variances."""

RESAMPLES = 400
RATIOS = (1.0, 1.03, 1.05, 1.24)
EQUAL_CELLS = 6

RACE = (1.25, 1.0, 1.0, 1.03, 1.05)
"""The true latencies of the cells of a race. The first one is the baseline, and the next two are equal and best."""


@dataclass(frozen=True)
class Scenario:
    """One kind of contest to simulate. A bias is the standard deviation of the logarithm of one process."""

    name: str
    bias: float = 0.01
    other_bias: float = 0.01  # the bias of the cells outside of the pair
    degrees: float = math.inf  # biases come from Student's t with these degrees of freedom
    disturbed: float = 0.0  # the share of disturbed rounds
    slower_kind: float = 0.0  # half of the processes are slower by this share
    leaves: bool = False  # the second cell has one process only


PROCEDURES = (
    *(Scenario(f"{100 * bias:.1f} %", bias=bias) for bias in (0.003, 0.008, 0.01, 0.015, 0.03, 0.08)),
    Scenario("1.0 %, heavy-tailed (t, 3 degrees)", degrees=3.0),
    Scenario("0.3 %, and half of them 4 % slower", bias=0.003, slower_kind=0.04),
    Scenario("0.3 %, and half of them 8 % slower", bias=0.003, slower_kind=0.08),
    Scenario("0.3 %, and half of them 15 % slower", bias=0.003, slower_kind=0.15),
)

SCENARIOS = (
    Scenario("normal bias"),
    Scenario("heavy-tailed bias (t, 3 degrees)", degrees=3.0),
    Scenario("20 % of the rounds disturbed", disturbed=0.2),
    Scenario("the other cells vary less (0.3 %)", other_bias=0.003),
)


@dataclass(frozen=True)
class Outcomes:
    """The shares of trials that ended in each way, and the mean number of processes that they took."""

    right: float
    wrong: float
    undecided: float
    processes: float


def main() -> None:
    """Print the tables, each as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--tables", default=",".join(TABLES), help="names, separated by commas")
    options = parser.parse_args()
    for name in options.tables.split(","):
        table_of, share = TABLES[name]
        say("\n".join(table_of(np.random.default_rng(options.seed), options.trials // share)) + "\n")


def coverage_table(random: np.random.Generator, trials: int) -> list[str]:
    """Tell how often each kind of 95 % interval holds the true ratio, and half its width."""
    lines = _header("scenario", "processes", *INTERVALS)
    for scenario in SCENARIOS:
        for processes in (3, 4, 5):
            rounds = simulated_rounds(random, scenario, trials, processes)
            cells = [_coverage(interval(rounds, random)) for interval in INTERVALS.values()]
            lines.append(_line(scenario.name, str(processes), *cells))
    return lines


def fit_table(random: np.random.Generator, trials: int) -> list[str]:
    """Tell how often the interval of the fit holds the true ratio, in contests of `RIVALS` + 1 cells with a drift."""
    counts = (3, 5, 10, 20)
    lines = _header("scenario", *(f"{count} processes" for count in counts))
    for scenario in (*SCENARIOS, Scenario("one cell left after its first process", leaves=True)):
        shares = [
            np.mean(
                [_holds(contest.ratio("0", "1"), 1.0) for contest in simulated_fits(random, scenario, trials, count)]
            )
            for count in counts
        ]
        lines.append(_line(scenario.name, *(_percent(float(share)) for share in shares)))
    return lines


def few_table(random: np.random.Generator, trials: int) -> list[str]:
    """Tell how often the fit of equals holds 1 after one and two processes, and how often it calls a lead."""
    lines = _header("processes differ by", "one: holds 1", "calls a lead", "two: holds 1", "calls a lead")
    for scenario in (*PROCEDURES, Scenario("5.0 %", bias=0.05), Scenario("15.0 %", bias=0.15)):
        cells = []
        for processes in (1, 2):
            ratios = [contest.ratio("0", "1") for contest in simulated_fits(random, scenario, trials, processes)]
            cells.append(_percent(sum(_holds(ratio, 1.0) for ratio in ratios) / len(ratios)))
            cells.append(_percent(sum(relation(ratio) in CALLED for ratio in ratios) / len(ratios)))
        lines.append(_line(scenario.name, *cells))
    return lines


def simulated_fits(random: np.random.Generator, scenario: Scenario, trials: int, processes: int) -> Iterator[Fit]:
    """Fit contests of equal cells, which share each round's drift. The interval is that of the first two cells."""
    scales = np.array([1.0, 1.0, *[scenario.other_bias / scenario.bias] * (RIVALS - 1)])
    for _ in range(trials):
        biases = scales[:, np.newaxis] * _biases(random, scenario, (RIVALS + 1, processes))
        noise = random.normal(0, ROUND_NOISE / math.sqrt(2), (*biases.shape, ROUNDS))
        slowed = np.log(random.uniform(1.0, 2.0, noise.shape)) * (random.random(noise.shape) < scenario.disturbed / 2)
        drift = np.cumsum(random.normal(0, 0.02, (processes, ROUNDS)), axis=1)
        latencies_ms = np.exp(biases[..., np.newaxis] + noise + slowed + drift).tolist()
        yield fit(
            {
                str(cell): {
                    process: {(process, number): Turn(ms, False) for number, ms in enumerate(rounds)}
                    for process, rounds in enumerate(of_cell)
                    if not (scenario.leaves and cell == 1 and process > 0)
                }
                for cell, of_cell in enumerate(latencies_ms)
            }
        )


def _holds(ratio: Ratio, true_ratio: float) -> bool:
    return ratio.ci95 is not None and ratio.ci95.low <= true_ratio <= ratio.ci95.high


def procedure_table(random: np.random.Generator, trials: int) -> list[str]:
    """Tell what the procedure decides, for pairs of every bias and true ratio."""
    lines = _header(
        "bias of a process", "true ratio", "called right", "called wrong", "undecided", "processes", "wrong at 95 %"
    )
    for scenario in PROCEDURES:
        for true_ratio in RATIOS:
            estimates = simulated_estimates(random, scenario, trials, MAX_PROCESSES)
            estimates += math.log(true_ratio)
            found = outcomes(estimates, true_ratio)
            naive = _percent(wrong_at_95(estimates)) if true_ratio == 1.0 else "-"
            lines.append(
                _line(
                    scenario.name,
                    f"{true_ratio:.2f}",
                    _percent(found.right),
                    _percent(found.wrong),
                    _percent(found.undecided),
                    f"{found.processes:.1f}",
                    naive,
                )
            )
    return lines


def equals_table(random: np.random.Generator, trials: int) -> list[str]:
    """Tell how often a winner is called among several equal cells. The best so far is compared with the others."""
    lines = _header("bias of a process", f"winner among {EQUAL_CELLS} equal cells", "undecided", "processes")
    for scenario in PROCEDURES:
        logs = _biases(random, scenario, (trials, EQUAL_CELLS, MAX_PROCESSES))
        logs += random.normal(0, ROUND_NOISE / math.sqrt(ROUNDS), logs.shape)
        ends = [_contest_of_equals(cells) for cells in logs]
        called, open_ended = (np.mean([end[place] for end in ends]) for place in (0, 1))
        taken = np.mean([end[2] for end in ends])
        lines.append(_line(scenario.name, _percent(float(called)), _percent(float(open_ended)), f"{taken:.1f}"))
    return lines


def race_table(random: np.random.Generator, trials: int) -> list[str]:
    """Compare races, in which a cell leaves once the best one is called faster, with contests in which all stay."""
    lines = _header(
        "bias of a process",
        "decided cells",
        *(f"interval of {ratio:.2f} holds" for ratio in RACE[3:]),
        "wrong",
        "processes",
    )
    for scenario in PROCEDURES:
        for leaves in (False, True):
            ends = [_race(random, scenario, leaves) for _ in range(trials)]
            held = [float(np.mean([end[0][place] for end in ends])) for place in range(2)]
            wrong, processes = (float(np.mean([end[place] for end in ends])) for place in (1, 2))
            how = "leave" if leaves else "stay"
            lines.append(_line(scenario.name, how, *map(_percent, held), _percent(wrong), f"{processes:.1f}"))
    return lines


def _race(random: np.random.Generator, scenario: Scenario, leaves: bool) -> tuple[list[bool], bool, float]:
    """Measure a race until it is decided.

    Return whether the intervals of the two slower cells to the first equal one hold, whether an equal or a slower cell
    was called a winner over it or the other equal one, and the mean number of processes of a cell.
    """
    cells = range(len(RACE))
    logs = np.log(RACE)[:, np.newaxis] + _biases(random, scenario, (len(RACE), MAX_PROCESSES))
    noise = random.normal(0, ROUND_NOISE / math.sqrt(2), (*logs.shape, ROUNDS))
    drift = np.cumsum(random.normal(0, 0.02, (MAX_PROCESSES, ROUNDS)), axis=1)
    latencies_ms = np.exp(logs[..., np.newaxis] + noise + drift).tolist()
    taken: dict[str, dict[int, dict[tuple[int, int], Turn]]] = {str(cell): {} for cell in cells}
    away: set[str] = set()
    for process in range(MAX_PROCESSES):
        for cell in cells:
            if str(cell) not in away:
                turns = enumerate(latencies_ms[cell][process])
                taken[str(cell)][process] = {(process, number): Turn(ms, False) for number, ms in turns}
        if process + 1 < FEWEST_PROCESSES:
            continue
        contest = fit(taken)
        best = min(taken, key=lambda label: contest.latency_ms[label])
        leads = {label: contest.ratio(best, label) for label in taken if label != best}
        decided = {label for label, lead in leads.items() if is_decided(lead)}
        if decided == set(leads):
            break
        may_leave = {label for label in decided if label != "0" or is_known_well(leads[label])}
        away = {label for label in may_leave if relation(leads[label]) is Relation.FASTER} if leaves else set()
    held = [_holds(contest.ratio("1", str(cell)), RACE[cell]) for cell in (3, 4)]
    beaten = {label for label, lead in leads.items() if relation(lead) is Relation.FASTER}
    return held, bool(beaten & {"1", "2"}), float(np.mean([len(of_cell) for of_cell in taken.values()]))


def simulated_rounds(random: np.random.Generator, scenario: Scenario, trials: int, processes: int) -> Array:
    """Draw logarithms of ratios to the baseline: trials x `RIVALS` x processes x rounds. Their true value is 0.

    The intervals are those of the first rival.
    """
    baseline = _biases(random, scenario, (trials, 1, processes))
    pair = _biases(random, scenario, (trials, 1, processes))
    scale = scenario.other_bias / scenario.bias
    others = scale * _biases(random, scenario, (trials, RIVALS - 1, processes))
    own = np.concatenate([pair - baseline, others - scale * baseline], axis=1)
    noise = random.normal(0, ROUND_NOISE, (*own.shape, ROUNDS))
    hit = random.random(noise.shape) < scenario.disturbed
    side = random.choice([-1.0, 1.0], noise.shape)
    slowed = hit * side * np.log(random.uniform(1.0, 2.0, noise.shape))
    return np.asarray(own[..., np.newaxis] + noise + slowed)


def simulated_estimates(random: np.random.Generator, scenario: Scenario, trials: int, processes: int) -> Array:
    """Draw the logarithm of a pair's ratio as each process estimates it: trials x processes. The true value is 0."""
    shape = (trials, processes)
    own = _biases(random, scenario, shape) - _biases(random, scenario, shape)
    rounds = own[..., np.newaxis] + random.normal(0, ROUND_NOISE, (*shape, ROUNDS))
    return np.asarray(np.median(rounds, axis=-1))


def outcomes(estimates: Array, true_ratio: float) -> Outcomes:
    """Decide the trials (trials x processes) with a look after every process, from the third on."""
    expected = Relation.TIE if true_ratio == 1.0 else Relation.FASTER
    ends = [_procedure(trial) for trial in estimates.tolist()]
    calls = [relation(ratio) for ratio in ends]
    return Outcomes(
        right=float(np.mean([call is expected for call in calls])),
        wrong=float(np.mean([call in _winners(true_ratio) for call in calls])),
        undecided=float(np.mean([not is_decided(ratio) for ratio in ends])),
        processes=float(np.mean([ratio.processes for ratio in ends])),
    )


def wrong_at_95(estimates: Array) -> float:
    """Tell how often equals would get a winner if a 95 % interval without 1 and a difference of 2 % were enough."""
    called = np.zeros(len(estimates), dtype=bool)
    for processes in range(FEWEST_PROCESSES, estimates.shape[1] + 1):
        seen = estimates[:, :processes]
        mean = np.abs(seen.mean(axis=1))
        called |= (mean > _half_width(seen)) & (mean >= math.log1p(TIE_MARGIN))
    return float(called.mean())


def _winners(true_ratio: float) -> tuple[Relation, ...]:
    return (Relation.FASTER, Relation.SLOWER) if true_ratio == 1.0 else (Relation.SLOWER,)


def _procedure(logs: Sequence[float]) -> Ratio:
    """Return the ratio that measuring ends with."""
    return next((ratio for ratio in _looks(logs) if is_decided(ratio)), ratio_over_processes(logs))


def _looks(logs: Sequence[float]) -> Iterator[Ratio]:
    for processes in range(FEWEST_PROCESSES, len(logs) + 1):
        yield ratio_over_processes(logs[:processes])


def _contest_of_equals(logs: Array) -> tuple[bool, bool, int]:
    """Return whether a winner was called, whether it ended undecided, and the processes taken.

    `logs` are logarithms of cells x processes.
    """
    for processes in range(FEWEST_PROCESSES, logs.shape[1] + 1):
        seen = logs[:, :processes]
        order = np.argsort(np.median(seen, axis=1))
        best, *others = (seen[place] for place in order)
        leads = [ratio_over_processes((other - best).tolist()) for other in others]
        tied = _first_place(leads)
        if all(is_decided(lead) for lead in tied):
            return not tied, False, processes
    return not tied, True, processes


def _first_place(leads: Sequence[Ratio]) -> list[Ratio]:
    """Return the best's leads over the cells that share its place: all before the first one that is beaten."""
    beaten = next((place for place, lead in enumerate(leads) if relation(lead) is Relation.FASTER), len(leads))
    return list(leads[:beaten])


def over_processes(rounds: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Return middle and half width, by trial, of Student's t over the processes of the pair."""
    estimates = np.median(rounds[:, 0], axis=-1)
    return estimates.mean(axis=1), _half_width(estimates)


def pooled(rounds: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Do the same with the mean of all cells' variances and all their degrees of freedom."""
    estimates = np.median(rounds, axis=-1)
    processes = estimates.shape[-1]
    deviation = np.sqrt(estimates.var(axis=-1, ddof=1).mean(axis=1))
    quantile = student_quantile(0.95, RIVALS * (processes - 1))
    return estimates[:, 0].mean(axis=1), quantile * deviation / math.sqrt(processes)


def resampled(rounds: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Return the hierarchical bootstrap's percentiles: it draws processes, and rounds within each of them."""
    ends = np.array([_resampled_ends(trial, random) for trial in rounds[:: len(rounds) // 1000 or 1, 0]])
    return ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2


def independent(rounds: Array, random: np.random.Generator) -> tuple[Array, Array]:
    """Apply Student's t to all rounds of all processes, as if there were no processes."""
    flat = rounds[:, 0].reshape(len(rounds), -1)
    return flat.mean(axis=1), _half_width(flat)


INTERVALS: dict[str, Callable[[Array, np.random.Generator], tuple[Array, Array]]] = {
    "t over processes": over_processes,
    "hierarchical bootstrap": resampled,
    "t, variance pooled over cells": pooled,
    "t over rounds, as if independent": independent,
}


def _resampled_ends(rounds: Array, random: np.random.Generator) -> Array:
    """Return the 2.5 % and 97.5 % quantiles of resampled means, from processes x rounds."""
    processes = len(rounds)
    drawn = random.integers(processes, size=(RESAMPLES, processes, 1))
    within = random.integers(ROUNDS, size=(RESAMPLES, processes, ROUNDS))
    means = np.median(rounds[drawn, within], axis=-1).mean(axis=-1)
    return np.asarray(np.quantile(means, [0.025, 0.975]))


def _half_width(values: Array) -> Array:
    """Return half the width of the 95 % t-interval of each row's mean."""
    count = values.shape[1]
    return np.asarray(student_quantile(0.95, count - 1) * values.std(axis=1, ddof=1) / math.sqrt(count))


def _biases(random: np.random.Generator, scenario: Scenario, shape: tuple[int, ...]) -> Array:
    kinds = math.log1p(scenario.slower_kind) * (random.random(shape) < 0.5)
    if math.isinf(scenario.degrees):
        return np.asarray(kinds + random.normal(0, scenario.bias, shape))
    scale = scenario.bias / math.sqrt(scenario.degrees / (scenario.degrees - 2))
    return np.asarray(kinds + scale * random.standard_t(scenario.degrees, shape))


def _coverage(interval: tuple[Array, Array]) -> str:
    middle, half = interval
    return f"{_percent(float(np.mean(np.abs(middle) <= half)), 1)} (± {_percent(float(half.mean()), 1)})"


def _percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f} %"


def _header(*names: str) -> list[str]:
    return [_line(*names), _line(":--", *("--:" for _ in names[1:]))]


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


TABLES: dict[str, tuple[Callable[[np.random.Generator, int], list[str]], int]] = {
    "coverage": (coverage_table, 1),
    "fit": (fit_table, 10),
    "few": (few_table, 10),
    "procedure": (procedure_table, 1),
    "equals": (equals_table, 5),
    "race": (race_table, 20),
}
"""Each table, and the share of the trials that it takes."""

if __name__ == "__main__":
    main()
