"""The example that shows a metric of one's own."""

from typing import Any

import pytest

from bakeoff import models

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")


def test_it_trains_the_same_weights_each_time_and_knows_most_digits_whatever_the_batch() -> None:
    family = models.find("examples/digits.py:classifier")
    first, again = (family.load({"batch": 50, "hidden": 256}, seed=0) for _ in range(2))
    pairs = zip(first.module.parameters(), again.module.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    evaluate: Any = models.find_evaluate(family.evaluated_by)
    assert evaluate.higher_is_better == {"top1": True}
    with torch.inference_mode():
        known = evaluate(first.module, batch=64)["top1"]
        assert len(known) == 900 and sum(known) > 0.9 * 900
        assert known == evaluate(first.module, batch=50)["top1"]
    assert first.calibrate is not None and all(one.args[0].shape == (50, 64) for one in first.calibrate())
