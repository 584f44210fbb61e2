"""Several runs: two against each other, one of each machine, and the steps of a bisection."""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.judging.bisection import Bisection, Call, TriedVersion, call_of, judge_step
from bakeoff.judging.change import Change, latency_change, relative_change
from bakeoff.judging.compare import FAIL_ON, Comparison, Outcome, compare, parse_fail_on, parse_share
from bakeoff.judging.estimate import series_of
from bakeoff.judging.fit import Fit, fit
from bakeoff.judging.history import history_of
from bakeoff.judging.machines import machines_of, names_of, parse_prices
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.failure import Failure
from bakeoff.records.metrics import Metrics
from bakeoff.records.schema import Burst, Cell, Energy, Interval, Ratio, Record, Report, Status, Throughput
from bakeoff.records.text import counted
from bakeoff.reports import markdown
from bakeoff.reports.bisection import conclusion, step_line, steps_table
from bakeoff.reports.comparison import COMMENT_LIMIT, headline, to_markdown
from bakeoff.reports.machines import answer, blocks_of
from bakeoff.reports.number_format import spell_change
from tests.reports import samples
from tests.reports.samples import cell, environment, failed, ok, once, over_processes, report, roofline, steady, under
from tests.support.golden import same_as_golden

EAGER_MS = 1.7


def one_cell(levels_ms: Sequence[float]) -> Fit:
    return fit({"onnx": series_of(steady(levels_ms))})


def change_of(base_ms: Sequence[float], new_ms: Sequence[float]) -> Change:
    return latency_change(one_cell(base_ms), one_cell(new_ms), "onnx")


def measured(levels_ms: Sequence[float], calibration_ms: float | None = None) -> list[Burst]:
    """Bursts of one process per level, whose calls all take just that."""
    made = steady(levels_ms, rounds=5)
    return under(made, calibration_ms=calibration_ms) if calibration_ms else made


def levels(median_ms: float, seed: int, processes: int = 3, noise: float = 0.01) -> list[float]:
    """What processes of one cell come out at: 1 % apart, whatever is done."""
    random = np.random.default_rng(seed)
    return [float(median_ms * math.exp(random.normal(0, noise))) for _ in range(processes)]


def run(seed: int = 0, machine: float = 1.0, processes: int = 3, **medians_ms: float) -> Report:
    """eager and the cells named, on a machine that is `machine` times as slow as usual."""
    wanted = {"eager": EAGER_MS} | medians_ms
    records = [
        ok(cell(name), measured(levels(median * machine, seed + place, processes)))
        for place, (name, median) in enumerate(wanted.items())
    ]
    return report(records)


def outcomes(comparison: Comparison) -> dict[str, str]:
    return {change.cell.label: change.outcome.value for change in comparison.cells}


def elsewhere(found: Report, **changed: object) -> Report:
    return found.but(environment=found.environment.but(**changed))


def test_runs_that_share_no_cell_are_refused() -> None:
    with pytest.raises(UsageError, match="share no cell"):
        compare(report([ok(cell(), measured([1]))]), report([ok(cell(model="mlp"), measured([1]))]))


@pytest.mark.parametrize("unusual", [{"cold_cache": True}, {"inputs_from": "host"}], ids=str)
def test_runs_whose_calls_are_made_in_another_way_are_refused(unusual: dict[str, Any]) -> None:
    hot, cold = (report([ok(cell(**fields), measured([1]))]) for fields in ({}, unusual))
    with pytest.raises(UsageError, match="measure both with the same --cold-cache and --inputs-from"):
        compare(hot, cold)
    assert outcomes(compare(cold, cold)) == {"eager": "cannot tell"}  # one process each


# --- where nothing can be told


def test_the_number_of_processes_that_wide_intervals_ask_for_would_decide() -> None:
    names = ("eager", "onnx", "openvino", "inductor")

    def at_noise(seed: int, processes: int) -> Report:
        """Cells whose processes differ by 4 %."""
        return report(
            [
                ok(cell(name), measured(levels(1.0, seed + place, processes, noise=0.04)))
                for place, name in enumerate(names)
            ]
        )

    found = compare(at_noise(10, 3), at_noise(50, 3))
    nothing = found.inconclusive
    assert nothing is not None and nothing.processes is not None and nothing.is_enough
    assert 20 < nothing.processes < 80, "Student's interval of half of 5 % takes 43"
    assert headline(found) == (
        "Nothing can be said: the processes of a cell differ by more than the runs do; to see a change of 5 % takes "
        f"about {nothing.processes} of each (--processes)."
    )
    assert set(outcomes(compare(at_noise(10, nothing.processes), at_noise(50, nothing.processes))).values()) == {"same"}


