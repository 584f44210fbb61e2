"""Charts over many models: the performance profile, and the map of models and backends."""

from bakeoff.judging.suites import TAUS, Suite, SuiteRow
from bakeoff.reports import findings, suite_report
from bakeoff.reports.charts.chart import LEFT_PT, Axis, Chart, Line, Mark, Tile
from bakeoff.reports.charts.palette import WHITE, Palette, hex_of, luminance, mixed, parse_hex

MAP_IN = 7.2
ROW_PT = 12.0
HEAD_ROWS = 1

FASTER, SLOWER = parse_hex("#0072b2"), parse_hex("#d55e00")
"""The ends of the map's colours (Okabe and Ito), which people who are colour-blind can tell apart."""

MOST_TIMES_BEST = 10.0
"""The profile ends here: who is slower on a model is as good as lost there."""

_CHARACTER_PT, _NAME_LIMIT = 3.9, 34


def profile(suite: Suite, palette: Palette) -> Chart | None:
    shown = [row for row in suite.rows if row.profile.ratios]
    if len(shown) < 2:
        return None
    end = min(MOST_TIMES_BEST, max(1.2, *(1.05 * row.profile.ratios[-1] for row in shown)))
    return Chart(
        name="profile",
        subject=suite_report.title(suite),
        finding=findings.profile(suite),
        caption="On what share of the models a backend is within a factor of the best latency; a failure never is",
        x=Axis("times the best latency", 1.0, end, is_log=True),
        y=Axis("share of the models", 0.0, 1.0),
        marks=tuple(_steps(row, end, palette) for row in shown),
        legend=tuple((row.label, palette(row.label)) for row in shown),
    )


def speedup_map(suite: Suite, palette: Palette) -> Chart | None:
    labels, names = suite.labels, suite_report.model_names(suite)
    rows, columns = len(suite.contests), len(labels)
    left_pt = LEFT_PT + _CHARACTER_PT * min(_NAME_LIMIT, max(map(len, names.values())))
    room = int((72 * MAP_IN - left_pt) / columns / _CHARACTER_PT)
    heads = [Tile(place, place + 1, 0, HEAD_ROWS, _cut(label, room)) for place, label in enumerate(labels)]
    marks = [Mark((head,), look=palette(label)) for head, label in zip(heads, labels, strict=True)]
    for row, contest in enumerate(suite.contests):
        for place, label in enumerate(labels):
            shown = suite_report.tile(contest, label)
            strength = suite_report.strength(shown.speedup)
            colour = mixed(WHITE, FASTER if strength > 0 else SLOWER, abs(strength))
            ink = "bad" if shown.is_bad else "ground" if luminance(colour) < 0.3 else "ink"
            tile = Tile(place, place + 1, -row - 1, -row, _cut(shown.text, room), hex_of(colour), ink)
            marks.append(Mark((tile,), f"{names[contest.contest_id]}, {label}: {shown.text}", palette(label)))
    return Chart(
        name="map",
        subject=suite_report.title(suite),
        finding=findings.speedup_map(suite),
        caption=f"Speed-up over {suite.baseline} of each model (blue: faster, orange: slower), or how the cell ended",
        x=Axis("", 0, columns, numbers=((0.0, ""),)),
        y=Axis("", -rows, HEAD_ROWS,
               numbers=tuple((-row - 0.5, _cut(names[one.contest_id], _NAME_LIMIT))
                             for row, one in enumerate(suite.contests))),
        marks=tuple(marks),
        width_in=MAP_IN,
        plot_pt=ROW_PT * (rows + HEAD_ROWS),
        left_pt=left_pt,
    )  # fmt: skip


def _steps(row: SuiteRow, end: float, palette: Palette) -> Mark:
    xs, ys = [1.0], [row.profile.share(1.0)]
    for ratio in row.profile.ratios:
        if 1.0 < ratio <= end:
            xs += [ratio, ratio]
            ys += [ys[-1], row.profile.share(ratio)]
    shares = [f"{100 * row.profile.share(tau):.0f} % within {tau:g}x" for tau in TAUS]
    line = Line((*xs, end), (*ys, ys[-1]), width=1.6)
    return Mark((line,), f"{row.label}: {', '.join(shares)}", palette(row.label))


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: max(1, limit - 1)]}…"
