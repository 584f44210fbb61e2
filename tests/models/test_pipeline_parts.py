"""The parts of a pipeline: what is called, how often, with which sizes, and for how long."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bakeoff
from bakeoff.commands.inspection import pipeline_of
from bakeoff.models import live_model, pipeline_parts
from bakeoff.models.base import Call
from bakeoff.models.pipeline_parts import inspect_parts
from bakeoff.records.errors import UsageError
from tests.support.checkout import python

NOW_S = [0.0]


def pass_time(seconds: float) -> None:
    """Take so many seconds of the scripted clock."""
    NOW_S[0] += seconds


class Sleeping(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass_time(self.seconds)
        answer: torch.Tensor = self.layer(x)
        return answer


class Decoding(nn.Module):
    """Only what is within it is called, as with an autoencoder that decodes."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Sleeping(1.0)
        self.decoder = Sleeping(0.04)


class Loop:
    """Text encoder, a denoiser that is called four times, and a decoder, as in a diffusion pipeline."""

    def __init__(self, disturbed_calls: tuple[int, ...] = ()) -> None:
        self.text_encoder, self.denoiser, self.vae = Sleeping(0.02), Sleeping(0.03), Decoding()
        self.steps = 4
        self.calls, self.disturbed_calls = 0, disturbed_calls

    def __call__(self, x: torch.Tensor, steps: int = 4) -> torch.Tensor:
        self.calls += 1
        pass_time(0.3 if self.calls in self.disturbed_calls else 0)
        state = self.text_encoder(x)
        for _ in range(steps):
            state = self.denoiser(torch.cat([state, state])).chunk(2)[0]
        pass_time(0.02)  # what no part does
        answer: torch.Tensor = self.vae.decoder(state)
        return answer


def test_shares_are_those_of_planted_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline_parts, "time", SimpleNamespace(perf_counter=lambda: NOW_S[0]))
    found = bakeoff.inspect_parts(Loop(disturbed_calls=(1, 3)), torch.ones(1, 4))
    parts = {part.name: part for part in found.parts}
    assert {name: part.calls for name, part in parts.items()} == {
        "text_encoder": 1,
        "denoiser": 4,
        "vae.decoder": 1,
    }
    wanted = {"text_encoder": 0.1, "denoiser": 0.6, "vae.decoder": 0.2}
    assert {name: part.share for name, part in parts.items()} == pytest.approx(wanted)
    assert found.rest == pytest.approx(0.1)
    assert found.rest + sum(part.share for part in found.parts) == pytest.approx(1.0)
    assert found.timed_calls == 9
    assert parts["denoiser"].sizes == {"2x4": 4}
    assert parts["denoiser"].parameters == 20
    assert found.parts[0].name == "denoiser"
    assert "all else" in str(found)


@pytest.mark.parametrize(
    "example", [bakeoff.Call(torch.ones(1, 4), {"steps": 2}), lambda loop: loop(torch.ones(1, 4), steps=2)]
)
def test_an_example_call_may_be_a_call_or_a_function(example: object) -> None:
    loop = Loop()
    (found,) = bakeoff.inspect_parts(loop, example, ["denoiser"]).parts
    assert found.calls == 2
    assert not loop.denoiser._forward_hooks
    assert not loop.denoiser._forward_pre_hooks


def test_what_is_no_part_is_told_with_those_that_are() -> None:
    with pytest.raises(UsageError, match=r"no part 'unet' in Loop.*text_encoder, denoiser, vae"):
        bakeoff.inspect_parts(Loop(), torch.ones(1, 4), ["unet"])
    with pytest.raises(UsageError, match="'steps' of Loop is a int"):
        bakeoff.inspect_parts(Loop(), torch.ones(1, 4), ["steps"])


def test_what_has_no_module_is_compared_as_a_whole() -> None:
    with pytest.raises(UsageError, match="a Linear holds no modules"):
        inspect_parts(torch.nn.Linear(4, 4), torch.ones(1, 4))


def test_a_part_that_is_not_called_is_told_as_such() -> None:
    listed = str(inspect_parts(Loop(), Call((torch.ones(1, 4),)), ["text_encoder", "vae.encoder"]))
    assert listed.endswith("\nthe example call does not call vae.encoder: nothing can be compared there")


def test_several_sizes_are_refused(command_line: Callable[..., tuple[int, str, str]]) -> None:
    for command in (["inspect"], ["run", "--parts", "unet", "--model"]):
        status, _, err = command_line(*command, "x.py:f", "--set", "n=4,8")
        assert status == 2 and "--set n=4,8: a pipeline is called in one size here: name one value" in err


def test_the_command_lists_the_parts(tmp_path: Path, command_line: Callable[..., tuple[int, str, str]]) -> None:
    (tmp_path / "pipe.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Pipe:\n"
        "    def __init__(self, width):\n        self.first, self.second = nn.Linear(width, 8), nn.Linear(8, 2)\n"
        "    def __call__(self, x):\n        return self.second(self.first(x))\n"
        "def factory(width: int = 4):\n    return Pipe(width), torch.ones(3, width)\n"
    )
    status, out, _ = command_line("inspect", f"{tmp_path / 'pipe.py'}:factory", "--set", "width=6")
    assert status == 0
    assert "first" in out
    assert "1 x 3x6" in out
    (tmp_path / "photo.py").write_text(
        "import time, torch\n"
        "def example():\n    return 3\n"
        "def before(raw):\n    time.sleep(0.02)\n    return torch.ones(raw, 4)\n"
        "def factory():\n    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())\n"
    )
    status, out, _ = command_line("inspect", f"{tmp_path / 'photo.py'}:factory", "--json")
    answer = json.loads(out)
    assert status == 0
    assert [part["sizes"] for part in answer["parts"]] == [{"3x4": 1}, {"3x4": 1}]
    assert answer["rest"] > 0.5, "the stages around the model are a part of the call"
    status, _, err = command_line("inspect", "mlp")
    assert status == 2
    assert "mlp is one model" in err


def test_classes_of_the_pipelines_file_travel_with_the_parts(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import torch\n"
        "class Tower(torch.nn.Module):\n    def forward(self, x):\n        return twice(x)\n"
        "def twice(x):\n    return 2 * x\n"
        "class Pipe:\n    def __init__(self):\n        self.tower = Tower()\n"
        "def factory():\n    return Pipe(), torch.ones(1)\n"
    )
    pipeline, example, _ = pipeline_of(f"{tmp_path / 'own.py'}:factory", {})
    (tmp_path / "travels").mkdir()
    live_model.save(pipeline.tower, example, tmp_path / "travels", "tower")
    read = (
        "from pathlib import Path; from bakeoff.models import live_model as m; import torch\n"
        f"tower, example = m._read(Path({str(tmp_path / 'travels')!r}), m.PROGRAM, m.WEIGHTS)\n"
        "print(tower(example).item())\n"
    )
    assert python(read).strip() == "2.0"