# --- metrics of the user's own


def of_onnx(scores: samples.Scores | None, reference: samples.Scores = 1.0, ms: float = 1.0) -> Report:
    cells = {"eager": (reference, 1.0), "onnx": (scores, ms)}
    return report(
        [
            samples.scored(ok(cell(name), measured([level] * 3)), its, reference, higher_is_better={"top1": True})
            for name, (its, level) in cells.items()
        ]
    )


GOOD, HALF = [1.0] * 200, [1.0, 0.0] * 100


# --- what is said


def changed(found: Report, **fields: object) -> Report:
    return found.but(**fields)


def built_earlier(built_at: str = "") -> Report:
    made = ok(cell("onnx"), measured([1, 1, 1]), build_s=3.0)
    phases = [each.but(built_at=built_at) for each in made.phases]
    return report([made.but(phases=phases)])


def of_one_process(scores: list[float]) -> Report:
    made = of_onnx(scores)
    records = [record.but(bursts=measured([1.0]), processes=record.processes[:1]) for record in made.records]
    return changed(made, records=records)


def of_calibrated(*levels_ms: float) -> Report:
    return report([ok(cell(), measured(levels_ms, calibration_ms=5.0))])


def not_evaluated() -> Report:
    failure = Metrics(failure=Failure(kind="KeyError", text="no column 'label'"))
    made = of_onnx(GOOD)
    lost = [record.but(metrics=None, reference_metrics=failure) for record in made.records]
    return changed(made, records=lost)


UNDECIDED = report([ok(cell("onnx"), steady([1.0, 1.04, 0.96])), ok(cell("inductor"), steady([1.0, 1.03, 1.06]))])


def of_files(net: str, weights: str, machine: float = 1.0) -> Report:
    digests = {"own_files": {"net.py": net, "net.yaml": "11111111"}, "weights": {cell("eager").reference_id: weights}}
    return changed(run(5 if machine > 1 else 0, machine=machine, onnx=0.9), **digests)


def of_machine(onnx_ms: float, **where: object) -> Comparison:
    return compare(run(0, onnx=0.9), elsewhere(run(5, onnx=onnx_ms), **where))


OTHER_DRIVER = environment().gpus[0].but(driver="580.2")
SAID: dict[str, Callable[[], Comparison]] = {
    "another CPU": lambda: of_machine(1.9, cpu="Xeon"),
    "other threads": lambda: of_machine(1.9, torch_threads=4),
    "other GPUs": lambda: of_machine(1.9, gpus=[]),
    "another CPU, and a small change": lambda: of_machine(0.99, cpu="Xeon"),
    "another environment": lambda: of_machine(
        1.1, versions={"torch": "2.10.0", "onnxruntime": "1.23.0"}, governor="powersave", cuda="13.0", variables={},
        gpus=[OTHER_DRIVER],
    ),
    "another variable of the model": lambda: compare(
        elsewhere(run(0, onnx=0.9), own_variables={"MY_WIDTH": "0a1b", "MY_DEPTH": "2c"}),
        elsewhere(run(5, machine=1.08, onnx=0.9), own_variables={"MY_WIDTH": "", "MY_DEPTH": "2c"}),
    ),
    "another model": lambda: compare(of_files("0a1b2c3d", "aa" * 32), of_files("ffffffff", "bb" * 32, machine=1.08)),
    "a calibration that stood still": lambda: compare(of_calibrated(1.7, 1.71, 1.69), of_calibrated(1.9, 1.91, 1.89)),
    "single processes": lambda: compare(run(0, processes=1, onnx=0.9), run(5, processes=1, onnx=0.9)),
    "eager's single process moved": lambda: compare(
        apart([1, 1.01, 0.99], [0.5, 0.501, 0.499]), apart([1.19], [0.54, 0.541, 0.539])
    ),
    "no samples": lambda: compare(report([ok(cell(), [])]), report([ok(cell(), [])])),
    "interrupted and undecided": lambda: compare(UNDECIDED, changed(UNDECIDED, complete=False, planned=3)),
    "a build of an earlier run": lambda: compare(built_earlier(), built_earlier("2026-01-02T03:04:05+00:00")),
    "builds of earlier runs": lambda: compare(*[built_earlier("2026-01-02T03:04:05+00:00")] * 2),
    "a worse metric": lambda: compare(of_onnx(GOOD, GOOD), of_onnx(HALF, GOOD)),
    "a metric that is NaN": lambda: compare(of_onnx(GOOD), of_onnx(None)),
    "a metric of single processes": lambda: compare(of_one_process(GOOD), of_one_process(GOOD)),
    "a worse metric of single processes": lambda: compare(of_one_process(GOOD), of_one_process(HALF)),
    "a worse reference": lambda: compare(of_onnx(GOOD, GOOD), of_onnx(HALF, HALF)),
    "no metric any more": lambda: compare(of_onnx(GOOD), not_evaluated()),
}  # fmt: skip


