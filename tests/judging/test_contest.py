"""Who is ranked, who wins, who ties, what is open, and how sure that is, by one rule for every question.

Also who is on the front of all aims, who is surely beaten, and what a ratio allows to say.
"""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bakeoff.judging.answer import Answer, Certainty, Question, Row, Score, Shared, Term, rank
from bakeoff.judging.contest import dominates, front_of, judge_contest
from bakeoff.judging.decision import (
    FEWEST_FOR_NARROW_LEAD,
    FEWEST_PROCESSES,
    MARGIN,
    MARGIN_UNPAIRED,
    MAX_PROCESSES,
    Relation,
    fewest_processes,
    is_decided,
    may_be_decided,
    relation,
)
from bakeoff.judging.estimate import ratio_over_processes, series_of
from bakeoff.judging.fit import Fit, fit
from bakeoff.judging.judgement import contests_of, judge
from bakeoff.judging.ranking import contenders, undecided
from bakeoff.judging.start_times import judge_starts
from bakeoff.records.schema import Interval, LeftEarly, Memory, Ratio, Record, RecordedSize, Throughput
from bakeoff.records.start_samples import StartedCell
from bakeoff.records.text import counted
from bakeoff.reports import sentences
from tests.judging.test_costs import carrying
from tests.judging.test_suites import SIZES, staged
from tests.reports.samples import (
    LAYOUTS,
    MIB,
    accuracy,
    cell,
    constant,
    conv_on_cpu,
    lived,
    mlp_on_cuda,
    ok,
    once,
    over_processes,
    report,
    start,
    steady,
    under,
)
from tests.support.golden import same_as_golden


def test_speedups_are_over_the_fastest_of_eagers_modes_where_that_is_asked_for() -> None:
    modes = (
        ok(cell("eager", "channels-last"), over_processes(1.5)),
        ok(cell("eager", "cuda-graph"), over_processes(1.6)),
    )
    records = [lived(2.0, "eager"), *modes, lived(1.0, "onnx")]
    for asked, baseline, speedup in (("eager", "eager", 2.0), ("eager/best", "eager/channels-last", 1.5)):
        (contest,) = contests_of(report(records, request={"baseline": asked}))
        (winner,) = [judged for judged in contest.cells if judged.label == "onnx"]
        assert contest.baseline == baseline and winner.speedup is not None
        assert winner.speedup.value == pytest.approx(speedup, rel=0.05)
        assert [judged.label for judged in contest.cells if judged.is_baseline] == [baseline]
    (alone,) = contests_of(report([records[0], records[3]], request={"baseline": "eager/best"}))
    assert alone.baseline == "eager"


def test_cells_of_two_contests_and_no_cells_are_refused() -> None:
    with pytest.raises(ValueError, match="one contest"):
        judge_contest([*mlp_on_cuda(), *conv_on_cpu()])
    with pytest.raises(ValueError, match="no record"):
        judge_contest([])


def test_undecided_is_fast_enough_to_be_asked_after_every_epoch() -> None:
    random = np.random.default_rng(0)
    records = [
        ok(cell(f"b{number}"), over_processes(1.0 + number / 99, random.normal(1, 0.01, 10).tolist(), seed=number))
        for number in range(10)
    ]
    begun = time.process_time()
    undecided(records)
    assert time.process_time() - begun < 0.5  # 0.03 s on two idle cores


def record(
    backend: str,
    median_ms: float,
    build_s: float = 1.0,
    resident: float | None = 500,
    error: float = 1e-7,
    calls_per_s: float | None = None,
) -> Record:
    memory = Memory(peak_resident_bytes=None if resident is None else round(resident * MIB))
    throughput = Throughput(calls_per_s=calls_per_s or 1e3 / median_ms, blocks=3, block_s=0.1)
    return ok(
        cell(backend),
        constant([median_ms] * 6),
        build_s=build_s,
        accuracy=accuracy(error),
        memory=memory,
        throughput=throughput,
    )


