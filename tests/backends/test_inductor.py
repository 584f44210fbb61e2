"""TorchScript, Inductor and AOTInductor: graph breaks, `surgical` and packages; and torch's own and written kernels."""

import contextlib
import json
import logging
import re
import shutil
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor import config, cudagraph_utils
from torch.nn import functional

from bakeoff import backends, models
from bakeoff.backends import fast_path, kernels, surgical, torch_kernels
from bakeoff.backends.aotinductor import LINKED, PACKAGE, AOTInductor, linker_options
from bakeoff.backends.base import SURGICAL, Availability, BuildContext
from bakeoff.backends.inductor import Inductor, InductorLog, known_options
from bakeoff.backends.kernels import Launch, Variant
from bakeoff.backends.runtime.folder import switch
from bakeoff.backends.surgical import Outside, find_repeated, find_targets, stays_outside
from bakeoff.backends.torch_kernels import ATTENTION, CUDNN_BENCHMARK, attention_in
from bakeoff.backends.torchscript import SPECIALISING_CALLS
from bakeoff.backends.triton import CHOSEN, Handwritten, choose_variant, possible_variants
from bakeoff.models.base import INPUT_SETS, Inputs, LoadedModel
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import Unsupported, UsageError
from bakeoff.records.schema import DECODE, INFERENCE, Cell, Extent
from tests.backends.building import Built, built, loaded
from tests.backends.test_model_changes import cell_of, encoder
from tests.support.modules import Calling


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


class WhollyOutside(Whole):
    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).relu()


@pytest.mark.parametrize(
    ("module", "extent", "graphs", "reason"),
    [
        pytest.param(Broken, Extent.PARTIAL, 2, "torch._dynamo.graph_break", marks=pytest.mark.slow),
        pytest.param(Talking, Extent.PARTIAL, 2, "builtin operator", marks=pytest.mark.slow),
        (lambda: Calling(lambda own, x: own.outside(x) + 1, outside=WhollyOutside()), Extent.PARTIAL, 1, "disable"),
        (WhollyOutside, Extent.FALLBACK, 0, "disable"),
    ],
)
def test_a_graph_that_breaks_is_no_full_placement(
    module: Callable[[], nn.Module], extent: Extent, graphs: int, reason: str, tmp_path: Path
) -> None:
    with built(Cell(model="own", backend="inductor"), tmp_path, loaded(module(), 2, 4)) as one:
        placement = one.compiled.placement()
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
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


@pytest.mark.parametrize(
    ("module", "mode", "extent", "fallbacks"),
    [
        (Recurrent, "default", Extent.FALLBACK, ["nothing was compiled, and eager did the work"]),
        # attention that is left to PyTorch is not named
        (WithAnOperatorOfItsOwn, "default", Extent.PARTIAL, ["bakeoff_tests.double stayed PyTorch's kernel (1)"]),
        # a CPU has no CUDA graphs
        pytest.param(Whole, "max-autotune", Extent.FULL, [], marks=pytest.mark.slow),
    ],
)
def test_what_is_not_compiled_is_named(
    module: Callable[[], nn.Module], mode: str, extent: Extent, fallbacks: list[str], tmp_path: Path
) -> None:
    with built(Cell(model="own", backend="inductor", mode=mode), tmp_path, loaded(module(), 2, 4)) as one:
        one.call(one.sets[1])
        placement = one.compiled.placement()
    assert placement is not None and (placement.extent, placement.fallbacks) == (extent, fallbacks)


def test_a_skipped_cuda_graph_is_kept_with_its_reason() -> None:
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
    model = Calling(lambda _, x: functional.scaled_dot_product_attention(x, x, x))
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