def in_short(comparison: Comparison) -> str:
    """Return the headline, and `onnx slower, a regression; eager same; fails slower: onnx`: what became of each cell
    and why, what a gate on each word fails on, and which contests are undecided."""
    cells = []
    for change in comparison.cells:
        reason = change.reason
        why = [str(each) for each in (reason.kind, reason.latency, reason.relative) if each] if reason else []
        why += [f"over {reason.margin:.0%}"] if reason and reason.margin else []
        cells.append(
            f"{change.cell.label} {change.outcome}{', a regression' if change.is_regression else ''}"
            + (f" ({', '.join(why)})" if why else "")
        )
    failing = {word: [change.cell.label for change in comparison.failing({word})] for word in FAIL_ON}
    fails = [f"fails {word}: {', '.join(labels)}" for word, labels in failing.items() if labels]
    moved = [f"{control.label} moved" for control in comparison.controls.values() if control.moved]
    undecided = {"base": comparison.undecided_in_base, "new": comparison.undecided_in_new}
    open_in = [f"undecided in {name}: {', '.join(titles)}" for name, titles in undecided.items() if titles]
    return f"{headline(comparison)} " + "; ".join([*cells, *moved, *fails, *open_in])


def waited(made: Report, wait_share: float, label: str = "") -> Report:
    """Return the run with threads that waited for cores, those of one cell or of all."""
    at_work = {"wait_share": wait_share, "cpu_share": 1.2, "others_cores": 2.0}
    records = [
        ok(each.cell, under(each.bursts, **at_work)) if label in ("", each.cell.label) else each
        for each in made.records
    ]
    return made.but(records=records)


def apart(eager: Sequence[float], onnx: Sequence[float]) -> Report:
    return report([ok(cell(), measured(eager)), ok(cell("onnx"), measured(onnx))])


def noisy(seed: int, noise: float) -> Report:
    medians_ms = {"eager": 1.0, "onnx": 0.9}
    return report([ok(cell(label), measured(levels(ms, seed, noise=noise))) for label, ms in medians_ms.items()])


def of_a_file(onnx: float, openvino: float | None, seed: int) -> Report:
    """A run of an ONNX file, which has no row called eager."""
    medians = {"onnx": onnx} | ({"openvino": openvino} if openvino else {})
    cells = [cell(name).but(model="onnx:m.onnx") for name in medians]
    timed = [levels(median, seed + place) for place, median in enumerate(medians.values())]
    return report([ok(one, measured(of_one)) for one, of_one in zip(cells, timed, strict=True)])


def ended(status: Status | None, label: str = "onnx", **more: object) -> Record:
    return failed(cell(label), status, "so", **more) if status else ok(cell(label), STEADY)


def undeclared(scores: list[float], require: str = "") -> Report:
    """Return a run whose `evaluate` does not say that higher is better."""
    made = of_onnx(scores, GOOD)
    records = [record.but(metrics=record.metrics.but(higher_is_better={})) for record in made.records if record.metrics]
    return made.but(records=records, request=made.request | {"require": require})