@pytest.mark.parametrize(
    ("median_ms", "other", "stays"),
    [
        (2.0, {"build_s": 9.0, "resident": 900}, False),  # worse in everything
        (2.0, {"build_s": 0.5}, True),  # one advantage is enough
        (2.0, {"resident": 100.0}, True),
        (2.0, {"error": 1e-9}, True),
        (1.5, {"calls_per_s": 5000}, True),
        (2.0, {"build_s": 0.985}, False),  # within the margin
        (2.0, {"resident": 495.0}, False),
        (2.0, {"error": 0.6e-7}, False),
        (1.01, {}, True),  # equals
    ],
)
def test_one_advantage_over_the_margin_is_enough_to_stay(
    median_ms: float, other: dict[str, float], stays: bool
) -> None:
    front = front_of([record("onnx", 1.0), record("inductor", median_ms, **other)])
    assert list(front.labels) == ["onnx", *(["inductor"] if stays else [])]


def test_what_one_has_no_value_of_compares_nobody_and_is_named() -> None:
    front = front_of([record("onnx", 1.0), record("inductor", 2.0, resident=None)])
    assert (front.labels, front.left_out) == (["onnx"], ["resident memory"])
    assert front.aims == ["latency", "throughput", "build time", "error"]


def test_on_a_gpu_it_is_the_devices_memory() -> None:
    assert list(front_of([]).labels) == []
    assert "device memory" in front_of([ok(cell("onnx", device="cuda"), constant([1.0] * 6))]).aims


points = st.lists(st.floats(0.1, 10.0), min_size=3, max_size=3)


@given(points, points)
def test_domination_goes_one_way(one: list[float], other: list[float]) -> None:
    ties = [1.02] * 3
    assert not (dominates(one, other, ties) and dominates(other, one, ties))
    assert not dominates(one, one, ties)


@given(points)
def test_better_by_more_than_the_margin_in_everything_dominates(values: list[float]) -> None:
    assert dominates([value / 1.03 for value in values], values, [1.02] * 3)


def test_the_energy_of_the_baseline_is_compared_with() -> None:
    assert "eager" in contenders([lived(1.12, "eager"), lived(1.0, "onnx")])


def test_what_left_is_slower_by_no_more_than_its_interval_says() -> None:
    """Two cells lived in three processes that differ much, which one process of a third cannot show."""
    layouts = (1.0, 1.2, 1.1)
    left = LeftEarly(after_process=1, ratio=3.8, than="onnx")
    gone = once(4.0, "iree", left=left)
    contest = judge_contest([lived(1.0, "onnx", layouts), lived(2.0, "eager", layouts[::-1]), gone])
    ends = contest.fit.ratio("onnx", "iree").ci95
    least = contest.least_times_slower(contest.cells[-1])
    assert contest.cells[-1].label == "iree" and ends and least == ends.low < 3.8
    assert contest.least_times_slower(contest.cells[0]) is None


Levels = Mapping[str, Sequence[float]]
"""How long each cell takes in each of its processes, as a multiple of a usual call."""

WIDE = (0.6, 1.0, 1.9, 1.2, 0.7)


def calls(levels: Levels, times: float = 1.0, **of_cell: object) -> list[Record]:
    return [
        ok(cell(name, **of_cell), steady([times * level for level in of_processes]))  # type: ignore[arg-type]
        for name, of_processes in levels.items()
    ]


def latency(levels: Levels) -> Answer:
    return judge_contest(calls(levels)).answer


def load(levels: Levels) -> Answer:
    made = [carrying(name, [400 / level for level in of_processes]) for name, of_processes in levels.items()]
    return judge_contest(made).answer


def generation(levels: Levels) -> Answer:
    tasks = {"prefill": 100.0, "decode": 10.0}
    made = [calls(levels, ms, model="transformer_lm", task=task, dimensions=SIZES) for task, ms in tasks.items()]
    return judge(report([record for records in made for record in records])).contests[1].answer


def recorded_sizes(levels: Levels) -> Answer:
    made = []
    for size, count in {"8x4": 90, "64x4": 10}.items():
        recorded = RecordedSize(file="calls.pt", calls=count, of_calls=100)
        made += calls(levels, 100 / count, dimensions={"call": size}, recorded=recorded)
    (mix,) = judge(report(made)).mixes
    return mix.answer


