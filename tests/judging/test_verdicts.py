"""Scripted contests, and what is judged of each, held against `golden/verdicts.txt`: a line for each contest.

`UPDATE_GOLDEN=1 pytest -k as_before tests/judging` writes the file anew: read what `git diff` shows then.
"""

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from bakeoff.judging.constraints import RequirementMissed, Requirements
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.decision import MARGIN, MARGIN_UNPAIRED
from bakeoff.judging.doubt import Doubt, OfRecords, OfValues
from bakeoff.judging.doubts_of_cells import PartlyElsewhere, ProcessSpread, RoughLatency, RoughLead
from bakeoff.judging.doubts_of_winner import NoBaseline
from bakeoff.judging.ranking import beaten, undecided
from bakeoff.records.doubts import (
    EAGER_DIFFERS,
    Dropped,
    Effect,
    InputsNotWritten,
    Recalled,
    RecordDoubt,
    Unchecked,
    WithoutEffect,
)
from bakeoff.records.load_samples import Load
from bakeoff.records.precision import Precision
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Extent, Phase, Placement, Record, Status
from bakeoff.records.text import counted
from bakeoff.records.traits import Access, AccessKind
from bakeoff.reports import sentences
from tests.judging import test_metrics as metrics
from tests.judging import test_precisions as precisions
from tests.judging.test_costs import carrying, window
from tests.judging.test_doubts import measured
from tests.judging.test_metrics import right
from tests.judging.test_suites import both, part, staged
from tests.reports.samples import (
    accuracy,
    caveat,
    cell,
    constant,
    failed,
    judged,
    lived,
    ok,
    once,
    over_processes,
    roofline,
    steady,
    strictly_on_cpu,
    under,
)
from tests.support.golden import same_as_golden


def in_short(contest: ContestJudgement, require: str = "") -> str:
    """Return `sure: onnx 1, eager 2; 1 ms, 2.00x eager; numbers: Caveat of onnx`: how sure the answer is, all cells
    with their ranks, candidates that are others than those of rank 1, and what the first is. Then come doubts by their
    effect on the answer, cells that may leave, what is said of load, and pairs that more processes may decide."""
    answer = contest.answer
    ranks = {row.label: row.rank for row in answer.rows}
    ranks |= {cell.label: None for cell in contest.cells if cell.label not in ranks}
    placed = [f"{label} {rank or '-'}" for label, rank in ranks.items()]
    but = f" ({answer.doubt.brief})" if answer.doubt else ""
    parts = [f"{answer.certainty}{but}: {', '.join(placed)}"]
    if answer.candidates != [label for label, rank in ranks.items() if rank == 1]:
        parts.append(f"candidates: {', '.join(answer.candidates)}")
    if answer.value is not None:
        over = f", {sentences.ratio(answer.gain)} {answer.baseline}" if answer.gain else ""
        lead = f", {sentences.ratio(answer.lead)} {answer.runner_up}" if answer.lead and answer.winner else ""
        parts.append(f"{answer.value:.4g} {answer.unit}{over}{'' if lead == over else lead}")
    if contest.end_to_end:
        whole = contest.end_to_end.answer
        rows = ", ".join(f"{row.label} {row.rank}" for row in whole.rows)
        over = f", {sentences.ratio(whole.gain)} {whole.baseline}" if whole.gain else ""
        steps = ", ".join(f"{step.name} {step.share:.0%}" for step in contest.end_to_end.steps)
        parts.append(f"requests {whole.certainty}: {rows}, {whole.value:.4g} {whole.unit}{over} ({steps})")
    for effect, name in {Effect.WINNER: "winner", Effect.NUMBER: "numbers", Effect.NONE: "remarks"}.items():
        if doubts := contest.doubts_of_answer[effect]:
            parts.append(f"{name}: {', '.join(map(_named, doubts))}")
    records = [cell.record for cell in contest.cells]
    gone = beaten(records, Requirements.parse(require)).items()
    parts += [f"{label} may leave, {left.ratio:.2f}x {left.than} in {left.seen_in}" for label, left in gone]
    parts += [f"load: {doubt.say()}" for doubt in (contest.load.doubts if contest.load else ())]
    pairs = undecided(records, Requirements.parse(require))
    return "; ".join([*parts, *(f"measure on: {best} and {other}" for best, other in pairs)])


SAID = (RoughLatency, RoughLead, NoBaseline, PartlyElsewhere, ProcessSpread)
"""Doubts that are held as sentences, with all their values. A kind and cells stand for the others."""


