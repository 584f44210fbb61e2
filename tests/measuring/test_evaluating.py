"""The user's own `evaluate`: what it may return, the `predict` that it gets, and how its failures end."""

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from bakeoff.judging.judgement import contests_of, judged_anew
from bakeoff.measuring.messages import ComputeReference, EvaluateReference, Evaluation
from bakeoff.measuring.worker import evaluating, reference
from bakeoff.models.base import Around, Inputs
from bakeoff.records.errors import NotServed, UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Status
from tests.support.measuring import by_label, measure
from tests.support.scripted import HANG, INTERRUPT, SEGFAULT, Ending, Script, plan_of, run_contest

torch = pytest.importorskip("torch")

NEARLY_EQUAL = """
import time
import torch

class Close(torch.nn.Module):
    '''The two largest logits of every row differ by a millionth.'''

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x, scale: float = 1.0):
        base = torch.tensor([1.0, 1.000001, 0.0, 0.0])
        return {"logits": self.weight * base + 0.001 * x.mean(-1, keepdim=True), "count": x.sum(-1)}

def factory(batch: int = 4):
    return Close(), torch.randn(batch, 8)

def evaluate(predict, batch):
    rows = []
    for _ in range(200):
        x = torch.randn(batch, 8)
        logits = predict(x=x)["logits"]
        if (logits > 1.9).any():
            time.sleep(600)
        if logits.isnan().any():
            return {"top1": float("nan")}
        rows += (logits.argmax(-1) == 1).float().tolist()
    return {"top1": rows}
"""


def test_a_fast_build_with_flipped_labels_cannot_win_and_failures_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "close.py").write_text(NEARLY_EQUAL)
    report = measure(
        tmp_path / "run",
        *("null", "null/flips", "null/nan", "null/wrong"),
        models=[f"{tmp_path}/close.py:factory"],
        require="top1>-1%",
        evaluate_timeout_s=3.0,
    )
    records = by_label(report)
    flips = records["null/flips"]
    assert flips.accuracy is not None and flips.accuracy.passed and flips.accuracy.relative_rmse < 1e-5
    [contest] = contests_of(report)
    assert [cell.label for cell in contest.ranked] == ["null"] == contest.fastest.candidates
    values = {label: record.metrics.values for label, record in records.items() if record.metrics}
    assert (values["null"]["top1"].value, values["null/flips"]["top1"].value) == (1.0, 0.0)
    reasons = {label: record.metrics.failure for label, record in records.items() if record.metrics}
    assert reasons["null"] is None and reasons["null/flips"] is None
    assert reasons["null/nan"] is not None and reasons["null/nan"].text == "evaluate returned nan as top1"
    assert reasons["null/wrong"] is not None and "took longer than 3 s" in reasons["null/wrong"].text
    assert all(record.latency for record in records.values())  # what was measured stays
    assert all("evaluate" not in {phase.name for phase in record.phases} for record in records.values())


APART = """
import torch

class Apart(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.weight * torch.tensor([0.1, 0.3, 0.2, 0.0], device=x.device, dtype=x.dtype) + 0 * x[:, :1]

def factory(batch: int = 4):
    return Apart(), torch.randn(batch, 8)

def evaluate(predict, batch):
    rows = []
    for _ in range(200):
        answer = predict(torch.randn(batch, 8))
        rows += (answer.nan_to_num().argmax(-1) == 1).tolist()
    return {"top1": rows}
"""


@pytest.mark.slow
def test_a_metric_that_surely_holds_accepts_the_error_of_a_reduced_precision_alone(tmp_path: Path) -> None:
    """`null/wrong` adds 1 to every logit, and flips no label. `null/nan` returns no number."""
    (tmp_path / "apart.py").write_text(APART)
    report = measure(
        tmp_path / "run",
        *("null", "null/wrong", "null/nan"),
        models=[f"{tmp_path}/apart.py:factory"],
        precision=["fp32", "bf16"],
        require="top1>-1%",
        processes=2,
    )
    records = by_label(report)
    accepted = records["null/wrong bf16"]
    assert accepted.status is Status.OK and len(accepted.processes) == 2 and not accepted.reason
    assert [doubt.kind for doubt in accepted.doubts] == ["accepted by metric"]
    assert accepted.accuracy is not None and not accepted.accuracy.passed
    [contest] = contests_of(report)
    assert contest.best is not None and "null/wrong bf16" in [cell.label for cell in contest.ranked]
    for label in ("null/wrong fp32", "null/nan fp32", "null/nan bf16"):
        assert records[label].status is Status.INCORRECT, label

    without = by_label(judged_anew(report, require=""))["null/wrong bf16"]
    assert (without.status, without.doubts) == (Status.INCORRECT, []) and "eager's" in without.reason
    again = judged_anew(judged_anew(report, require=""), require="top1>-2%")
    assert by_label(again)["null/wrong bf16"].status is Status.OK


