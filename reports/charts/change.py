"""How much longer each cell takes in the new run than in the base run, with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from judging.change import Change
from judging.compare import CellChange
from reports.charts import rows
from reports.charts.key import Key
from reports.charts.svg import Chart, Scale, add, bar_interval, fit, mark, symbol, x_axis
from reports.comparison import spell_change

_SHORTEST_REACH = 0.05


def chart(cells: Sequence[CellChange], title: str, key: Key) -> Chart | None:
    """`cells` are those of one contest. Nothing where none of them has a change."""
    changes = {place: cell.raw for place, cell in enumerate(cells) if cell.raw}
    if not changes:
        return None
    made = Chart("change", title, "Change of latency in %, above 0 the new run takes longer", rows.height_of(cells))
    texts = {place: spell_change(change) for place, change in changes.items()}
    across = _scale(
        list(changes.values()), rows.RIGHT - rows.room_for([text.split(" [")[0] for text in texts.values()])
    )
    foot = rows.foot_of(cells)
    x_axis(made.root, across, foot, "change of latency (%)")
    add(made.root, "path", "one", d=f"M{across(0):.1f} 0V{foot:.1f}")
    for place, cell in enumerate(cells):
        label, name_y = cell.cell.label, rows.ROW * place + rows.NAME_DOWN
        add(made.root, "text", "label", fit(label, rows.RIGHT), x=rows.LEFT, y=name_y)
        group = mark(made.root, key.number(label), f"{label}: {texts.get(place, cell.outcome)}")
        if place not in changes:
            add(group, "text", "lost", f"\u00d7 {cell.outcome}", x=rows.LEFT, y=rows.middle_of(place) + 4)
            continue
        low, middle, high = (across(value) for value in _percents(changes[place]))
        if low < high:
            bar_interval(group, low, high, rows.middle_of(place))
        symbol(group, middle, rows.middle_of(place), key.look(label).marker, size=6)
        rows.value_at(group, texts[place].split(" [")[0], max(high, middle + 4), place)
    return made


def _percents(change: Change) -> tuple[float, float, float]:
    """Low end, value and high end."""
    interval = change.ci95
    low, high = (interval.low, interval.high) if interval else (change.value, change.value)
    return 100 * (low - 1), 100 * (change.value - 1), 100 * (high - 1)


def _scale(changes: Sequence[Change], stop: float) -> Scale:
    values = [value for change in changes for value in _percents(change)]
    low, high = min(-100 * _SHORTEST_REACH, *values), max(100 * _SHORTEST_REACH, *values)
    return Scale(low - 0.04 * (high - low), high, rows.LEFT, stop)