STEADY = measured([1, 1, 1])
OTHER_MACHINES: dict[str, dict[str, object]] = {
    "CPU": {"cpu": "Xeon"},
    "number of threads": {"torch_threads": 4},
    "GPU": {"gpus": []},
}
ALL_OK = report([ended(None, name) for name in ("eager", "onnx", "openvino")])
UNREACHED = failed(cell("onnx"), Status.NOT_REACHED, "--budget was over", asked_by_name=True)
PARTIAL = report([ok(cell(), measured([EAGER_MS] * 3)), UNREACHED])


def scenes() -> dict[str, Comparison]:
    base, single = run(0, onnx=0.9), run(0, processes=1, onnx=0.9)
    pair = report([ended(None, "eager"), ended(None)])
    small = apart([1, 1, 1], [1, 1.001, 0.999]), apart([1, 1, 1], [1.03, 1.031, 1.029])
    metrics = {
        "half of the samples wrong": (GOOD, HALF),
        "half of the samples right again": (HALF, GOOD),
        "2 of 200 samples wrong": (GOOD, [*GOOD[:-2], 0.0, 0.0]),
        "a plain number that fell by 11 %": (0.9, 0.8),
        "a plain number that fell by 3 %": (0.9, 0.87),
        "half of 100 other samples wrong": (GOOD, HALF[:100]),
        "a metric that is not known any more": (GOOD, None),
        "a metric that is not known in either": (None, None),
    }
    return {
        **{f"a tenth, {seed}": compare(run(seed, onnx=0.9), run(seed + 5, onnx=0.99)) for seed in range(0, 100, 20)},
        **{
            f"a slower machine, {seed}": compare(
                run(seed, onnx=0.9, openvino=0.5), run(seed + 5, machine=1.08, onnx=0.9, openvino=0.5)
            )
            for seed in range(0, 100, 20)
        },
        "forty times": compare(base, run(5, onnx=40.0)),
        "forty times that waited for cores": compare(base, waited(run(5, onnx=40.0), 1.4, "onnx")),
        "wide intervals": compare(noisy(0, 0.05), noisy(5, 0.05)),
        "intervals that waiting made wide": compare(noisy(0, 0.001), waited(noisy(5, 0.001), 0.3)),
        "a slower machine and a slower cell": compare(base, run(5, machine=1.08, onnx=0.9 * 1.15)),
        "a quicker machine": compare(base, run(5, machine=0.8, onnx=0.9)),
        "a slower eager": compare(base, run(5, onnx=0.9, eager=EAGER_MS * 1.3)),
        "3 % where 5 % are allowed": compare(*small),
        "3 % where 2.5 % are allowed": compare(*small, fail_above=0.025),
        "8 % beside an eager that varies": compare(
            apart([1, 1.2, 0.85], [1, 1.001, 0.999]), apart([1.1, 0.9, 1.2], [1.08, 1.081, 1.079])
        ),
        **{
            f"{factor} times in a single process": compare(single, run(0, processes=1, onnx=0.9 * factor))
            for factor in (1.0, 1.2, 1.3, 0.7)
        },
        **{
            f"{factor} times without eager": compare(
                report([ok(cell("onnx"), measured([1, 1.01, 0.99]))]),
                report([ok(cell("onnx"), measured([factor, 1.01 * factor, 0.99 * factor]))]),
            )
            for factor in (1.2, 1.4)
        },
        "an ONNX file": compare(of_a_file(1.0, 2.0, 0), of_a_file(1.0, 2.3, 5)),
        **{
            f"ONNX Runtime {factor} times{' alone' if openvino is None else ''}": compare(
                of_a_file(1.0, openvino, 0), of_a_file(factor, openvino, 5)
            )
            for openvino in (2.0, None)
            for factor in (1.12, 1.5)
        },
        **{
            f"{before or 'ok'}, then {after or 'ok'}": compare(
                report([ended(None, "eager"), ended(before)]), report([ended(None, "eager"), ended(after)])
            )
            for before, after in (
                *((None, status) for status in Status if status.is_failure),
                (None, Status.UNAVAILABLE),
                (Status.CRASH, Status.TIMEOUT),
                (Status.CRASH, Status.CRASH),
                (Status.UNAVAILABLE, Status.CRASH),
                (Status.UNSUPPORTED, Status.UNSUPPORTED),
                (Status.CRASH, None),
            )
        },
        "ok, then unavailable and asked for": compare(
            pair, report([ended(None, "eager"), ended(Status.UNAVAILABLE, asked_by_name=True)])
        ),
        "other cells": compare(base, run(5, openvino=0.5)),
        "one slower and one wrong": compare(
            ALL_OK,
            report(
                [ended(None, "eager"), ok(cell("onnx"), measured([1.2, 1.2, 1.2])), ended(Status.INCORRECT, "openvino")]
            ),
        ),
        "not reached in the new run": compare(base, PARTIAL),
        "not reached in the base run": compare(PARTIAL, base),
        "not reached in both": compare(report([UNREACHED]), report([UNREACHED])),
        **{name: compare(of_onnx(old, GOOD), of_onnx(new, GOOD)) for name, (old, new) in metrics.items()},
        "slower and worse": compare(of_onnx(GOOD), of_onnx(HALF, ms=1.5)),
        **{
            f"a metric that fell, with {require or 'nothing'} required": compare(
                undeclared(GOOD), undeclared(HALF, require)
            )
            for require in ("", "top1>-1%", "top1<1.5")
        },
        **{
            f"another {name}, {factor} times": of_machine(0.9 * factor, **OTHER_MACHINES[name])
            for name in OTHER_MACHINES
            for factor in (1.1, 2.1)
        },
        **{
            f"2 % apart in {counted(processes, 'process')}": compare(
                *[report([ok(cell(label), steady([ms] * processes)) for label, ms in (("onnx", 1.0), ("iree", 1.02))])]
                * 2
            )
            for processes in (1, 2)
        },
    }


