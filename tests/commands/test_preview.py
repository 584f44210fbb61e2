"""What `--dry-run` says of a metric of the user's own, and of starts."""

from pathlib import Path
from typing import Any

import pytest

from bakeoff.commands.preview import Preview, preview_of
from bakeoff.commands.run import _reserved_for_starts_s
from bakeoff.judging.starts import LEAST_STARTS
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import USUAL_EVALUATE_S, USUAL_FRESH_START_S
from bakeoff.planning.values import Duration

FACTORY = "def factory(batch: int = 4): ...\n"


def previewed(file: Path, text: str, **asked: Any) -> Preview:
    file.write_text(text)
    request = Request(models=(f"{file}:factory",), backends=("eager", "null"), devices=("cpu",), **asked)
    contests = plan(request)
    absences = {(cell.cell.backend, cell.cell.device, ""): "" for each in contests for cell in each.cells}
    return preview_of(request, contests, absences)


def test_evaluations_are_part_of_the_plan_and_of_its_seconds(tmp_path: Path) -> None:
    without = previewed(tmp_path / "bare.py", FACTORY)
    assert "evaluate" not in "".join(without.lines())
    preview = previewed(tmp_path / "net.py", FACTORY + "def evaluate(predict): ...\n")
    contest, untold, _ = preview.lines()
    assert "with net.py:evaluate for the reference and each cell" in contest
    assert untold.startswith("nobody knows how long evaluate takes: 2 s a call")
    assert preview.contests[0].seconds - without.contests[0].seconds == pytest.approx(3 * USUAL_EVALUATE_S)


def test_starts_are_part_of_the_plan_and_take_half_of_a_budget_at_most(tmp_path: Path) -> None:
    file = tmp_path / "bare.py"
    without, with_starts = previewed(file, FACTORY), previewed(file, FACTORY, starts=True)
    seconds = 2 * LEAST_STARTS * USUAL_FRESH_START_S
    assert with_starts.seconds - without.seconds == pytest.approx(seconds)
    request = Request(models=(f"{file}:factory",), backends=("eager", "null"), devices=("cpu",), starts=True)
    for budget, reserved_s in {"10m": seconds, "60s": 30.0, "": 0.0}.items():
        bounded = request.model_copy(update={"budget": Duration.parse_budget(budget) if budget else None})
        assert _reserved_for_starts_s(bounded, plan(bounded)) == pytest.approx(reserved_s)
