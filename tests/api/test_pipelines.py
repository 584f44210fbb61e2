"""`compare(pipeline, call, parts=[...])`: contests of the parts, then of the whole; also of a pipeline of diffusers."""

import json
import math
import pickle
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import bakeoff
from bakeoff.api.compare import _Asked
from bakeoff.api.pipelines import (
    MIN_ROUNDS_OF_WHOLE,
    PipelineResult,
    WholeMeasured,
    _of_whole,
    cells_to_ship,
    compare_parts,
    evaluate_sides,
    measure_in_turn,
)
from bakeoff.api.result import Ended
from bakeoff.commands.run import ending_of
from bakeoff.judging.judgement import judge
from bakeoff.models.calls_file import Calls
from bakeoff.models.pipeline_parts import replace_parts, replaced
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Burst, Cell, Record
from bakeoff.records.store import Store
from bakeoff.reports.first_screen import commands
from tests.reports.samples import cell, constant, ok, report, steady
from tests.support.diffusion import paint, require_same_image, stable_diffusion

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
    """Two parts, which take 4 ms and 2 ms. `at_call` does what a test plants into every call."""

    def __init__(self, at_call: Callable[[], object] = lambda: None) -> None:
        self.first, self.second = Slow(0.004), Slow(0.002)
        self._at_call = at_call

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self._at_call()
        return self.second(self.first(x))


def a_part(name: str) -> list[Record]:
    """Return the records of a part where onnx wins."""
    levels = {"eager": (4.0, 4.01, 3.99), "onnx": (2.0, 2.01, 1.99)}
    return [ok(cell(backend, model=f"live:{name}"), steady(each)) for backend, each in levels.items()]


def result(folder: Path, whole: WholeMeasured, require: str = "") -> PipelineResult:
    """Return the result of a pipeline whose part `first` has a winner."""
    like = _of_whole(Record(**ok(cell("onnx"), steady((1.0,))).model_dump()), Two())
    made = report(whole.records(like, datetime.now(UTC)), request={"require": require, "models": ["live:first"]})
    return PipelineResult(made, folder, {"first": bakeoff.Result(report(a_part("first")), folder)})


def took(original_ms: float, winners_ms: float) -> WholeMeasured:
    levels = {"original": original_ms, "with the winners": winners_ms}
    return WholeMeasured({label: constant([ms * each for each in WAVES]) for label, ms in levels.items()})


def scripted(
    measured: tuple[str, ...], was_interrupted: bool = False, of_part: Callable[[str], list[Record]] = a_part
) -> Callable[..., Ended]:
    """Return a run of parts that takes no time, and has measured these."""

    def run_parts(modules: Mapping[str, nn.Module], calls: Mapping[str, Calls], folder: Path) -> Ended:
        planned = [record for name in modules for record in of_part(name)]
        precision = tuple(dict.fromkeys(record.cell.precision for record in planned))
        request = Request(models=tuple(f"live:{name}" for name in modules), precision=precision)
        store = Store.create(folder, request, [record.cell.id for record in planned], "")
        store.save_environment(report().environment)
        done = [record for record in planned if record.cell.model.removeprefix("live:") in measured]
        for record in done:
            store.save(record)
        return Ended(bakeoff.open_run(folder), was_interrupted)

    return run_parts


def interrupt_at(call: int) -> Callable[[], None]:
    """Return what is interrupted, as by Ctrl-C, in the call with this number, counted from 1."""
    calls = iter(range(1, 1000))

    def at_call() -> None:
        if next(calls) == call:
            raise KeyboardInterrupt

    return at_call


def test_a_pipeline_with_faster_winners_is_said_to_be_faster(tmp_path: Path) -> None:
    found = result(tmp_path, took(20.0, 8.0))
    assert found.whole is not None and found.whole.fastest.winner == "with the winners"
    assert found.speedup.value == pytest.approx(2.5)
    assert found.contests[0].baseline == "original"
    assert found.contests[0].winner == "with the winners"
    assert [f"bakeoff.load_parts('{tmp_path}/winners', pipeline)"] in commands(
        judge(found.report), str(tmp_path)
    ).values()
    assert pickle.loads(pickle.dumps(found)).speedup == found.speedup
    assert found.to_dict()["parts"]["first"]["contests"][0]["winner"] == "onnx"


