"""What `bakeoff.compare` returns: the verdict of a run, the rows that it rests on, and where the report lies."""

from __future__ import annotations

import io
import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bakeoff.judging.judgement import Judgement, judge
from bakeoff.judging.stored_report import report_at
from bakeoff.records import schema
from bakeoff.records.errors import UsageError
from bakeoff.records.report_file import folder_of
from bakeoff.records.schema import Report
from bakeoff.reports.json_answer import ContestAnswer, MixAnswer, RunAnswer, answer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas
    import torch

    from bakeoff.reports.tables import Raw
    from bakeoff.shipping.loading import ShippedModel

RESULTS = Path("results")
"""The folder in which runs lie by default."""


class Ratio(NamedTuple):
    """How many times faster one build is than another, with both ends of its 95 % interval."""

    value: float
    low: float | None
    high: float | None

    @classmethod
    def of(cls, measured: schema.Ratio | None) -> Ratio | None:
        """Return a measured ratio, or None without one."""
        if measured is None:
            return None
        interval = measured.ci95
        return cls(measured.value, interval.low if interval else None, interval.high if interval else None)

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        interval = f" [{self.low:.3g}, {self.high:.3g}]" if self.low is not None and self.high is not None else ""
        return f"{self.value:.3g}{interval}"


@dataclass(frozen=True, repr=False)
class Result:
    """The result of a run. It shows itself as a table in a terminal, and with a figure in a notebook.

    It holds all that was measured, so it can be pickled, and read where the run's folder is not.
    """

    report: Report
    """Everything that was measured and asked for, as in `report.json`."""
    folder: Path
    """The folder of the run."""

    @cached_property
    def answer(self) -> RunAnswer:
        """What `bakeoff --json` prints."""
        return answer_of(self._judgement, self.folder)

    @property
    def contests(self) -> list[ContestAnswer]:
        """The verdict on each size, device, precision and task: who wins, how surely, and by how much."""
        return self.answer.contests

    @property
    def complete(self) -> bool:
        """False if the run was interrupted, or its budget did not reach every cell."""
        return self.answer.complete

    @property
    def winner(self) -> str | None:
        """The winner, such as `onnx` or `inductor/max-autotune`; None where several tie or nothing was decided.

        Recorded calls of several sizes have one, over their mix. Raises UsageError for several contests otherwise, each
        of which has its own.
        """
        return self._mix.winner if self._mix else self._contest.winner

    @property
    def speedup(self) -> Ratio | None:
        """How many times faster the best build is than eager; None without one of them.

        Raises UsageError for several contests, as `winner` does.
        """
        return Ratio.of((self._mix or self._contest).speedup)

    @property
    def doubts(self) -> list[str]:
        """Why the verdicts could be wrong, in sentences."""
        return [doubt for contest in self.contests for doubt in contest.doubts]

    @cached_property
    def rows(self) -> list[dict[str, Raw]]:
        """A row for each cell, with the columns of `cells.csv`: latencies in ms, times in s, sizes in bytes."""
        from bakeoff.reports.csv_files import cell_rows

        return cell_rows(self._judgement)

    @property
    def paths(self) -> dict[str, Path]:
        """Where `report.json`, `report.md`, `report.html` and `cells.csv` lie, and their `folder`."""
        return {name: Path(path) for name, path in self.answer.paths.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, as `bakeoff --json` prints it."""
        return self.answer.model_dump(mode="json")

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows as a data frame. Raises UsageError where pandas is not installed."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise UsageError("to_pandas needs pandas: pip install pandas, or use `rows`") from None
        return pandas.DataFrame(self.rows)

    def figure(self) -> Figure:
        """Return a figure of the latencies, which a notebook shows. Raises UsageError where nothing was measured."""
        from bakeoff.reports import charts

        svg = charts.latencies_svg(self._judgement)
        if svg is None:
            raise UsageError("nothing to draw: no build has numbers")
        return Figure(svg)

    def save(self, folder: str | Path, label: str | None = None) -> Path:
        """Write what the winner has built, as `bakeoff export` does, and return the folder.

        Args:
            folder: A new folder.
            label: Another build than the winner, such as `openvino`, or the beginning of a contest's id.

        Raises:
            bakeoff.UsageError: Where nothing won, the build was not kept, or no script loads it. Eager builds nothing.
        """
        from bakeoff.shipping.export import choose, export

        _, script = export(self.folder, choose(self.report, label).cell.id, Path(folder))
        return script.parent

    def apply(self, pipeline: object, anyway: bool = False) -> None:
        """Put the winners in place of the parts of a pipeline. Only `compare(..., parts=[...])` has such a result."""
        raise UsageError("this result is of one model: call compare(pipeline, example call, parts=[...])")

    def load(
        self,
        label: str | None = None,
        *,
        fallback: Callable[..., Any] | None = None,
        device: str | torch.device | None = None,
    ) -> ShippedModel:
        """Return what the winner has built, to be called like the model in this process.

        It is exported into the run's folder, from which it is loaded. So the folder must stay where it is.

        Args:
            label: Another build than the winner, as for `save`.
            fallback: What is called with arguments that the build does not serve, such as the model.
            device: Another GPU than the one that it was built on.

        Raises:
            bakeoff.UsageError: As `save` does.
        """
        from bakeoff.shipping.export import choose
        from bakeoff.shipping.loading import load

        cell_id = choose(self.report, label).cell.id
        folder = self.folder / "shipped" / cell_id
        if not folder.exists():
            self.save(folder, cell_id)
        return load(folder, fallback=fallback, device=device)

    def __str__(self) -> str:
        from rich.console import Console

        from bakeoff.reports.run_report import print_report

        text = io.StringIO()
        console = Console(
            file=text, width=_terminal_width(), color_system=None, markup=False, emoji=False, force_jupyter=False
        )
        print_report(self._judgement, console, str(self.folder))
        return text.getvalue().rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from bakeoff.reports.run_report import to_cell

        return to_cell(self._judgement)

    @cached_property
    def _judgement(self) -> Judgement:
        return judge(self.report)

    @property
    def _mix(self) -> MixAnswer | None:
        mixes = self.answer.mixes
        return mixes[0] if len(mixes) == 1 and len(mixes[0].sizes) == len(self.contests) else None

    @property
    def _contest(self) -> ContestAnswer:
        if len(self.contests) == 1:
            return self.contests[0]
        if not self.contests:
            raise UsageError("nothing was measured: the run was interrupted before its first contest")
        titles = ", ".join(contest.title for contest in self.contests)
        raise UsageError(
            f"this run has {len(self.contests)} contests, each with a winner of its own: {titles}; use `contests`"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"report": self.report, "folder": self.folder}


@dataclass(frozen=True, repr=False)
class Figure:
    """A picture as SVG. A notebook shows it."""

    svg: str

    def save(self, path: str | Path) -> Path:
        """Write the picture, and return its path."""
        written = Path(path)
        written.write_text(self.svg, encoding="utf-8")
        return written

    def _repr_svg_(self) -> str:
        return self.svg


class Ended(NamedTuple):
    """What a run has measured, and whether the program was interrupted meanwhile, be it in the run's last moment."""

    result: Result
    was_interrupted: bool


def result_at(path: Path) -> Result:
    """Return the result of one run, whose folder or `report.json` this is. Raises UsageError where there is none."""
    return Result(report_at(path), folder_of(path).resolve())


def _terminal_width() -> int:
    return shutil.get_terminal_size((120, 24)).columns
