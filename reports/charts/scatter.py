"""What the charts with two number axes share."""

from __future__ import annotations

from reports.charts.svg import WIDTH

LEFT, RIGHT = 52.0, WIDTH - 12.0
TOP, FOOT = 24.0, 262.0
HEIGHT = FOOT + 42
