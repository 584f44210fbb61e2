"""What `--dry-run` says of a metric of the user's own."""

from pathlib import Path

import pytest

from bakeoff.commands.preview import Preview, preview_of
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import USUAL_EVALUATE_S

FACTORY = "def factory(batch: int = 4): ...\n"


def previewed(file: Path, text: str) -> Preview:
    file.write_text(text)
    request = Request(models=(f"{file}:factory",), backends=("eager", "null"), devices=("cpu",))
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
