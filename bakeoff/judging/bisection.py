"""Finds the version of a package with which a model became slower. What was measured comes in, and nothing is measured.

A step holds a candidate, the good version and the bad version in the same rounds. The halves narrow until no version
between the last fast one and the first slow one is left to try.
"""

from collections.abc import Sequence
from enum import StrEnum

from bakeoff.judging.decision import Relation, is_decided, relation
from bakeoff.judging.fit import fit_records
from bakeoff.records.schema import Frozen, Ratio, Record, Status


class Call(StrEnum):
    """What a step says of its version."""

    FAST = "fast"  # not slower than the good version, and surely faster than the bad one
    SLOW = "slow"  # surely slower than the good version
    UNDECIDED = "undecided"
    SKIPPED = "skipped"  # it does not install, or the model fails with it


class TriedVersion(Frozen):
    """One version beside the good and the bad one."""

    version: str
    call: Call
    over_good: Ratio | None = None  # its latency over that of the good version
    below_bad: Ratio | None = None  # the latency of the bad version over its own; None for the bad version itself
    reason: str = ""  # why it was skipped


class Bisection(Frozen):
    """A walk over the versions of a package: the steps so far, and what they come to."""

    package: str
    backend: str
    versions: tuple[str, ...]  # from the good one to the bad one
    steps: tuple[TriedVersion, ...] = ()  # the first one compares the bad version with the good one

    @property
    def good(self) -> str:
        return self.versions[0]

    @property
    def bad(self) -> str:
        return self.versions[-1]

    @property
    def next_version(self) -> str | None:
        """Return the version to measure next: the one nearest to the middle of the suspects. None at the end."""
        if not self.steps:
            return self.bad
        tried = {step.version for step in self.steps}
        suspects = self.suspects
        untried = [place for place, version in enumerate(suspects) if version not in tried]
        return suspects[min(untried, key=lambda place: abs(2 * place - len(suspects) + 2))] if untried else None

    @property
    def suspects(self) -> tuple[str, ...]:
        """Return the versions of which one is the first slow one. There is none where the bad version is not slow."""
        slow = self._places(Call.SLOW)
        if not slow:
            return ()
        return self.versions[max(self._places(Call.FAST), default=0) + 1 : min(slow) + 1]

    @property
    def first_slow(self) -> TriedVersion | None:
        suspects = self.suspects
        return self.step_of(suspects[0]) if len(suspects) == 1 else None

    def step_of(self, version: str) -> TriedVersion | None:
        return next((step for step in self.steps if step.version == version), None)

    def _places(self, call: Call) -> list[int]:
        return [self.versions.index(step.version) for step in self.steps if step.call is call]


def judge_step(version: str, records: Sequence[Record], good: str, bad: str, candidate: str) -> TriedVersion:
    """Judge the contest of one step. `good`, `bad` and `candidate` are the environments of its cells."""
    by_environment = {record.cell.environment: record for record in records}
    for name in dict.fromkeys((candidate, good, bad)):
        record = by_environment[name]
        if record.status is not Status.OK:
            reason = f"{record.cell.label} ended as {record.status}: {record.reason}"
            return TriedVersion(version=version, call=Call.SKIPPED, reason=reason)
    ratio, label = fit_records(records).ratio, {name: record.cell.label for name, record in by_environment.items()}
    over_good = ratio(label[good], label[candidate])
    below_bad = ratio(label[candidate], label[bad]) if candidate != bad else None
    return TriedVersion(version=version, call=call_of(over_good, below_bad), over_good=over_good, below_bad=below_bad)


def call_of(over_good: Ratio, below_bad: Ratio | None) -> Call:
    """Return what the ratios say by the rules of a verdict. The bad version is fast only if no process could help."""
    beside_good = relation(over_good)
    if beside_good is Relation.FASTER:
        return Call.SLOW
    if below_bad is None:
        return Call.FAST if is_decided(over_good) else Call.UNDECIDED
    is_fast = beside_good is not Relation.UNDECIDED and relation(below_bad) is Relation.FASTER
    return Call.FAST if is_fast else Call.UNDECIDED