def _named(doubt: Doubt) -> str:
    kind = type(doubt.doubt if isinstance(doubt, OfRecords) else doubt).__name__
    if isinstance(doubt, RequirementMissed):
        return f"{doubt.label} may not win ({doubt.unmet})"
    if isinstance(doubt, SAID):
        return doubt.say()
    values = doubt.values if isinstance(doubt, OfValues) else {}
    names = " and ".join(f"{label} {values[label]:.3g}" if label in values else label for label in doubt.cells)
    return f"{kind} of {names}" if names else kind


def apart(onnx: Sequence[float], inductor: Sequence[float], eager: Sequence[float]) -> list[Record]:
    each = {"onnx": onnx, "inductor": inductor, "eager": eager}
    return [ok(cell(name), steady(levels_ms)) for name, levels_ms in each.items()]


def in_other_epochs(ms: float, backend: str) -> Record:
    moved = [
        burst.but(process=burst.process + 5, group=burst.group + 5)
        for burst in over_processes(ms, (1.0, 1.02, 0.98, 1.01, 0.99))
    ]
    return ok(cell(backend), moved)


def paging(pages: int, backend: str, device: str = "cpu", levels_ms: Sequence[float] = (1.0, 1.0, 1.0)) -> Record:
    """Return a cell of which each call gets so many pages from the kernel: a page takes a microsecond or two."""
    bursts = steady(levels_ms)
    return ok(cell(backend, device=device), under(bursts, page_faults=pages * len(bursts[0].samples_ns)))


def coarse(ms: float, backend: str, relative_rmse: float) -> Record:
    """Return a cell whose error passes because eager's is as large."""
    far = {"relative_rmse": relative_rmse, "passed": True, "allclose": False}
    return lived(ms, backend, accuracy=accuracy().but(**far))


def noting(doubt: RecordDoubt, label: str) -> list[Record]:
    """Return a winner, a slower cell, and the doubt in the record of one of them."""
    return [lived(ms, name, doubts=[doubt] if name == label else []) for ms, name in ((1.0, "onnx"), (2.0, "eager"))]


def wrong_later(backend: str, processes: int = 1, **more: Any) -> Record:
    """Return a cell whose answers changed while it was measured. A first process keeps its first check, a further one
    its failed one."""
    found_by = {"accuracy": accuracy(passed=processes == 1), "status": Status.INCORRECT, "reason": "wrong"}
    return ok(cell(backend), steady([2.0] * processes), **{**found_by, **more})


def on_busy_machine(share: float, level_ms: float, backend: str) -> Record:
    """Return a cell whose threads waited for a core in this share of the rounds."""
    bursts = steady([level_ms] * 5, rounds=10)
    waited = [under([burst], wait_share=0.5 if burst.round < 10 * share else 0.0)[0] for burst in bursts]
    return ok(cell(backend), waited)


def by_disturbed_rounds() -> list[Record]:
    """Return a lead that the six disturbed rounds of ten show, and the calm ones do not."""
    slow, equal = on_busy_machine(0.6, 1.2, "eager"), on_busy_machine(0.6, 1.0, "eager")
    bursts = [*(burst for burst in slow.bursts if burst.round < 6), *(one for one in equal.bursts if one.round >= 6)]
    return [on_busy_machine(0.6, 1.0, "onnx"), ok(cell("eager"), bursts)]


IN_PARALLEL = {"others_cores": 2.0, "cpu_share": 1.2, "caller_share": 0.6}


def waiting(level_ms: float, backend: str, share: float, quiet_rounds: int = 0) -> Record:
    """Return a cell with two threads that waited for this share of each burst. Some rounds had calls that did not."""
    quiet = {"quiet_calls": 1, "quiet_ms": 2.4, "quiet_wait_share": 0.01}
    bursts = [
        under([burst], wait_share=share, **IN_PARALLEL, **(quiet if burst.round < quiet_rounds else {}))[0]
        for burst in steady([level_ms] * 3, rounds=12)
    ]
    return ok(cell(backend), bursts)


def starved(name: str, share: float) -> list[Record]:
    """Return two cells of one process, of which one waited for this share of its time."""
    levels_ms = {"onnx": 0.03, "eager": 14.0}
    return [
        ok(cell(each), under(steady([ms], rounds=12), wait_share=share if each == name else 0.0), build_s=3.5)
        for each, ms in levels_ms.items()
    ]


def under_load_of_others(levels_ms: Sequence[float], **conditions: Any) -> Record:
    """Return eager with a process of each level, taken under these conditions."""
    return ok(cell("eager"), under(steady(levels_ms, rounds=12), **conditions))


