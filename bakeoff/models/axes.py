"""Names for axes of inputs that a file leaves open and does not name itself."""

from collections.abc import Collection


def axis_name(name: str, axis: int, rank: int, is_float: bool, taken: Collection[str]) -> str:
    """Return `batch`, `seq`, `height` or `width` where the axis is most likely that, or else the input and the axis."""
    if axis == 0:
        likely = "batch"
    elif axis == 1 and rank == 2 and not is_float:
        likely = "seq"
    else:
        likely = {2: "height", 3: "width"}.get(axis, "") if rank == 4 else ""
    return likely if likely and likely not in taken else f"{name}_{axis}"
