"""`compare(pipeline, call, parts=[...])`: contests of the parts, and then of the whole pipeline."""

from __future__ import annotations

import pickle
import time
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import bakeoff
from bakeoff.api.pipelines import FEWEST_ROUNDS, PipelineResult, _record, cells_to_ship, measure_in_turn
from bakeoff.judging.decision import Relation
from bakeoff.models.pipeline_parts import replace_parts, restore_parts
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell
from tests.reports.samples import constant, report

WAVES = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0, 1.001, 0.999)


class Slow(nn.Module):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.config = {"width": 4}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds)
        return x + 1


class Two:
    def __init__(self) -> None:
        self.first, self.second = Slow(0.004), Slow(0.002)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.second(self.first(x))
        return answer


def result(tmp_path: Path, original_ms: float, winners_ms: float) -> PipelineResult:
    """Return the result of a pipeline whose calls took so long as it was, and with the winners."""
    cell, began = Cell(model="pipeline:Two", backend="any"), datetime.now(UTC)
    levels = {"original": original_ms, "with the winners": winners_ms}
    made = [_record(cell, label, constant([ms * each for each in WAVES]), began) for label, ms in levels.items()]
    return PipelineResult(report(made), tmp_path, {})


def test_a_pipeline_with_faster_winners_is_said_to_be_faster(tmp_path: Path) -> None:
    found = result(tmp_path, 20.0, 8.0)
    assert found.whole is not None
    assert found.whole.relation is Relation.FASTER
    assert found.speedup is not None
    assert found.speedup.value == pytest.approx(2.5)
    assert found.contests[0].baseline == "original"
    assert found.contests[0].winner == "with the winners"
    assert pickle.loads(pickle.dumps(found)).speedup == found.speedup


def test_a_slower_mix_is_refused(tmp_path: Path) -> None:
    found = result(tmp_path, 20.0, 24.0)
    assert found.whole is not None
    assert found.whole.loses
    with pytest.raises(UsageError, match="slower with the winners"):
        found.apply(Two())
    with pytest.raises(UsageError, match="slower with the winners"):
        found.save(tmp_path / "kept")
    assert found.contests[0].winner == "original"


@pytest.mark.slow
def test_both_sides_take_turns_in_every_round_and_the_pipeline_stays_as_it_is() -> None:
    pipeline, answered = Two(), []
    bursts = measure_in_turn(pipeline, torch.ones(1, 4), {"first": lambda x: answered.append(1) or x}, seconds=0.0)
    assert {label: [burst.round for burst in taken] for label, taken in bursts.items()} == {
        "original": list(range(FEWEST_ROUNDS)),
        "with the winners": list(range(FEWEST_ROUNDS)),
    }
    assert len(answered) == FEWEST_ROUNDS + 1
    assert "forward" not in pipeline.first.__dict__
    assert min(burst.samples_ns[0] for burst in bursts["original"]) > 6e6
    assert list(measure_in_turn(Two(), torch.ones(1, 4), {}, seconds=0.0)) == ["original"]


def test_a_small_gain_of_one_process_is_not_called(tmp_path: Path) -> None:
    found = result(tmp_path, 20.0, 19.5)
    assert found.whole is not None
    assert found.whole.relation is Relation.UNDECIDED
    assert not found.whole.loses


def test_a_replaced_part_keeps_everything_but_its_code() -> None:
    pipeline = Two()
    replace_parts({"first": lambda x: x * 0}, pipeline)
    assert pipeline(torch.ones(1)).tolist() == [1.0]
    assert pipeline.first.config == {"width": 4}
    restore_parts(["first"], pipeline)
    assert pipeline(torch.ones(1)).tolist() == [3.0]


@pytest.mark.parametrize(
    ("winner", "tied", "opened", "label"),
    [("onnx", [], [], "onnx"), (None, ["onnx", "openvino"], [], "onnx"), (None, ["onnx", "eager"], [], None),
     ("eager", [], [], None), (None, [], [], None)],
)  # fmt: skip
def test_a_part_stays_where_eager_may_be_as_fast(
    winner: str | None, tied: list[str], opened: list[str], label: str | None
) -> None:
    cells = [Cell(model="net", backend=name) for name in ("eager", "onnx", "openvino")]
    contest = SimpleNamespace(winner=winner, tied=tied, open=opened, baseline="eager", contest_id=cells[0].contest_id)
    made = SimpleNamespace(
        answer=SimpleNamespace(mixes=[]),
        contests=[contest],
        report=SimpleNamespace(records=[SimpleNamespace(cell=cell) for cell in cells]),
    )
    wanted = [cell.id for cell in cells if cell.backend == label]
    assert cells_to_ship(made) == wanted  # type: ignore[arg-type]


def test_a_result_of_one_model_has_no_parts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="of one model"):
        bakeoff.Result(report(), tmp_path).apply(Two())


@pytest.mark.slow
def test_parts_are_compared_and_their_winners_put_in_place(tmp_path: Path) -> None:
    class Painter:
        def __init__(self) -> None:
            self.encoder = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval()
            self.unet = nn.Sequential(*(nn.Linear(16, 16) for _ in range(30))).eval()

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            state = self.encoder(x)
            for _ in range(20):
                state = state + 0.1 * self.unet(state)
            return self.encoder(torch.cat([state, state]))

    pipeline, x = Painter(), torch.randn(2, 16)
    wanted = pipeline(x)
    found = bakeoff.compare(
        pipeline, x, parts="encoder,unet", backends="eager,onnx", devices="cpu", min_time=0.1, processes=3,
        out=tmp_path / "run", progress=False,
    )  # fmt: skip
    assert isinstance(found, PipelineResult)
    assert set(found.parts) == {"encoder", "unet"}
    assert found.parts["encoder"].answer.mixes[0].covered == 1.0
    assert any("unet: its winner is in place" in note for note in found.report.notes)
    assert found.whole is not None
    kept = found.save(tmp_path / "kept")
    found.apply(pipeline)
    torch.testing.assert_close(pipeline(x), wanted, rtol=1e-4, atol=1e-5)
    other = Painter()
    other.encoder, other.unet = pipeline.encoder, pipeline.unet
    bakeoff.load_parts(kept, other)
    torch.testing.assert_close(other(x), wanted, rtol=1e-4, atol=1e-5)
    assert (tmp_path / "run" / "report.html").exists()
