"""The pytest plug-in: a fixture `bakeoff` that measures in a test, and fails it where a build became slower or wrong.

pytest loads this file in every project whose environment has Bakeoff, so that it imports nothing of it at first.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from bakeoff.api.result import Result

PROPERTY = "bakeoff"
"""Under this name, reports of tests carry what was said of a comparison: also from workers of xdist, and into JUnit."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("bakeoff", "Bakeoff: did inference become slower?")
    group.addoption("--bakeoff-base", metavar="FOLDER", help="compare with the runs kept here; fail on a regression")
    group.addoption("--bakeoff-save", metavar="FOLDER", help="keep the runs of this session here, as a later base")
    group.addoption("--bakeoff-fail-above", metavar="SHARE", default="5%", help="slower by more is a regression [5%%]")


def pytest_configure(config: pytest.Config) -> None:
    base, save = (config.getoption(name) for name in ("--bakeoff-base", "--bakeoff-save"))
    if base and save and Path(base).resolve() == Path(save).resolve():
        raise pytest.UsageError(
            f"--bakeoff-base and --bakeoff-save are both {base}: slowness that came in small steps would never be found"
        )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each comparison, also for those that found nothing or had no base."""
    lines = [
        f"{report.nodeid}: {text}"
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == PROPERTY
    ]
    if lines:
        terminalreporter.section("bakeoff")
        for line in lines:
            terminalreporter.write_line(line)


class Comparing:
    """What the fixture `bakeoff` is. Its method `compare` is `bakeoff.compare`, with a base to hold against."""

    def __init__(self, request: pytest.FixtureRequest, folder: Path) -> None:
        options = request.config
        self._node = request.node
        self._folder = folder
        self._base, self._save = (options.getoption(f"--bakeoff-{name}") for name in ("base", "save"))
        self._fail_above = options.getoption("--bakeoff-fail-above")
        self._runs = 0

    def compare(self, model: object, inputs: object = None, **options: Any) -> Result:
        """Measure as `bakeoff.compare` does, and fail the test if a cell became slower or broke since the base, or if
        nothing was measured. A test without a base passes, and the summary of the session says so."""
        from bakeoff.api.compare import compare
        from bakeoff.records.errors import BakeoffError

        __tracebackhide__ = True  # pytest shows the line of the test
        self._runs += 1
        # the folder for one run of a test is the same in every session
        readable = re.sub(r"[^A-Za-z0-9._]+", "-", self._node.nodeid).strip("-")[-80:]
        digest = hashlib.sha256(self._node.nodeid.encode()).hexdigest()[:6]
        name = f"{readable}-{digest}" if self._runs == 1 else f"{readable}-{digest}-{self._runs}"
        try:
            result = compare(
                model,  # type: ignore[arg-type]
                inputs,  # type: ignore[arg-type]
                **{"out": self._folder / name, "progress": False, **options},
            )
        except BakeoffError as error:
            raise error.with_traceback(None) from None  # its message says it whole
        if not any(record.latency for record in result.report.records):
            reasons = "; ".join(f"{record.cell.label}: {record.reason}" for record in result.report.records)
            pytest.fail(f"nothing was measured: {reasons}", pytrace=False)
        if self._save:
            kept = Path(self._save) / name
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(result.folder, kept)
        if self._base:
            self._hold_against(Path(self._base) / name, result)
        return result

    def _hold_against(self, base: Path, result: Result) -> None:
        from bakeoff.judging.compare import compare, parse_share
        from bakeoff.judging.stored_report import report_at
        from bakeoff.records.errors import BakeoffError
        from bakeoff.records.report_file import has_report
        from bakeoff.reports.comparison import headline

        if not has_report(base):
            self._say(f"nothing was compared: there is no run in {base}. Make one with --bakeoff-save={self._base}")
            return
        try:
            comparison = compare(report_at(base), result.report, parse_share(self._fail_above))
        except BakeoffError as error:
            pytest.fail(f"{base}: {error}", pytrace=False)
        self._say(headline(comparison))
        if comparison.regressions:
            pytest.fail(headline(comparison), pytrace=False)

    def _say(self, text: str) -> None:
        self._node.user_properties.append((PROPERTY, text))


@pytest.fixture
def bakeoff(request: pytest.FixtureRequest, tmp_path: Path) -> Comparing:
    """`bakeoff.compare(model, inputs, ...)` measures, and fails the test on a regression (--bakeoff-base FOLDER)."""
    return Comparing(request, tmp_path / "bakeoff")
