"""The stages around a model are timed in the worker, and told with their reason where they fail."""

import time
from pathlib import Path

import pytest
import torch

from bakeoff.judging.judgement import judge
from bakeoff.measuring.worker.around import AroundModel
from bakeoff.measuring.worker.clock import Clock
from bakeoff.models.base import Around, Inputs
from bakeoff.records.device import CPU
from tests.support.measuring import measure


def boxes(outputs: torch.Tensor) -> float:
    time.sleep(0.002)
    return float(outputs.sum())


def test_each_stage_is_timed_alone_with_what_it_takes(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("a b c")
    taken: list[str] = []

    def before(name: str) -> None:
        taken.append(Path(name).read_text())
        time.sleep(0.02)

    module, inputs = torch.nn.Linear(4, 4), Inputs((torch.ones(1, 4),))
    around = AroundModel(Around(before, boxes, "words.txt"), module, inputs, tmp_path)
    with torch.inference_mode():
        first, last = around.measure(Clock(CPU))
    assert (first.name, last.name) == ("before", "after")
    assert first.median_ms >= 20 and last.median_ms >= 2  # a busy machine wakes sleepers late
    assert first.calls >= 3
    assert min(first.block_medians_ms) <= first.median_ms <= max(first.block_medians_ms)
    assert len(first.block_medians_ms) == min(12, first.calls)
    assert set(taken) == {"a b c"}


def test_a_stage_that_raises_is_told(tmp_path: Path) -> None:
    around = AroundModel(
        Around(None, lambda outputs: outputs["boxes"], None), lambda x: {"x": x}, Inputs((1,)), tmp_path
    )
    (found,) = around.measure(Clock(CPU))
    assert found.failure == "KeyError: 'boxes'"
    assert found.calls == 0


@pytest.mark.slow
def test_a_run_judges_whole_requests_of_a_file_with_stages(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import time, torch\n"
        "def example():\n    return [0.5] * 8\n"
        "def before(raw):\n    time.sleep(0.02)\n    return torch.tensor([raw] * 16)\n"
        "def after(outputs):\n    return outputs.argmax(-1).tolist()\n"
        "def factory():\n    return torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 8))\n"
    )
    report = measure(tmp_path / "run", "eager", "torchscript", models=[f"{tmp_path / 'net.py'}:factory"], processes=3)
    assert {call.name for record in report.records for call in record.around} == {"before", "after"}
    assert all(len(record.around) == 2 * len(record.processes) for record in report.records)
    found = judge(report).contests[0].end_to_end
    assert found is not None
    assert found.longest.name == "before()" and found.longest.ms >= 20
