"""Whether a cell ran where it was asked to."""

from harness.controller.placement import shortfall
from records.schema import Extent, Placement


def test_full_is_enough_whatever_is_beside_it() -> None:
    assert shortfall(Placement(extent=Extent.FULL, fallbacks=["reshape on the host"]), "onnx") == ""


def test_what_is_not_full_falls_short_with_its_first_fallbacks() -> None:
    partial = Placement(extent=Extent.PARTIAL, fallbacks=["gelu", "sort", "topk"])
    assert shortfall(partial, "onnx") == "placement is partial, and --strict asks for full: gelu, sort and 1 more"
    assert shortfall(Placement(extent=Extent.FALLBACK), "onnx") == "placement is fallback, and --strict asks for full"


def test_what_does_not_tell_falls_short() -> None:
    assert shortfall(None, "onnx") == "onnx does not tell where it ran, and --strict asks for full"