def test_changes_are_called_as_before() -> None:
    same_as_golden("changes.txt", "\n".join(f"{name}: {in_short(found)}" for name, found in scenes().items()))


def test_comparisons_are_reported_as_before() -> None:
    lines = []
    for name, made in SAID.items():
        lines += [f"## {name}: {headline(made())}", to_markdown(made())]
    same_as_golden("comparisons.md", "\n".join(lines))


def test_an_older_run_says_nothing_of_files_and_weights() -> None:
    base = of_files("0a1b2c3d", "aa" * 32)
    assert not compare(base, base).differences
    assert not compare(base, run(5, onnx=0.9)).differences


# --- properties

medians = st.floats(0.01, 100)
processes = st.lists(medians, min_size=1, max_size=4)


@given(processes, processes)
def test_a_report_compared_with_itself_has_not_changed(eager: list[float], onnx: list[float]) -> None:
    same = report([ok(cell(), measured(eager)), ok(cell("onnx"), measured(onnx))])
    found = compare(same, same)
    assert {change.outcome for change in found.cells} <= {Outcome.SAME, Outcome.CANNOT_TELL}
    assert found.regressions == []


MIRRORED = {"slower": "faster", "faster": "slower"}


@given(st.lists(st.floats(0.8, 1.25), min_size=4, max_size=4), st.integers(1, 3), st.integers(0, 2**16))
def test_swapping_the_runs_mirrors_the_verdicts(factors: list[float], count: int, seed: int) -> None:
    one = run(seed, factors[0], count, onnx=0.9 * factors[1])
    other = run(seed + 7, factors[2], count, onnx=0.9 * factors[3])
    forwards, backwards = outcomes(compare(one, other)), outcomes(compare(other, one))
    assert {label: MIRRORED.get(outcome, outcome) for label, outcome in forwards.items()} == backwards


@given(processes, processes)
def test_a_change_is_symmetric(base: list[float], new: list[float]) -> None:
    there, back = change_of(base, new), change_of(new, base)
    assert there.log == pytest.approx(-back.log)
    assert (there.half_width is None) == (min(len(base), len(new)) < 2)
    if there.half_width is not None:
        assert there.half_width == pytest.approx(back.half_width)


# --- the numbers


def test_the_interval_is_welchs() -> None:
    """Against a calculation by hand: variances 0.01 and 0.04 of the logarithms, 2.94 degrees of freedom."""
    base, new = [math.exp(x) for x in (-0.1, 0.0, 0.1)], [math.exp(x) for x in (0.3, 0.5, 0.7)]
    change = change_of(base, new)
    assert change.log == pytest.approx(0.5, abs=1e-3)
    assert change.half_width == pytest.approx(0.4156, abs=2e-3)  # 3.22 times sqrt(0.05 / 3)
    assert change.ci95 and change.ci95.low < change.value < change.ci95.high


