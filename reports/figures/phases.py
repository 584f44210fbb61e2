"""Where the time goes until the first answer, a stack per cell."""

from __future__ import annotations

from matplotlib.patches import Patch

from judging.judgement import ContestJudgement
from reports import findings, format
from reports.figures.panels import Drawing, Panel, label_ends, name_rows

_PHASE_LOOKS = {"export": "#00224e", "compile": "#5a6278", "load": "#a69d75", "first_call": "#fee838"}  # cividis
_OTHER_PHASE = "#cccccc"


def _paint(panel: Panel, contest: ContestJudgement) -> None:
    """Stacked from zero: lengths add up, so the axis is linear however short some of them are."""
    ends = []
    for place, row in enumerate(contest.cells):
        left_s = 0.0
        for phase in row.record.phases:
            look = _PHASE_LOOKS.get(phase.name, _OTHER_PHASE)
            panel.axes.barh(place, phase.seconds, left=left_s, height=0.7, color=look, edgecolor="white", lw=0.4)
            left_s += phase.seconds
        names = [phase.name if phase.name in _PHASE_LOOKS else "other" for phase in row.record.phases]
        panel.legend |= {name: Patch(color=_PHASE_LOOKS.get(name, _OTHER_PHASE)) for name in names}
        if row.record.phases:
            lost = "" if row.record.latency else f"  \u00d7 {format.fate(row.record)}"
            ends.append((place, left_s, f"{format.seconds(left_s)}{lost}"))
    panel.legend = {name: panel.legend[name] for name in [*_PHASE_LOOKS, "other"] if name in panel.legend}
    label_ends(panel, ends, 0, is_log=False)
    name_rows(panel, contest.cells, [place for place, _, _ in ends])


DRAWING = Drawing(
    name="phases",
    headline=lambda _: "Where the time goes until the first answer",
    x_label="time (s)",
    title=lambda contest: contest.title,
    shows=findings.has_phases,
    finding=findings.phases,
    paint=_paint,
    rows=lambda contest: contest.cells,
)