LOST = failed(cell("openvino"), Status.OOM, "no memory")
NOT_YET = failed(cell("openvino"), Status.NOT_REACHED, "no time")
ABSENT = failed(cell("tensorrt"), Status.UNAVAILABLE, "no GPU")
WRONG = once(0.1, "openvino", status=Status.INCORRECT, reason="off by far")
HOT = once(1.0, "hotpath", build_s=0.5)
SETTLED = HOT.but(phases=[*HOT.phases, Phase(name="settle", calls=1000, seconds=21.0)])
UNEVEN, UNEVEN_TOO, WIDE = (1.0, 1.04, 0.96), (0.97, 1.0, 1.03), (0.6, 1.0, 1.9, 1.2, 0.7)
UNPAIRED = 1 + MARGIN_UNPAIRED - 0.05
PAIR = [lived(1.0, "onnx"), lived(2.0, "eager")]
TRIPLE = [lived(1.0, "onnx"), lived(1.3, "inductor"), lived(3.0, "eager")]
IN_RECORDS: list[RecordDoubt] = [
    InputsNotWritten(names=("input 0",)),
    Recalled(operators=7, again=0),
    WithoutEffect(inputs=("input 1",)),
    Dropped(accesses=(Access(kind=AccessKind.CLOCK),)),
]


def contests() -> dict[str, list[Record]]:
    return {
        "a clear lead": [once(2.0, "eager"), once(1.0, "onnx"), once(1.5, "inductor")],
        "a lead within the margin": [once(1.0, "onnx"), once(1 + MARGIN - 0.01, "inductor"), once(2.0, "eager")],
        "a lead beyond the margin": [once(1.0, "onnx"), once(1 + MARGIN + 0.01, "inductor")],
        "open, and set apart by an interval": apart([1.0, 1.0, 1.0], [1.0, 1.02, 0.99], [1.03, 1.08, 1.06]),
        "open, and set apart in every round": apart([1.0, 1.0], [3.0, 30.0], [900.0, 31.0]),
        "a narrow lead of one process": [once(1.0, "onnx"), once(1.08, "eager")],
        "equals in one process": [once(1.0, "onnx"), once(1.01, "eager")],
        "equals in three processes": [lived(1.0, "onnx", [1.0] * 3), lived(1.001, "eager", [1.0] * 3)],
        "processes that disagree": [lived(1.0, "onnx", UNEVEN), lived(1.03, "inductor", UNEVEN_TOO), TRIPLE[2]],
        "a clear lead of two processes": [lived(1.0, "onnx", [1.0, 1.002]), lived(1.5, "eager", [1.0, 1.001])],
        "a cell far behind that varies": [*TRIPLE[:2], lived(1.6, "openvino", WIDE)],
        "a cell of other epochs behind a called lead": [
            lived(1.0, "onnx"), lived(1.05, "inductor"), in_other_epochs(1.1, "openvino")
        ],
        "a cell beaten in every round that varies": [*TRIPLE, lived(2.5, "torchscript", [1.0, 2.5])],
        "other rounds": [once(1.0, "onnx"), once(UNPAIRED, "inductor", first_round=50)],
        "the same lead in shared rounds": [once(1.0, "onnx"), once(UNPAIRED, "inductor")],
        "one cell that could be ranked": [once(1.0, "onnx"), LOST],
        "nothing that could be ranked": [LOST, ABSENT],
        "a beaten cell of one process": [*PAIR, once(2.0, "inductor")],
        "a near cell of one process": [*PAIR, once(1.1, "inductor")],
        "a wrong cell that is the fastest": [once(2.0, "eager"), WRONG, once(1.0, "onnx")],
        "cells that --strict failed": strictly_on_cpu(),
        "cells without numbers": [ABSENT, failed(cell("iree"), Status.CRASH, "signal 11"), WRONG, once(2.0, "eager")],
        "no baseline": [once(1.0, "onnx"), once(2.0, "inductor")],
        "no baseline of a live model": [ok(cell("onnx", model="live:Net"), constant([1.0] * 6))],
        "a baseline that failed": [once(1.0, "onnx"), failed(cell("eager"), Status.OOM, "no memory")],
        "eager that is wrong later": [lived(1.0, "onnx"), lived(2.0, "inductor"), wrong_later("eager")],
        "eager that is wrong in a further process": [lived(1.0, "onnx"), wrong_later("eager", 2)],
        "eager that is wrong at first": [lived(1.0, "onnx"), wrong_later("eager", accuracy=accuracy(passed=False))],
        "eager that does not repeat itself": [
            lived(1.0, "onnx"), ok(cell("eager"), steady([2.0]), doubts=[Unchecked(why=EAGER_DIFFERS)])
        ],
        "another cell that is wrong later": [lived(1.0, "onnx"), wrong_later("inductor", accuracy=accuracy())],
        "calls until a build was final": [once(2.0, "eager"), SETTLED],
        "a fallback and a doubt of its record": [
            once(1.0, "onnx", placement=Placement(extent=Extent.FALLBACK), doubts=[caveat("never steady")])
        ],
        "engines that did nothing": [
            once(1.0, "onnx", placement=Placement(extent=Extent.FALLBACK, engines={"graphs": 0, "library calls": 2}))
        ],
        "one process beside processes that differ": [
            lived(1.0, "onnx", [1.0]), lived(2.0, "inductor", [1.0, 4.0, 1.0])
        ],
        "a doubt that two records share": [
            once(2.0, "eager", doubts=[caveat("no trend")]),
            once(1.0, "onnx", doubts=[caveat("odd"), caveat("no trend")]),
            once(3.0, "openvino"),
        ],
        "doubts of each cell": [
            lived(3.0, "inductor", doubts=[caveat("of another")]),
            *(each.but(doubts=[caveat(each.cell.label)]) for each in PAIR),
            NOT_YET,
        ],
        "processes that are far apart": [lived(1.0, "onnx", [1.0, 1.08, 1.0, 1.0, 1.0]), PAIR[1]],
        "pages from the kernel": [paging(60, "onnx"), paging(40, "eager")],
        **{
            f"{pages} pages for each call of the slower one in {counted(processes, 'process')}": [
                ok(cell("onnx"), steady([1.0, 1.0, 1.01, 1.0, 1.0][:processes])),
                paging(pages, "openvino", levels_ms=[1.6, 1.61, 1.59, 1.6, 1.6][:processes]),
            ]
            for pages, processes in ((0, 3), (200, 3), (200, 5), (200, 1), (20, 3))
        },
        "pages from the kernel beside a GPU": [paging(60, "onnx", "cuda"), paging(60, "eager", "cuda")],
        "errors as large as eager's": [coarse(1.0, "onnx", 0.42), coarse(2.0, "eager", 0.42), TRIPLE[1]],
        "errors that are not so large": [coarse(1.0, "onnx", 0.3), coarse(2.0, "eager", 0.3)],
        "a failure and what cannot run": [*PAIR, LOST, ABSENT],
        "a cell that was not reached": [*PAIR, NOT_YET],
        **{
            f"{type(doubt).__name__} of {label}": noting(doubt, label)
            for doubt in IN_RECORDS
            for label in ("onnx", "eager")
        },
    }  # fmt: skip


