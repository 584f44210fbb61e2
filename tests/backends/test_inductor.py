"""Inductor's placement where a graph breaks or an operator stays PyTorch's, and its modes that a CPU lacks."""

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

from bakeoff import backends
from bakeoff.backends.inductor import Inductor, InductorLog, known_options
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import DECODE, INFERENCE, Cell, Extent
from tests.backends.building import built, loaded


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


class Broken(Whole):
    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        torch._dynamo.graph_break()
        return x.relu()


class Talking(Whole):
    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        print("a side effect that no graph can hold")  # noqa: T201
        return x.relu()


class PartlyOutside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outside = Outside()

    def forward(self, x: Tensor) -> Tensor:
        return self.outside(x) + 1


class Outside(Whole):
    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


@pytest.mark.parametrize(
    ("module", "extent", "graphs", "reason"),
    [
        (Broken, Extent.PARTIAL, 2, "torch._dynamo.graph_break"),
        pytest.param(Talking, Extent.PARTIAL, 2, "builtin operator", marks=pytest.mark.slow),
        pytest.param(PartlyOutside, Extent.PARTIAL, 1, "disable", marks=pytest.mark.slow),
        (Outside, Extent.FALLBACK, 0, "disable"),
    ],
)
def test_a_graph_that_breaks_is_no_full_placement(
    module: type[nn.Module], extent: Extent, graphs: int, reason: str, tmp_path: Path
) -> None:
    with built(Cell(model="own", backend="inductor"), tmp_path, loaded(module(), 2, 4)) as one:
        placement = one.compiled.placement()
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
    assert placement is not None
    assert (placement.extent, placement.engines["inductor graphs"]) == (extent, graphs)
    assert bool(placement.engines["generated kernels"]) == bool(graphs)
    (fallback,) = placement.fallbacks
    assert fallback.startswith("graph break: ") and reason in fallback
    assert len(fallback.splitlines()) == 1


