"""On a GPU: hand-written kernels, training, large models, precisions, and the parts of a pipeline in fp16."""

import csv
import importlib
from pathlib import Path

import pytest
import torch
from torch import nn

import bakeoff
from bakeoff.api.pipelines import PipelineResult
from bakeoff.backends import kernels
from bakeoff.judging.judgement import contests_of
from bakeoff.measuring.worker.cell_model import load, move_to_device
from bakeoff.measuring.worker.precision import dtype_of
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.schema import Cell, Extent, Record, Report, Status
from bakeoff.reports import headline, precisions, writer
from tests.backends.building import built
from tests.gpu.test_cuda import measure_on_cuda
from tests.support.diffusion import paint, require_same_image, stable_diffusion
from tests.support.measuring import by_label, measure

pytestmark = pytest.mark.gpu

PRECISION = {"matmul_fp16": "fp16"}
MULTIPLES = {
    "fused_add_relu_mul": {"elements": "1000003"},
    "matmul_fp16": {"m": "528", "n": "784", "k": "272"},
    "matmul_fp8": {"m": "528", "n": "784", "k": "272"},
    "rope": {"batch": "3", "seq": "77", "heads": "4", "width": "64"},
    "tma_copy": {"rows": "1001", "columns": "272"},
}
"""Sizes that are not multiples of any block."""

ROUNDING = {"fp16": 6e-4, "bf16": 5e-3}


def cell_of(model: str) -> Cell:
    asked = PRECISION.get(model, "bf16")
    request = Request(
        models=(model,),
        backends=("triton",),
        devices=("cuda",),
        precision=(asked,),
        set={name: (value,) for name, value in MULTIPLES[model].items()},
    )
    (contest,) = plan(request)
    return next(planned.cell for planned in contest.cells if planned.cell.backend == "triton")


def relative_error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    return float((ours.double() - exact).square().mean().sqrt() / exact.square().mean().sqrt())


@pytest.mark.parametrize("model", kernels.TABLE)
def test_every_variant_that_this_gpu_runs_is_right(model: str) -> None:
    """A GPU before Hopper lacks descriptors, and has too little shared memory for the largest variants."""
    from triton.runtime.errors import OutOfResources, PTXASError

    cell = cell_of(model)
    kernel = importlib.import_module(kernels.TABLE[model].module)
    has_descriptors = torch.cuda.get_device_capability() >= (9, 0)
    ran = 0
    with torch.inference_mode():
        exact_module, exact_sets = move_to_device(load(cell), cell, torch.float64)
        exact = exact_module(*exact_sets[0].args)
        module, sets = move_to_device(load(cell), cell)
        for variant in kernel.VARIANTS:
            if variant["loads"] == "descriptor" and not has_descriptors:
                continue
            launch = kernel.prepare(module, sets[0].tensors(), variant)
            try:
                launch.run()
            except (OutOfResources, PTXASError):
                assert torch.cuda.get_device_capability() != (9, 0), variant
                continue
            torch.cuda.synchronize()
            for ours, truth in zip(launch.outputs, exact if isinstance(exact, tuple) else (exact,), strict=True):
                assert ours.dtype == dtype_of(cell.precision)
                assert relative_error(ours, truth) < ROUNDING[cell.precision], variant
            ran += 1
    if not ran:
        pytest.skip("its kernels all need tensor descriptors: compute capability 9.0")


@pytest.mark.parametrize("mode", ["default", "cuda-graph"])
def test_the_fastest_variant_is_chosen_and_kept_for_later_processes(tmp_path: Path, mode: str) -> None:
    cell = cell_of("fused_add_relu_mul").model_copy(update={"mode": mode})
    with built(cell, tmp_path) as first:
        chosen = first.compiled.settings()
        assert "tried" in chosen and str(chosen["chosen"]).startswith("the fastest of")
    with built(cell, tmp_path) as second:
        for inputs in second.sets:
            torch.testing.assert_close(second.call(inputs), second.eager(inputs), rtol=1.6e-2, atol=1e-2)
        settings = second.compiled.settings()
    assert settings["chosen"] == "by the cell's first process"
    assert (settings["block"], settings["warps"]) == (chosen["block"], chosen["warps"])


def test_a_rotary_embedding_is_measured_by_a_kernel_and_by_a_compiler(tmp_path: Path) -> None:
    report = measure_on_cuda(tmp_path / "run", "eager", "inductor", "triton", models=["rope"], precision=["bf16"])
    assert [record.reason for record in report.records] == [""] * 3