def test_both_sides_take_turns_in_every_round() -> None:
    pipeline, slower, whole = Two(), Slow(0.02), WholeMeasured()
    measure_in_turn(pipeline, torch.ones(1, 4), {"first": slower.forward}, whole.bursts, seconds=0.0)
    rounds = list(range(MIN_ROUNDS_OF_WHOLE))
    assert {label: [burst.round for burst in taken] for label, taken in whole.bursts.items()} == {
        "original": rounds, "with the winners": rounds
    }  # fmt: skip
    assert "forward" not in pipeline.first.__dict__
    assert min(burst.samples_ns[0] for burst in whole.bursts["original"]) > 6e6
    assert min(burst.samples_ns[0] for burst in whole.bursts["with the winners"]) > 22e6


def test_a_slower_mix_loses_and_is_refused(tmp_path: Path) -> None:
    found = result(tmp_path, took(20.0, 24.0))
    assert found.whole is not None and found.loses
    assert found.contests[0].winner == "original"
    with pytest.raises(UsageError, match="slower with the winners"):
        found.apply(Two())
    with pytest.raises(UsageError, match="slower with the winners"):
        found.save(tmp_path / "kept")


def test_without_winners_only_the_original_is_called() -> None:
    bursts: dict[str, Any] = {}
    measure_in_turn(Two(), torch.ones(1, 4), {}, bursts, seconds=0.0)
    assert list(bursts) == ["original"]


def evaluated(tmp_path: Path, wrong: int, samples: int, require: str) -> PipelineResult:
    """Return the result of a pipeline that answers so many of the samples wrongly with the winners."""
    whole = took(20.0, 8.0)

    def evaluate(predict: Two) -> dict[str, list[bool]]:
        return {"top1": [bool(predict(torch.tensor(float(at))) == at + 2) for at in range(samples)]}

    pipeline = Two()
    pipeline.first.seconds = pipeline.second.seconds = 0.0
    winners = {"first": lambda x: x + 1 if x >= wrong else x}
    evaluate_sides(pipeline, evaluate, winners, 0, whole.metrics)
    return result(tmp_path, whole, require)


def test_a_metric_is_of_the_whole_pipeline_and_paired(tmp_path: Path) -> None:
    kept = evaluated(tmp_path, wrong=0, samples=800, require="top1>-1%")
    assert kept.contests[0].winner == "with the winners"
    metric = kept.contests[0].metrics["with the winners"]["top1"]
    assert (metric.value, metric.reference, metric.samples) == (1.0, 1.0, 800)
    assert metric.change_ci95 is not None
    lost = evaluated(tmp_path, wrong=80, samples=800, require="top1>-1%")
    assert lost.contests[0].winner == "original"
    with pytest.raises(UsageError, match=r"misses what is required .*top1 is 0.9 .*not > -1%"):
        lost.apply(Two())
    unsure = evaluated(tmp_path, wrong=0, samples=8, require="top1>-1%")
    assert any("8 samples do not show whether it is > -1%" in doubt for doubt in unsure.doubts), unsure.doubts


def a_part_across(name: str) -> list[Record]:
    """Return the records of a part in two precisions: bf16 is the fastest, and of fp32 onnx."""
    levels_ms = {("eager", "fp32"): 4.0, ("onnx", "fp32"): 2.0, ("eager", "bf16"): 3.0, ("onnx", "bf16"): 1.0}
    cells = {
        (backend, precision): cell(backend, model=f"live:{name}").but(
            precision=Precision(precision), compared=(Precision.FP32, Precision.BF16)
        )
        for backend, precision in levels_ms
    }
    return [ok(cells[key], steady([ms, ms * 1.001, ms * 0.999])) for key, ms in levels_ms.items()]


