"""A pipeline like that of diffusers, with random weights in fp16 on a GPU: its parts, and the winners in place."""

from pathlib import Path

import pytest
import torch
from torch import nn

import bakeoff
from bakeoff.api.pipelines import PipelineResult
from tests.support.diffusion import paint, require_same_image, stable_diffusion

pytestmark = pytest.mark.gpu


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(8, width), nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = x + self.conv(nn.functional.silu(self.norm(x)))
        return answer


class Unet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(4, width, 3, padding=1), nn.Conv2d(width, 4, 3, padding=1)
        self.words = nn.Linear(64, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(4)))

    def forward(self, sample: torch.Tensor, encoder_hidden_states: torch.Tensor) -> torch.Tensor:
        told = self.words(encoder_hidden_states.mean(1))[:, :, None, None]
        answer: torch.Tensor = self.last(self.blocks(self.first(sample) + told))
        return answer


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
        answer: torch.Tensor = self.vae.decoder(image)
        return answer


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
    assert found.report.records[0].cell.device.is_cuda
    assert all(each.answer.contests[0].latency_ms for each in found.parts.values())
    if found.report.records[-1].cell.label == "with the winners":
        assert found.contests[0].metrics["with the winners"]["error"].value < 0.1
        require_same_image(pipeline, found, wanted, most=0.2)
