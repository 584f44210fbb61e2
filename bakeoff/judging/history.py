"""Many reports in the order of time. A history shows what was measured; only a comparison judges two runs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from bakeoff.judging.change import grouped_alike
from bakeoff.judging.environment_changes import Difference, bear_on_speed
from bakeoff.judging.fit import by_contest, fitted_report
from bakeoff.judging.roofline import named_by_work
from bakeoff.records.schema import Environment, Record, Report


@dataclass(frozen=True)
class Run:
    run_id: str
    at: datetime  # aware
    environment: Environment
    records: dict[str, Record]  # by the cell's id
    changes: list[Difference]  # what bears on speed and differs from the run before

    @property
    def day(self) -> str:
        return self.at.astimezone(UTC).strftime("%Y-%m-%d")


@dataclass(frozen=True)
class History:
    """Runs, the oldest first; at least one."""

    runs: list[Run]
    skipped: list[str]  # why a report is not among them

    @property
    def contests(self) -> dict[str, list[Record]]:
        """Return the newest record of each cell by contest, in the order in which they first appear."""
        newest: dict[str, Record] = {}
        for run in self.runs:
            newest |= run.records
        return by_contest(newest.values())


def history_of(dated: Mapping[tuple[datetime, str], Report], skipped: list[str]) -> History:
    """Put reports, given by their time and the id of their run, in order. Contests of several precisions fall apart
    where runs compared different ones."""
    runs: list[Run] = []
    order = sorted(dated)
    fitted = grouped_alike(named_by_work([fitted_report(dated[key]) for key in order]))
    for (at, run_id), report in zip(order, fitted, strict=True):
        records = {record.cell.id: record for record in report.records}
        changes = bear_on_speed(runs[-1].environment, report.environment) if runs else []
        runs.append(Run(run_id, at, report.environment, records, changes))
    return History(runs, skipped)
