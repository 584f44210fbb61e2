"""Every sentence of a report, one function for each: typed values go in, plain text comes out."""

from __future__ import annotations

from judging.sweeps import Stretch, Sweep


def sweep_title(sweep: Sweep) -> str:
    """Return a title such as `mlp (features 256, hidden 512) on cpu, fp32, over batch`."""
    cell = sweep.contests[0].cell
    kept = [f"{name} {value}" for name, value in cell.dimensions.items() if name != sweep.dimension]
    task = "" if cell.task == "inference" else f", {cell.task}"
    sizes = f" ({', '.join(kept)})" if kept else ""
    return f"{cell.model}{sizes} on {cell.device}, {cell.precision}{task}, over {sweep.dimension}"


def sweep_finding(sweep: Sweep) -> str:
    """Say which configuration is the fastest, and from which size on."""
    stretches: list[tuple[str, float]] = []
    for stretch in sweep.fastest:
        name = _leader(stretch)
        if not stretches or stretches[-1][0] != name:
            stretches.append((name, stretch.first_size))
    first, *others = stretches
    if not others:
        return f"fastest at every {sweep.dimension}: {first[0]}"
    further = ", ".join(f"from {sweep.dimension} {size:,.10g} on {name}" for name, size in others)
    return f"fastest: {first[0]}, {further}"


def _leader(stretch: Stretch) -> str:
    if stretch.winner:
        return stretch.winner
    if not stretch.is_tie:
        return "nobody"
    return "undecided" if stretch.is_open else "a tie"
