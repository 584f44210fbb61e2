"""Holds the error over many contests at once: of a hundred equal pairs, five would pass a test at 5 % each."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bakeoff.judging.decision import FEWEST_PROCESSES, MARGIN, MARGIN_UNPAIRED
from bakeoff.judging.fit import Fit
from bakeoff.judging.intervals import student_tail

FAMILY_ERROR = 0.05
"""The probability that any of the wins over many contests is none is at most this."""


def holm(chances: Sequence[float], error: float = FAMILY_ERROR) -> list[bool]:
    """Return for each hypothesis, given by its p-value, whether Holm's method rejects it.

    Source: Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6, 1979.
    It needs no independence of the tests.
    """
    rejected = [False] * len(chances)
    for place, index in enumerate(np.argsort(chances, kind="stable")):
        if chances[index] > error / (len(chances) - place):
            break
        rejected[index] = True
    return rejected


def chance_of_lead(found: Fit, fast: str, slow: str) -> float:
    """Return the two-sided p-value of so clear a lead, if there were none.

    It is Student's t over processes, or over the rounds of a single one, by the interval of the ratio. The lead counts
    beyond the margin that a verdict asks for with few processes, or without common rounds.
    """
    ratio = found.ratio(fast, slow)
    if ratio.ci95 is None:
        return 1.0
    is_over_processes = ratio.paired and ratio.processes >= FEWEST_PROCESSES
    margin = 0.0 if is_over_processes else MARGIN if ratio.paired else MARGIN_UNPAIRED
    beyond = math.log(ratio.value / (1 + margin))
    if beyond <= 0:
        return 1.0
    half_widths = 2 * beyond / width if (width := math.log(ratio.ci95.high / ratio.ci95.low)) > 0 else math.inf
    values = ratio.processes if ratio.processes > 1 else len(found.round_logs(slow, fast))
    return student_tail(half_widths, max(values, FEWEST_PROCESSES) - 1)


def chance_of_win(found: Fit, best: str, others: Sequence[str]) -> float:
    """Return the p-value of the hypothesis that some other cell is as fast: the largest of those of all pairs.

    This is an intersection-union test (Berger, Multiparameter hypothesis testing and acceptance sampling, Technometrics
    24, 1982).
    """
    return max((chance_of_lead(found, best, other) for other in others), default=1.0)