def whole_requests(levels: Levels) -> Answer:
    found = judge_contest([staged(record, before=0.05) for record in calls(levels)]).end_to_end
    return found.answer


def starts(levels: Levels) -> Answer:
    cells = []
    for name, of_processes in levels.items():
        seconds = [level for level in of_processes for _ in range(8 if len(of_processes) > 1 else 3)]
        made = [start(0.0, interpreter_s=0.0, first_answer_s=0.0, load_s=second) for second in seconds]
        cells.append(StartedCell(cell_id=name, label=name, starts=made))
    return judge_starts(cells).answer


ASKED: Mapping[Question, Callable[[Levels], Answer]] = {
    Question.LATENCY: latency,
    Question.LOAD: load,
    Question.GENERATION: generation,
    Question.SIZES: recorded_sizes,
    Question.REQUEST: whole_requests,
    Question.START: starts,
}


def slower(times: float, layouts: Sequence[float] = LAYOUTS) -> list[float]:
    return [times * layout for layout in layouts]


def test_every_question_is_answered_as_before() -> None:
    """Under load the number of processes was fixed before: only the first place is open. Starts go by their median."""
    scenes: dict[str, Levels] = {
        "a lead": {"eager": slower(2.0), "onnx": slower(1.0)},
        "two copies": {"onnx": slower(1.0), "onnx/copy": slower(1.0)},
        "a narrow lead of one process": {"onnx": [1.0], "eager": [1.02]},
        "a third one that varies": {"onnx": slower(1.0), "eager": slower(1.3), "openvino": slower(1.6, WIDE)},
        "a single cell": {"onnx": slower(1.0)},
    }
    lines = []
    for (name, levels), (question, ask) in itertools.product(scenes.items(), ASKED.items()):
        answer = ask(levels)
        assert answer.question is question
        rows = [f"{row.label} {row.rank}{_ends(row)}" for row in answer.rows]
        lead = f", {sentences.ratio(answer.lead)} {answer.runner_up}" if answer.lead else ""
        may = f" of {', '.join(answer.candidates)}" if len(answer.candidates) != 1 else ""
        processes = counted(answer.processes, "process")
        lines.append(f"{name}, {question}: {answer.certainty}{may}: {', '.join(rows)}{lead}, {processes}")
    same_as_golden("questions.txt", "\n".join(lines))


def _ends(row: Row) -> str:
    return f" [{row.interval.low:.3g}, {row.interval.high:.3g}]" if row.interval else ""


def test_without_a_cell_there_is_nothing() -> None:
    answer = rank(Question.LATENCY, Score([Term(fit({}))]), [])
    assert (answer.certainty, answer.best, answer.value, answer.candidates) == (Certainty.NOTHING, None, None, [])


def test_only_a_winner_is_doubted_and_others_say_what_is_always_said() -> None:
    sure = latency({"onnx": slower(1.0), "eager": slower(2.0)})
    assert (sure.doubted(["a", "b"]).certainty, sure.doubted(["a", "b"]).doubt) == (Certainty.DOUBTED, "a")
    assert sure.doubted([], always=["a"]).doubts == ("a",)
    tied = latency({"onnx": slower(1.0), "eager": slower(1.0)})
    assert (tied.doubted(["a", "b"]).certainty, tied.doubted(["a", "b"]).doubts) == (Certainty.TIE, ())
    assert tied.doubted(["a", "b"], always=["b"]).doubts == ("b",)


def fitted(levels: Levels) -> Fit:
    return fit({record.cell.label: series_of(record.bursts) for record in calls(levels)})


def test_a_score_is_the_weighted_sum_of_its_terms() -> None:
    few, many = fitted({"a": slower(1.0), "b": slower(4.0)}), fitted({"a": slower(10.0), "b": slower(8.0)})
    score = Score([Term(few, 0.75), Term(many, 0.25)], [Shared("before()", 2.0, None)])
    assert (score.ms("a"), score.ms("b")) == (pytest.approx(5.25, rel=0.01), pytest.approx(7.0, rel=0.01))
    assert score.ratio("a", "b").value == pytest.approx(score.ms("b") / score.ms("a"))
    assert score.ratio("a", "b").ci95 is None, "nothing is known of how much the stage before varies"
    plain = Score([Term(few)])
    assert (plain.ratio("a", "b"), plain.interval("a")) == (few.ratio("a", "b"), few.latency_ci95_ms("a"))


