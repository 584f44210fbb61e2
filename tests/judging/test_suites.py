"""Several contests together: many models, sizes, the two graphs of a generation, and the stages of a request."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bakeoff.judging.answer import Certainty
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.end_to_end import EndToEnd
from bakeoff.judging.judgement import Judgement, contests_of, judge
from bakeoff.judging.suites import MIN_MODELS, TAUS, Profile, Suite, chance_of_win, holm
from bakeoff.judging.sweeps import Sweep, latency, sweeps_of
from bakeoff.records.failure import Failure
from bakeoff.records.schema import AroundCall, Generated, Range, Record, Status
from bakeoff.reports import end_to_end, generation, headline, sentences, suite_report
from bakeoff.reports.json_answer import _answer
from bakeoff.reports.run_report import to_markdown, to_short_markdown
from bakeoff.reports.sentences import sweep_finding, sweep_title
from tests.reports.samples import (
    LAYOUTS,
    MIB,
    bursts,
    cell,
    constant,
    conv_on_cpu,
    failed,
    lived,
    ok,
    once,
    report,
    steady,
    suite,
    under,
)
from tests.reports.samples import sweep as sample
from tests.support.golden import same_as_golden

Planted = Mapping[str, float | Status]
"""The latency of each backend on one model in ms, or how it failed."""


def records_of(models: Sequence[Planted], spread: float = 0.001, processes: int = 3) -> list[Record]:
    """Return cells whose processes differ by about `spread`, in an order of their own for each."""
    found = []
    for number, planted in enumerate(models):
        for place, (label, value) in enumerate(planted.items()):
            measured = cell(label, model=f"net{number}")
            if isinstance(value, Status):
                found.append(failed(measured, value, f"no {label} of {number}"))
            else:
                turns = [1 + spread * ((process * (place + 2) + number) % 5 - 2) for process in range(processes)]
                found.append(ok(measured, steady([value * turn for turn in turns], rounds=6)))
    return found


FIVE: list[Planted] = [
    {"eager": 4.0, "onnx": 2.0, "openvino": 1.0},
    {"eager": 4.0, "onnx": 2.0, "openvino": Status.CRASH},
    {"eager": 4.0, "onnx": Status.ERROR, "openvino": 2.0},
    {"eager": 4.0, "onnx": 8.0, "openvino": 2.0},
    {"eager": 4.0, "onnx": 1.0, "openvino": 1.0},
]


def in_short(found: Suite) -> str:
    """Return the finding, the contests that are averaged and the lead, then for each backend what it passed, what it
    leads in and its means, and what failed."""
    lead = f", the best mean {sentences.ratio(found.lead)} the next one" if found.lead else ""
    rows = [
        f"{row.label} passed {row.passed} of {row.asked}"
        + (f", {row.cannot_run} cannot run" if row.cannot_run else "")
        + (f", {row.not_reached} not reached" if row.not_reached else "")
        + f", won {row.wins} of {row.profile.contests}{', may lead' if row.may_lead else ''}"
        + (f", {', '.join(_mean(*each) for each in asdict(row.means).items())}" if row.means else "")
        for row in found.rows
    ]
    failures = [
        f"failed alike: {', '.join(each.labels)} on {len(each.contests)}{', with other details' if each.differ else ''}"
        for each in found.failures
    ]
    averaged = f"{len(found.common)} of {len(found.contests)} averaged, {found.busy} too busy{lead}"
    return "; ".join([f"{suite_report.finding(found)}: {averaged}", *rows, *failures])


def _mean(name: str, value: float | None) -> str:
    return f"{name} {'-' if value is None else f'{value:.3g}'}"


def ended(label: str, number: int, operator: str, text: str) -> Record:
    failure = Failure(kind="ValueError", operator=operator, place=f"net{number}.py, line {number}", text=text)
    return failed(cell(label, model=f"net{number}"), Status.ERROR, failure.sentence, failure=failure)


def test_suites_are_judged_as_before() -> None:
    untried = [Status.UNAVAILABLE, Status.NOT_REACHED, Status.UNSUPPORTED, Status.OOM]
    pair = records_of([{"eager": 2.0, "onnx": 1.0}] * 4)
    wrong = [one.but(status=Status.INCORRECT) if one.cell.backend == "onnx" else one for one in pair]
    small = [
        one.but(memory=one.memory.but(peak_resident_bytes=300 * MIB))
        if one.cell.backend == "onnx" and one.memory
        else one
        for one in pair
    ]
    alike = [
        ended(label, n, "aten.mm", f"shape [{n}, 3] of 'x{n}'") for n in range(4) for label in ("onnx", "openvino")
    ]
    eager, other = records_of([{"eager": 1.0}] * 4), ended("inductor", 0, "aten.sort", "shape [0, 3] of 'x0'")
    old = [failed(cell("onnx", model=f"net{n}"), Status.ERROR, "no memory" if n else "no disk") for n in range(4)]
    cases = {
        "failures and a slow one": records_of(FIVE),
        "cells that were not tried": records_of(
            [*({"eager": 1.0, "onnx": ending} for ending in untried), {"eager": 1.0, "onnx": 0.5}]
        ),
        "a backend that cannot run": records_of(
            [{"eager": 1.0, "tensorrt": Status.UNAVAILABLE, "onnx": Status.OOM}] * 4
        ),
        "a backend that passed too little": records_of(
            [{"eager": 2.0, "onnx": 1.0, "openvino": 0.1 if n == 0 else Status.ERROR} for n in range(5)]
        ),
        "a machine too busy for two speed-ups": [
            one.but(bursts=under(one.bursts, wait_share=1.4, cpu_share=1.2, others_cores=2.0))
            if one.cell.model in ("net0", "net1")
            else one
            for one in records_of([{"eager": 40.0, "onnx": 1.0}] * 2 + [{"eager": 2.0, "onnx": 4.0}] * 3)
        ],
        "wrong outputs": wrong,
        "less memory": small,
        "builds": suite(5),
        "failures of one sort": [*eager, *alike, other],
        "failures of reports before schema 3": [*eager, *old],
        "sure wins": pair,
        "wins that are not sure": records_of([{"eager": 1.3, "onnx": 1.0}] * 4, spread=0.05),
        "a lead that changes": records_of(
            [{"eager": 4.0, "onnx": 1.0 + n % 2, "openvino": 2.0 - n % 2} for n in range(4)]
        ),
        "a lead on all models": records_of([{"eager": 4.0, "onnx": 1.0, "openvino": 2.0}] * 4),
        "too few models, and one apart in precision": [
            *records_of(FIVE[: MIN_MODELS - 1]),
            ok(cell(model="net9", precision="fp16"), steady([1.0] * 3)),
        ],
        "sizes of one model": [ok(cell(model="net0", dimensions={"batch": 2**n}), steady([1.0] * 3)) for n in range(8)],
        "a contest that a killed run left half done": records_of(
            [*[{"eager": 2.0, "onnx": 1.0}] * 4, {"onnx": Status.ERROR}]
        ),
    }
    found = {name: judge(report(records)).suites for name, records in cases.items()}
    found["a requirement"] = judge(report(pair, request={"require": "median_ms<1.5"})).suites
    lines = [
        f"{name}: {in_short(one) if one else 'no suite'}" for name, suites in found.items() for one in suites or [None]
    ]
    same_as_golden("suites.txt", "\n".join(lines))


def test_the_order_of_contests_changes_nothing_but_their_order() -> None:
    made = records_of(FIVE)
    (there,), (back,) = (judge(report(each)).suites for each in (made, made[::-1]))
    assert {row.label: row for row in there.rows} == {row.label: row for row in back.rows}
    assert there.lead and back.lead and there.lead.value == pytest.approx(back.lead.value)


latencies = st.floats(0.5, 50).map(lambda value: round(value, 2))
values = st.one_of(latencies, latencies, latencies, st.sampled_from([Status.ERROR, Status.UNAVAILABLE]))
model = st.fixed_dictionaries({"eager": latencies, "onnx": values, "openvino": values})


@settings(max_examples=12, deadline=None)
@given(st.lists(model, min_size=MIN_MODELS, max_size=MIN_MODELS + 1))
def test_any_suite_adds_up(models: list[Planted]) -> None:
    (found,) = judge(report(records_of(models))).suites
    for each in found.rows:
        shares = [each.profile.share(tau) for tau in (1.0, *TAUS, 1e9)]
        assert shares == sorted(shares) and shares[0] >= 0 and shares[-1] == each.passed / len(models)
        assert each.passed <= each.asked == len(models) - each.cannot_run
    (eager,) = (row for row in found.rows if row.label == "eager")
    if found.common:
        assert eager.is_baseline and eager.means.speedup == pytest.approx(1) and eager.means.memory == 1
        assert found.rows[0].may_lead
    assert sum(each.profile.share(1.0) for each in found.rows) >= 1
    assert found.wins <= len(models)
    assert sum(len(each.labels) * len(each.contests) for each in found.failures) == sum(
        each.asked - each.passed for each in found.rows
    )


@given(st.lists(st.floats(1, 1e3), max_size=30), st.integers(0, 10), st.floats(1, 1e3), st.floats(1, 1e3))
def test_a_profile_rises_to_the_pass_rate(ratios: list[float], lost: int, one: float, other: float) -> None:
    profile = Profile(tuple(sorted(ratios)), len(ratios) + lost)
    assert profile.share(min(one, other)) <= profile.share(max(one, other)) <= profile.share(1e4)
    if ratios:
        assert profile.share(1e4) == len(ratios) / (len(ratios) + lost)


@given(st.lists(st.floats(0, 1), max_size=40), st.floats(0.001, 0.2))
def test_holm_is_as_strict_as_each_test_alone_and_less_strict_than_bonferroni(
    chances: list[float], error: float
) -> None:
    rejected = holm(chances, error)
    for chance, is_rejected in zip(chances, rejected, strict=True):
        assert not is_rejected or chance <= error
        assert is_rejected or chance > error / len(chances)
    worst = max((chance for chance, is_rejected in zip(chances, rejected, strict=True) if is_rejected), default=-1)
    assert all(is_rejected or chance >= worst for chance, is_rejected in zip(chances, rejected, strict=True))


def test_holm_by_hand() -> None:
    """0.005 is within 0.05 / 4, and 0.012 within 0.05 / 3, but 0.03 not within 0.05 / 2: it ends there."""
    assert holm([0.012, 0.04, 0.03, 0.005]) == [True, False, False, True]


def test_a_win_that_a_verdict_calls_is_unlikely_by_chance_and_a_tie_is_not() -> None:
    (called,) = judge(report(records_of([{"eager": 2.0, "onnx": 1.0}]))).contests
    assert called.fastest.winner == "onnx" and chance_of_win(called.fit, "onnx", ["eager"]) < 1e-3
    (tied,) = judge(report(records_of([{"eager": 1.0, "onnx": 1.0}], spread=0.01))).contests
    assert chance_of_win(tied.fit, tied.ranked[0].label, [tied.ranked[1].label]) > 0.05


@pytest.mark.parametrize(("lead", "is_clear"), [(1.3, True), (1.05, False), (1.03, False)])
def test_a_single_process_must_lead_by_more_than_equal_processes_differ(lead: float, is_clear: bool) -> None:
    noise = [1 + 0.01 * (n % 4) for n in range(12)]
    made = [
        ok(cell(label), constant([level * turn for turn in turns]))
        for label, level, turns in (("onnx", 1.0, noise), ("eager", lead, noise[::-1]))
    ]
    (contest,) = judge(report(made)).contests
    assert (chance_of_win(contest.fit, "onnx", ["eager"]) < 0.001) is is_clear


def found(*records: Record) -> list[Sweep]:
    return sweeps_of(contests_of(report(list(records))))


def at(label: str, ms: float, **dimensions: object) -> Record:
    return ok(cell(label, dimensions=dimensions), bursts(ms, rounds=8, calls=5))


def test_contests_that_differ_in_one_size_are_a_sweep_in_its_order() -> None:
    (swept,) = found(
        at("eager", 4.0, batch=64, seq=8), at("eager", 1.0, batch=1, seq=8), at("eager", 2.0, batch=8, seq=8)
    )
    assert (swept.dimension, swept.sizes) == ("batch", [1, 8, 64])
    assert sweep_title(swept) == "conv (seq 8) on cpu, fp32, over batch"
    medians = [latency(point.row) for point in swept.lines["eager"]]
    assert [round(value.middle) for value in medians if value] == [1, 2, 4]


def test_what_differs_in_anything_else_is_none() -> None:
    assert found(*conv_on_cpu()) == []
    half = ok(cell(dimensions={"batch": 2}, precision="fp16"), bursts(1.0))
    assert found(at("eager", 1.0, batch=1), half) == []
    assert found(at("eager", 1.0, variant="naive"), at("eager", 1.0, variant="sdpa")) == []  # no number, no axis


def test_of_two_dimensions_the_one_with_more_values_is_the_axis() -> None:
    grid = [at("eager", 1.0 * batch * seq, batch=batch, seq=seq) for batch in (1, 2) for seq in (16, 32, 64)]
    swept = found(*grid)
    assert [(each.dimension, each.sizes, sweep_title(each)) for each in swept] == [
        ("seq", [16, 32, 64], "conv (batch 1) on cpu, fp32, over seq"),
        ("seq", [16, 32, 64], "conv (batch 2) on cpu, fp32, over seq"),
    ]


def test_a_failed_cell_is_a_point_without_a_value() -> None:
    lost = failed(cell("onnx", dimensions={"batch": 2}), Status.OOM, "out of memory")
    (swept,) = found(at("eager", 1.0, batch=1), at("onnx", 0.5, batch=1), at("eager", 2.0, batch=2), lost)
    assert {label: [point.size for point in points] for label, points in swept.failures(latency).items()} == {
        "onnx": [2]
    }
    assert swept.has_ratio
    assert not found(at("eager", 1.0, batch=1), at("eager", 2.0, batch=2))[0].has_ratio


def test_the_finding_names_who_is_fastest_from_which_size_on() -> None:
    records = [at("eager", 1.0, batch=1), at("onnx", 2.0, batch=1), at("eager", 4.0, batch=2), at("onnx", 2.0, batch=2)]
    assert sweep_finding(found(*records)[0]) == "fastest: eager, from batch 2 on onnx"
    assert sweep_finding(sweeps_of(contests_of(sample(contests=3)))[0]) == "fastest at every batch: tensorrt"


def test_one_build_for_a_range_of_sizes_costs_more_than_builds_for_each() -> None:
    span = {"batch": Range(low=1, built_at=4, high=8)}
    records = []
    for batch, slower in ((8, 1.3), (1, 1.1)):  # the larger size comes first
        alone = cell("onnx", dimensions={"batch": batch})
        records.append(ok(alone, steady([1.0] * 3), build_s=3.0))
        records.append(ok(alone.but(dynamic=span), steady([slower] * 3), build_s=4.0))
    (dynamic,) = judge(report(records)).dynamic_ranges
    (build,) = dynamic.builds
    assert (dynamic.names, build.configuration) == (["batch 1", "batch 8"], "onnx")
    assert build.costs == pytest.approx([1.1, 1.3])
    assert build.called_costs == pytest.approx([1.3]), "three processes call no narrow lead"
    assert (build.build_s, build.builds_s) == (pytest.approx(4.0), pytest.approx(6.0))


SIZES = {"batch": 2, "prompt": 64, "new_tokens": 11}


def part(task: str, level_ms: float, backend: str, build_s: float = 0.0, prompt: int = 64, **more: object) -> Record:
    measured = cell(backend, model="transformer_lm", task=task, dimensions=SIZES | {"prompt": prompt})
    return ok(measured, steady([level_ms * layout for layout in LAYOUTS]), build_s=build_s, **more)


def both(first_ms: float, further_ms: float, backend: str, build_s: float = 0.0, **more: object) -> list[Record]:
    first = part("prefill", first_ms, backend, build_s)
    return [first, part("decode", further_ms, backend, build_s, settings={"caches": "in place"}, **more)]


def judged_generation(*records: Record) -> Judgement:
    return judge(report(list(records)))


def test_generations_are_reported_as_before() -> None:
    """Eager that does not repeat its own tokens is not compared with itself by name."""
    agreed = {"tokens": 10, "usual_margin": 0.5, "agreed": 4, "margin": 0.01}
    two, one = (Generated.model_validate({**agreed, "sequences": sequences}) for sequences in (2, 1))
    cases = {
        "onnx differs": judged_generation(*both(100.0, 10.0, "eager"), *both(50.0, 5.0, "onnx", generated=two)),
        "eager differs": judged_generation(*both(100.0, 10.0, "eager", generated=one), *both(50.0, 5.0, "onnx")),
        "a build that pays later": judged_generation(
            *both(100.0, 10.0, "eager"), *both(150.0, 2.0, "onnx", build_s=3.0)
        ),
    }
    lines = []
    for name, judgement in cases.items():
        made = judgement.contests[1].generation
        (table,) = generation.tables(made)
        cells = [", ".join(f"{each.heading} {each.text_of(row)}" for each in table.columns) for row in table.rows]
        lines += [f"{name}: {told}" for told in (*generation.sentences(made), *cells)]
    same_as_golden("generations.txt", "\n".join(lines))


def test_memory_is_reported_for_every_context_that_was_decoded() -> None:
    records = [
        one
        for prompt in (64, 256)
        for one in (part("prefill", 9.0, "eager", prompt=prompt), part("decode", 1.0, "eager", prompt=prompt))
    ]
    judged = [contest.generation for contest in judged_generation(*records).contests if contest.generation]
    assert len(judged) == 2
    _, memory = generation.tables(judged[0])
    assert [column.heading for column in memory.columns] == ["backend", "75 rows (MiB)", "267 rows (MiB)"]
    assert [column.text_of(memory.rows[0]) for column in memory.columns] == ["eager", "900", "900"]


def staged(record: Record, **stages_ms: float) -> Record:
    """Return the record with these stages, timed in each of its processes."""
    around = [
        AroundCall(name=name, process=process, calls=10, median_ms=ms * LAYOUTS[process])  # type: ignore[arg-type]
        for name, ms in stages_ms.items()
        for process in range(len(record.processes))
    ]
    return record.but(around=around)


def judged_requests(*records: Record) -> EndToEnd:
    return judge_contest(records).end_to_end


def test_one_disturbed_process_of_an_epoch_moves_no_stage() -> None:
    records = [staged(lived(ms, name), before=20.0) for ms, name in ((1.0, "onnx"), (2.0, "eager"), (3.0, "null"))]
    steady = judged_requests(*records).steps[0].ms
    disturbed = records[2].but(around=[each.but(median_ms=50.0) for each in records[2].around[:1]])
    assert judged_requests(*records[:2], disturbed).steps[0].ms == pytest.approx(steady, rel=0.01)


def test_without_stages_nothing_is_said() -> None:
    contest = judge_contest([lived(1.0, "onnx"), lived(4.0, "eager")])
    assert contest.end_to_end is None
    assert "end to end" not in headline.line(contest)
    assert _answer(contest).end_to_end is None


def test_a_stage_that_failed_is_reported_and_nothing_is_judged() -> None:
    failed = lived(1.0, "onnx").but(around=[AroundCall(name="after", failure="KeyError: 'boxes'")])
    found = judged_requests(failed, lived(4.0, "eager"))
    assert found.answer.rows == ()
    assert found.failures == ("after() failed: KeyError: 'boxes'",)
    assert "after() failed" in to_markdown(judge(report([failed])))


def test_one_process_of_each_says_what_decides() -> None:
    undecided = [staged(once(0.1, "onnx"), before=2.11), staged(once(0.18, "eager"), before=2.11)]
    assert "sure winner (one process); whole requests: onnx or eager, 2.210 ms (" in headline.line(
        judge_contest(undecided)
    )
    assert end_to_end.sentences(judged_requests(*undecided))[1] == (
        "One process of each cannot show how whole requests compare, because equal processes can be 4 % apart. "
        "Measure more of them: --processes 3"
    )


@pytest.mark.parametrize(
    ("spread", "certainty"), [(0.01, Certainty.SURE), (0.9, Certainty.OPEN), (None, Certainty.OPEN)]
)
def test_a_stage_of_one_process_has_the_interval_of_its_calls(spread: float | None, certainty: Certainty) -> None:
    """The stage is timed by one cell alone. Without parts of its calls, as in old records, nothing is known of it."""
    record = staged(once(1.0, "onnx"), before=3.0)
    blocks = [] if spread is None else [3.0 * (1.0 + spread * (number - 5.5) / 5.5) for number in range(12)]
    around = [each.but(block_medians_ms=blocks) for each in record.around]
    found = judged_requests(record.but(around=around), once(1.2, "eager"))
    assert found.answer.certainty is certainty
    assert (found.answer.rows[0].interval is None) is (spread is None)


def test_every_output_shows_whole_requests(tmp_path: Path) -> None:
    records = [staged(lived(0.1, "onnx"), before=20.0, after=1.0), staged(lived(0.4, "eager"), before=20.0, after=1.0)]
    whole = judge(report(records))
    for text in (to_markdown(whole), to_short_markdown(whole, tmp_path)):
        assert "whole requests: onnx or eager, 21.1" in text and "before()), tie" in text
        assert "before() 20.0" in text
    answer = _answer(whole.contests[0]).end_to_end
    assert answer.tied == ["onnx", "eager"]
    assert answer.request_ms["eager"] == pytest.approx(21.4, rel=0.01)