def exports_by_name(
    monkeypatch: pytest.MonkeyPatch, adds: Callable[[str], float], interrupted_at: int | None = None
) -> None:
    """Export cells as files that hold their ids, and load functions that add a number instead.

    The export with the number `interrupted_at`, counted from 1, is interrupted after it has written its file.
    """
    at_export = interrupt_at(interrupted_at) if interrupted_at else lambda: None

    def export(run: Path, cell_id: str, folder: Path) -> None:
        assert not folder.exists(), "an export needs a new folder"
        folder.parent.mkdir(parents=True)
        folder.write_text(cell_id)
        at_export()

    def load(folder: Path, fallback: object) -> Callable[[torch.Tensor], torch.Tensor]:
        added = adds(folder.read_text())
        return lambda x: x + added

    monkeypatch.setattr("bakeoff.shipping.pipelines.export", export)
    monkeypatch.setattr("bakeoff.shipping.pipelines.load", load)
    monkeypatch.setattr("bakeoff.api.pipelines.measure_in_turn", lambda *given: given[-1].update(took(20, 8).bursts))


@pytest.mark.parametrize(
    ("bf16_adds", "fp32_adds", "in_place", "winner"),
    [(1.0, 1.0, "bf16", "with the winners"), (0.5, 1.0, "fp32", "with the winners"), (0.5, 0.5, "fp32", "original"),
     (math.nan, 1.0, "fp32", "with the winners")],
)  # fmt: skip  # fmt: skip
def test_the_metric_of_the_whole_judges_the_mix_of_precisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bf16_adds: float, fp32_adds: float, in_place: str, winner: str
) -> None:
    exports_by_name(monkeypatch, lambda cell_id: bf16_adds if "_bf16_" in cell_id else fp32_adds)
    evaluated: list[float] = []

    def evaluate(predict: Two) -> dict[str, list[float]]:
        evaluated.append(float(predict(torch.ones(1))))
        return {"sum": [evaluated[-1]] * 100}

    pipeline = Two()
    found = compare_parts(
        pipeline, torch.ones(1), ["first"], scripted(("first",), of_part=a_part_across), evaluate=evaluate,
        require="sum>-10%", out=tmp_path / "run",
    )  # fmt: skip
    assert f"_{in_place}_onnx" in (tmp_path / "run" / "winners" / "first" / "0").read_text()
    assert found.report.notes[0].startswith(f"first: its winner is in place; onnx {in_place}")
    missed = [note for note in found.report.notes if "miss what is required of the whole pipeline: sum " in note]
    assert len(missed) == (in_place == "fp32")
    assert evaluated[0] == 3.0 and len(evaluated) == 2 + len(missed)
    assert found.contests[0].winner == winner


@pytest.mark.parametrize(("interrupted_at", "adds"), [(1, 0.5), (2, 1.0)])
def test_ctrl_c_while_winners_are_exported_keeps_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted_at: int, adds: float
) -> None:
    exports_by_name(monkeypatch, lambda cell_id: 0.5 if "_bf16_" in cell_id else 1.0, interrupted_at)
    pipeline = Two()
    found = compare_parts(
        pipeline, torch.ones(1), ["first"], scripted(("first",), of_part=a_part_across), require="sum>-10%",
        evaluate=lambda predict: {"sum": [float(predict(torch.ones(1)))] * 100}, out=tmp_path / "run",
    )  # fmt: skip
    precision = {0.5: "bf16", 1.0: "fp32"}[adds]
    assert found.report.notes[0].startswith(f"first: its winner was not put in place yet; onnx {precision}")
    assert ("miss what is required" in str(found.report.notes)) == (precision == "fp32")
    assert not (tmp_path / "run" / "winners").exists()
    for result_again in (found, bakeoff.open_run(tmp_path / "run")):
        result_again.apply(pipeline, anyway=True)
        assert pipeline(torch.ones(1)).item() == 2.0 + adds, "the wanted mix is in place"
        del pipeline.first.forward


def test_ctrl_c_while_apply_exports_leaves_nothing_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports_by_name(monkeypatch, lambda cell_id: 5.0, interrupted_at=1)
    found, pipeline = result(tmp_path, took(20.0, 8.0)), Two()
    with pytest.raises(KeyboardInterrupt):
        found.apply(pipeline)
    assert pipeline(torch.ones(1)).item() == 3.0
    found.apply(pipeline)
    assert pipeline(torch.ones(1)).item() == 7.0