def test_a_lead_of_a_sum_is_as_narrow_as_pages_make_one_of_its_terms() -> None:
    paging = under(steady([2.0] * 3), page_faults=500 * len(steady([2.0])[0].samples_ns))
    few = fit({"a": series_of(steady([1.0] * 3)), "b": series_of(paging)})
    ratio = Score([Term(few), Term(fitted({"a": [1.0] * 3, "b": [2.0] * 3}))]).ratio("a", "b")
    assert ratio.by_pages == few.ratio("a", "b").by_pages > 1.5
    assert (fewest_processes(ratio), relation(ratio)) == (FEWEST_FOR_NARROW_LEAD, Relation.UNDECIDED)


def test_the_interval_of_a_ratio_takes_each_term_by_its_share() -> None:
    still, wide = fitted({"a": [1.0] * 5, "b": [2.0] * 5}), fitted({"a": slower(1.0), "b": slower(1.0, LAYOUTS[::-1])})
    widths = []
    for weight in (0.0, 0.1, 1.0):
        interval = Score([Term(still), Term(wide, weight)]).ratio("a", "b").ci95
        widths.append(interval.high / interval.low - 1)
    assert widths[0] == pytest.approx(0.0, abs=1e-9) and 0 < widths[1] < widths[2]


@pytest.mark.parametrize(("shared_ms", "is_beaten"), [(0.1, True), (60.0, False)])
def test_what_left_early_is_beaten_only_where_its_least_lead_shows(shared_ms: float, is_beaten: bool) -> None:
    left = {"b": LeftEarly(after_process=1, ratio=1.3, than="a")}
    score = Score([Term(fitted({"a": [2.0], "b": [2.04]}), left=left)], [Shared("before()", shared_ms, None)])
    assert score.is_beaten("a", "b") is is_beaten
    answer = rank(Question.REQUEST, score, ["a", "b"])
    assert answer.certainty is (Certainty.SURE if is_beaten else Certainty.TIE)


def test_a_cell_that_stayed_in_one_contest_is_not_beaten_by_having_left_another() -> None:
    left = {"b": LeftEarly(after_process=1, ratio=1.3, than="a")}
    terms = [Term(fitted({"a": [1.0], "b": [1.3]}), left=left), Term(fitted({"a": [1.0], "b": [0.7]}))]
    assert not Score(terms).is_beaten("a", "b")
    assert rank(Question.SIZES, Score(terms), ["a", "b"]).certainty is Certainty.OPEN


intervals = st.builds(
    lambda value, half, processes, paired: Ratio(
        value=value,
        ci95=Interval(low=value * np.exp(-half), high=value * np.exp(half)),
        paired=paired,
        processes=processes,
    ),
    st.floats(0.5, 2.0),
    st.floats(0.0, 0.5),
    st.integers(1, 12),
    st.booleans(),
)


def ratio(value: float, low: float, high: float, processes: int = 10, paired: bool = True) -> Ratio:
    return Ratio(value=value, ci95=Interval(low=low, high=high), paired=paired, processes=processes)


def inverse(of: Ratio) -> Ratio:
    return ratio(1 / of.value, 1 / of.ci95.high, 1 / of.ci95.low, of.processes, of.paired)


@given(intervals)
def test_the_inverse_says_the_inverse(found: Ratio) -> None:
    mirror = {Relation.FASTER: Relation.SLOWER, Relation.SLOWER: Relation.FASTER}
    assert relation(inverse(found)) is mirror.get(relation(found), relation(found))
    assert is_decided(inverse(found)) == is_decided(found)


@given(intervals)
def test_what_is_decided_is_called_or_a_tie(found: Ratio) -> None:
    if is_decided(found):
        assert found.processes >= FEWEST_PROCESSES
        assert relation(found) is not Relation.UNDECIDED