def test_processes_that_agree_to_the_last_bit_have_an_interval() -> None:
    assert change_of([1.0, 1.0], [1.1, 1.1]).half_width == 0
    one_sided = change_of([1.0, 1.0, 1.0], [1.1, 1.2, 1.15])
    assert one_sided.half_width and one_sided.half_width > 0


def test_a_cell_without_samples_has_not_changed() -> None:
    assert latency_change(one_cell([]), one_cell([1.0]), "onnx") is None


def test_the_change_beside_the_baseline_is_free_of_what_the_machine_did() -> None:
    """The machine is three times slower in the new run, and from process to process: onnx takes half as long."""
    base = fit({"eager": series_of(steady([1.0, 1.2])), "onnx": series_of(steady([2.0, 2.4, 9.0]))})
    new = fit({"eager": series_of(steady([3.0, 3.9])), "onnx": series_of(steady([3.0, 3.9]))})
    change = relative_change(base, new, "onnx", "eager")
    assert change is not None and change.half_width is not None
    assert change.value == pytest.approx(0.5, rel=1e-3)
    assert change.half_width < 1e-3
    assert relative_change(base, one_cell([1.0]), "onnx", "eager") is None


@pytest.mark.parametrize(("text", "share"), [("5%", 0.05), ("2.5 %", 0.025), ("100%", 1.0)])
def test_a_share_is_written_in_percent(text: str, share: float) -> None:
    assert parse_share(text) == pytest.approx(share)


