"""What the last run of a contest said that cannot be true together with what this one says."""

from collections.abc import Iterable
from pathlib import Path

from bakeoff.judging.certainty import Evidence
from bakeoff.judging.doubt import Doubt
from bakeoff.judging.environments import bear_on_speed
from bakeoff.judging.fit import Fit
from bakeoff.records import report_file
from bakeoff.records.doubts import Effect
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Interval, Ratio, Report, Verdict
from bakeoff.records.text import spell_interval, spell_ratio

MOST_RUNS = 20
"""So many runs beside this one are looked at, the latest first."""


Ratios = Iterable[tuple[str, str, Ratio]]
"""The labels of two cells, and how many times faster the first one is."""


class LastRunDiffers(Doubt):
    """The last run of this contest gave a ratio whose 95 % interval does not meet that of this one."""

    run_id: str  # of the last run
    label: str
    other: str
    before: Ratio  # of the first cell to the other one
    now: Ratio
    brief = "the last run said the opposite"

    @classmethod
    def find(cls, evidence: Evidence) -> list["LastRunDiffers"]:
        last = evidence.last
        return contradictions(last.run_id, ratios_of(last), evidence.ranking.fit)[:1] if last else []

    @property
    def cells(self) -> tuple[str, ...]:
        return self.label, self.other

    @property
    def is_opposite(self) -> bool:
        """Return True if the two runs do not agree on which of the cells is faster."""
        return (self.before.value > 1) != (self.now.value > 1)

    @property
    def worst(self) -> Effect:
        return Effect.WINNER if self.is_opposite else Effect.NUMBER

    @property
    def ratios(self) -> str:
        """Return `onnx was 1.13x as fast as eager [1.08, 1.20], and now is 0.56x [0.54, 0.58]`."""
        before, before_ends = spell_ratio(self.before.value), _spell_ends(self.before)
        now = f"{spell_ratio(self.now.value)}x {_spell_ends(self.now)}".rstrip()
        return f"{self.label} was {before}x as fast as {self.other} {before_ends}".rstrip() + f", and now is {now}"

    def say(self) -> str:
        said = "the opposite" if self.is_opposite else "otherwise"
        return (
            f"the last run ({self.run_id}) said {said}: {self.ratios}. One of them is wrong, or something changed "
            "between them: measure again, on a quiet machine"
        )


def _spell_ends(ratio: Ratio) -> str:
    return spell_interval(ratio.ci95.low, ratio.ci95.high, spell_ratio) if ratio.ci95 else ""


def contradictions(run_id: str, ratios: Ratios, fit: Fit) -> list[LastRunDiffers]:
    """Return the ratios of another run whose 95 % intervals do not meet those of this fit, opposite ones first."""
    found = [
        LastRunDiffers(run_id, fast, slow, before, now)
        for fast, slow, before in ratios
        if {fast, slow} <= fit.latency_ms.keys()
        if (now := fit.ratio(fast, slow)).ci95 and before.ci95 and are_apart(before.ci95, now.ci95)
    ]
    return sorted(found, key=lambda each: not each.is_opposite)


def are_apart(one: Interval, other: Interval) -> bool:
    return one.high < other.low or other.high < one.low


def ratios_of(last: Verdict) -> Ratios:
    """Yield the ratios of a verdict at single calls with their labels: over the baseline, and over the runner-up."""
    for standing in last.standings:
        if standing.speedup_over_baseline and last.baseline and standing.label != last.baseline:
            yield standing.label, last.baseline, standing.speedup_over_baseline
    if last.lead and last.winner and last.runner_up not in (None, last.baseline):
        yield last.winner, last.runner_up or "", last.lead


def last_verdicts(root: Path, report: Report) -> list[Verdict]:
    """Return the verdict of the last run of each contest beside this one, on the same machine and of the same files."""
    missing = {record.cell.contest_id for record in report.records}
    found: list[Verdict] = []
    files = [
        file for file in root.resolve().parent.glob(f"*/{report_file.REPORT_JSON}") if file.parent != root.resolve()
    ]
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)[:MOST_RUNS]:
        try:
            last = report_file.read(file, with_samples=False)
        except UsageError:  # of another version
            continue
        if last.created_at < report.created_at and _is_alike(last, report):
            these = [each for each in last.verdicts if each.contest_id in missing]
            found += [each.model_copy(update={"run_id": last.run_id}) for each in these]
            missing -= {each.contest_id for each in these}
        if not missing:
            break
    return found


def _is_alike(last: Report, report: Report) -> bool:
    alike = (last.own_files, last.weights, last.request.get("task")) == (
        report.own_files,
        report.weights,
        report.request.get("task"),
    )
    return (
        alike
        and last.environment.hostname == report.environment.hostname
        and not bear_on_speed(last.environment, report.environment)
    )