@given(intervals)
def test_a_call_has_an_interval_without_one_and_a_difference_of_two_percent(found: Ratio) -> None:
    if relation(found) is Relation.FASTER:
        assert found.ci95.low > 1
        assert found.value >= 1.02


@pytest.mark.parametrize(
    ("found", "call", "decided"),
    [
        (ratio(1.85, 1.80, 1.90), Relation.FASTER, True),
        (ratio(0.50, 0.49, 0.51), Relation.SLOWER, True),
        (ratio(1.05, 1.04, 1.06), Relation.FASTER, True),
        (ratio(1.019, 1.014, 1.023), Relation.TIE, True),  # under 2 %, and narrow
        (ratio(1.000, 0.985, 1.015), Relation.TIE, True),
        (ratio(1.010, 0.980, 1.040, processes=8), Relation.TIE, False),  # includes 1, but more processes might tell
        (ratio(1.010, 0.980, 1.040, processes=9), Relation.TIE, True),  # close, and after nine that is an answer
        (ratio(1.010, 0.970, 1.051, processes=9), Relation.TIE, False),
        (ratio(1.030, 1.011, 1.049, processes=9), Relation.UNDECIDED, False),  # one of them may be called faster
        (ratio(1.050, 1.010, 1.090), Relation.UNDECIDED, False),  # not at 99.9 %
        (ratio(1.050, 1.040, 1.060, processes=3), Relation.UNDECIDED, False),
        (ratio(1.050, 1.049, 1.051, processes=3), Relation.UNDECIDED, False),  # narrow, but of three processes only
        (ratio(1.050, 1.049, 1.051, processes=5), Relation.FASTER, True),
        (ratio(1.500, 1.450, 1.550, processes=3), Relation.FASTER, True),
        (ratio(1.260, 1.190, 1.334, processes=3), Relation.FASTER, True),  # at 99 %, and not at 99.9 %
        (ratio(1.240, 1.180, 1.303, processes=3), Relation.UNDECIDED, False),  # a narrow lead needs those
        (ratio(1.024, 1.0199, 1.0283, processes=10), Relation.FASTER, True),
    ],
)
def test_calls_over_processes(found: Ratio, call: Relation, decided: bool) -> None:
    assert (relation(found), is_decided(found)) == (call, decided)


@pytest.mark.parametrize(
    ("value", "processes"), [(1.01, 3), (1.03, 5), (1 / 1.03, 5), (1.24, 5), (1.26, 3), (1 / 1.26, 3)]
)
def test_a_narrow_lead_is_expected_to_take_more_processes(value: float, processes: int) -> None:
    assert fewest_processes(ratio(value, 0.9 * value, 1.1 * value)) == processes


def test_where_measuring_looks_once_a_lead_of_10_percent_is_wide() -> None:
    wide, narrow = ratio(1.12, 1.08, 1.161, processes=3), ratio(1.09, 1.051, 1.13, processes=3)
    assert (relation(wide), relation(wide, looks_once=True)) == (Relation.UNDECIDED, Relation.FASTER)
    assert is_decided(wide, looks_once=True) and not is_decided(narrow, looks_once=True)


@pytest.mark.parametrize("processes", [1, 2])
def test_from_fewer_than_three_processes_a_lead_needs_a_margin_and_nothing_is_decided(processes: int) -> None:
    over, under = 1 + MARGIN + 0.001, 1 + MARGIN - 0.001
    assert relation(ratio(1.5, over, 2.0, processes)) is Relation.FASTER
    assert relation(ratio(1.5, under, 2.0, processes)) is Relation.UNDECIDED
    assert relation(ratio(1.0, 0.999, 1.001, processes)) is Relation.UNDECIDED
    assert not is_decided(ratio(1.5, over, 2.0, processes))