@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9),
    reason="float8 products need compute capability 8.9",
)
def test_surgery_on_a_float8_decoder_is_right_and_reported(tmp_path: Path) -> None:
    sizes = {"layers": ("1",), "linears": ("torch",)}
    report = measure_on_cuda(
        tmp_path / "run", "eager", "inductor/surgical", models=["fp8_transformer"], precision=["bf16"], set=sizes
    )
    found = by_label(report)
    surgical = found["inductor/surgical"]
    assert surgical.placement is not None and surgical.placement.extent is Extent.PARTIAL
    assert any("_scaled_mm stayed eager (4)" in fallback for fallback in surgical.placement.fallbacks)
    assert "layers.0.rope" in str(surgical.settings["compiled_modules"])
    for record in found.values():
        assert record.accuracy is not None and record.accuracy.relative_rmse < 0.05
        assert record.memory is not None and (record.memory.peak_device_bytes or 0) > 0


EVERY_WAY = (
    "eager",
    "eager/cuda-graph",
    "inductor",
    "inductor/reduce-overhead",
    "inductor/cuda-graph",
    "inductor/optimizer-inside",
)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return measure_on_cuda(tmp_path_factory.mktemp("steps") / "run", *EVERY_WAY, task="train_step")


def test_every_way_of_a_step_is_right_before_and_after_measuring(steps: Report) -> None:
    for record in steps.records:
        assert record.status is Status.OK, f"{record.cell.label}: {record.reason}\n{record.log_tail}"
        assert (record.placement.extent, record.placement.fallbacks) == (Extent.FULL, []), record.cell.label
        assert record.accuracy is not None and record.accuracy.rmse_after is not None


def test_a_captured_step_has_no_parts(steps: Report) -> None:
    for label, record in by_label(steps).items():
        names = [stage.name for stage in record.stages]
        assert names == ([] if label.endswith("cuda-graph") else ["forward", "backward", "optimizer"]), label


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_language_model_trains_in_16_bits(precision: str, tmp_path: Path) -> None:
    size = {"size": ("tiny",), "context": ("64",)}
    report = measure_on_cuda(
        tmp_path / "run",
        "eager",
        "eager/cuda-graph",
        models=["transformer_lm"],
        set=size,
        precision=[precision],
        task="train_step",
    )
    assert [record.status for record in report.records] == [Status.OK] * 2, [r.reason for r in report.records]


def test_a_model_drawn_on_the_device_is_the_same_in_every_process(tmp_path: Path) -> None:
    size = {"size": ("small",), "batch": ("1",), "context": ("32",)}
    report = measure_on_cuda(
        tmp_path / "run", "eager", "eager-again", models=["transformer_lm"], set=size, precision=["bf16"], processes=2
    )
    for record in report.records:
        assert record.status is Status.OK, record.reason
        assert record.settings["parameters"] == 128_625_408
        assert record.accuracy.rmse == pytest.approx(record.accuracy.eager_rmse, rel=0.01)


def test_recompilations_of_a_stream_are_counted(tmp_path: Path) -> None:
    size = {"size": ("tiny",), "context": ("64",), "lengths": ("stream",)}
    modes = [f"inductor/{mode}" for mode in ("default", "static", "dynamic", "buckets")]
    report = measure_on_cuda(
        tmp_path / "run", "eager", "eager/cuda-graph", *modes, models=["transformer_lm"], set=size, precision=["bf16"]
    )
    records = by_label(report)
    assert records.pop("eager/cuda-graph").status is Status.UNSUPPORTED
    assert {record.status for record in records.values()} == {Status.OK}, [r.reason for r in report.records]
    graphs = {
        label: record.placement.engines.get("inductor graphs") for label, record in records.items() if record.placement
    }
    assert graphs["inductor/static"] == 8
    assert graphs["inductor/dynamic"] == 1


def test_attention_that_does_not_fit_is_a_row_and_the_sweep_goes_on(tmp_path: Path) -> None:
    sizes = {"seq": ("256", "400000"), "d_model": ("16",), "variant": ("naive",)}
    folder = tmp_path / "run"
    report = measure_on_cuda(folder, "eager", models=["attention"], set=sizes, task="forward_backward")
    writer.write(report, folder, figures=False)
    with open(folder / "attention_sweep-naive-cuda-fp32.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seq_len"], row["status"]) for row in rows] == [("256", "ok"), ("400000", "OOM")]
    assert float(rows[0]["forward_mean_ms"]) > 0 and float(rows[0]["peak_memory_mb"]) > 0


BACKENDS = ("eager", "torchscript", "inductor", "inductor/reduce-overhead", "aotinductor", "onnx")

SIZES = {
    "mlp": {"batch": ("512",), "features": ("512",), "hidden": ("1024",)},
    "conv": {"width": ("64",), "size": ("64",)},
}

EXPECTED = {"fp32": (1e-9, 2e-6), "tf32": (2e-5, 1e-2)}
"""Relative RMSE. Float32 has 24 bits of significand and TF32 has 11, which gives 1e-7 and 1e-4 in one product."""