def test_without_a_compiler_it_is_unavailable_on_the_cpu() -> None:
    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert "install g++" in backends.create("inductor").available(Device("cpu")).reason


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.activation = nn.Sequential(nn.GELU(), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        activated: Tensor = self.activation(self.linear(x))
        return torch.sinh(activated)


def blocks() -> nn.Module:
    return nn.Sequential(Block(), Block()).eval()


def with_targets() -> LoadedModel:
    sets = tuple(Inputs((torch.randn(4, 8),)) for _ in range(INPUT_SETS))
    return LoadedModel(blocks(), sets, surgical_targets=("*.activation",))


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*.activation"], ["0.activation", "1.activation"]),
        (["1.linear", "0.linear"], ["1.linear", "0.linear"]),
        (["0*", "*.linear"], ["0", "1.linear"]),
    ],
)
def test_patterns_find_modules_and_the_outermost_one_holds_its_parts(patterns: list[str], expected: list[str]) -> None:
    module = blocks()
    found = find_targets(module, patterns)
    assert list(found) == expected
    assert all(found[name] is module.get_submodule(name) for name in found)


def test_a_pattern_that_matches_nothing_names_the_nearest_module_and_none_how_to_name_them() -> None:
    with pytest.raises(UsageError, match=r"module in --surgical '0\.linaer': did you mean '0\.linear'"):
        find_targets(blocks(), ["*.activation", "0.linaer"])
    with pytest.raises(Unsupported, match=r"--surgical 'layers\.\*\.rope'"):
        find_targets(blocks(), ())


def test_operators_are_counted_where_they_run_outside_of_the_targets() -> None:
    module = blocks()
    inputs = Inputs((torch.randn(4, 8),))
    with torch.inference_mode():
        outside = stays_outside(module, find_targets(module, ["*.activation"]), inputs).operators
        everything = stays_outside(module, {}, inputs).operators
    assert "aten.sinh" in outside and outside["aten.sinh"] == 2
    assert "aten.gelu" not in outside and everything["aten.gelu"] == 2
    assert outside["aten.addmm"] + outside["aten.linear"] == 2


class Foreign(nn.Module):
    """A layer of a library that bypasses the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() @ self.weight.numpy().T)


ForeignLinear = type("Linear", (Foreign,), {"__module__": "transformer_engine.pytorch.module.linear"})


class Wrapper(nn.Module):
    """A layer of another library, hidden from `modules`, with its weight."""

    def __init__(self) -> None:
        super().__init__()
        self._engine = (ForeignLinear(),)
        self.weight = self._engine[0].weight

    def forward(self, x: Tensor) -> Tensor:
        return self._engine[0](x)


class Rounding(nn.Module):
    """A layer with a part that has no weights."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.eye(8))
        self.round = nn.Hardtanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.round(x) @ self.weight


def test_modules_outside_are_counted_by_class_though_their_operators_pass_the_dispatcher_by() -> None:
    shared = nn.Linear(8, 8)
    module = nn.Sequential(ForeignLinear(), shared, nn.Sequential(nn.GELU(), ForeignLinear()), Wrapper(), shared).eval()
    inputs = Inputs((torch.randn(4, 8),))
    with torch.inference_mode():
        some = stays_outside(module, find_targets(module, ["2.0"]), inputs)
        fewer = stays_outside(module, find_targets(module, ["2", "3"]), inputs)
    assert some.modules == {"te.Linear": 3, "Linear": 1}
    assert fewer.modules == {"te.Linear": 1, "Linear": 1}
    assert set(some.operators) <= {"aten.linear", "aten.addmm"}


def test_a_layer_with_weights_is_one_module_whatever_it_calls_and_has_its_packages_name() -> None:
    module = nn.Sequential(Rounding(), nn.Tanh(), Rounding()).eval()
    with torch.inference_mode():
        outside = stays_outside(module, {}, Inputs((torch.randn(4, 8),)))
    assert outside.modules == {"tests.Rounding": 2, "Tanh": 1}


@pytest.fixture(scope="module")
def operated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    cell = Cell(model="mlp", dimensions={}, device="cpu", precision="fp32", backend="inductor", mode=SURGICAL)
    with built(cell, tmp_path_factory.mktemp("surgical"), with_targets()) as one:
        yield one


def test_what_is_compiled_computes_what_it_computed_before(operated: Built) -> None:
    expected = [blocks_of(operated, inputs) for inputs in operated.sets]
    for inputs, exact in zip(operated.sets, expected, strict=True):
        torch.testing.assert_close(operated.call(inputs)[0], exact)


def blocks_of(operated: Built, inputs: Inputs) -> Tensor:
    """Return the module's outputs without the compiled `forward` of its parts."""
    (x,) = inputs.tensors()
    assert isinstance(operated.module, nn.Sequential)
    for block in operated.module:
        x = torch.sinh(nn.functional.gelu(block.linear(x)).tanh())
    return x