class Model(torch.nn.Module):  # type: ignore[misc, name-defined, unused-ignore]
    def forward(self, x: Any, mask: Any = None) -> dict[str, Any]:
        return {"y": 2 * x, "rows": x.shape[0] * torch.ones((), dtype=torch.int64)}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample that the reference of the model has left."""
    folder = tmp_path_factory.mktemp("sample")
    (folder / "net.py").write_text(
        "import torch\nfrom tests.measuring.test_evaluating import Model\n"
        "def factory(batch: int = 4):\n    return Model(), torch.randn(batch, 3)\n"
    )
    cell = Cell(model=f"{folder}/net.py:factory", dimensions={"batch": 4}, backend="eager")
    job = ComputeReference(cell=cell, reference=folder / "reference.pt", sample=folder / "sample.npz")
    with contextlib.chdir(folder):  # which the reference stands in afterwards, too
        reference.compute(job, folder, folder)
    return folder / "sample.npz"


@pytest.fixture
def make_predict(sample: Path) -> Callable[..., evaluating.Predict]:
    def make(dtype: Any = torch.float32, **given: Any) -> evaluating.Predict:
        def call(inputs: Inputs) -> list[Any]:
            assert inputs.args[0].dtype is dtype
            return list(Model()(*inputs.args, **inputs.kwargs).values())

        return evaluating.Predict(sample, call, [Inputs((torch.randn(4, 3, dtype=dtype),))], **given)

    return make


def test_predict_is_called_like_the_model_and_answers_like_it(make_predict: Callable[..., evaluating.Predict]) -> None:
    x = torch.randn(4, 3)
    for answer in (make_predict()(x), make_predict()(x=x), make_predict()(x, mask=None)):
        assert set(answer) == {"y", "rows"} and torch.equal(answer["y"], 2 * x)
    narrow = make_predict(torch.bfloat16)(x.double())["y"]
    assert narrow.dtype is torch.float32 and torch.equal(narrow, 2 * x.bfloat16().float())


def test_other_sizes_are_refused_with_both_sizes(make_predict: Callable[..., evaluating.Predict]) -> None:
    with pytest.raises(NotServed, match=r"'x' as \(3, 3\), and the build serves float32 \(4, 3\): pad it"):
        make_predict()(torch.randn(3, 3))
    assert make_predict(any_size=True)(torch.randn(3, 3))["y"].shape == (3, 3)
    with pytest.raises(NotServed, match="a list as 'x': give a tensor"):
        make_predict()([1.0])


def test_a_whole_request_runs_the_stages_around_the_build(make_predict: Callable[..., evaluating.Predict]) -> None:
    stages = Around(
        before=lambda words: {"x": torch.full((4, 3), float(len(words)))},
        after=lambda answer: answer["y"].sum().item(),
    )
    predict = make_predict(find_stages=lambda: stages)
    assert predict.end_to_end("ab") == 4 * 3 * 2 * 2.0
    with pytest.raises(UsageError, match=r"before\(\) or after\(\) around the model: call predict"):
        make_predict().end_to_end("ab")


@pytest.mark.slow
def test_metrics_may_be_end_to_end_also_of_builds_that_never_see_the_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def example():\n    return 'a word'\n"
        "def before(words):\n    return torch.full((1, 4), float(len(words)))\n"
        "def after(outputs):\n    return round(float(outputs.sum()))\n"
        "def factory():\n"
        "    layer = torch.nn.Linear(4, 1)\n    torch.nn.init.ones_(layer.weight)\n"
        "    torch.nn.init.zeros_(layer.bias)\n"
        "    return layer\n"
        "def evaluate(predict):\n"
        "    words = ['a' * length for length in range(1, 31)]\n"
        "    return {'right': [predict.end_to_end(each) == 4 * len(each) for each in words]}\n"
    )
    report = measure(tmp_path / "run", "eager", "onnx", models=[f"{tmp_path / 'net.py'}:factory"])
    for record in report.records:
        assert record.metrics is not None and record.reference_metrics is not None
        assert record.metrics.failure is None
        assert record.metrics.values["right"].samples == 30
        assert record.metrics.values["right"].value == record.reference_metrics.values["right"].value == 1.0


def metrics(returned: object, make_predict: Callable[..., evaluating.Predict], monkeypatch: pytest.MonkeyPatch) -> Any:
    def evaluate(predict: object, batch: int, seed: int, **others: object) -> object:
        assert (batch, seed, others) == (4, 0, {})
        return returned() if callable(returned) else returned

    evaluate.higher_is_better = {"wer": False, "unused": True}  # type: ignore[attr-defined]
    monkeypatch.setattr("bakeoff.models.find_evaluate", lambda name: evaluate)
    cell = Cell(model="mlp", dimensions={"batch": 4}, backend="eager", precision=Precision.BF16)
    return evaluating.evaluated(cell, "net.py:evaluate", make_predict)


def test_numbers_and_scores_of_every_kind_are_taken(
    make_predict: Callable[..., evaluating.Predict], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = torch.tensor([True, False, True])
    given: Mapping[str, object] = {"a": 1, "b": torch.tensor(0.5), "wer": [torch.tensor(0.25), 0.5], "c": scores}
    found = metrics(given, make_predict, monkeypatch)
    assert {name: (each.value, each.samples) for name, each in found.values.items()} == {
        "a": (1.0, 0),
        "b": (0.5, 0),
        "wer": (0.375, 2),
        "c": (2 / 3, 3),
    }
    assert found.higher_is_better == {"wer": False}


def fails() -> object:
    raise ValueError("no such file")


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (fails, "ValueError: no such file (test_evaluating.py, line"),
        (0.5, "evaluate returned a float: return a dict such as {'top1': 0.91}"),
        ({}, "evaluate returned an empty dict"),
        ({"top1": []}, "evaluate returned a list as top1: expected a number or a list of them"),
        ({"top1": "good"}, "evaluate returned a str as top1"),
        ({"top1": torch.ones(8, 1)}, "evaluate returned scores of shape (8, 1) as top1: return one axis of them"),
        ({"top1": [[1, 0], [1]]}, "evaluate returned a list as top1"),
        ({"top1": None}, "evaluate returned a NoneType as top1"),
        ({"top1": 1j}, "evaluate returned a complex as top1"),
        ({"top1": [0.5, float("inf")]}, "evaluate returned inf as top1 for sample 2 of 2"),
        ({"top 1": 0.5}, "evaluate returned a metric 'top 1': name it like top1"),
        ({"rmse": 0.5}, "evaluate returned 'rmse', which Bakeoff measures itself: name it like task_rmse"),
    ],
)
def test_what_cannot_be_taken_is_a_reason(
    returned: object, said: str, make_predict: Callable[..., evaluating.Predict], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = metrics(returned, make_predict, monkeypatch)
    assert not found.values and said in found.failure.sentence


def test_samples_that_calibrate_int8_are_told_apart_by_their_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restored_switches: None
) -> None:
    """Three of the calibrating rows are among those that `evaluate` gives, in calls of other rows."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "import torch\n"
        "def rows(*values): return torch.tensor([[float(value)] * 3 for value in values])\n"
        "def factory(batch: int = 2): return torch.nn.Linear(3, 2), rows(0, 1)\n"
        "def calibrate(): return [rows(2, 3), rows(4, 5)]\n"
        "def evaluate(predict):\n"
        "    for pair in ((3, 6), (5, 2), (7, 7)):\n"
        "        predict(rows(*pair))\n"
        "    return {'seen': 1.0}\n"
    )
    model = f"{tmp_path}/net.py:factory"
    cell = Cell(model=model, dimensions={"batch": 2}, backend="eager", precision=Precision.INT8)
    files = {"reference": tmp_path / "reference.pt", "sample": tmp_path / "sample.npz"}
    reference.compute(ComputeReference(cell=cell, **files), tmp_path, tmp_path)
    evaluation = Evaluation(function=f"{tmp_path}/net.py:evaluate", sample=files["sample"])
    theirs = evaluating.of_reference(EvaluateReference(cell=cell, evaluation=evaluation), tmp_path)
    assert (theirs.judged, theirs.calibrating) == (5, 3)


