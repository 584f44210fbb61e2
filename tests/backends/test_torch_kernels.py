"""Modes that choose among torch's own kernels, and hand-written kernels, without Triton."""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from bakeoff import backends, models
from bakeoff.backends import fast_path, kernels, torch_kernels
from bakeoff.backends.base import BuildContext
from bakeoff.backends.kernels import Launch, Variant
from bakeoff.backends.runtime.folder import switch
from bakeoff.backends.torch_kernels import ATTENTION, CUDNN_BENCHMARK, attention_in
from bakeoff.backends.triton import CHOSEN, Handwritten, choose_variant, possible_variants
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Cell
from tests.backends.building import built, loaded
from tests.backends.test_model_changes import cell_of, encoder

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
        assert script is not None
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