SLOW_MS = (2.0, 1.8, 1.7, 1.9, 2.1, 2.0)


def of_rounds(backend: str, levels_ms: Sequence[float], disturbed: int | None = None, group: int = 0) -> Record:
    """Return a cell with one round of each latency. In the round `disturbed`, its threads waited for a core."""
    made = constant(levels_ms, group=group)
    return ok(cell(backend), [under([one], wait_share=0.5 if one.round == disturbed else 0.0)[0] for one in made])


def that_leave() -> dict[str, list[Record]]:
    fast, slow = of_rounds("onnx", [1.0] * 6), of_rounds("inductor", SLOW_MS)
    both = {name: [*constant([ms] * 6), *constant([ms] * 6, group=1)] for name, ms in (("eager", 4.0), ("iree", 3.0))}
    apart = of_rounds("inductor", SLOW_MS, group=1)
    unsteady = lived(9.0, "eager", [1.0, 2.0, 1.0, 2.0, 1.0])
    return {
        "slower in every round": [fast, slow],
        "slower than two": [fast, slow, of_rounds("openvino", [0.5] * 6)],
        **{
            f"a close round, and round {disturbed} disturbed": [
                fast, of_rounds("inductor", [2.0, 1.8, 1.2, 1.9, 2.1, 2.0], disturbed)
            ]
            for disturbed in (None, 2, 3)
        },
        "slower in three rounds": [of_rounds("onnx", [1.0] * 3), of_rounds("inductor", [9.0] * 3)],
        "slower in every process": [lived(1.0, "onnx"), lived(2.0, "inductor")],
        "a close process": [lived(1.0, "onnx"), lived(2.0, "inductor", [1.0, 1.0, 0.6, 1.0, 1.0])],
        "a baseline beaten in rounds": [once(9.0, "eager"), once(8.0, "inductor"), fast],
        **{
            f"a speed-up known to {spread} in {processes} processes": [
                lived(9.0, "eager", [1.0] * processes),
                lived(1.0, "onnx", [1.0, spread, 1 / spread, 1.0, spread][:processes]),
            ]
            for spread, processes in ((1.01, 3), (1.1, 4), (1.1, 5))
        },
        "slower than a cell that failed": [failed(cell("onnx"), Status.CRASH, "signal 11"), once(2.0, "inductor")],
        "through eager of both groups": [ok(cell("eager"), both["eager"]), fast, apart],
        "through another cell of both groups": [once(4.0, "eager"), fast, ok(cell("iree"), both["iree"]), apart],
        "without a cell of both groups": [fast, apart],
        "an unsteady cell beside two": [unsteady, lived(1.0, "onnx"), lived(1.2, "openvino"), once(2.0, "inductor")],
        "an unsteady cell beside one": [unsteady, lived(1.0, "onnx"), once(2.0, "inductor")],
        "slower by the interval": [*PAIR, lived(1.2, "inductor", [1.0, 1.01, 0.99, 1.0, 1.01])],
        "as fast by the interval": [*PAIR, lived(1.01, "inductor")],
    }  # fmt: skip