def test_the_record_lists_what_was_compiled_and_what_stayed_out(operated: Built) -> None:
    assert operated.compiled.settings()["compiled_modules"] == "0.activation, 1.activation"
    placement = operated.compiled.placement()
    assert placement is not None and placement.extent is Extent.PARTIAL
    assert placement.engines["modules compiled"] == 2
    assert placement.engines["eager operators"] == 4
    assert placement.engines["eager modules"] == 2
    assert placement.fallbacks[0] == "modules that stayed eager: Linear (2)"
    assert "aten.sinh stayed eager (2)" in placement.fallbacks
    assert not any("gelu" in fallback for fallback in placement.fallbacks)


def test_closing_gives_the_parts_their_own_forward_back(tmp_path: Path) -> None:
    module = blocks()
    targets = find_targets(module, ["*.activation"])
    for part in targets.values():
        part.forward = torch.compile(part.forward, backend="eager")
    assert all("forward" in vars(part) for part in targets.values())
    cell = Cell(model="mlp", dimensions={}, device="cpu", precision="fp32", backend="eager")
    with built(cell, tmp_path, with_targets()) as eager:
        surgical.SurgicalModule(eager.compiled, targets, Outside()).close()
    assert not any("forward" in vars(part) for part in targets.values())


def test_every_operator_that_stayed_out_is_named_the_most_frequent_first(tmp_path: Path) -> None:
    cell = Cell(model="mlp", dimensions={}, device="cpu", precision="fp32", backend="eager")
    with built(cell, tmp_path, with_targets()) as eager:
        operators = Counter({f"aten.op{number}": number for number in range(1, 31)})
        modules = Counter({f"some.Layer{number}": number for number in range(1, surgical.MAX_CLASSES_SHOWN + 3)})
        placement = surgical.SurgicalModule(eager.compiled, {}, Outside(operators, modules)).placement()
    first, *others = placement.fallbacks
    assert first.startswith("modules that stayed eager: some.Layer8 (8), some.Layer7 (7), ")
    assert first.endswith("some.Layer3 (3) and 2 others")
    assert others == [f"aten.op{number} stayed eager ({number})" for number in range(30, 0, -1)]


class Numbered(Block):
    """A block that knows its place, and reads it as a number."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.place


def repeating() -> nn.Module:
    layers = nn.ModuleDict({"stem": nn.Linear(8, 8), "layers": nn.Sequential(*map(Numbered, range(4)))})
    return nn.Sequential(layers["stem"], layers["layers"], nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))).eval()


def test_layers_that_repeat_are_found_by_their_class_and_shapes() -> None:
    assert list(find_repeated(repeating())) == [f"1.{place}" for place in range(4)]
    inner = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(2)))
    assert list(find_repeated(inner)) == ["0", "1"], "what is inside of them repeats, too"
    with pytest.raises(Unsupported, match=r"^the model repeats no layer, .*: use inductor$"):
        find_repeated(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4), nn.ReLU(), nn.ReLU()))


@pytest.mark.slow
def test_one_of_the_layers_that_repeat_is_compiled_for_all(tmp_path: Path) -> None:
    model = loaded(repeating(), 4, 8)
    with built(Cell(model="own", backend="inductor", mode="regional"), tmp_path, model) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
        assert one.compiled.recompiled() == ()
    assert placement is not None and placement.engines["modules compiled"] == 4
    # one for the first layer, and one where its place is an input
    assert placement.engines["inductor graphs"] <= 2
    assert placement.fallbacks[0] == "modules that stayed eager: Linear (3)"


@pytest.mark.slow
def test_an_operator_that_stays_pytorchs_is_named_after_loading(tmp_path: Path) -> None:
    module = Calling(lambda _, x: torch.linalg.inv(x @ x.mT + torch.eye(4)).relu())
    with built(Cell(model="own", backend="aotinductor"), tmp_path, loaded(module, 4, 4)) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
    assert placement is not None and placement.extent is Extent.PARTIAL
    assert any(kept.startswith("aten.linalg_inv") for kept in placement.fallbacks), placement.fallbacks
    assert (tmp_path / PACKAGE).stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "settings"),
    [("freezing", {"freezing": True}), ("max-autotune-freezing", {"freezing": True, "max_autotune": True})],
)
def test_a_package_with_frozen_weights_is_right_and_says_what_it_is(
    mode: str, settings: dict[str, bool], tmp_path: Path
) -> None:
    model = loaded(nn.Linear(64, 64), 4, 64)
    with built(Cell(model="own", backend="aotinductor", mode=mode), tmp_path, model) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        assert settings.items() <= one.compiled.settings().items()
    with zipfile.ZipFile(tmp_path / PACKAGE) as package:
        wrapper = "".join(package.read(name).decode() for name in package.namelist() if name.endswith(".wrapper.cpp"))
    assert "aoti_torch_cpu_addmm_out" not in wrapper, "this product takes plain weights, which are not prepared"


def test_a_package_is_loaded_where_no_compiler_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bakeoff.backends.inductor.compiler_available", lambda: Availability("no compiler"))
    assert not AOTInductor().available(CPU)
    assert AOTInductor().available_to_load(CPU)


def compiler_that_finds(runtime: str, folder: Path) -> Any:
    """Return a context in which Inductor's compiler is g++, and says that the shared C++ runtime is at `runtime`."""
    script = folder / "g++"
    script.write_text(
        f"#!/bin/sh\ncase $1 in -print-file-name=*) echo '{runtime}' ;; *) exec {shutil.which('g++')} \"$@\" ;; esac\n"
    )
    script.chmod(0o755)
    return config.patch({"cpp.cxx": (str(script),)})