# --- the user's own metric, in a run's time


def evaluated_contest(folder: Path, scripts: Mapping[str, Script], **given: Any) -> Any:
    """Run a contest whose builds are evaluated, in two processes of each cell."""
    return run_contest(folder, scripts, plan_of(2), evaluate="live:evaluate", **given)


def failures(run: Any) -> dict[str, str]:
    """Return why cells have no metric, by label."""
    return {
        label: record.metrics.failure.text
        for label, record in run.records.items()
        if record.metrics and record.metrics.failure
    }


def test_each_build_is_evaluated_once_after_its_last_burst_and_the_fastest_first(tmp_path: Path) -> None:
    scripts = {"eager": Script(3.0), "null": Script(2.0), "inductor": Script(1.0)}
    run = evaluated_contest(tmp_path, scripts)
    assert [label for _, what, label in run.steps if what == "evaluates"] == ["inductor", "null", "eager"]
    first = [what for epoch, what, _ in run.steps if epoch == 0 and what in ("burst", "evaluates")]
    assert first[-3:] == ["evaluates"] * 3 and "evaluates" not in first[:-3]
    assert {record.metrics.values["top1"].value for record in run.records.values()} == {1.0}


def test_a_required_metric_that_evaluate_does_not_return_is_told(tmp_path: Path) -> None:
    run = evaluated_contest(tmp_path, {"eager": Script()}, require="top_1>-1%")
    assert "evaluate returned top1, and --require names top_1: nothing can win" in run.said


