"""Placement of graphs whose engine hands some operators to a delegate, such as XNNPACK, and runs the others."""

from collections.abc import Mapping

from bakeoff.records.schema import Extent, Placement


def placement(delegate: str, delegated: int, own: str, left: Mapping[str, int], evidence: str) -> Placement:
    """Return the placement of `delegated` operators or graphs, and of those `left` to the engine's `own` kernels, which
    are counted by operator. `evidence` says what this was read from."""
    engines = {delegate: delegated, own: sum(left.values())}
    return Placement(
        extent=Extent.FULL if not left else Extent.PARTIAL if delegated else Extent.FALLBACK,
        engines={name: count for name, count in engines.items() if count},
        fallbacks=[f"{name} in {own} ({count})" for name, count in left.items()],
        evidence=[evidence],
    )