@pytest.fixture(scope="module", params=SIZES)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    model: str = request.param
    # AOTInductor takes a minute to build on a GPU machine: once per precision is enough
    names = [name for name in BACKENDS if name != "aotinductor" or model == "mlp"]
    report = measure(
        tmp_path_factory.mktemp("precision") / "run",
        *names,
        devices=["cuda"],
        models=[model],
        set=SIZES[model],
        precision=list(EXPECTED),
        separate=True,
    )
    assert report.complete, "interrupted: what is missing would read as skipped"
    return report


@pytest.mark.parametrize("precision", EXPECTED)
@pytest.mark.parametrize("label", BACKENDS)
def test_float32_and_tf32_differ_by_their_error(both: Report, label: str, precision: str) -> None:
    if label not in {record.cell.label for record in both.records}:
        pytest.skip("AOTInductor is measured on mlp: it takes a minute to build")
    record = one_of(both, label, precision)
    if record.status in (Status.UNAVAILABLE, Status.UNSUPPORTED):
        assert label != "eager" and record.reason
        pytest.skip(f"{label}: {record.reason}")
    assert record.status is Status.OK, f"{record.reason}\n{record.log_tail}"
    low, high = EXPECTED[precision]
    assert low < record.accuracy.relative_rmse < high
    assert record.precision_in_force["matmul_allow_tf32"] is (precision == "tf32")
    assert record.precision_in_force["cudnn_allow_tf32"] is (precision == "tf32")


@pytest.mark.parametrize(("precision", "low", "high"), [("bf16", 1e-3, 2e-2), ("fp16", 1e-4, 3e-3)])
def test_16_bits_show_in_the_error(precision: str, low: float, high: float, tmp_path: Path) -> None:
    report = measure(tmp_path / "run", "eager", "inductor", devices=["cuda"], precision=[precision])
    for record in report.records:
        assert record.status is Status.OK, f"{record.cell.label}: {record.reason}"
        assert low < record.accuracy.relative_rmse < high


@pytest.mark.parametrize(
    ("model", "layers", "sizes"),
    [("mlp", 3, {"batch": ("64",)}), ("transformer", 8, {})],
)
@pytest.mark.parametrize(("precision", "low", "high"), [("int8", 1e-3, 4e-2), ("fp8", 5e-3, 1.5e-1)])
def test_every_linear_layer_is_quantised(
    model: str, layers: int, sizes: dict[str, tuple[str]], precision: str, low: float, high: float, tmp_path: Path
) -> None:
    """This includes a CUDA graph, which cannot capture a call that waits for the device."""
    pytest.importorskip("torchao")
    asked = {"devices": ["cuda"], "models": [model], "set": sizes, "precision": [precision]}
    records = by_label(measure(tmp_path / "run", "eager", "eager/cuda-graph", "inductor", **asked))
    for label, record in records.items():
        if precision == "fp8" and "compute capability" in record.reason:
            pytest.skip(record.reason)
        assert record.status is Status.OK, f"{label}: {record.reason}\n{record.log_tail}"
        assert record.precision_in_force[f"{precision} linear layers"] == layers
        assert low < record.accuracy.relative_rmse < high, label


@pytest.mark.parametrize(
    ("model", "sizes", "reason"),
    [("conv", {}, "3 convolution would stay"), ("mlp", {"batch": ("4",)}, "cuBLAS needs 17 rows or more")],
)
def test_int8_that_would_be_float32_is_unsupported(
    model: str, sizes: dict[str, tuple[str]], reason: str, tmp_path: Path
) -> None:
    """torchao has no int8 convolution for CUDA, and silently multiplies few rows in float32."""
    pytest.importorskip("torchao")
    asked = {"devices": ["cuda"], "models": [model], "set": sizes, "precision": ["int8"]}
    (record,) = measure(tmp_path / "run", "eager", **asked).records
    assert record.status is Status.UNSUPPORTED
    assert reason in record.reason


def one_of(report: Report, label: str, precision: str) -> Record:
    (record,) = [one for one in report.records if (one.cell.label, one.cell.precision) == (label, precision)]
    return record


