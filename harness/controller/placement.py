"""Whether a cell ran where it was asked to."""

from __future__ import annotations

from records.schema import Extent, Placement
from reports.format import some


def shortfall(placement: Placement | None, backend: str) -> str:
    """Why a cell that must run wholly where it was asked to (`--strict`) has failed, or an empty string."""
    if placement is None:
        return f"{backend} does not tell where it ran, and --strict asks for full"
    if placement.extent is Extent.FULL:
        return ""
    reason = f"placement is {placement.extent}, and --strict asks for full"
    return f"{reason}: {some(placement.fallbacks)}" if placement.fallbacks else reason