def on_shared_machines() -> dict[str, list[Record]]:
    quiet, always = waiting(0.5, "onnx", 0.0), {"wait_share": 0.35}
    alone = {"wait_share": 0.75, "cpu_share": 0.25, "caller_share": 0.25, "others_cores": 2.0, "given_ms": 5.0}
    too_short = {"wait_share": 1.7, "cpu_share": 0.2, "caller_share": 0.2, "others_cores": 2.0, "given_ms": 0.0001}
    one_another = {"wait_share": 0.5, "cpu_share": 1.2}
    return {
        **{
            f"{share:.0%} of the rounds disturbed, {lead} times apart": [
                on_busy_machine(share, 1.0, "onnx"), on_busy_machine(share, lead, "eager")
            ]
            for share, lead in ((0.3, 1.2), (0.6, 1.2), (0.7, 1.2), (0.7, 1.5))
        },
        "a lead that disturbed rounds alone show": by_disturbed_rounds(),
        "a ratio that measures waiting": [quiet, waiting(48.0, "eager", 1.4)],
        "two rounds with calls that did not wait": [quiet, waiting(48.0, "eager", 1.4, 2)],
        "four rounds with calls that did not wait": [quiet, waiting(48.0, "eager", 1.4, 4)],
        "a wide lead beside waiting": [waiting(1.0, "onnx", 0.1), waiting(2.0, "eager", 0.2)],
        "a lead that waiting may have made": [waiting(1.0, "onnx", 0.2), waiting(1.2, "eager", 0.2)],
        "a lead that outlasts the waiting of either cell": [
            ok(each.cell, [burst for burst in each.bursts if burst.process == 0])
            for each in (waiting(1.0, "onnx", 0.25), waiting(1.5, "eager", 0.25))
        ],
        "one thread that waits": [waiting(1.0, "onnx", 0.0), under_load_of_others([20.0] * 3, **alone)],
        "less time than the caller worked": [quiet, under_load_of_others([10.0] * 3, **too_short)],
        "threads that wait for one another": [quiet, under_load_of_others([2.0] * 3, **one_another)],
        "such threads beside little load": [quiet, under_load_of_others([2.0] * 3, **one_another, others_cores=0.05)],
        "a quota that holds a process": [
            quiet, under_load_of_others([2.0] * 3, wait_share=0.6, cpu_share=1.2, throttled_share=0.5)
        ],
        "a near rival that always waited": [lived(1.0, "onnx", [1.0] * 5), under_load_of_others([1.2] * 5, **always)],
        "a far rival that always waited": [lived(1.0, "onnx", [1.0] * 5), under_load_of_others([2.0] * 5, **always)],
        **{
            f"{name} waited {share:.0%} of the time": starved(name, share)
            for name in ("onnx", "eager")
            for share in (0.85, 0.94)
        },
        **{
            f"a shared GPU, {lead} times apart": [
                ok(cell(name), under(steady([ms] * 5), foreign_gpu_processes=1))
                for name, ms in (("onnx", 1.0), ("eager", lead))
            ]
            for lead in (1.2, 2.0)
        },
    }  # fmt: skip


def hardly_known() -> dict[str, list[Record]]:
    """Return contests whose latencies or leads are known only roughly, and the same with what is known well."""
    levels_ms, turns = {"onnx": 0.5, "eager": 1.6}, [math.exp(0.25), math.exp(-0.25)] * 3
    times = {"onnx": turns, "eager": [2.6 / factor for factor in turns]}
    lost = {"wait_share": 0.35, "others_cores": 3.0, "cpu_share": 1.0, "caller_share": 0.5}
    quick = [burst.but(samples_ns=[*burst.samples_ns, 300_000]) for burst in steady([1.0, 1.2, 1.1])]
    of_builds = [1.0, 1.2, 1.001, 1.201, 0.999, 1.199]
    return {
        "a process in which both took twenty times as long": [
            lived(ms, name, [1.0, 20.0], roofline=roofline(ms)) for name, ms in levels_ms.items()
        ],
        "processes that are alike": [lived(ms, name, roofline=roofline(ms)) for name, ms in levels_ms.items()],
        "rounds of which one is slow where the other is quick": [
            ok(cell(name), constant(each)) for name, each in times.items()
        ],
        "rounds that are alike": [ok(cell(name), constant(each[:1] * 6)) for name, each in times.items()],
        "calls that lost their cores, and few processes": [
            ok(cell("eager"), under(quick, **lost)), lived(0.5, "onnx", [1.0, 1.8])
        ],
        **{
            f"builds that differ by 20 %, {times:g} times apart": [
                measured(of_builds, 2), measured([times * level_ms for level_ms in of_builds], 1, "onnx")
            ]
            for times in (1.15, 3.0)
        },
    }  # fmt: skip


