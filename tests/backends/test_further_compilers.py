"""ExecuTorch and LiteRT: what they tell of themselves."""

import pytest

from bakeoff.backends import litert
from bakeoff.backends.executorch import placement_of
from bakeoff.records.schema import Extent


@pytest.mark.parametrize(
    ("account", "extent", "engines", "fallbacks"),
    [
        ({"aten_linear_default": (3, 0), "getitem": (0, 1)}, Extent.FULL, {"XNNPACK": 3}, []),
        (
            {"aten_linear_default": (3, 0), "aten_where_self": (1, 2), "alloc": (0, 7)},
            Extent.PARTIAL,
            {"XNNPACK": 4, "portable kernels": 2},
            ["aten_where_self in portable kernels (2)"],
        ),
        (
            {"aten_embedding_default": (0, 1)},
            Extent.FALLBACK,
            {"portable kernels": 1},
            ["aten_embedding in portable kernels (1)"],
        ),
    ],
)
def test_executorch_says_of_each_operator_whether_xnnpack_took_it(
    account: dict[str, tuple[int, int]], extent: Extent, engines: dict[str, int], fallbacks: list[str]
) -> None:
    found = placement_of(account)
    assert (found.extent, found.engines, found.fallbacks) == (extent, engines, fallbacks)


def operator(index: int, name: str, inputs: list[int], outputs: list[int]) -> dict[str, object]:
    return {"index": index, "op_name": name, "inputs": inputs, "outputs": outputs}


REPLACED = [operator(0, "FULLY_CONNECTED", [0, 1], [2]), operator(1, "GELU", [2], [3])]


@pytest.mark.parametrize(
    ("operators", "extent", "engines", "fallbacks"),
    [
        ([*REPLACED, operator(2, "DELEGATE", [0, 1], [3])], Extent.FULL, {"XNNPACK graphs": 1}, []),
        (
            [*REPLACED, operator(2, "DELEGATE", [0, 1], [2])],
            Extent.PARTIAL,
            {"XNNPACK graphs": 1, "LiteRT's own kernels": 1},
            ["GELU in LiteRT's own kernels (1)"],
        ),
        (
            REPLACED,
            Extent.FALLBACK,
            {"LiteRT's own kernels": 2},
            ["FULLY_CONNECTED in LiteRT's own kernels (1)", "GELU in LiteRT's own kernels (1)"],
        ),
    ],
)
def test_litert_says_what_xnnpack_took(
    operators: list[dict[str, object]], extent: Extent, engines: dict[str, int], fallbacks: list[str]
) -> None:
    found = litert.placement_of(operators, [3])
    assert (found.extent, found.engines, found.fallbacks) == (extent, engines, fallbacks)
