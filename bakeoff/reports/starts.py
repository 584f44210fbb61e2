"""Shows what it takes to start: who answers first, a table, a figure, and the answer as JSON."""

from __future__ import annotations

from pathlib import Path

from bakeoff.judging.starts import JudgedStart, StartsJudgement, judge_starts
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.frozen import Frozen
from bakeoff.records.schema import Interval, Ratio
from bakeoff.records.starts import StartedCell, Starts
from bakeoff.reports import doubt_sentences, number_format
from bakeoff.reports.markdown import details, escape, table, table_of
from bakeoff.reports.tables import Column, Ends, Surface, shown_in
from bakeoff.reports.words import first, listed

STARTS_MD, STARTS_JSON = "starts.md", "starts.json"


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


class StartsAnswer(Frozen):
    """What `bakeoff start --json` prints."""

    run_id: str
    title: str
    headline: str
    candidates: list[str]
    cells: list[StartAnswer]
    not_started: dict[str, str]
    """Why a cell has no numbers, by label."""
    paths: dict[str, str]


def headline(judged: StartsJudgement) -> str:
    """Return `onnx answers first: 0.31 s after its process starts, 5.2x faster than eager`."""
    if not judged.cells:
        return "Nothing could be started"
    if not judged.candidates:
        return f"None of {len(judged.cells)} meets {judged.requirements}"
    best = judged.candidates[0]
    took = f"{number_format.seconds(best.start_s)} s after its process starts"
    if len(judged.candidates) > 1:
        labels = first([cell.label for cell in judged.candidates])
        return f"{listed(labels, 'or')} answers first, which was not told apart: {took}"
    others = [cell for cell in judged.cells if cell is not best]
    if not others or others[0].behind is None:
        return f"{best.label} answers first: {took}"
    times = number_format.ratio(others[0].behind.value)
    return f"{best.label} answers first: {took}, {times}x faster than {others[0].label}"


def exit_status(judged: StartsJudgement) -> int:
    """Return 1 if nothing was started that meets the requirements."""
    return 0 if judged.candidates else 1


def write(starts: Starts, require: str, folder: Path) -> tuple[StartsJudgement, list[Path]]:
    """Write the starts as JSON and as Markdown with its figure. Return what they come to, and the files."""
    from bakeoff.reports.charts import draw_starts

    judged = judge_starts(starts, require)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = draw_starts(judged, headline(judged), folder / "figures") if judged.cells else []
    files = [
        write_atomically(folder / STARTS_MD, to_markdown(judged, bool(drawn))),
        write_atomically(folder / STARTS_JSON, starts.model_dump_json(indent=1)),
    ]
    return judged, [*files, *drawn]


def to_markdown(judged: StartsJudgement, has_figure: bool = False) -> str:
    """Return the answer, the table, why cells have no numbers, and what the numbers mean."""
    columns = shown_in(Surface.MARKDOWN, _columns(), judged.cells)
    unmet = [doubt for cell in judged.cells for doubt in cell.unmet]
    parts = [
        f"# Starting {escape(judged.starts.title)}",
        f"**{escape(headline(judged))}.**",
        table_of(columns, judged.cells) if judged.cells else "",
        "\n".join(f"- {escape(doubt_sentences.of_requirement(doubt))}" for doubt in unmet),
        "\n".join(f"- {escape(f'{cell.label} was not started: {cell.reason}')}" for cell in judged.without_starts),
        "![Stages until the first answer](figures/starts.svg)" if has_figure else "",
        *(_distributions(cell.cell) for cell in judged.cells),
        "\n".join(f"- {escape(note)}" for note in notes(judged.starts)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def notes(starts: Starts) -> list[str]:
    """Say what the numbers are of."""
    number = max((len(cell.starts) for cell in starts.cells), default=0)
    files = (
        "The page cache was dropped before each start: files came from the disk."
        if starts.is_page_cache_dropped
        else "The page cache was left as it was: files that were read before came from memory. A first start on a new "
        "machine also reads them from its disk (--cold)."
    )
    return [
        f"Medians of {number} fresh processes of each cell, started in turns, in random order, with empty caches for "
        f"compilers. {files}",
        "An environment is all distributions that requirements.txt brings, as they are installed here, without Python. "
        "For eager it is those that its script imports; what your model's own file imports is not counted.",
        f"{starts.machine}, Python {starts.python}, {starts.created_at}, of the run {starts.run_id}.",
    ]


def answer_of(judged: StartsJudgement, files: list[Path]) -> StartsAnswer:
    """Return the answer for programs."""
    return StartsAnswer(
        run_id=judged.starts.run_id,
        title=judged.starts.title,
        headline=headline(judged),
        candidates=[cell.label for cell in judged.candidates],
        cells=[_answer(cell) for cell in judged.cells],
        not_started={cell.label: cell.reason for cell in judged.without_starts},
        paths={file.name: str(file) for file in files},
    )


def _answer(cell: JudgedStart) -> StartAnswer:
    return StartAnswer(
        label=cell.label,
        cell_id=cell.cell.cell_id,
        script=cell.cell.script,
        starts=len(cell.cell.starts),
        stages_s=cell.stages,
        start_s=cell.start_s,
        start_ci95_s=cell.start_ci95_s,
        tenth_answer_s=cell.tenth_answer_s,
        behind=cell.behind,
        peak_resident_bytes=cell.peak_bytes,
        steady_resident_bytes=cell.steady_bytes,
        device_bytes=cell.device_bytes,
        artifact_bytes=cell.cell.artifact_bytes,
        environment_bytes=cell.cell.environment_bytes,
        distributions=cell.cell.distributions,
        unmet=[doubt_sentences.unmet(doubt) for doubt in cell.unmet],
    )


def _columns() -> list[Column[JudgedStart]]:
    def seconds(heading: str, stage: str) -> Column[JudgedStart]:
        return Column(heading, lambda cell: cell.stages[stage], "s", number_format.seconds, surfaces=Surface.MARKDOWN)

    def size(heading: str, of: object) -> Column[JudgedStart]:
        return Column(heading, of, "MiB", number_format.mebibytes, surfaces=Surface.MARKDOWN)  # type: ignore[arg-type]

    return [
        Column("backend", lambda cell: cell.label, is_text=True, surfaces=Surface.MARKDOWN,
               note=lambda cell: "not as required" if cell.unmet else ""),
        Column("first answer after", lambda cell: cell.start_s, "s", number_format.seconds, interval=_ends,
               surfaces=Surface.MARKDOWN),
        seconds("interpreter", "interpreter"),
        seconds("imports", "imports"),
        seconds("load", "load"),
        seconds("first call", "first answer"),
        Column("tenth answer after", lambda cell: cell.tenth_answer_s, "s", number_format.seconds,
               surfaces=Surface.MARKDOWN),
        size("peak memory", lambda cell: cell.peak_bytes),
        size("steady memory", lambda cell: cell.steady_bytes),
        size("GPU memory", lambda cell: cell.device_bytes),
        size("artefact", lambda cell: cell.cell.artifact_bytes),
        size("environment", lambda cell: cell.cell.environment_bytes),
    ]  # fmt: skip


def _ends(cell: JudgedStart) -> Ends | None:
    return (cell.start_ci95_s.low, cell.start_ci95_s.high) if cell.start_ci95_s else None


def _distributions(cell: StartedCell) -> str:
    """Return what is installed for a cell, in a fold."""
    if not cell.distributions:
        return ""
    rows = [[escape(name), number_format.mebibytes(size)] for name, size in cell.distributions.items()]
    return details(f"What {cell.label} needs installed", table(["distribution", "MiB"], rows, "lr"))