def test_a_lead_without_shared_rounds_needs_a_wide_margin_however_many_processes() -> None:
    over, under = 1 + MARGIN_UNPAIRED + 0.01, 1 + MARGIN_UNPAIRED - 0.01
    assert relation(ratio(1.5, over, 1.7, paired=False)) is Relation.FASTER
    assert relation(ratio(1.5, under, 1.7, paired=False)) is Relation.UNDECIDED
    assert relation(ratio(1.1, 1.05, 1.15, paired=False)) is Relation.TIE
    assert is_decided(ratio(1.10, 1.05, 1.15, paired=False))  # no number of processes would get it over the margin
    assert not is_decided(ratio(1.20, 1.05, 1.35, paired=False))


@pytest.mark.parametrize(
    ("found", "may"),
    [
        (ratio(1.03, 0.86, 1.233, processes=8), True),
        (ratio(1.03, 0.86, 1.233, processes=9), False),
        (ratio(1.00, 0.95, 1.053, processes=9), True),  # within 5 % after twenty
        (ratio(1.00, 0.924, 1.082, processes=9), True),  # just within it
        (ratio(1.00, 0.921, 1.086, processes=9), False),
        (ratio(1.10, 0.85, 1.424, processes=9), False),
        (ratio(1.20, 1.00, 1.44, processes=9), True),
    ],
)
def test_nine_processes_show_whether_twenty_may_decide(found: Ratio, may: bool) -> None:
    assert not is_decided(found) and may_be_decided(found) is may


def test_without_an_interval_nothing_is_known() -> None:
    unknown = Ratio(value=3.0, ci95=None, paired=True)
    assert (relation(unknown), is_decided(unknown)) == (Relation.UNDECIDED, False)


def ends(biases: np.ndarray, true_ratio: float) -> list[Ratio]:
    """What measuring ends with, in each of the trials (trials x processes), looked at after each from the third on."""
    logs = biases + np.log(true_ratio)
    return [_end(trial.tolist()) for trial in logs]


def _end(logs: Sequence[float]) -> Ratio:
    looks = [ratio_over_processes(logs[:processes]) for processes in range(FEWEST_PROCESSES, len(logs) + 1)]
    return next((look for look in looks if is_decided(look)), looks[-1])


SLOW_CALLS = pytest.mark.slow


@pytest.mark.parametrize("bias", [0.003, *(pytest.param(bias, marks=SLOW_CALLS) for bias in (0.01, 0.03)), 0.08])
def test_equals_get_a_winner_in_at_most_one_of_a_hundred_contests(bias: float) -> None:
    trials = ends(np.random.default_rng(3).normal(0, bias * 2**0.5, (1000, MAX_PROCESSES)), 1.0)
    assert np.mean([relation(end) in (Relation.FASTER, Relation.SLOWER) for end in trials]) <= 0.01


@pytest.mark.parametrize("slower", [1.06, pytest.param(1.15, marks=SLOW_CALLS)])
def test_nor_do_equals_whose_processes_come_in_two_kinds(slower: float) -> None:
    kinds = np.log(slower) * (np.random.default_rng(8).random((2, 1000, MAX_PROCESSES)) < 0.5)
    noise = np.random.default_rng(9).normal(0, 0.003, (1000, MAX_PROCESSES))
    trials = ends(kinds[0] - kinds[1] + noise, 1.0)
    assert np.mean([relation(end) in (Relation.FASTER, Relation.SLOWER) for end in trials]) <= 0.01


@pytest.mark.parametrize(("true_ratio", "power"), [(1.05, 0.99), (1.03, 0.90)])
def test_what_is_there_is_found(true_ratio: float, power: float) -> None:
    trials = ends(np.random.default_rng(4).normal(0, 0.015 * 2**0.5, (1000, MAX_PROCESSES)), true_ratio)
    assert np.mean([relation(end) is Relation.FASTER for end in trials]) >= power


def test_a_small_difference_takes_more_processes_than_a_large_one_but_never_two() -> None:
    noise = np.random.default_rng(5).normal(0, 0.01, (200, MAX_PROCESSES))
    large, small = (np.mean([end.processes for end in ends(noise, true)]) for true in (1.5, 1.05))
    assert 3 <= large < 3.5
    assert FEWEST_FOR_NARROW_LEAD <= small < 7
