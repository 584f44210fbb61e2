"""What commands print with `--json` that are no report: previews, parts, environments, kept builds, self-checks.

docs/json.md lists every key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bakeoff.commands import environments
from bakeoff.records.schema import Frozen

if TYPE_CHECKING:
    from bakeoff.commands.preview import Preview
    from bakeoff.commands.selfcheck import Summary
    from bakeoff.measuring.controller.build_cache import BuildCache
    from bakeoff.models.pipeline_parts import Parts


class PlannedContestAnswer(Frozen):
    """One contest that would be measured."""

    title: str
    labels: list[str]  # of the cells that can run
    seconds: float


class PreviewAnswer(Frozen):
    """What `bakeoff run --dry-run --json` prints. Times are estimates."""

    contests: list[PlannedContestAnswer]
    seconds: float
    budget_s: float | None
    cannot_run: dict[str, str]  # why, by label
    places: list[str]  # of a pool


class PartAnswer(Frozen):
    """One module of a pipeline, over one call of the pipeline."""

    name: str
    kind: str  # its class
    calls: int
    sizes: dict[str, int]  # how often each size of its inputs came, the most frequent first
    seconds: float  # in all its calls, with those of the parts within it
    share: float
    parameters: int


class PartsAnswer(Frozen):
    """What `bakeoff inspect --json` prints. The longest part comes first."""

    seconds: float  # of a call of the pipeline: the sum of the medians of its parts and of all else
    timed_calls: int
    rest: float  # share of a call that no part takes
    parts: list[PartAnswer]


class EnvironmentAnswer(Frozen):
    """One environment beside the one that runs Bakeoff."""

    name: str
    python: str
    packages: dict[str, str]  # versions of what differs in it


class EnvironmentsAnswer(Frozen):
    """What `bakeoff env list --json` prints, and so do `add` and `remove`, after what they do."""

    environments: list[EnvironmentAnswer]


class KeptBuild(Frozen):
    """One build that later runs use again."""

    what: str  # model, device, backend and mode
    size_bytes: int
    built_at: str
    used_at: str


class CacheAnswer(Frozen):
    """What `bakeoff cache list --json` prints, and so does `clear`, after what it does."""

    folder: str
    removed_bytes: int
    size_bytes: int
    builds: list[KeptBuild]


class SelfcheckRow(Frozen):
    """All trials of one model and one planted slowdown. `planted` 1 is two equal cells."""

    model: str
    mode: str
    planted: float
    trials: int
    winners: int  # trials that called one
    right: int
    unstable: int  # trials that decided nothing
    upper: float  # 95 % upper bound of the rate of winners
    half_width: float  # of the ratio's interval, median over trials
    processes: float
    seconds: float  # median over trials


class SelfcheckAnswer(Frozen):
    """What `bakeoff selfcheck --json` prints."""

    rows: list[SelfcheckRow]


def of_preview(preview: Preview) -> PreviewAnswer:
    return PreviewAnswer(
        contests=[
            PlannedContestAnswer(title=each.title, labels=list(each.labels), seconds=each.seconds)
            for each in preview.contests
        ],
        seconds=preview.seconds,
        budget_s=preview.budget_s,
        cannot_run=dict(preview.lacking),
        places=list(preview.places),
    )


def of_parts(parts: Parts) -> PartsAnswer:
    return PartsAnswer(
        seconds=parts.seconds,
        timed_calls=parts.timed_calls,
        rest=parts.rest,
        parts=[PartAnswer(**dataclasses.asdict(part)) for part in parts.parts],
    )


def of_environments() -> EnvironmentsAnswer:
    return EnvironmentsAnswer(
        environments=[
            EnvironmentAnswer(name=name, python=str(environments.python_of(name)), packages=environments.contents(name))
            for name in environments.names()
        ]
    )


def of_cache(cache: BuildCache, removed_bytes: int = 0) -> CacheAnswer:
    entries = cache.entries()
    return CacheAnswer(
        folder=str(cache.folder),
        removed_bytes=removed_bytes,
        size_bytes=sum(each.size_bytes for each in entries),
        builds=[
            KeptBuild(
                what=each.what,
                size_bytes=each.size_bytes,
                built_at=each.built_at,
                used_at=datetime.fromtimestamp(each.used_s, UTC).isoformat(timespec="seconds"),
            )
            for each in entries
        ],
    )


def of_selfcheck(rows: Sequence[Summary]) -> SelfcheckAnswer:
    return SelfcheckAnswer(rows=[SelfcheckRow(**dataclasses.asdict(row)) for row in rows])
