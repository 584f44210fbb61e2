"""A reference in float64 is float64 throughout, whatever the model's own code casts to."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff.measuring.worker import reference
from bakeoff.models.base import LoadedModel
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell
from bakeoff.truth.calls import Outputs
from bakeoff.truth.witnesses import KeepFloat64, RoundingNoise, use_plain_experts

transformers = pytest.importorskip("transformers")

CELL = Cell(model="mlp", dimensions={"batch": 2, "features": 8, "hidden": 8}, precision=Precision.FP32, backend="eager")
IDS = torch.arange(12).reshape(2, 6)


class NarrowResults(TorchDispatchMode):
    """Notes each operator that returns a floating-point tensor narrower than float64."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        for each in pytree.tree_leaves(found):
            if isinstance(each, torch.Tensor) and each.dtype in (torch.float32, torch.bfloat16, torch.float16):
                self.names.add(str(func.overloadpacket))
        return found


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=50
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.LlamaForCausalLM(config).eval().double()
    return model


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        num_local_experts=4,
    )
    torch.manual_seed(0)
    model: nn.Module = transformers.MixtralForCausalLM(config).eval().double()
    return model


def logits(model: nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(IDS, use_cache=False).logits
    return found


def test_no_operator_of_a_llama_leaves_float64() -> None:
    model = llama()
    with NarrowResults() as plain:
        cast = logits(model)
    with NarrowResults() as narrow, KeepFloat64() as mode:
        exact = logits(model)
    assert plain.names  # its own code casts to float32
    assert (narrow.names, mode.in_float32) == (set(), [])
    assert exact.dtype is torch.float64
    error = ((cast - exact).square().mean() / exact.square().mean()).sqrt().item()
    assert 1e-9 < error < 1e-5  # what the casts cost


def test_a_cast_to_float32_keeps_all_digits() -> None:
    value = torch.tensor([1 / 3, 2.0], dtype=torch.float64)
    with KeepFloat64():
        for cast in (value.float(), value.to(torch.float32), value.softmax(0, dtype=torch.float32).sum().reshape(1)):
            assert cast.dtype is torch.float64
        assert torch.equal(value.float(), value)
        assert value.view(torch.float32).dtype is torch.float32  # the same bits as another type
        assert torch.arange(3).float().dtype is torch.float64


def test_an_operator_without_float64_runs_in_float32_and_is_named() -> None:
    with torch.library._scoped_library("bakeoff_tests", "DEF") as library:
        library.define("only_float32(Tensor x) -> Tensor")

        def only_float32(x: torch.Tensor) -> torch.Tensor:
            if x.dtype is not torch.float32:
                raise RuntimeError(f"expected Float, got {x.dtype}")
            return x * 2

        library.impl("only_float32", only_float32, "CPU")
        with KeepFloat64() as mode:
            found = torch.ops.bakeoff_tests.only_float32(torch.ones(2, dtype=torch.float64))
        assert (found.dtype, found.tolist(), mode.in_float32) == (
            torch.float64,
            [2.0, 2.0],
            ["bakeoff_tests.only_float32"],
        )


def test_an_error_that_is_not_the_types_is_raised_as_it_was() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), KeepFloat64():
        torch.ones(2, 3, dtype=torch.float64) @ torch.ones(2, 3, dtype=torch.float64)


def test_a_mixture_of_experts_has_a_reference() -> None:
    with KeepFloat64() as mode:
        found = logits(mixtral())
    plain = mixtral()
    assert use_plain_experts(plain)
    with KeepFloat64() as of_plain:
        exact = logits(plain)
    assert of_plain.in_float32 == []
    torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)
    if mode.in_float32:
        assert all("grouped_mm" in name for name in mode.in_float32)


def test_a_model_that_fails_in_float64_alone_is_checked_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def without_float64(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
        if dtype is torch.float64:
            raise RuntimeError("no kernel for Double")
        return reference.outputs_in(model, cell, dtype)

    narrow = CELL.model_copy(update={"precision": Precision.BF16})
    assert reference.Subject(narrow, tmp_path, tmp_path, outputs_in=without_float64).exact().computed_in == "float32"
    found = reference.Subject(CELL, tmp_path, tmp_path, outputs_in=without_float64).exact()
    assert (found.outputs, found.computed_in) == (None, "fp32")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_noise_leaves_infinities_and_small_whole_numbers_and_moves_others_by_a_rounding(dtype: torch.dtype) -> None:
    values = torch.tensor([-math.inf, math.inf, math.nan, 0.0, 3.0, 0.3, -1.7], dtype=dtype)
    beside = torch.full((7,), 1e30, dtype=dtype)  # a large number among them needs another way
    for each in (values, torch.cat((values, beside)), torch.empty(0, dtype=dtype)):
        with RoundingNoise(1):
            moved = each * 1.0
        assert torch.equal(moved[:5].nan_to_num(7.0), each[:5].nan_to_num(7.0))
        changed = (moved - each)[5:].abs()
        assert torch.all(changed <= 1.01 * torch.finfo(dtype).eps * each[5:].abs())
        assert len(changed) < 9 or changed.any()