def test_a_budget_that_ends_within_an_evaluation_keeps_all_that_was_measured(tmp_path: Path) -> None:
    scripts = {"eager": Script(2.0, evaluate_s=50.0), "null": Script(1.0, evaluate_s=5.0)}
    run = evaluated_contest(tmp_path, scripts, budget_s=30.0)
    assert run.ended_s <= 30.0
    assert {record.status for record in run.records.values()} == {Status.OK}
    assert all(record.latency and record.throughput for record in run.records.values())
    assert run.records["null"].metrics.values["top1"].value == 1.0
    assert set(failures(run)) == {"eager"} and "--budget left" in failures(run)["eager"]


def test_what_a_budget_does_not_reach_is_not_evaluated(tmp_path: Path) -> None:
    scripts = {"null": Script(1.0, evaluate_s=99.0), "eager": Script(2.0)}
    run = evaluated_contest(tmp_path, scripts, budget_s=30.0)
    assert [label for _, what, label in run.steps if what == "evaluates"] == ["null"]
    assert failures(run)["eager"].startswith("--budget left 0 s for evaluate")
    assert run.ended_s == pytest.approx(30.0, abs=1.0)


@pytest.mark.parametrize(
    ("ending", "said"),
    [(HANG, "evaluate took longer than 20 s: raise --evaluate-timeout"), (SEGFAULT, "its process died of signal 11")],
)
def test_an_evaluation_that_hangs_or_crashes_is_a_reason_of_one_build(
    ending: Ending, said: str, tmp_path: Path
) -> None:
    scripts = {"eager": Script(), "null": Script(endings={(0, "evaluate"): ending})}
    run = evaluated_contest(tmp_path, scripts, evaluate_timeout_s=20.0)
    assert set(failures(run)) == {"null"} and said in failures(run)["null"]
    assert {(record.status, len(record.processes)) for record in run.records.values()} == {(Status.OK, 2)}


def test_an_interruption_within_an_evaluation_keeps_the_latencies(tmp_path: Path) -> None:
    run = evaluated_contest(tmp_path, {"eager": Script(), "null": Script(endings={(0, "evaluate"): INTERRUPT})})
    assert not run.complete and set(run.records) == {"eager", "null"}
    assert all(record.latency for record in run.records.values()) and run.records["null"].metrics is None
