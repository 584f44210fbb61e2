"""A real pipeline of diffusers with random weights in fp16 on a GPU: parts by Inductor, its graph and ONNX Runtime."""

from pathlib import Path

import pytest
import torch

import bakeoff
from bakeoff.api.pipelines import PipelineResult
from tests.support.diffusion import paint, require_same_image, stable_diffusion

pytestmark = pytest.mark.gpu

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
    assert found.report.records[0].cell.device.is_cuda
    assert all(each.answer.contests[0].latency_ms for each in found.parts.values())
    if found.report.records[-1].cell.label == "with the winners":
        assert found.contests[0].metrics["with the winners"]["error"].value < 0.1
        require_same_image(pipeline, found, wanted, most=0.2)
