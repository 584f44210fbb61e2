"""The charts of the HTML report, as SVG: a file for each. Without matplotlib, which has no titles for its marks."""

from __future__ import annotations

from judging.judgement import ContestJudgement
from reports.charts import build_vs_speedup, costs, drift, latency, pareto, phases, roofline, samples, speedup
from reports.charts.key import Key
from reports.charts.svg import Chart


def charts_of(contest: ContestJudgement, key: Key) -> list[Chart]:
    """Those that have something to show, but for the costs, which have a slider."""
    makers = [latency, speedup, build_vs_speedup, pareto, phases, samples, drift, roofline]
    return [chart for maker in makers if (chart := maker.chart(contest, key))]


__all__ = ["Chart", "Key", "charts_of", "costs"]