@pytest.mark.parametrize(("rounds", "is_rough"), [(2, True), (4, False)])
def test_calls_that_did_not_wait_stand_for_their_rounds(rounds: int, is_rough: bool) -> None:
    """Two of them tell roughly what the ratio is. With four in each process, it is known."""
    contest = judged([waiting(0.5, "onnx", 0.0), waiting(48.0, "eager", 1.4, rounds)]).contests[0]
    ratio = contest.fastest.leads["eager"]
    assert (ratio.value, ratio.is_rough) == (pytest.approx(4.8, rel=1e-3), is_rough)
    assert contest.fit.ratio("eager", "eager").is_rough is False, "a cell is as fast as itself, whatever it waited for"
    assert (sentences.OF_FEW_CALLS in sentences.remarks(contest)) is is_rough


def test_a_latency_is_the_cells_own_where_waiting_made_its_ratios() -> None:
    times_ms = {"onnx": [0.39, 0.21, 0.30, 0.21, 0.22, 0.24], "eager": [0.57, 244.0, 0.34, 39.0, 268.0, 327.0]}
    records = [
        ok(cell(name), under(constant(times), wait_share=1.8, **IN_PARALLEL, given_ms=0.0))
        for name, times in times_ms.items()
    ]
    fit = judged(records).contests[0].fit
    assert all(
        min(times_ms[label]) <= latency_ms <= max(times_ms[label]) for label, latency_ms in fit.latency_ms.items()
    )
    assert fit.latency_ms["onnx"] == pytest.approx(0.23, abs=0.01) and fit.ratio("onnx", "eager").ci95 is None


def under_load() -> dict[str, list[Record]]:
    """Return contests under load, and of whole requests and generations."""
    eager, streams = carrying("eager", [400, 402, 401]), {"scenario": Scenario.SINGLE_STREAM, "ceiling": 0.01}
    nothing = once(1.0, "eager").but(load=Load(scenario=Scenario.SERVER, reason="too slow"))
    growing = [window(p50_ms=5.0 + part, p99_ms=25.0, joules=50.0, energy_source="RAPL") for part in range(6)]
    falling = [window(rate, asked_rate=None) for rate in (400.0, 400.0, 400.0, 400.0, 200.0, 200.0)]
    missed = [window(600.0, p99_ms=25.0)] * 6

    def short(seconds: float, requests: int) -> Record:
        turns = [
            turn.but(windows=[window(seconds=seconds, requests=requests)])
            for turn in eager.load.turns  # type: ignore[union-attr]
        ]
        return eager.but(load=eager.load.but(turns=turns))  # type: ignore[union-attr]

    def of_soak(soak: Sequence[object], *lower: object, **more: object) -> list[Record]:
        return [carrying("eager", [400, 402, 401], soak=soak, lower_soak=lower, **more)]

    return {
        "load": [carrying("onnx", [350, 352, 349]), carrying("openvino", [410, 414, 409])],
        "load by latencies": [
            carrying("onnx", [2.0, 2.02, 1.99], **streams), carrying("eager", [4.0, 4.1, 4.05], **streams)
        ],
        "a rate near the generator's": [carrying("onnx", [6000, 6010, 5990], ceiling=9000.0), eager],
        "a loser's rate near the generator's": [
            carrying("onnx", [600, 601, 599]), carrying("eager", [400, 402, 401], ceiling=500.0)
        ],
        **{
            f"a cell that missed even at {lowest:g}": [
                eager,
                carrying("openvino", [600, 601, 602], soak=missed, lower_soak=[window(lowest, p99_ms=25.0)] * 3),
            ]
            for lowest in (280.0, 450.0)
        },
        "eager that does not repeat itself under load": [
            carrying("onnx", [600, 601, 599]), eager.but(doubts=[Unchecked(why=EAGER_DIFFERS)])
        ],
        "a soak in which latencies grow": of_soak(growing, *[window(360.0)] * 3),
        **{
            f"lower soaks, the last one at {p99_ms} ms": of_soak(
                [window(p99_ms=25.0)] * 6, *[window(360.0, p99_ms=24.0)] * 2, *[window(280.0, p99_ms=p99_ms)] * 3
            )
            for p99_ms in (14.0, 21.9, 22.1)
        },
        **{
            f"a soak at {asked:g}": of_soak(
                [window(405.0, p99_ms=25.0, asked_rate=asked)] * 6, *[window(280.0)] * 3
            )
            for asked in (300.0, 395.0)
        },
        "a queue that comes and goes": of_soak([window(p50_ms=ms) for ms in (13.0, 32.6, 9.1, 12.7, 13.3, 13.1)]),
        "a soak of saturation that becomes slower": of_soak(falling, scenario=Scenario.OFFLINE),
        **{
            f"windows of {seconds} s with {requests} requests": [short(seconds, requests)]
            for seconds, requests in ((0.5, 300), (2.1, 300), (0.5, 1000))
        },
        "requests that failed": of_soak([window(failed=3, failure="RuntimeError: no")]),
        "no value, and wrong answers": [
            nothing,
            carrying("onnx", [900, 901, 902]).but(status=Status.INCORRECT),
            carrying("openvino", [400, 402, 401]),
        ],
        "slow stages around a quick model": [
            staged(lived(0.1, "onnx"), before=20.0), staged(lived(0.4, "eager"), before=20.0)
        ],
        "quick stages around a model": [
            staged(lived(ms, name), before=1.0, after=0.5) for name, ms in (("onnx", 1.0), ("eager", 4.0))
        ],
        "slow stages in one process": [
            staged(once(0.0036, "onnx"), before=2.11), staged(once(0.0155, "eager"), before=2.11)
        ],
        "a model that is a fifth of a request, in one process": [
            staged(once(5.0, "onnx"), before=20.0), staged(once(5.2, "eager"), before=20.0)
        ],
        "stages in one process": [staged(once(0.1, "onnx"), before=2.11), staged(once(0.18, "eager"), before=2.11)],
        "generations": [*both(100.0, 10.0, "eager"), *both(150.0, 2.0, "onnx", build_s=3.0)],
        "generations with a wrong step": [
            *both(100.0, 10.0, "eager"),
            part("prefill", 50.0, "onnx"),
            failed(part("decode", 1.0, "onnx").cell, Status.INCORRECT, "output 0: wrong"),
        ],
    }  # fmt: skip


