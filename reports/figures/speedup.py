"""Speed-up over the baseline with its interval, a mark per cell."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from reports import findings, format
from reports.chart_data import LOG_FROM_RATIO, ends
from reports.figure_style import GREY
from reports.figures.panels import Drawing, Panel, label_ends, name_rows


def _paint(panel: Panel, contest: ContestJudgement) -> None:
    rows = [(place, row, row.speedup) for place, row in enumerate(contest.cells) if row.rank]
    ratios = [(place, row, ratio) for place, row, ratio in rows if ratio]
    panel.axes.axvline(1, color=GREY, lw=0.9)
    texts = []
    for place, row, ratio in ratios:
        look = panel.looks(row.label)
        low, high = ends(ratio)
        if low < high:
            panel.axes.plot([low, high], [place, place], color="black", lw=1.2, solid_capstyle="butt")
        panel.axes.plot(ratio.value, place, look.marker, ms=6.5, mfc=look.colour, mec="black", mew=0.5)
        texts.append((place, max(high, ratio.value), f"{format.ratio(ratio.value)}x"))
    lowest = min([1.0, *(min(ends(ratio)) for _, _, ratio in ratios)])
    highest = max([1.0, *(right for _, right, _ in texts)])
    is_log = highest > LOG_FROM_RATIO * lowest > 0
    left = lowest / 1.15 if is_log else max(0.0, lowest - 0.08 * (highest - lowest) - 0.02)
    label_ends(panel, texts, left, is_log)
    name_rows(panel, contest.cells, [place for place, _, _ in texts])


DRAWING = Drawing(
    name="speedup",
    headline=findings.speedup_over_all,
    x_label="speed-up over eager (x), 95 % interval",
    title=lambda contest: contest.title,
    shows=findings.has_ratio,
    finding=findings.speedup,
    paint=_paint,
    rows=lambda contest: contest.cells,
)