def test_resnet_50_in_all_precisions_is_one_contest(tmp_path: Path) -> None:
    """fp8 quantises linear layers alone, which hold a tenth of its weights, so that it is refused with that reason."""
    pytest.importorskip("timm")
    asked = ["fp32", "tf32", "bf16", "fp16", "fp8"]
    backends = ("eager", "inductor", "inductor/cuda-graph")
    more = {"devices": ["cuda"], "models": ["timm:resnet50"], "set": {"batch": ("8",)}, "precision": asked}
    report = measure(tmp_path / "run", *backends, **more)
    (contest,) = contests_of(report)
    assert contest.baseline == "eager fp32"
    for label, record in by_label(report).items():
        if label.endswith("fp8"):
            assert record.status is Status.UNSUPPORTED and record.reason
        else:
            assert record.status is Status.OK, f"{label}: {record.reason}\n{record.log_tail}"
    best = {str(each.precision): each for each in contest.of_precisions}
    errors = [best[name].relative_rmse for name in ("fp32", "tf32", "bf16")]
    assert errors == sorted(error for error in errors if error is not None)
    assert {str(row.cell.precision) for row in contest.ranked} == {"fp32"}
    assert {row.cell.precision for row in contest.cells if row.beyond} == {"tf32", "bf16", "fp16"}
    assert "within fp32's rounding" in headline.line(contest)
    sentences = precisions.sentences(contest)
    assert [line.partition(":")[0] for line in sentences[:5]] == asked and "3 unsupported" in sentences[4]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.conv(nn.functional.silu(self.norm(x)))


class Unet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.words = nn.Linear(64, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))

    def forward(self, sample: torch.Tensor, encoder_hidden_states: torch.Tensor) -> torch.Tensor:
        told = self.words(encoder_hidden_states.mean(1))[:, :, None, None]
        return self.last(self.blocks(self.first(sample) + told))


class Vae(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.decoder = nn.Sequential(
            nn.Conv2d(4, width, 3, padding=1),
            Block(width),
            nn.Upsample(scale_factor=4),
            nn.Conv2d(width, 3, 3, padding=1),
        )


class Painter:
    def __init__(self) -> None:
        layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
        self.text_encoder = nn.Sequential(nn.Embedding(1000, 64), nn.TransformerEncoder(layer, 2))
        self.unet, self.vae = Unet(64), Vae(64)
        for each in (self.text_encoder, self.unet, self.vae):
            each.eval().half().cuda()

    def __call__(self, words: torch.Tensor, steps: int = 6) -> torch.Tensor:
        told = self.text_encoder(words)
        image = torch.zeros(1, 4, 32, 32, dtype=torch.float16, device="cuda")
        for _ in range(steps):
            image = image - 0.1 * self.unet(image, encoder_hidden_states=told)
        return self.vae.decoder(image)


def test_parts_of_a_pipeline_in_fp16_are_compared_and_put_in_place(tmp_path: Path) -> None:
    pipeline, words = Painter(), torch.randint(0, 1000, (1, 12), device="cuda")
    with torch.no_grad():
        wanted = pipeline(words)
    listed = bakeoff.inspect_parts(pipeline, words)
    assert listed.parts[0].name == "unet"
    assert {part.name for part in listed.parts} == {"text_encoder", "unet", "vae.decoder"}
    found = bakeoff.compare(
        pipeline, words, parts=["text_encoder", "unet", "vae.decoder"], processes=1, min_time=0.3,
        out=tmp_path / "run", backends="eager,eager/cuda-graph", progress=False,
    )  # fmt: skip
    assert isinstance(found, PipelineResult)
    assert {each.report.records[0].cell.precision for each in found.parts.values()} == {"fp16"}
    assert found.report.records[0].cell.device.is_cuda
    assert len(found.report.notes) == 3
    if found.whole is not None and not found.loses:
        found.apply(pipeline)
        with torch.no_grad():
            torch.testing.assert_close(pipeline(words), wanted, rtol=0.05, atol=0.02)


PARTS = ["text_encoder", "unet", "vae.decoder"]


@pytest.mark.timeout(580)  # twelve builds, three contests and the whole took 323 s beside others
def test_parts_of_a_diffusers_pipeline_in_fp16_are_compared_and_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "8")  # it has the machine to itself, and kernels by the hundred
    pipeline = stable_diffusion(width=64, latents=16).to("cuda", torch.float16)
    with torch.no_grad():
        wanted = paint(pipeline)

    def evaluate(predict: object) -> dict[str, list[float]]:
        return {"error": (paint(predict) - wanted).abs().flatten()[:500].tolist()}

    found = bakeoff.compare(
        pipeline, paint, parts=PARTS, backends="eager,inductor,inductor/cuda-graph,onnx", processes=1, min_time=0.3,
        evaluate=evaluate, require="error<0.1", out=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert isinstance(found, PipelineResult)
    assert list(found.parts) == PARTS
    assert {each.report.records[0].cell.precision for each in found.parts.values()} == {"fp16"}
    assert found.report.records, found.report.notes
    assert found.report.records[0].cell.device.is_cuda
    assert all(each.answer.contests[0].latency_ms for each in found.parts.values())
    if found.report.records[-1].cell.label == "with the winners":
        assert found.contests[0].metrics["with the winners"]["error"].value < 0.1
        require_same_image(pipeline, found, wanted, most=0.2)
