"""Where the time goes until the first answer, a stack per cell."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from records.text import one_line
from reports import findings, format
from reports.charts import rows
from reports.charts.key import Key
from reports.charts.svg import CHARACTER, Chart, Scale, add, mark, x_axis

_LEGEND_HEIGHT = 22.0

KNOWN = ("export", "compile", "load", "first_call")


def chart(contest: ContestJudgement, key: Key) -> Chart | None:
    taken_s = {
        place: sum(phase.seconds for phase in row.record.phases)
        for place, row in enumerate(contest.cells)
        if row.record.phases
    }
    if not taken_s or max(taken_s.values()) <= 0:
        return None
    made = Chart(
        "phases",
        findings.phases(contest),
        "Time until the first answer in s: export, compile, load and first call, from empty caches",
        rows.height_of(contest.cells) + _LEGEND_HEIGHT,
    )
    texts = {place: f"{format.seconds(total)}{_lost(contest, place)}" for place, total in taken_s.items()}
    across = Scale(0, max(taken_s.values()), rows.LEFT, rows.RIGHT - rows.room_for(texts.values()))
    x_axis(made.root, across, rows.foot_of(contest.cells), "time (s)")
    for place in taken_s:
        row, left_s, y = contest.cells[place], 0.0, rows.middle_of(place)
        for phase in row.record.phases:
            group = mark(
                made.root, key.number(row.label), f"{row.label}: {phase.name} {format.seconds(phase.seconds)} s"
            )
            css = f"phase {phase.name}" if phase.name in KNOWN else "phase other"
            width = across(phase.seconds) - across(0)
            add(group, "rect", css, x=across(left_s), y=y - 7, width=max(0.3, width), height=14)
            left_s += phase.seconds
        rows.value_at(made.root, texts[place], across(left_s), place)
    rows.name_rows(made.root, contest.cells, key, taken_s)
    _add_legend(made, {phase.name for row in contest.cells for phase in row.record.phases})
    return made


def _add_legend(made: Chart, names: set[str]) -> None:
    x, y = rows.LEFT, made.height - 6
    for name in [*(name for name in KNOWN if name in names), *(["other"] if names - set(KNOWN) else [])]:
        add(made.root, "rect", f"phase {name}", x=x, y=y - 9, width=10, height=10)
        text = name.replace("_", " ")
        add(made.root, "text", "tick", text, x=x + 15, y=y)
        x += 15 + CHARACTER * len(text) + 18


def _lost(contest: ContestJudgement, place: int) -> str:
    record = contest.cells[place].record
    return "" if record.latency else f" \u00d7 {one_line(format.fate(record), 24)}"