with_gcc = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("g++"), reason="is about GCC on Linux")


@with_gcc
def test_where_the_compiler_finds_no_shared_runtime_it_is_named_to_the_linker(tmp_path: Path) -> None:
    """With a dangling libstdc++.so, GCC prints the bare name and the linker takes the static library."""
    with compiler_that_finds("libstdc++.so", tmp_path):
        assert linker_options() == {"aot_inductor.custom_op_libs": [":libstdc++.so.6"]}


@with_gcc
def test_where_it_finds_one_the_linker_is_left_alone(tmp_path: Path) -> None:
    there = tmp_path / "libstdc++.so"
    there.touch()
    with compiler_that_finds(str(there), tmp_path):
        assert linker_options() == {}
        there.unlink()
        assert linker_options() != {}


@with_gcc
@pytest.mark.slow
def test_naming_the_runtime_links_it_and_the_package_still_runs(tmp_path: Path) -> None:
    cell = Cell(model="own", backend="aotinductor")
    with compiler_that_finds("libstdc++.so", tmp_path), built(cell, tmp_path, loaded(nn.Linear(4, 4), 4, 4)) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        settings = one.compiled.settings()
        assert settings["loaded_and_called_through"] == "AOTIModelPackageLoader"
        assert settings[LINKED] == ":libstdc++.so.6"


CELL = Cell(model="mlp", dimensions={"batch": 3, "features": 32, "hidden": 48}, backend="torchscript")


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Built]:
    with built(CELL, tmp_path) as compiled:
        yield compiled


def test_weights_are_frozen_into_the_graph(one: Built) -> None:
    read_back = torch.jit.load(one.context.workspace / "model.pt")
    assert list(read_back.parameters()) == []
    placement = one.compiled.placement()
    assert placement is not None and placement.engines["torchscript"] > 0


calls: list[int] = []


@torch.library.custom_op("bakeoff_tests::noted", mutates_args=())
def noted(rows: torch.Tensor) -> torch.Tensor:
    """Return a copy of the rows, and note the call."""
    calls.append(1)
    return rows.clone()


def test_the_first_calls_are_part_of_building(tmp_path: Path) -> None:
    calls.clear()
    model = loaded(Calling(lambda _, rows: 2 * noted(rows)), 4, 4)
    with built(Cell(model="own", backend="torchscript"), tmp_path, model):
        assert len(calls) == 1 + SPECIALISING_CALLS >= 3, "one of them is the trace"


SHAPE = (2, 3, 8, 16)