@pytest.mark.parametrize(
    ("parse", "text", "said"),
    [
        *((parse_share, text, "write a percentage over 0, such as 5%")
          for text in ("5", "0.05", "-5%", "0%", "", "five", "nan%")),
        (parse_fail_on, "slow", r"did you mean 'slower'\? \(--fail-on takes slower, broken, worse, incorrect"),
    ],
)  # fmt: skip
def test_another_word_is_refused(parse: Callable[[str], object], text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse(text)


@pytest.mark.parametrize(
    ("change", "spelled"),
    [
        (Change(math.log(1.0816), 0.03), "+8.2 % [+5.0,\u00a0+11]"),
        (Change(0.0, None), "+0.0 %"),
        (Change(math.log(0.99999), None), "+0.0 %"),
        (Change(math.log(3), None), "+200 %"),
    ],
)
def test_a_change_is_spelled_in_percent(change: Change, spelled: str) -> None:
    assert spell_change(change) == spelled


# --- the page


def test_what_does_not_fit_into_a_comment_leaves_its_folds_out() -> None:
    records: list[Record] = []
    for number in range(40):
        settings_in_force: dict[str, object] = {f"switch {each}": number for each in range(60)}
        records.append(ok(cell("onnx", f"mode-{number}"), measured([1, 1, 1]), precision_in_force=settings_in_force))
    before = [record.but(precision_in_force={}) for record in records]
    text = to_markdown(compare(report(before), report(records)))
    assert len(text) <= COMMENT_LIMIT
    assert "it would not fit into a comment" in text and "<details>" not in text


def build(median_ms: float, label: str, device: str = "cpu", model: str = "conv") -> Record:
    """Return a record of a cell that does ten calls in the time of its median, at 2 mJ each."""
    made = ok(cell(label, model=model, device=Device(device)), over_processes(median_ms))
    throughput = Throughput(calls_per_s=1e4 / median_ms, blocks=3, block_s=0.1)
    energy = Energy(joules_per_call=0.002, idle_w=100, calls=1000, seconds=1, source="NVML, the whole GPU")
    return made.but(throughput=throughput, energy=energy)


def test_widths_of_one_model_are_kept_apart() -> None:
    """Two runs of `live:Net`: no dimension says that one of them is twice as wide."""

    def run(flops: int, device: str = "cpu") -> Report:
        record = build(2.0, "eager", device, model="live:Net")
        floor = roofline(2.0).but(flops=flops)
        return report([record.but(roofline=floor)])

    alike = machines_of({"a": run(1_000), "b": run(1_000, "cuda")})
    assert len(alike.questions) == 1 and "FLOP" not in alike.questions[0].title
    differing = machines_of({"a": run(1_000), "b": run(4_000, "cuda")})
    assert not differing.questions
    assert differing.asked_once == ("live:Net (1,000 FLOP), fp32", "live:Net (4,000 FLOP), fp32")
    runs = {(datetime(2026, 1, day, tzinfo=UTC), f"run{day}"): run(flops) for day, flops in ((1, 1_000), (2, 4_000))}
    assert len(history_of(runs, []).contests) == 2


def test_machines_are_reported_as_before() -> None:
    small, large = [build(9.0, "eager"), build(3.0, "onnx")], [build(4.0, "eager", "cuda")]
    fast = [*large, build(1.0, "inductor", "cuda"), build(1.0, "onnx", model="mlp")]
    alike = {name: report([build(2.0, "eager"), build(ms, "onnx")]) for name, ms in (("a", 1.0), ("b", 1.001))}
    held = small[1].but(throughput=Throughput(calls_per_s=9.0, blocks=3, block_s=0.1))
    cases = {
        "priced": machines_of({"large": report(fast), "small": report(small)}, {"large": 3.6, "small": 0.36}),
        "alike": machines_of(alike),
        "a rate held down": machines_of(
            {"large": report(fast), "small": report([held, build(9.0, "eager")])}, {"large": 0.36, "small": 3.6}
        ),
        "one never tried": machines_of({"a": report(fast), "b": report([*large, build(2.0, "onnx", "cuda")])}),
        "one of another kind never tried": machines_of({"a": report(fast), "c": report([build(9.0, "eager")])}),
        "two hosts": machines_of({"a": report(small), "b": report(small), "c": elsewhere(report(small), hostname="x")}),
        "no common model": machines_of({"a": report(small), "b": report([build(2.0, "eager", model="mlp")])}),
    }
    lines = []
    for name, found in cases.items():
        lines += [f"## {name}", *map(answer, found.questions), markdown.render(blocks_of(found))]
    same_as_golden("several_machines.md", "\n".join(lines))


@pytest.mark.parametrize("text", ["2.5/h", "h200=2.5", "h200=x/h", "h200=-1/h", "=1/h"])
def test_a_price_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write what an hour of a machine costs"):
        parse_prices([text])


def test_a_price_of_an_unknown_machine_is_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'h200'"):
        machines_of({"h200": report([build(2.0, "eager")])}, parse_prices(["h20=2.5/h"]))


def test_machines_are_named_by_the_folders_of_their_reports(tmp_path: Path) -> None:
    for name in ("x/h200", "y/h200", "cpu"):
        (tmp_path / name).mkdir(parents=True)
    assert names_of([tmp_path / "x" / "h200" / "report.json", tmp_path / "cpu"]) == ["h200", "cpu"]
    with pytest.raises(UsageError, match="two folders are named h200"):
        names_of([tmp_path / "x" / "h200", tmp_path / "y" / "h200"])


VERSIONS = tuple(f"1.{minor}" for minor in range(12))


def ratio(value: float, half_width: float = 0.005, processes: int = 10) -> Ratio:
    interval = Interval(low=value * math.exp(-half_width), high=value * math.exp(half_width))
    return Ratio(value=value, ci95=interval, paired=True, processes=processes)


def walked(judge: Callable[[str], TriedVersion], versions: tuple[str, ...] = VERSIONS) -> Bisection:
    found = Bisection(package="toy", backend="onnx", versions=versions)
    while version := found.next_version:
        found = found.but(steps=(*found.steps, judge(version)))
    return found


def slow_from(first: str, odd: Mapping[str, Call] | None = None) -> Callable[[str], TriedVersion]:
    """Return a judge to whom every version from `first` on takes 1.3 times as long."""

    def judge(version: str) -> TriedVersion:
        is_slow = VERSIONS.index(version) >= VERSIONS.index(first)
        call = (odd or {}).get(version, Call.SLOW if is_slow else Call.FAST)
        if call is Call.SKIPPED:
            return TriedVersion(version=version, call=call, reason="no wheel")
        above = 1.3 if is_slow else 1.0
        return TriedVersion(version=version, call=call, over_good=ratio(above), below_bad=ratio(1.3 / above))

    return judge


@pytest.mark.parametrize("first", VERSIONS[1:])
def test_the_first_slow_version_is_found_in_few_steps(first: str) -> None:
    found = walked(slow_from(first))
    assert found.first_slow is not None and found.first_slow.version == first
    assert len(found.steps) <= 1 + math.ceil(math.log2(len(VERSIONS) - 1))


def test_two_neighbours_need_one_step() -> None:
    found = walked(slow_from("1.1"), ("1.0", "1.1"))
    assert [step.version for step in found.steps] == ["1.1"] and found.first_slow is found.steps[0]


ODD = {"1.5": Call.SKIPPED, "1.6": Call.UNDECIDED}


def ending_at_once(call: Call, above: float) -> Bisection:
    return walked(lambda version: TriedVersion(version=version, call=call, over_good=ratio(above)))


def in_two_steps(version: str) -> TriedVersion:
    return TriedVersion(version=version, call=Call.SLOW, over_good=ratio(1.2), below_bad=ratio(1.1))


CASES: dict[str, Bisection] = {
    "a first slow version": walked(slow_from("1.7")),
    "odd versions beside it": walked(slow_from("1.9", ODD)),
    "odd versions around it": walked(slow_from("1.6", ODD)),
    "ends alike": ending_at_once(Call.FAST, 1.0),
    "the end is faster": ending_at_once(Call.FAST, 0.8),
    "ends not told apart": ending_at_once(Call.UNDECIDED, 1.03),
    "a slowdown in two versions": walked(in_two_steps),
}


def test_bisections_are_reported_as_before() -> None:
    lines = []
    for name, found in CASES.items():
        steps = [step_line(found, step) for step in found.steps]
        table = steps_table(found)
        rows = [" | ".join(column.text_of(row) for column in table.columns) for row in table.rows]
        lines += [f"{name}: {told}" for told in (*steps, *rows, conclusion(found))]
    same_as_golden("bisections.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("over_good", "below_bad", "call"),
    [
        (ratio(1.3), None, Call.SLOW),
        (ratio(1.0), None, Call.FAST),
        (ratio(0.8), None, Call.FAST),
        (ratio(1.0, half_width=0.2), None, Call.UNDECIDED),
        (ratio(1.0, processes=1), None, Call.UNDECIDED),
        (ratio(1.3), ratio(1.0), Call.SLOW),
        (ratio(1.3), ratio(1.2), Call.SLOW),
        (ratio(1.0), ratio(1.3), Call.FAST),
        (ratio(0.9), ratio(1.4), Call.FAST),
        (ratio(1.03, half_width=0.025), ratio(1.3), Call.UNDECIDED),
        (ratio(1.1, half_width=0.3), ratio(1.1, half_width=0.3), Call.UNDECIDED),
    ],
)
def test_a_step_says_what_the_verdict_would(over_good: Ratio, below_bad: Ratio | None, call: Call) -> None:
    assert call_of(over_good, below_bad) is call


def measured_versions(latencies_ms: Mapping[str, float]) -> list[Record]:
    made = []
    for name, level_ms in latencies_ms.items():
        record = once(level_ms, "onnx")
        made.append(record.but(cell=record.cell.but(environment=name)))
    return made


def test_a_step_is_judged_from_the_records_of_its_contest() -> None:
    records = measured_versions({"a": 1.0, "b": 1.5, "c": 1.5})
    step = judge_step("2", records, "a", "b", "c")
    assert step.call is Call.SLOW and step.over_good and step.below_bad
    assert (step.over_good.value, step.below_bad.value) == (pytest.approx(1.5), pytest.approx(1.0))
    assert judge_step("3", records, "a", "b", "b").below_bad is None


def test_a_version_with_which_the_model_fails_is_skipped() -> None:
    broken = Cell(model="mlp", backend="onnx", environment="c")
    records = [*measured_versions({"a": 1.0, "b": 1.5}), failed(broken, Status.CRASH, "died of signal 11")]
    step = judge_step("2", records, "a", "b", "c")
    assert (step.call, step.reason) == (Call.SKIPPED, "onnx@c ended as crash: died of signal 11")
