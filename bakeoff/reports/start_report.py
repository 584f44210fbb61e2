"""Says what it takes to start: who answers first, the table, what the numbers mean, and the answer as JSON."""

from collections.abc import Iterable
from pathlib import Path

from bakeoff.judging.constraints import is_bytes
from bakeoff.judging.start_times import JudgedStart, StartsJudgement
from bakeoff.records.frozen import Frozen
from bakeoff.records.schema import Interval, Ratio
from bakeoff.records.start_samples import StartedCell, Starts
from bakeoff.records.text import counted
from bakeoff.reports import answers, number_format
from bakeoff.reports.blocks import Surface
from bakeoff.reports.tables import Column, Table


class StartAnswer(Frozen):
    """One cell that was started. Times are medians in seconds, one stage after the other."""

    label: str
    cell_id: str
    script: str
    starts: int
    stages_s: dict[str, float]
    start_s: float
    """From the start of the process to the first answer."""
    start_ci95_s: Interval | None
    tenth_answer_s: float
    behind: Ratio | None
    """How many times faster the first cell starts."""
    peak_resident_bytes: int | None
    steady_resident_bytes: int | None
    device_bytes: int | None
    artifact_bytes: int | None
    environment_bytes: int | None
    distributions: dict[str, int] | None
    unmet: list[str]


class ContestStarts(answers.AnswerToQuestion):
    """What it takes to start the cells of one contest."""

    headline: str
    cells: list[StartAnswer]
    not_started: dict[str, str]
    """Why a cell has no numbers, by label."""


class StartsAnswer(ContestStarts):
    """What `bakeoff start --json` prints."""

    run_id: str
    title: str
    paths: dict[str, str]


def headline(judged: StartsJudgement) -> str:
    """Return `onnx, first answer after 0.31 s, 5.20x eager, sure winner`."""
    answer = judged.answer
    if not judged.cells:
        return "No cell has start times"
    if answer.value is None:
        return f"None of {len(judged.cells)} meets {judged.requirements}"
    lead = number_format.compared(answer.lead, answer.runner_up or "") if answer.lead and answer.winner else ""
    return answers.line(answer, f"first answer after {number_format.seconds(answer.value)} s", lead)


def exit_status(judged: StartsJudgement) -> int:
    return 0 if judged.answer.candidates else 1


def sentences(judged: StartsJudgement) -> list[str]:
    return [f"{headline(judged)}.", *map(why_not_started, judged.without_starts)]


def table(judged: StartsJudgement, brief: bool = False) -> Table[JudgedStart]:
    return Table(columns_of(brief), judged.cells, "From the start of a process")


def why_not_started(cell: StartedCell) -> str:
    return f"{cell.label} has no start times: {cell.reason}"


def notes_of(cells: Iterable[StartedCell], is_page_cache_dropped: bool = False) -> list[str]:
    number = max((len(cell.starts) for cell in cells), default=0)
    files = (
        "The page cache was dropped before each start: files came from the disk."
        if is_page_cache_dropped
        else "The page cache was left as it was: files that were read before came from memory. A first start on a new "
        "machine also reads them from its disk (bakeoff start --cold)."
    )
    return [
        f"Medians of {counted(number, 'fresh process')} of each cell, started in turns, in random order, with empty "
        f"caches for compilers. {files}",
        "An environment is all distributions that requirements.txt brings, as they are installed here, without Python. "
        "For eager it is those that its script imports; what your model's own file imports is not counted. For a "
        "program in C++ it is the libraries that its process had loaded, without those of the system.",
    ]


def notes(starts: Starts) -> list[str]:
    return [
        *notes_of(starts.cells, starts.is_page_cache_dropped),
        f"{starts.machine}, Python {starts.python}, {starts.created_at}, of the run {starts.run_id}.",
    ]


def answer_of(judged: StartsJudgement, starts: Starts, files: list[Path]) -> StartsAnswer:
    paths = {file.name: str(file) for file in files}
    return StartsAnswer(run_id=starts.run_id, title=starts.title, paths=paths, **dict(contest_answer(judged)))


def contest_answer(judged: StartsJudgement) -> ContestStarts:
    return ContestStarts.to(
        judged.answer,
        headline=headline(judged),
        cells=[_answer(cell) for cell in judged.cells],
        not_started={cell.label: cell.reason for cell in judged.without_starts},
    )


def _answer(cell: JudgedStart) -> StartAnswer:
    def size(name: str) -> int | None:
        value = cell.quantity(name)
        return None if value is None else round(value)

    return StartAnswer.of(
        cell.cell,
        starts=len(cell.cell.starts),
        stages_s=cell.stages,
        start_s=cell.value,
        start_ci95_s=cell.interval,
        tenth_answer_s=cell.quantity("tenth_answer_s") or 0.0,
        behind=cell.behind,
        **{name: size(name) for name in ("peak_resident_bytes", "steady_resident_bytes", "device_bytes")},
        unmet=[doubt.unmet for doubt in cell.unmet],
    )


def columns_of(brief: bool = False) -> list[Column[JudgedStart]]:
    """Return the columns of the table of starts. A brief one, in the report of a run, has those that matter most."""
    alone = Surface.NONE if brief else Surface.ALL

    def quantity(heading: str, name: str, surfaces: Surface = Surface.ALL, spare: int = 0) -> Column[JudgedStart]:
        unit = "MiB" if is_bytes(name) else "s"
        return Column(heading, lambda cell: cell.quantity(name), unit, surfaces=surfaces, spare=spare)

    return [
        Column("backend", lambda cell: cell.label, is_text=True, is_label=True,
               note=lambda cell: "not as required" if cell.unmet else ""),
        Column("first answer after", lambda cell: cell.value, "s", interval=lambda cell: cell.interval),
        quantity("interpreter", "interpreter_s", alone),
        quantity("imports", "imports_s"),
        quantity("load", "load_s"),
        quantity("first call", "first_answer_s"),
        quantity("tenth answer after", "tenth_answer_s", alone),
        quantity("peak memory", "peak_resident_bytes", spare=1),
        quantity("steady memory", "steady_resident_bytes", alone),
        quantity("GPU memory", "device_bytes", spare=2),
        quantity("loaded artefact", "artifact_bytes"),
        quantity("environment", "environment_bytes"),
    ]  # fmt: skip