class Attends(nn.Module):
    """Attends twice, or with dropout, which only torch's products and softmax have on a CPU."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = functional.scaled_dot_product_attention(x, x, x, dropout_p=self.dropout)
        return x


def attends(dropout: float = 0.0) -> LoadedModel:
    return loaded(Attends(dropout), *SHAPE, sets=2)


@pytest.mark.parametrize(
    ("mode", "kernel"), [("default", "flash"), ("attention-flash", "flash"), ("attention-math", "math")]
)
def test_eager_runs_the_kernel_that_the_mode_says_and_names_it(mode: str, kernel: str, tmp_path: Path) -> None:
    with built(cell_of("eager", mode), tmp_path, attends()) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
    assert placement is not None and placement.engines == {f"{kernel} attention": 2}
    assert torch.backends.cuda.flash_sdp_enabled()


def test_outside_of_inference_mode_a_fused_kernel_is_named_too() -> None:
    with torch.no_grad():
        assert attention_in(lambda: Attends()(torch.randn(SHAPE))) == {"flash attention": 2}


def test_a_trace_names_its_kernel_and_transformer_layers_their_fast_path(tmp_path: Path) -> None:
    with built(cell_of("torchscript"), tmp_path, attends()) as one:
        placement = one.compiled.placement()
    assert placement is not None and placement.engines["flash attention"] == 2
    with built(cell_of("eager"), tmp_path, encoder()) as one:
        placement = one.compiled.placement()
    assert placement is not None and placement.engines == {"fast path attention": 1}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["inductor", "aotinductor"])
def test_inductor_names_the_kernel_that_it_leaves_to_torch(backend: str, tmp_path: Path) -> None:
    with built(cell_of(backend), tmp_path, attends()) as one:
        placement = one.compiled.placement()
    assert placement is not None and "Inductor's log of attention that stays torch's: flash" in placement.evidence


@pytest.mark.slow
def test_inductor_compiles_what_the_mode_says(tmp_path: Path) -> None:
    with built(cell_of("inductor", "attention-math"), tmp_path, attends()) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
    assert placement is not None and not any("attention" in text for text in placement.evidence)


@pytest.mark.parametrize(
    ("model", "mode", "reason"),
    [
        (encoder(), "attention-flash", None),
        (
            attends(dropout=0.5),
            "attention-flash",
            "^attention-flash does not take this model's attention: Both fused kernels do not support non-zero dropout",
        ),
        (
            loaded(nn.Linear(3, 2), 1, 3, sets=1),
            "attention-math",
            "^the model does not call torch's scaled_dot_product_attention$",
        ),
    ],
    ids=["layers", "dropout", "no attention"],
)
def test_a_kernel_that_a_model_cannot_have_is_unsupported(
    model: LoadedModel, mode: str, reason: str | None, tmp_path: Path
) -> None:
    if reason is None:
        with built(cell_of("eager", mode), tmp_path, model) as one:
            assert not fast_path.in_force(one.module)[fast_path.SWITCH]
        return
    with pytest.raises(Unsupported, match=reason), built(cell_of("eager", mode), tmp_path, model):
        pass


def test_cudnn_tries_out_algorithms_where_the_mode_says_and_the_model_convolves() -> None:
    cell = Cell(model="conv", backend="eager", mode="cudnn-benchmark-channels-last", device=Device("cuda"))
    eager = backends.create("eager")
    assert eager.supports(cell) and eager.times_kernels(cell) and not eager.times_kernels(cell_of("eager"))
    fast_path.apply(eager, cell)
    try:
        assert torch.backends.cudnn.benchmark and torch.backends.mha.get_fastpath_enabled()
    finally:
        switch({CUDNN_BENCHMARK: False})
    inductor = backends.create("inductor")
    assert [inductor.keeps_choices(one, Path()) for one in (cell, cell_of("inductor"))] == [False, True]
    benchmark = eager.mode(cell.mode)
    with pytest.raises(Unsupported, match=r"^the model has no convolution"):
        torch_kernels.require(benchmark, nn.Linear(2, 2), tuple)
    torch_kernels.require(benchmark, nn.Sequential(nn.Conv1d(2, 2, 1)), tuple)


@pytest.mark.parametrize("name", ["eager", "inductor"])
def test_a_script_and_a_folder_switch_what_the_mode_switches(name: str) -> None:
    backend = backends.create(name)
    for mode in ("attention-efficient", "cudnn-benchmark"):
        cell = Cell(model="conv", backend=name, mode=mode, device=Device("cuda"))
        script = backend.script(cell, {})
        paths = re.findall(r"^torch\.([\w.]+)(?: = |\()(True|False)", script.lines, re.MULTILINE)
        assert dict(paths) == {path: str(value) for path, value in backend.mode(mode).switches.items()}
        assert backend.loading(cell, {})["switches"] == backend.mode(mode).switches


def test_the_modes_of_attention_allow_one_kernel_each() -> None:
    assert [sum(mode.switches.values()) for mode in ATTENTION.values()] == [1] * 4
    switches = {path for mode in ATTENTION.values() for path in mode.switches}
    assert all(callable(getattr(torch.backends.cuda, path.rpartition(".")[2])) for path in switches)


BY_POINTER: Variant = {"loads": "pointer", "block": 8}
BY_DESCRIPTOR: Variant = {"loads": "descriptor", "block": 16}


def triton_cell(model: str, mode: str = "default", device: str = "cuda", **fields: object) -> Cell:
    return Cell.model_validate(
        {"model": model, "dimensions": {}, "device": device, "precision": "bf16", "backend": "triton", "mode": mode}
        | fields
    )


def prepare(module: torch.nn.Module, inputs: Sequence[torch.Tensor], variant: Variant) -> Launch:
    """Return a kernel that writes its variant's block size, on any device."""
    result = torch.zeros_like(inputs[0])
    return Launch(lambda: result.fill_(int(variant["block"])), (result,))


