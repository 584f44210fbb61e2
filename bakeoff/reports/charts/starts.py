"""The chart of starts: a stack of the stages until the first answer for each cell."""

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.start_times import STAGES, StartsJudgement
from bakeoff.records.text import one_line
from bakeoff.reports import number_format
from bakeoff.reports.charts.chart import BAR_Y, NAME_CHARACTERS, Axis, Bar, Chart, Mark, Text
from bakeoff.reports.charts.palette import Palette
from bakeoff.reports.start_report import headline

_COLOURS = {"interpreter": "#8c93a3", "imports": "#4b6a9b", "load": "#b5a76c", "first answer": "#e6c229"}


def of_contest(contest: ContestJudgement, palette: Palette) -> Chart | None:
    """Draw what it takes to start the cells of a contest, or nothing if none was started."""
    judged = contest.starts
    return starts_chart(judged, contest.title, headline(judged)) if judged and judged.cells else None


def starts_chart(judged: StartsJudgement, subject: str, finding: str, origin: str = "") -> Chart:
    """Draw the median of each stage as a stack. Its number is the median of the whole start."""
    marks = []
    for place, cell in enumerate(judged.cells):
        left_s = 0.0
        for stage in STAGES:
            right_s = left_s + cell.stages[stage]
            said = f"{cell.label}: {stage} {number_format.seconds(cell.stages[stage])} s"
            marks.append(Mark((Bar(place + BAR_Y, left_s, right_s, colour=_COLOURS[stage]),), said))
            left_s = right_s
        marks.append(Mark((Text(left_s, place + BAR_Y, number_format.seconds(cell.value)),)))
    longest_s = max(sum(cell.stages.values()) for cell in judged.cells)
    return Chart(
        name="starts",
        subject=subject,
        finding=finding,
        caption="From the start of the process to the first answer in s: medians of each stage",
        x=Axis("time (s)", 0.0, longest_s),
        y=None,
        marks=tuple(marks),
        rows=tuple(one_line(cell.label, NAME_CHARACTERS) for cell in judged.cells),
        colours=tuple(_COLOURS.items()),
        origin=origin,
    )
