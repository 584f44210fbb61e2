"""A real pipeline of diffusers with random weights, on the CPU: its parts by ONNX Runtime, and the whole with them."""

from pathlib import Path

import pytest
import torch

import bakeoff
from bakeoff.api.pipelines import PipelineResult
from tests.support.diffusion import paint, require_same_image, stable_diffusion

PARTS = ["text_encoder", "unet", "vae.decoder"]


@pytest.mark.slow
def test_parts_of_a_diffusers_pipeline_are_compared_and_put_in_place(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pipeline = stable_diffusion(width=32, latents=8)
    listed = bakeoff.inspect_parts(pipeline, paint)
    assert set(PARTS) <= {part.name for part in listed.parts}
    assert listed.parts[0].name == "unet"
    with torch.no_grad():
        wanted = paint(pipeline)

    def evaluate(predict: object) -> dict[str, list[float]]:
        return {"error": (paint(predict) - wanted).abs().flatten()[:500].tolist()}

    found = bakeoff.compare(
        pipeline, paint, parts=PARTS, backends="eager,onnx", devices="cpu", processes=1, evaluate=evaluate,
        require="error<0.01", out=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert isinstance(found, PipelineResult)
    assert list(found.parts) == PARTS
    assert found.contests[0].metrics["with the winners"]["error"].value < 0.01
    require_same_image(pipeline, found, wanted, most=0.001)
