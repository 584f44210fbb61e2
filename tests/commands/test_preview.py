"""What `--dry-run` says of a metric of the user's own, of kept builds, and of starts."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bakeoff import models
from bakeoff.commands.preview import Preview, preview, preview_of
from bakeoff.commands.run import _reserved_for_starts_s
from bakeoff.judging.start_times import LEAST_STARTS
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.models.base import Family
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import USUAL_EVALUATE_S, USUAL_FRESH_START_S
from bakeoff.records.duration import Duration
from bakeoff.records.schema import Memory
from bakeoff.records.store import FirstBuild, Store

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


def test_cells_are_named_that_may_start_from_a_build_in_the_cache() -> None:
    request = Request(models=("mlp",), backends=("eager", "null"), devices=("cpu",))
    (contest,) = plan(request)
    with BuildCache() as cache:
        kept, begun = (cache.claim(planned, "the model", 2) for planned in contest.cells)
        assert kept and begun, "the second one was not built"
        (kept / "0").mkdir(parents=True)
        Store.keep_build(FirstBuild(folder=str(kept / "0"), phases=[], memory=Memory()))
    absences = {(each.cell.backend, each.cell.device, ""): "" for each in contest.cells}
    warm = preview_of(request, [contest], absences)
    assert warm.contests[0].cached == ("eager",)
    assert "s; less if builds in the cache still fit: eager)" in next(warm.lines())
    fresh = preview_of(request.model_copy(update={"fresh": True}), [contest], absences)
    assert not warm.keeps_other_builds and "cache" not in "".join(fresh.lines())
    renamed = plan(request.model_copy(update={"models": ("conv",)}))
    untold = preview_of(request, renamed, absences)
    assert untold.contests[0].cached == () and "of a model by another name are not looked for" in "".join(
        untold.lines()
    )


def test_a_model_of_a_hub_has_the_name_with_its_commit_by_which_its_builds_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = models.find

    def of_hub(name: str) -> Family:
        family: Any = find(name.partition("@")[0].removeprefix("hub:"))
        monkeypatch.setattr(type(family), "prepare", lambda _: pytest.fail("a dry run fetches no weights"))
        return dataclasses.replace(family, name="hub:mlp@0123abc")

    monkeypatch.setattr(models, "find", of_hub)
    told = preview(Request(models=("hub:mlp",), backends=("null",), devices=("cpu",)))
    assert told.contests[0].title.startswith("hub:mlp@0123abc (")


def test_what_cannot_run_is_told_with_every_reason_and_where_it_does() -> None:
    request = Request(models=("mlp", "rope"), backends=("triton", "triton/descriptor", "eager"), devices=("cpu",))
    contests = plan(request)
    absences = {(cell.cell.backend, cell.cell.device, ""): "" for each in contests for cell in each.cells}
    absences["eager", "cpu", ""] = "torch is broken"
    told = preview_of(request, contests, absences).cannot_run
    of_mlp, _, where = told["triton"].partition(", for ")
    assert of_mlp.endswith("inductor makes Triton kernels of other models") and where == contests[0].cells[0].cell.title
    assert told["triton/descriptor"] == (
        f"{told['triton']}; the kernel of rope loads by pointer only: use triton, for {contests[1].cells[0].cell.title}"
    )
    assert told["eager"] == "torch is broken", "it is the same everywhere"


def test_starts_are_part_of_the_plan_and_take_half_of_a_budget_at_most(tmp_path: Path) -> None:
    file = tmp_path / "bare.py"
    without, with_starts = previewed(file, FACTORY), previewed(file, FACTORY, starts=True)
    seconds = 2 * LEAST_STARTS * USUAL_FRESH_START_S
    assert with_starts.seconds - without.seconds == pytest.approx(seconds)
    request = Request(models=(f"{file}:factory",), backends=("eager", "null"), devices=("cpu",), starts=True)
    for budget, reserved_s in {"10m": seconds, "60s": 30.0, "": 0.0}.items():
        bounded = request.model_copy(update={"budget": Duration.parse(budget, "--budget") if budget else None})
        assert _reserved_for_starts_s(bounded, plan(bounded)) == pytest.approx(reserved_s)
