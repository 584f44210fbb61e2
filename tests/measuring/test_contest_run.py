"""Contests of workers that follow a script: epochs, groups, memory and endings."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bakeoff import backends
from bakeoff.judging.estimate import FEWEST_ROUNDS
from bakeoff.measuring.controller import contest_run
from bakeoff.measuring.controller.build_cache import BuildCache
from bakeoff.measuring.controller.contests import add_floors, dominated
from bakeoff.measuring.messages import MeasureCeilings, MeasureCell, MeasurePackagedCell, PackageCell
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.planning.time_plan import BETWEEN_BURSTS_S, USUAL_S, PlanStep
from bakeoff.records.device import CPU, Device
from bakeoff.records.doubts import BuiltAnew
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Record, Status
from bakeoff.records.store import Store
from bakeoff.reports.console import measured_to_the_end
from tests.support.measuring import Silent
from tests.support.scripted import (
    INTERRUPT,
    SEGFAULT,
    WRONG,
    Ending,
    Script,
    ScriptedLauncher,
    contest_of,
    plan_of,
    run_contest,
)

THREE = ("eager", "null", "null/double")


def rounds_of(record: Record, group: int | None = None) -> int:
    return sum(group is None or burst.group == group for burst in record.bursts)


def test_more_processes_are_started_while_pairs_are_undecided(tmp_path: Path) -> None:
    asked: list[int] = []

    def undecided(records: list[Record]) -> list[tuple[str, str]]:
        asked.append(len(records[0].processes))
        return [("null", "eager")] if asked[-1] < 5 else []

    run = run_contest(tmp_path, {"eager": Script(), "null": Script()}, plan_of(3, 20), undecided=undecided)
    assert asked == [3, 3, 4, 4, 5, 5], "once for what the last process measures, and once it has ended"
    assert [len(record.processes) for record in run.records.values()] == [5, 5]
    told = "3 processes of each cell do not decide null against eager: more of each"
    assert [text for text in run.said if "do not decide" in text] == [told], "once, however many follow"


def test_the_spread_of_processes_is_that_of_the_medians_which_are_listed(tmp_path: Path) -> None:
    noisy = Script(spread=0.3, disturbed_of_ten=4)
    for record in run_contest(tmp_path, {"eager": noisy, "null": noisy}, plan_of(4, 4)).records.values():
        medians_ms = [process.median_ms for process in record.processes if process.median_ms]
        assert record.latency and len(medians_ms) == 4
        assert record.latency.process_spread == pytest.approx(max(medians_ms) / min(medians_ms) - 1)


# --- side by side


GPU = Device("cuda:0")


@pytest.mark.parametrize(("device", "cores"), [(CPU, 2), (GPU, 16)])
def test_an_interrupted_run_that_measured_nothing_measures_what_is_built(
    tmp_path: Path, device: Device, cores: int
) -> None:
    scripts = {
        "eager": Script(),
        "torchscript": Script(level_ms=0.5),
        "aotinductor": Script(seconds_per_start=40.0, endings={(0, "build"): INTERRUPT}),
    }
    run = run_contest(tmp_path, scripts, plan_of(3), device=device, cores=cores)
    measured = {label: rounds_of(record) for label, record in run.records.items() if record.bursts}
    assert set(measured) == {"eager", "torchscript"} and min(measured.values()) >= 4
    assert not run.complete
    again = scripts | {"torchscript": Script(endings={(0, "burst 1"): INTERRUPT})}
    with measured_to_the_end():
        ended = run_contest(tmp_path / "twice", again, plan_of(3), device=device, cores=cores)
    assert max(rounds_of(record) for record in ended.records.values() if record.bursts) <= 2


def test_what_an_earlier_run_built_loads_ahead_from_the_start_and_is_reported_to_be_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = {label: Script(seconds_per_start=7.0) for label in ("eager", "inductor", "torchscript")}
    launched = []
    told = list[tuple[str, bool]]()
    monkeypatch.setattr(Silent, "built", lambda _, cell, seconds, is_cached: told.append((cell.label, is_cached)))
    for name in ("first", "second"):
        with BuildCache(tmp_path / "builds") as cache:
            run = run_contest(tmp_path / name, scripts, plan_of(3), cores=16, device=GPU, build_cache=cache)
        warm = run.steps.index((0, "ready", "torchscript"))
        launched.append({label for label in scripts if run.steps.index((1, "launched", label)) < warm})
        assert run.most_beside_what_is_timed == 0
    assert launched == [set(), set(scripts)]
    assert sorted(told) == [(label, is_cached) for label in sorted(scripts) for is_cached in (False, True)]


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_build_that_finds_the_disk_of_the_cache_full_is_made_in_the_runs_folder(
    is_kept: bool, tmp_path: Path
) -> None:
    onnx = Script(phases=("export",))

    def run(name: str, script: Script) -> SimpleNamespace:
        with BuildCache(tmp_path / "cache") as cache:
            return run_contest(tmp_path / name, {"eager": Script(), "onnx": script}, plan_of(3), build_cache=cache)

    if is_kept:
        run("before", onnx)
    full = run("full", replace(onnx, endings={(0, "build"): SEGFAULT}, fills_disk=True))
    record = full.records["onnx"]
    assert (record.status, record.doubts, len(record.processes)) == (Status.OK, [], 3)
    assert any("in the run's own folder, because the disk of the cache is full" in note for note in full.notes)
    kept = [entry.what.rpartition(": ")[2] for entry in BuildCache(tmp_path / "cache").entries()]
    assert kept.count("onnx") == is_kept, "what an earlier run has built stays"


def test_what_another_run_has_in_the_cache_is_built_and_reported(tmp_path: Path) -> None:
    scripts = {"eager": Script(), "onnx": Script(phases=("export",))}
    with BuildCache(tmp_path / "cache") as other, BuildCache(tmp_path / "cache") as ours:
        run_contest(tmp_path / "other", scripts, plan_of(3), build_cache=other)
        run = run_contest(tmp_path / "ours", scripts, plan_of(3), build_cache=ours)
    assert not any(phase.built_at for phase in run.records["onnx"].phases)
    assert "another run uses the cache for eager and onnx: built here, too, and not kept" in run.notes


def test_processes_of_the_next_epoch_load_beside_those_that_were_held_while_loading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = iter((5, 5, 3, 5, 5))  # after the third process it is known that a fifth one comes, too
    monkeypatch.setattr(contest_run.rounds, "expected_epochs", lambda *_: next(expected))
    scripts = {"eager": Script(), "inductor": Script(seconds_per_start=7.0)}
    unsure = [("inductor", "eager")]
    run = run_contest(tmp_path, scripts, plan_of(3, 5), cores=16, device=GPU, undecided=lambda records: unsure)
    places = [
        run.steps.index((epoch, what, "inductor"))
        for epoch, what in ((3, "launched"), (2, "burst"), (4, "launched"), (3, "built"))
    ]
    assert places == sorted(places)


def test_what_builds_has_the_compiler_imported_and_what_loads_a_package_has_not(tmp_path: Path) -> None:
    run = run_contest(tmp_path, {label: Script() for label in ("eager", "aotinductor", "inductor")}, plan_of(1))
    compiler = "torch._inductor.compile_fx"
    assert [(label, job, compiler in imports) for label, job, imports in run.jobs if label != "inductor"] == [
        ("eager", MeasureCell, False),
        ("aotinductor", PackageCell, True),
        ("aotinductor", MeasurePackagedCell, False),
    ]
    assert all(compiler in imports for label, _, imports in run.jobs if label == "inductor")


COMPILED = Script(phases=("compile", "capture"))
PAIR = ("inductor", "inductor/cuda-graph")


def phases_of(record: Record) -> list[tuple[str, str]]:
    return [(phase.name, phase.shared_with) for phase in record.phases]


@pytest.mark.parametrize("cores", [2, 16])
def test_modes_of_one_family_build_once_and_each_record_has_what_it_takes_alone(tmp_path: Path, cores: int) -> None:
    run = run_contest(tmp_path, {"eager": Script(), **dict.fromkeys(PAIR, COMPILED)}, cores=cores, device=GPU)
    assert {record.status for record in run.records.values()} == {Status.OK}
    assert phases_of(run.records["inductor"]) == [("compile", ""), ("capture", "")]
    assert phases_of(run.records["inductor/cuda-graph"]) == [("compile", "inductor"), ("capture", "")]
    assert not run.records["inductor/cuda-graph"].processes[0].warm, "a cold start is told, with what it takes alone"
    steps = [(what, label) for _, what, label in run.steps]
    assert steps.index(("built", PAIR[0])) < steps.index(("builds", PAIR[1]))
    assert run.folders[PAIR[0]] == run.folders[PAIR[1]] != run.folders["eager"]
    assert not run.folders[PAIR[0]][0].exists()


@pytest.mark.parametrize(
    ("call_ms", "host_ms", "left_out"),
    [
        (0.2, 0.1, {"inductor", "inductor/reduce-overhead", "eager/channels-last"}),
        (5.0, 0.1, {"inductor/reduce-overhead"}),
        (5.0, 4.8, {"inductor/reduce-overhead", "inductor/cudnn-benchmark", "eager/cudnn-benchmark-channels-last"}),
        (20.0, 0.1, {"inductor/cuda-graph", "inductor/reduce-overhead", "eager/cuda-graph-channels-last"}),
    ],
)
def test_of_all_graphs_of_one_code_best_takes_one(call_ms: float, host_ms: float, left_out: set[str]) -> None:
    others = ("inductor", "inductor/cuda-graph", "inductor/reduce-overhead", "eager/cuda-graph-channels-last")
    others += ("eager/cudnn-benchmark", "inductor/cudnn-benchmark", "eager/cudnn-benchmark-channels-last")
    (contest,) = plan(Request(models=("conv",), backends=("eager", "eager/channels-last", *others), devices=(GPU,)))
    cells = [replace(planned, of_best=True) for planned in contest.cells]
    found = dominated(cells, call_ms, host_ms)
    assert {planned.cell.label for planned in cells if planned.cell.id in found} == left_out


def test_what_was_asked_for_by_name_is_not_left_out() -> None:
    (by_best,) = plan(Request(models=("mlp",), backends=("best",), devices=(GPU,)))
    (by_name,) = plan(Request(models=("mlp",), backends=("inductor", "inductor/cuda-graph", "best"), devices=(GPU,)))
    left = [{cell_id.rpartition("_")[2] for cell_id in dominated(each.cells, 0.1, 0.1)} for each in (by_best, by_name)]
    assert left[0] - left[1] == {"inductor.default"} and left[1] < left[0]


@pytest.mark.parametrize(
    "ending",
    [
        {"answers": {(0, "start"): WRONG}},
        {"endings": {(0, "build"): SEGFAULT}},
        {"endings": {(0, "burst 3"): SEGFAULT}},
        {"answers": {(0, "finish"): WRONG}},
        {"endings": {(1, "burst 3"): SEGFAULT}},
        {"answers": {(1, "finish"): WRONG}},
    ],
)
def test_a_kept_build_that_fails_is_built_anew_and_not_kept(tmp_path: Path, ending: dict[str, Any]) -> None:
    scripts = {"eager": Script(phases=()), "onnx": Script(phases=("export", "compile"))}

    def run(name: str, **changed: Any) -> SimpleNamespace:
        with BuildCache(tmp_path / "cache") as cache:
            return run_contest(
                tmp_path / name, scripts | {"onnx": replace(scripts["onnx"], **changed)}, plan_of(3), build_cache=cache
            )

    run("first")
    (kept,) = BuildCache(tmp_path / "cache").entries()
    assert kept.what.endswith(": onnx"), "eager leaves nothing"
    again = run("second")
    assert again.records["onnx"].phases[0].built_at and not again.records["eager"].processes[0].warm
    anew = run("third", **ending)
    record = anew.records["onnx"]
    assert record.status is Status.OK and not any(phase.built_at for phase in record.phases)
    (doubt,), failed = record.doubts, next(iter(*ending.values()))
    assert isinstance(doubt, BuiltAnew) and doubt.reason
    assert [process.index for process in record.processes] == list(range(failed[0], 3)), "the failed one does not count"
    assert {process.warm for process in record.processes[1:]} == {True}, "it was built once"
    assert {burst.round for burst in record.bursts if burst.process == failed[0]} == set(range(12))
    assert any("failed with a build of an earlier run, and was built anew" in note for note in anew.notes)
    assert not any("memory" in note for note in anew.notes)
    assert BuildCache(tmp_path / "cache").entries() == []


def test_a_warm_up_of_an_earlier_run_is_not_shown_again(tmp_path: Path) -> None:
    """Modes of one family have warm-ups of their own, and what leaves no build shows it in each run."""

    def run(name: str, *labels: str) -> SimpleNamespace:
        scripts = {label: Script(phases=() if label == "eager" else ("export",)) for label in labels}
        with BuildCache(tmp_path / "cache") as cache:
            return run_contest(tmp_path / name, scripts, plan_of(2), build_cache=cache, device=GPU, cores=16)

    first = run("first", "eager", "onnx")
    again = run("second", "eager", "onnx", "onnx/cuda-graph")
    third = run("third", "onnx", "onnx/cuda-graph")
    assert first.warmed_up_s("onnx") == [0.1, 0.05]
    assert [again.warmed_up_s(label) for label in ("eager", "onnx")] == [[0.1, 0.05], [0.05, 0.05]]
    assert [each.warmed_up_s("onnx/cuda-graph") for each in (again, third)] == [[0.1, 0.05], [0.05, 0.05]]
    assert all(each.records["onnx"].warm_up.seconds == 0.1 for each in (first, again, third)), "the one that was shown"


def test_a_build_of_an_earlier_run_is_expected_to_take_no_longer_than_a_start(tmp_path: Path) -> None:
    """A budget that leaves no time to build a slow cell leaves time to start it."""

    def run(name: str, seconds: float, budget_s: float) -> SimpleNamespace:
        scripts = {"eager": Script(), "torchscript": Script(seconds_per_start=1.0)}
        scripts["onnx"] = Script(phases=("compile",), seconds_per_start=seconds)
        with BuildCache(tmp_path / name) as cache:
            return run_contest(tmp_path / f"{name}-{budget_s}", scripts, build_cache=cache, budget_s=budget_s)

    run("kept", 1.0, 600.0)
    statuses = [run(name, 1.0, 5.0).records["onnx"].status for name in ("empty", "kept")]
    assert statuses == [Status.NOT_REACHED, Status.OK]


# --- the time budget of a run


@pytest.mark.parametrize(("budget_s", "has_floor"), [(math.inf, True), (18.0, True), (8.0, False)])
def test_ceilings_are_measured_after_the_answer_and_with_a_short_budget_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured_ceilings: None, budget_s: float, has_floor: bool
) -> None:
    asked = list[int]()
    ask = ScriptedLauncher.ask

    def noted(launcher: ScriptedLauncher, job: object, *rest: Any) -> object:
        asked.extend([len(launcher.started)] * isinstance(job, MeasureCeilings))
        return ask(launcher, job, *rest)

    monkeypatch.setattr(ScriptedLauncher, "ask", noted)
    scripts = {"eager": Script(), "inductor": Script(seconds_per_start=1.0)}
    run = run_contest(tmp_path, scripts, plan_of(3), budget_s=budget_s)
    assert asked == ([len(run.started)] if has_floor else [])
    assert all(bool(record.roofline) is has_floor for record in run.records.values() if record.latency)
    assert all(bool(record.no_floor) is not has_floor for record in run.records.values() if record.latency)
    assert run.records["eager"].latency
    run.store.save_ceilings(CPU, Precision.FP32, Ceilings(flops_per_s=1e9, bytes_per_s=1e9))
    add_floors(run.store)  # as another contest or place may measure them later
    assert all(record.roofline and not record.no_floor for record in run.store.records() if record.latency)


def test_the_remaining_time_never_grows_without_a_reason_that_is_said(tmp_path: Path, measured_ceilings: None) -> None:
    """The build of one cell and the processes of both take longer than expected, and then the pair stays undecided."""
    scripts = {"eager": Script(seconds_per_start=3.0), "onnx": Script(seconds_per_start=60.0)}
    run = run_contest(
        tmp_path,
        scripts,
        plan_of(3, 20),
        undecided=lambda records: [("onnx", "eager")] if len(records[0].processes) < 12 else [],
    )
    latest_s, notes_before = run.ends_s[0]
    notes_after = [notes for _, notes in run.ends_s[2:]] + [len(run.said)]
    for (ends_s, notes), (_, most_s), after in zip(run.ends_s[1:], run.left_s[1:], notes_after, strict=True):
        said = " ".join(run.said[notes_before:after])
        assert ends_s <= latest_s + 0.01 or not most_s or "more time is needed" in said or "ceilings" in said
        latest_s, notes_before = ends_s, notes
    reasons = [text for text in run.said if "more time is needed" in text]
    assert reasons[0].startswith("more time is needed: the first start of onnx took 60 s, and about ")
    assert 1 <= len(reasons) <= 6 and latest_s >= run.ended_s - 10.0


@pytest.mark.parametrize("seconds", [37.0, 60.0])
def test_a_second_build_may_take_all_but_the_fewest_rounds(tmp_path: Path, seconds: float) -> None:
    """One cell alone ranks nothing, and so what is built late is measured in fewer rounds."""
    calls = {"level_ms": 150.0, "seconds_per_burst": 0.5}
    scripts = {"eager": Script(seconds_per_start=4.0, **calls), "onnx": Script(seconds_per_start=seconds, **calls)}
    run = run_contest(tmp_path, scripts, replace(plan_of(3), burst_calls=3, races=True), budget_s=50.0)
    assert run.ended_s <= 50.01
    eager, onnx = (len(run.records[label].bursts) for label in ("eager", "onnx"))
    assert eager >= FEWEST_ROUNDS and onnx == (eager if seconds < 50.0 else 0)


def test_a_warm_up_has_its_time_after_a_build_that_took_all_of_its_own(tmp_path: Path) -> None:
    script = Script(seconds_per_start=25.5, seconds_per_warm_up=1.5)
    run = run_contest(tmp_path, {"eager": Script(), "onnx": script}, plan_of(3), budget_s=30.0)
    assert run.records["onnx"].latency and run.ended_s <= 30.01


def test_rounds_leave_a_budget_time_for_the_last_checks(tmp_path: Path) -> None:
    scripts = {label: Script(seconds_per_burst=0.5, seconds_per_check=3.0) for label in ("eager", "onnx")}
    run = run_contest(tmp_path, scripts, plan_of(3), budget_s=17.0)
    assert run.ended_s <= 17.01
    assert all(record.latency and not record.doubts for record in run.records.values())
    assert 12 > len(run.records["onnx"].bursts) >= FEWEST_ROUNDS


def test_what_is_not_installed_is_not_a_matter_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(backends.create("onnx")), "module", "no_such_module_of_anybody")
    labels = ("eager", "onnx", "tensorrt")
    run = run_contest(tmp_path, {label: Script() for label in labels}, budget_s=0.0)
    missing = {label: run.records[label].reason for label in labels if run.records[label].status is Status.UNAVAILABLE}
    assert missing == {
        "onnx": "onnx is not installed (No module named 'no_such_module_of_anybody'): bakeoff doctor says what to do",
        "tensorrt": "tensorrt does not run on cpu",
    }


# --- interruptions


def interrupted(folder: Path, epoch: int, label: str, **changes: Any) -> tuple[SimpleNamespace, SimpleNamespace]:
    """Return a run of three processes of each cell that was interrupted when a cell was to start, and what it became.

    The machine and its time begin anew when it is resumed.
    """
    scripts = {label: Script(recompilations=1) for label in THREE} | changes.pop("scripts", {})
    before = run_contest(folder, scripts, plan_of(3), interrupted_at=(epoch, label), **changes)
    assert not before.complete
    return before, run_contest(folder, scripts, plan_of(3), **changes)


def test_an_interrupted_contest_goes_on_after_its_last_finished_epoch(tmp_path: Path) -> None:
    before, after = interrupted(tmp_path, 2, "null/double")
    assert after.complete
    assert after.started == [(2, label) for label in THREE]
    assert not after.store.builds("").exists()
    assert after.store.unfinished(after.records["eager"].cell.contest_id) is None
    assert any("interrupted and resumed" in note and "after 2 processes of each cell" in note for note in after.notes)
    for label in THREE:
        old, new = before.records[label], after.records[label]
        assert new.bursts[: len(old.bursts)] == old.bursts and rounds_of(old) == 24 and rounds_of(new) == 36
        assert [process.index for process in new.processes] == [0, 1, 2] and new.processes[:2] == old.processes
        assert [process.warm for process in new.processes] == [False, True, True]
        assert new.energy is not None and old.energy is None, "the last process has it"
        changed = {"processes", "bursts", "latency", "roofline", "elapsed_s", "energy"}
        assert new.model_dump(exclude=changed) == old.model_dump(exclude=changed)
        assert new.elapsed_s > old.elapsed_s
        assert [burst.started_s for burst in new.bursts] == sorted(burst.started_s for burst in new.bursts)


@pytest.mark.parametrize(
    ("script", "interrupted_at", "are_replaced"),
    [({}, (1, "eager"), False), ({(0, "burst 3"): INTERRUPT}, None, True), ({(1, "burst 3"): INTERRUPT}, None, True)],
)
def test_a_resumed_run_knows_whether_it_replaces_numbers_of_unfinished_processes(
    tmp_path: Path, script: dict[tuple[int, str], Ending], interrupted_at: tuple[int, str] | None, are_replaced: bool
) -> None:
    scripts = {"eager": Script(), "null": Script(endings=script)}
    before = run_contest(tmp_path, scripts, plan_of(2), interrupted_at=interrupted_at)
    assert before.store.has_unfinished_processes() is are_replaced
    shown = [burst for record in before.records.values() for burst in record.bursts]
    scripts["null"].endings = {}
    after = run_contest(tmp_path, scripts, plan_of(2))
    assert after.complete and not after.store.has_unfinished_processes()
    kept = [burst for record in after.records.values() for burst in record.bursts]
    assert all(burst in kept for burst in shown) is not are_replaced


def test_what_was_measured_is_on_disk_from_the_first_round_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[set[int]] = []
    keep = Store.keep_so_far

    def noting(store: Store, contest_id: str, records: Sequence[Record]) -> None:
        keep(store, contest_id, records)
        seen.append({rounds_of(record) for record in store.records()})

    monkeypatch.setattr(Store, "keep_so_far", noting)
    run_contest(tmp_path, {label: Script() for label in THREE})
    assert seen[0] == {1}
    assert all(len(rounds) == 1 for rounds in seen), "a round is kept when all of its cells have had their turn"


def test_what_was_not_built_to_the_end_is_built_again(tmp_path: Path) -> None:
    scripts = {"null": Script(), "null/double": Script()}
    run_contest(tmp_path, scripts, interrupted_at=(0, "null"))
    cell_id = contest_of([*scripts]).cells[0].cell.id
    begun = Store.open(tmp_path / "run").builds(cell_id) / "0" / "artifact"
    begun.mkdir(parents=True)
    run = run_contest(tmp_path, scripts)
    assert [process.warm for process in run.records["null"].processes] == [False]
    assert run.notes == []


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_resumed_run_expects_only_what_is_left(tmp_path: Path, epoch: int) -> None:
    """Builds are there, and after a finished process it is known how long a call takes. Nothing is in the cache."""
    calls = {"level_ms": 100.0, "seconds_per_burst": 0.2}
    scripts = {"eager": Script(**calls), "inductor": Script(phases=("compile",), seconds_per_start=9.0, **calls)}
    ending = {(0, "burst 3"): INTERRUPT} if epoch == 0 else {}
    plan = replace(plan_of(3), burst_calls=2)
    first = scripts | {"inductor": replace(scripts["inductor"], endings=ending)}
    run_contest(tmp_path, first, plan, interrupted_at=(epoch, "inductor") if epoch else None)
    left_s, _ = run_contest(tmp_path, scripts, plan).left_s[0]
    round_s = 2 * (BETWEEN_BURSTS_S + (0.2 if epoch else 0.0))
    finish_s = 0.0 if epoch else 2 * USUAL_S[PlanStep.FINISH]
    assert left_s == pytest.approx((3 - epoch) * (12 * round_s + 2 * USUAL_S[PlanStep.START]) + finish_s, abs=0.01)


def test_a_build_that_is_gone_is_made_again(tmp_path: Path) -> None:
    scripts = {"eager": Script(), "null-packaged": Script()}
    run_contest(tmp_path, scripts, plan_of(3), interrupted_at=(1, "null-packaged"))
    shutil.rmtree(tmp_path / "run" / "builds")
    run = run_contest(tmp_path, scripts, plan_of(3))
    assert [process.warm for process in run.records["null-packaged"].processes] == [False, False, True]
    assert [phase.name for phase in run.records["null-packaged"].processes[1].phases] == ["compile", "load"]
    assert any("what eager, null-packaged had built" in note for note in run.notes)
