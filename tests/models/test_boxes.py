"""The example that shows the metrics of a detector, and the stages of a request around it."""

from typing import Any

import pytest

from bakeoff import models

torch = pytest.importorskip("torch")

BOX = [10.0, 10.0, 20.0, 20.0]


@pytest.fixture(scope="module")
def boxes() -> Any:
    code: Any = models.find_evaluate("examples/boxes.py:evaluate")
    return code.__globals__


def test_it_trains_the_same_weights_each_time_and_finds_most_boxes_whatever_the_batch() -> None:
    family = models.find("examples/boxes.py:factory")
    first, again = (family.load({"batch": 8, "width": 12}, seed=0) for _ in range(2))
    pairs = zip(first.module.parameters(), again.module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    evaluate: Any = models.find_evaluate(family.evaluated_by)
    with torch.inference_mode():
        found = evaluate(first.module, batch=8)
        assert len(found["recall"]) == 661 and sum(found["recall"]) > 0.8 * 661 and 0.8 < found["ap50"] <= 1
        assert evaluate(first.module, batch=64)["recall"] == found["recall"]
        around: Any = first.around
        detections = around.after(first.module(around.before(around.raw)))
    assert len(detections) == 8 and all(0.5 <= score <= 1 for image in detections for score, _ in image)
    assert first.calibrate is not None and {one.args[0].shape[0] for one in first.calibrate()} == {8}


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
    box, beside = torch.tensor(BOX), torch.tensor([13.0, 10.0, 23.0, 20.0])
    assert boxes["overlap"](box, beside) == pytest.approx(70 / 130)
    assert boxes["suppressed"]([(0.9, box), (0.8, beside)]) == [(0.9, box)]
    hits, scores = boxes["matched"]([(0.9, box), (0.8, box)], box[None])
    assert hits == [(0.9, True), (0.8, False)] and scores == [0.9]
    assert boxes["average_precision"]([(0.9, True), (0.8, False), (0.7, True)], 2) == pytest.approx((1 + 2 / 3) / 2)