def test_apply_says_why_no_winner_can_be_exported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(run: Path, cell_id: str, folder: Path) -> None:
        raise UsageError("onnx: the artefact was not kept")

    monkeypatch.setattr("bakeoff.shipping.pipelines.export", export)
    found = result(tmp_path, took(20.0, 8.0))
    with pytest.raises(UsageError, match=r"can be put in place: first: onnx: the artefact was not kept"):
        found.apply(Two())


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"precision": "fp32,bf16", "separate": True}, r"fp32, bf16, and only one winner .* leave --separate out"),
     ({"devices": "cpu,cuda"}, r"on one device, and --devices names cpu, cuda: name one"),
     ({"shard": "1/2", "devices": "cpu"}, "--shard 1/2 would leave out parts"),
     ({"inputs_from": "host", "devices": "cuda"}, "--inputs-from host: the parts of a pipeline")],
)  # fmt: skip
def test_several_contests_of_a_part_are_refused_before_the_pipeline_is_called(
    tmp_path: Path, options: dict[str, Any], reason: str
) -> None:
    pipeline = Two(interrupt_at(1))
    with pytest.raises(UsageError, match=reason):
        bakeoff.compare(pipeline, torch.ones(1), parts="first", out=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_precision_in_a_file_of_options_wins_over_that_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[dict[str, Any]] = []

    def run(asked: _Asked, travelling: Any) -> Ended:
        runs.extend(travelling.fields["runs"])
        raise KeyboardInterrupt

    monkeypatch.setattr(_Asked, "run", run)
    (tmp_path / "options.toml").write_text('precision = "fp32"\ndevices = "cpu"\n')
    pipeline = SimpleNamespace(part=nn.Linear(2, 2).half())
    for config in (None, tmp_path / "options.toml"):
        with pytest.raises(KeyboardInterrupt):
            bakeoff.compare(
                pipeline, lambda pipe: pipe.part(torch.ones(1, 2).half()), parts="part", config=config,
                out=tmp_path / "run",
            )  # fmt: skip
    assert [run.get("precision") for run in runs] == [("fp16",), None]


def test_parts_across_precisions_leave_the_error_to_the_metric_of_the_whole() -> None:
    def required_of_parts(require: str, precision: str) -> object:
        fields = {"require": require, "precision": tuple(precision.split(","))}
        return _Asked(fields, None, None, None, False).for_parts().fields["require"]

    assert required_of_parts("top1>-1%, p99_ms<5", "fp32,bf16") == "p99_ms<5, relative_rmse<1"
    assert required_of_parts("top1>-1%", "fp32") == ""
    assert required_of_parts("p99_ms<5", "fp32,bf16") == "p99_ms<5"
    assert required_of_parts("top1>-1%, relative_rmse<0.01", "fp32,bf16") == "relative_rmse<0.01"


def test_an_evaluate_that_fails_for_the_winners_is_reported(tmp_path: Path) -> None:
    whole, pipeline = took(20.0, 8.0), Two()

    def evaluate(predict: Two) -> dict[str, float]:
        return {"top1": 1.0} if "forward" not in predict.first.__dict__ else {"top1": float("nan")}

    evaluate_sides(pipeline, evaluate, {"first": lambda x: x}, 0, whole.metrics)
    found = result(tmp_path, whole, "top1>-1%")
    assert found.contests[0].winner == "original"
    assert any("evaluate returned nan as top1" in doubt for doubt in found.doubts)
    assert "forward" not in pipeline.first.__dict__


def test_a_required_metric_needs_an_evaluate(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown quantity 'top1'"):
        bakeoff.compare(Two(), torch.ones(1, 4), parts="first", require="top1>-1%", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_in_the_last_moment_of_the_parts_keeps_them(tmp_path: Path) -> None:
    run_parts = scripted(("first", "second"), was_interrupted=True)
    found = compare_parts(Two(), torch.ones(1, 4), ["first", "second"], run_parts, out=tmp_path / "run")
    assert {name: each.winner for name, each in found.parts.items()} == {"first": "onnx", "second": "onnx"}
    assert not found.complete
    assert found.whole is None
    assert found.report.notes[-1] == "interrupted: the whole pipeline was not measured with the winners"
    with pytest.raises(UsageError, match="the whole pipeline was not measured"):
        found.apply(Two())


def test_a_part_that_an_interruption_left_out_is_named(tmp_path: Path) -> None:
    run_parts = scripted(("first",), was_interrupted=True)
    found = compare_parts(Two(), torch.ones(1, 4), ["first", "second"], run_parts, out=tmp_path / "run")
    assert list(found.parts) == ["first"]
    assert found.report.notes[0].startswith("first: its winner was not put in place yet; onnx")
    assert found.report.notes[-1].startswith("interrupted: second was not compared; the whole pipeline was not")
    opened = bakeoff.open_run(tmp_path / "run")
    assert isinstance(opened, PipelineResult)
    assert opened.parts["first"].winner == "onnx"
    assert opened.parts["first"].complete
    assert "Incomplete: 0 of 2 cells" in str(opened)
    assert "bakeoff resume" not in str(opened), "a live pipeline is gone"


@pytest.mark.parametrize(("call", "told"), [(2, "the whole pipeline was not measured"), (6, "called in 3 of at least")])
def test_ctrl_c_in_the_rounds_of_the_whole_keeps_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, told: str
) -> None:
    monkeypatch.setattr("bakeoff.api.pipelines.cells_to_ship", lambda part: [])  # nothing was built
    pipeline, names = Two(interrupt_at(call)), ["first", "second"]
    found = compare_parts(pipeline, torch.ones(1, 4), names, scripted(("first", "second")), out=tmp_path / "run")
    assert list(found.parts) == names
    assert told in found.report.notes[-1]
    assert "forward" not in pipeline.first.__dict__
    assert json.loads((tmp_path / "run" / "report.json").read_text())["complete"] is False


def test_a_clock_that_is_set_back_does_not_shorten_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = iter(range(23, 0, -1))

    class SetBack(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return datetime(2026, 1, 1, next(hours), tzinfo=tz)

    monkeypatch.setattr("bakeoff.api.pipelines.datetime", SetBack)
    monkeypatch.setattr("bakeoff.api.pipelines.cells_to_ship", lambda part: [])  # nothing was built
    names = ["first", "second"]
    found = compare_parts(Two(), torch.ones(1, 4), names, scripted(("first", "second")), out=tmp_path / "run")
    assert 0 < found.report.elapsed_s < 600


def test_a_small_gain_of_one_process_is_not_called(tmp_path: Path) -> None:
    found = result(tmp_path, took(20.0, 19.5))
    assert found.whole is not None and found.whole.fastest.is_open and not found.loses
    assert "calls of the whole pipeline, in one process, differ too much" in found.doubts[0]
    assert "--processes" not in " ".join(found.doubts)


def test_a_replaced_part_keeps_everything_but_its_code_also_where_it_was_replaced_before() -> None:
    pipeline = Two()
    for original in (3.0, 6.0):
        with replaced({"first": lambda x: x * 0}, pipeline):
            assert pipeline(torch.ones(1)).tolist() == [1.0]
            assert pipeline.first.config == {"width": 4}
        assert pipeline(torch.ones(1)).tolist() == [original]
        replace_parts({"first": lambda x: x * 5}, pipeline)


def test_a_pipeline_that_fails_with_the_winners_keeps_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such size")

    exports_by_name(monkeypatch, lambda cell_id: 1.0)
    monkeypatch.setattr("bakeoff.api.pipelines.measure_in_turn", measure_in_turn)
    monkeypatch.setattr("bakeoff.shipping.pipelines.load", lambda folder, fallback: fails)
    pipeline = Two()
    found = compare_parts(pipeline, torch.ones(1), ["first"], scripted(("first",)), out=tmp_path / "run")
    assert found.report.notes[-1] == "the whole pipeline failed while it was measured: RuntimeError: no such size"
    assert found.parts["first"].winner == "onnx"
    assert ending_of(judge(found.report))[0] == 3, "nothing was measured"
    with pytest.raises(UsageError, match=r"whole pipeline was not measured: .*no such size"):
        found.apply(pipeline)
    assert pipeline(torch.ones(1)).item() == 3.0


@pytest.mark.parametrize(("call_ns", "samples"), [(20_000, 10), (6_000_000, 1)])
def test_a_short_pipeline_is_called_several_times_in_a_burst(
    call_ns: int, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call after garbage was collected took 0.30 ms of a pipeline that takes 0.02 ms."""
    monkeypatch.setattr("bakeoff.api.pipelines._timed_ns", lambda pipeline, example: call_ns)
    bursts: dict[str, list[Burst]] = {}
    measure_in_turn(Two(), torch.ones(1), {}, bursts, seconds=0.0)
    assert {len(burst.samples_ns) for each in bursts.values() for burst in each} == {samples}


def test_two_names_of_one_module_are_refused() -> None:
    pipeline = Two(interrupt_at(1))
    pipeline.second = pipeline.first
    with pytest.raises(UsageError, match="first and second are the same module: name one"):
        bakeoff.compare(pipeline, torch.ones(1), parts="first,second", devices="cpu")
    pipeline.second = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Identity()))
    for parts in ("second,second.0.0", "second.0.0,second"):
        with pytest.raises(UsageError, match=r"second\.0\.0 is inside of second, whose winner would replace both"):
            bakeoff.compare(pipeline, torch.ones(1), parts=parts, devices="cpu")


@pytest.mark.parametrize(
    ("candidates", "label"),
    [(["onnx"], "onnx"), (["onnx", "openvino"], "onnx"), (["onnx", "eager"], None), (["eager"], None), ([], None)],
)
def test_a_part_stays_where_eager_may_be_as_fast(candidates: list[str], label: str | None) -> None:
    cells = [Cell(model="net", backend=name) for name in ("eager", "onnx", "openvino")]
    contest = SimpleNamespace(candidates=candidates, baseline="eager", contest_id=cells[0].contest_id)
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

    def evaluate(predict: Painter) -> dict[str, list[float]]:
        return {"norm": [float(predict(each).norm()) for each in torch.randn(9, 2, 16)]}

    found = bakeoff.compare(
        pipeline, x, parts="encoder,unet", backends="eager,onnx", devices="cpu", min_time=0.1, processes=3,
        evaluate=evaluate, require="norm<1e9", out=tmp_path / "run", progress=False,
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
    assert found.contests[0].metrics["with the winners"]["norm"].samples == 9
    opened = bakeoff.open_run(tmp_path / "run")
    assert isinstance(opened, PipelineResult)
    assert opened.to_dict() == found.to_dict()
    assert opened.parts["unet"].load()(torch.ones(2, 16)).shape == (2, 16)


@pytest.mark.slow
def test_the_command_prints_the_parts_and_the_whole_as_json(
    tmp_path: Path, command_line: Callable[..., tuple[int, str, str]]
) -> None:
    (tmp_path / "pipe.py").write_text(
        "import torch\nfrom torch import nn\n"
        "class Deep(nn.Sequential):\n"
        "    def forward(self, x):\n        return super().forward(shifted(x))\n"
        "def shifted(x):\n    return x + 1\n"
        "class Pipe:\n"
        "    def __init__(self):\n"
        "        self.first = Deep(*(nn.Linear(8, 8) for _ in range(40))).eval()\n"
        "        self.second = nn.Linear(8, 2)\n"
        "    def __call__(self, x):\n        return self.second(self.first(x))\n"
        "def factory():\n    return Pipe(), torch.ones(1, 8)\n"
        "def evaluate(predict):\n    return {'ok': [predict(torch.ones(1, 8)).isfinite().all() for _ in range(9)]}\n"
    )
    model = ("--model", f"{tmp_path / 'pipe.py'}:factory", "--parts", "first")
    how = ("--backends", "eager,onnx", "--devices", "cpu", "--processes", "1", "--min-time", "0.1")
    status, out, err = command_line(*model, *how, "--require", "ok>0.1", "--json", "--out", str(tmp_path / "run"))
    assert status == 0, err
    answer = json.loads(out)
    assert set(answer["parts"]) == {"first"}
    assert set(answer["parts"]["first"]["contests"][0]["metrics"]) == set()
    assert answer["contests"][0]["metrics"]["original"]["ok"]["samples"] == 9
    assert "first: its winner is in place" in err or "first: stays as it is" in err
    status, _, err = command_line(*model, "--dry-run")
    assert status == 2
    assert "--dry-run knows no --parts" in err


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
