"""Trying what the profile of a cell suggests, for `bakeoff explain --try`."""

import shlex
from pathlib import Path

from rich.console import Console

from bakeoff.commands import run as runs
from bakeoff.explaining.profiles import environment_of
from bakeoff.explaining.suggestions import fewer_threads, request_to_try, suggestions
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.judgement import contests_of
from bakeoff.judging.stored_report import report_at
from bakeoff.planning.request import Request
from bakeoff.records.profile import CellProfile
from bakeoff.records.schema import Record
from bakeoff.reports.console import say, tell, written_to_the_end
from bakeoff.reports.explanation import brought, with_fewer_threads


def try_suggestions(run: Path, profile: CellProfile, record: Record, processes: int | None, console: Console) -> None:
    """Measure what a profile suggests in one contest, and say what each suggestion brought.

    All cells of a contest have the same threads. So fewer threads are a contest of their own.
    """
    suggested = suggestions(profile, record.cell)
    threads = fewer_threads(profile)
    if not suggested and not threads:
        say(f"The profile of {profile.label} suggests nothing to try.", console)
        return
    report = report_at(run)
    in_run = Request(**report.request)
    asked = request_to_try(in_run, record.cell, suggested, processes or in_run.processes)
    command = shlex.join(["bakeoff", "explain", str(run), record.cell.id, "--try"])

    def contest(threads: int | None = None) -> ContestJudgement:
        with environment_of(report, threads), runs.progress_of(asked, quiet=True, as_json=True) as progress:
            tried, store = runs.run(asked, None, command, progress)
        with written_to_the_end():
            tell(tried, store.root, quiet=True, console=console)
        return contests_of(tried)[0]

    usual = contest()
    say(brought(usual, record.cell.label, {each.configuration: each.why for each in suggested}), console)
    if threads:
        say(with_fewer_threads(usual, contest(threads), threads), console)