def evaluated(scores: metrics.Scores, reference: metrics.Scores) -> list[Record]:
    """Return a quick build with these scores beside a slow one with those of the reference."""
    return [metrics.measured("onnx", scores, reference), metrics.measured("eager", reference, reference, ms=2.0)]


def required() -> dict[str, tuple[str, list[Record]]]:
    """Return contests with what is required of a cell."""
    draw = random.Random(3)
    rates = [0.1 + draw.uniform(-0.05, 0.05) for _ in range(400)]
    higher = evaluated([each + draw.uniform(-0.005, 0.005) for each in rates], rates)
    negative = [-2.0 + 0.1 * (place % 7) for place in range(200)]
    lower = evaluated([each - 0.1 for each in negative], negative)
    hard = [draw.gauss(10.0, 3.0) for _ in range(100)]
    scores, eight = [0.2, 0.9, 0.5, 0.7] * 2, right(8)
    eager = metrics.measured("eager", eight, eight, ms=2.0)
    several = eager.cell.but(compared=(Precision.FP32, Precision.BF16))
    nan = metrics.failed(metrics.measured("onnx", eight, eight), metrics=metrics.NAN)
    of_reference = [
        metrics.failed(once(ms, name), reference_metrics=metrics.NAN) for name, ms in (("eager", 2.0), ("onnx", 1.0))
    ]
    unheld = accuracy(1e-7).but(changes=4, changes_unheld=1)
    boxes, wide = ({"eager_rmse": 1e-2, "eager_relative_rmse": error} for error in (1e-7, 2e-3))
    across = precisions.records()
    return {
        "two limits": ("median_ms>1.2, median_ms<2.9", [*TRIPLE, lived(1.5, "iree"), lived(2.0, "openvino")]),
        "slower than a cell that may not win": ("build_s<10", [once(1.0, "onnx", build_s=60.0), once(2.0, "inductor")]),
        "two near each other within limits": (
            "median_ms>1.2, median_ms<2.9",
            [*PAIR[:1], TRIPLE[2], lived(1.5, "inductor", UNEVEN), lived(1.53, "openvino", UNEVEN_TOO)],
        ),
        **{
            f"{len(each)} samples, all right": ("top1>-1%", evaluated(each, each))
            for each in (eight, right(388), right(800))
        },
        "800 samples, and no loss allowed": ("top1>=0%", evaluated(right(800), right(800))),
        "100 of 800 samples wrong": ("top1>-1%", evaluated(right(800, 100), right(800))),
        "100 of 800 samples wrong, and more allowed": ("top1>-20%", evaluated(right(800, 100), right(800))),
        "equal scores of 8 samples": ("top1>-3%", evaluated(scores, scores)),
        "equal scores of 800 samples": ("top1>-3%", evaluated(scores * 100, scores * 100)),
        "a metric of zero that may fall": ("top1>-5%", evaluated([0.0] * 800, [0.0] * 800)),
        "a metric of zero that must rise": ("top1>+5%", evaluated([0.0] * 800, [0.0] * 800)),
        "scores that lose the same everywhere": (
            "top1>-1%", evaluated([each - 0.5 + draw.gauss(0, 0.1) for each in hard], hard)
        ),
        **{
            f"a rate of errors with {require}": (require, higher)
            for require in ("top1<0.12", "top1<0.10", "top1<0.08", "top1<=+10%", "top1<+0.1%", "top1<-50%")
        },
        "a negative metric that fell by 5 %": ("top1>-1%", lower),
        "a negative metric that fell by less than allowed": ("top1>-10%", lower),
        "a plain number within the limit": ("top1>-2%", evaluated(0.75, 0.76)),
        "a plain number beyond the limit": ("top1>-1%", evaluated(0.75, 0.76)),
        "eager alone": ("top1>-1%", [eager]),
        "eager alone that may lose nothing": ("top1>=0%", [eager]),
        "eager alone across precisions": ("top1>-1%", [eager.but(cell=several)]),
        "a build that was not evaluated": ("", [nan, eager]),
        "a build that was not evaluated and must be": ("top1>-1%", [nan, eager]),
        "a reference that was not evaluated": ("", of_reference),
        "a reference that was not evaluated and must be": ("top1>-1%", of_reference),
        "a reference whose metric varies": (
            "", [metrics.measured("eager", 0.62, 0.6), metrics.measured("onnx", 0.61, 0.6, ms=2.0)]
        ),
        "a reference whose metric hardly varies": (
            "", [metrics.measured("eager", 0.600001, 0.6), metrics.measured("onnx", 0.61, 0.6, ms=2.0)]
        ),
        **{
            f"{precision} judged by its calibration data": ("top1>-1%", by_calibration(precision))
            for precision in (Precision.INT8, Precision.FP32)
        },
        **{
            f"across precisions{', ' if require else ''}{require}": (require, across)
            for require in ("", "median_ms<3", *(f"relative_rmse<{limit}" for limit in ("5e-2", "1e-2", "1e-6", "0")))
        },
        **{
            f"across precisions with a metric{', ' if require else ''}{require}": (require, precisions.evaluated())
            for require in ("", "top1>-5%", "top1>-1%", "top1>=0%")
        },
        "across precisions without the fastest of float32": ("", [across[0], *across[2:]]),
        "across precisions without float32": (
            "", [failed(one.cell, Status.OOM, "") if one.cell.precision is Precision.FP32 else one for one in across]
        ),
        "int8 that rounds nothing": ("", [*across, precisions.record("openvino", "int8", 0.9, error=2e-7)]),
        "int8 that was not compared": (
            "", [*across, checked(precisions.record("openvino", "int8", 0.9), unchecked="random")]
        ),
        "errors relative to another output": ("", [checked(one, **boxes) for one in across]),
        "errors within four times eager's": ("", [checked(one, **wide) for one in across]),
        "a step in bf16": ("", [*across, precisions.record("inductor", "bf16", 0.9, error=1e-7)]),
        "a step that bf16 does not hold": (
            "",
            [*across, precisions.record("inductor", "bf16", 0.9).but(accuracy=unheld)],
        ),
    }  # fmt: skip


def by_calibration(precision: Precision) -> list[Record]:
    """Return a contest in this precision whose metric is of samples of which some calibrated it."""
    return [
        each.but(
            cell=each.cell.but(precision=precision),
            reference_metrics=each.reference_metrics.but(judged=800, calibrating=64),
        )
        for each in evaluated(right(800), right(800))
        if each.reference_metrics
    ]


def checked(record: Record, **update: object) -> Record:
    return record.but(accuracy=record.accuracy and record.accuracy.but(**update))


def test_contests_are_judged_as_before() -> None:
    plain = contests() | that_leave() | on_shared_machines() | hardly_known() | under_load()
    scenes = {name: ("", records) for name, records in plain.items()} | required()
    lines = []
    for name, (require, records) in scenes.items():
        for contest in judged(records, request={"require": require}).contests[-1:]:
            lines.append(f"{name}: {in_short(contest, require)}")
    same_as_golden("verdicts.txt", "\n".join(lines))