def context_in(folder: Path) -> BuildContext:
    return BuildContext(triton_cell("tma_copy", device="cpu"), lambda _: contextlib.nullcontext(), folder, 1)


def test_every_kernel_is_of_a_model_that_there_is_and_has_a_file() -> None:
    folder = Path(kernels.__file__).parent
    for model, row in kernels.TABLE.items():
        assert model in models.TABLE
        assert (folder / f"{row.module.rpartition('.')[2]}.py").is_file()
        assert set(row.loads) <= {"pointer", "descriptor"}


def test_on_the_cpu_kernels_are_only_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    answer = backends.create("triton").available(Device("cpu"))
    assert not answer and "TRITON_INTERPRET=1" in answer.reason


def test_a_mode_leaves_the_variants_that_load_its_way() -> None:
    cell = triton_cell("tma_copy", device="cpu")
    assert possible_variants([BY_POINTER, BY_DESCRIPTOR], None, cell) == [BY_POINTER, BY_DESCRIPTOR]
    assert possible_variants([BY_POINTER, BY_DESCRIPTOR], "descriptor", cell) == [BY_DESCRIPTOR]


def test_without_a_gpu_no_variant_is_timed(tmp_path: Path) -> None:
    chosen, settings = choose_variant(
        prepare, [BY_POINTER, BY_DESCRIPTOR], torch.nn.Identity(), Inputs((torch.ones(4),)), context_in(tmp_path)
    )
    assert chosen == BY_POINTER and "no time means anything" in str(settings["chosen"])
    assert not (tmp_path / CHOSEN).exists()


def test_later_processes_of_a_cell_take_what_the_first_one_chose(tmp_path: Path) -> None:
    (tmp_path / CHOSEN).write_text(json.dumps(BY_DESCRIPTOR))
    chosen, settings = choose_variant(
        prepare, [BY_POINTER, BY_DESCRIPTOR], torch.nn.Identity(), Inputs((torch.ones(4),)), context_in(tmp_path)
    )
    assert chosen == BY_DESCRIPTOR and settings == {"chosen": "by the cell's first process"}


def test_outputs_are_copies_that_the_next_call_leaves_alone() -> None:
    compiled = Handwritten("somewhere", prepare, torch.nn.Identity(), BY_POINTER, {"chosen": "so"})
    compiled.bind(Inputs((torch.ones(4),)))
    compiled.run()
    (first,) = compiled.outputs()
    first.zero_()
    compiled.run()
    assert compiled.outputs()[0].tolist() == [8.0] * 4
    assert compiled.settings() == {"chosen": "so", **BY_POINTER}