class Recurrent(nn.Module):
    """Dynamo calls torch's recurrent layers as they are, and names no graph break."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(x)[0]


def test_where_nothing_is_compiled_eager_is_said_to_do_the_work(tmp_path: Path) -> None:
    with built(Cell(model="own", backend="inductor"), tmp_path, loaded(Recurrent(), 2, 4)) as one:
        one.call(one.sets[1])
        placement = one.compiled.placement()
    assert placement is not None and placement.extent is Extent.FALLBACK
    assert placement.fallbacks == ["nothing was compiled, and eager did the work"]


class Scaled(Whole):
    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.linear.weight * 2)


@pytest.mark.parametrize(
    ("mode", "is_constant"),
    [
        ("freezing", True),
        pytest.param("default", False, marks=pytest.mark.slow),
        pytest.param("max-autotune-freezing", True, marks=pytest.mark.slow),
    ],
)
def test_freezing_makes_constants_of_weights(mode: str, is_constant: bool, tmp_path: Path) -> None:
    model = loaded(Scaled(), 2, 4)
    with built(Cell(model="own", backend="inductor", mode=mode), tmp_path, model) as one:
        (before,) = [output.clone() for output in one.call(one.sets[1])]
        torch.testing.assert_close((before,), one.eager(one.sets[1]))
        next(one.module.parameters()).zero_()
        (after,) = one.call(one.sets[1])
        assert torch.equal(after, before) is is_constant
    assert not torch._inductor.config.freezing


@torch.library.custom_op("bakeoff_tests::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    return x + x


@double.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class WithAnOperatorOfItsOwn(Whole):
    def forward(self, x: Tensor) -> Tensor:
        q = double(self.linear(x)).unflatten(-1, (2, 2)).unsqueeze(0)
        return nn.functional.scaled_dot_product_attention(q, q, q)


def test_an_operator_that_stays_pytorchs_is_named_but_not_attention_that_is_left_to_it(tmp_path: Path) -> None:
    with built(Cell(model="own", backend="inductor"), tmp_path, loaded(WithAnOperatorOfItsOwn(), 2, 4)) as one:
        placement = one.compiled.placement()
    assert placement is not None and placement.extent is Extent.PARTIAL
    assert placement.fallbacks == ["bakeoff_tests.double stayed PyTorch's kernel (1)"]


def test_a_skipped_cuda_graph_is_kept_with_its_reason() -> None:
    from torch._inductor import cudagraph_utils

    with InductorLog() as log:
        cudagraph_utils.log_cudagraph_skip_and_bump_counter("skipping cudagraphs due to mutated inputs (1 instances)")
    assert log.cuda_graph_skips == ["mutated inputs (1 instances)"]
    cudagraph_utils.log_cudagraph_skip_and_bump_counter("after it was closed")
    assert len(log.cuda_graph_skips) == 1


def test_listening_leaves_inductors_loggers_as_they_were() -> None:
    hints = logging.getLogger(InductorLog.FALLBACKS)
    before = (hints.level, list(hints.handlers))
    with InductorLog():
        assert hints.level == logging.INFO
    assert (hints.level, list(hints.handlers)) == before


def test_compiling_again_after_the_warm_up_is_counted_and_shows_in_the_placement(tmp_path: Path) -> None:
    with built(Cell(model="own", backend="inductor"), tmp_path, loaded(Whole(), 2, 4)) as one:
        first, before = one.compiled.placement(), one.compiled.compilations()
        one.call(Inputs((torch.randn(3, 4),)))
        second = one.compiled.placement()
        assert one.compiled.compilations() == before + 1
    assert first is not None and first.extent is Extent.FULL and first.engines["inductor graphs"] == 1
    assert second is not None and second.fallbacks == ["compiled 1 more time after the warm-up"]


@pytest.mark.slow
def test_max_autotune_on_a_cpu_is_not_blamed_for_having_no_cuda_graphs(tmp_path: Path) -> None:
    with built(Cell(model="own", backend="inductor", mode="max-autotune"), tmp_path, loaded(Whole(), 2, 4)) as one:
        placement = one.compiled.placement()
    assert placement is not None and placement.fallbacks == []


@pytest.mark.parametrize(
    ("mode", "task", "sequences", "is_fused"),
    [
        ("coordinate-descent", DECODE, 1, False),
        ("coordinate-descent-overlapped", DECODE, 1, False),
        ("coordinate-descent", DECODE, 2, True),
        ("coordinate-descent", INFERENCE, 1, True),
        ("cuda-graph", DECODE, 1, True),
    ],
)
def test_only_in_its_decode_steps_of_one_sequence_attention_is_products(
    mode: str, task: str, sequences: int, is_fused: bool
) -> None:
    seen: list[str] = []

    def compiler(graph: torch.fx.GraphModule, _: object) -> object:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    torch._dynamo.reset()
    x = torch.randn(sequences, 2, 4, 8)
    model = Attend()
    compiled = torch.compile(model, backend=aot_autograd(fw_compiler=compiler))
    cell = Cell(model="mlp", backend="inductor", mode=mode, task=task)
    with torch.inference_mode(), Inductor()._attention(cell, Inputs((x,))):
        found = compiled(x)
    assert any("scaled_dot_product" in name for name in seen) is is_fused
    assert any("mul" in name for name in seen) is not is_fused
    assert not any("mm" in name for name in seen)
    torch.testing.assert_close(found, model(x))


def test_an_option_that_this_torch_lacks_is_named() -> None:
    assert known_options({"mode": "max-autotune"}) == {"mode": "max-autotune"}
    assert known_options({"options": {"triton.cudagraphs": True}})
    with pytest.raises(Unsupported, match=r"Inductor of torch 2\S+ has no option triton\.flies"):
        known_options({"options": {"freezing": True, "triton.flies": True}})


class Attend(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x)


def test_without_a_compiler_it_is_unavailable_on_the_cpu() -> None:
    from torch._inductor import config

    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert "install g++" in backends.create("inductor").available(Device("cpu")).reason
