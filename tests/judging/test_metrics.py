"""The user's own metrics beside the reference's, and what is required of them and of every other quantity."""

import math
import random

import pytest

from bakeoff.judging.acceptance import Acceptance
from bakeoff.judging.answer import Certainty
from bakeoff.judging.constraints import (
    QUANTITIES,
    Requirement,
    RequirementMissed,
    RequirementOpen,
    Requirements,
    parse_limits_on_errors,
)
from bakeoff.judging.contest import ContestJudgement, judge_contest
from bakeoff.judging.doubts_of_cells import EvaluationVaries, NotEvaluated, WithoutInterval
from bakeoff.judging.metric_changes import judge_metrics, mcnemar
from bakeoff.records.doubts import AcceptedByLimit, AcceptedByMetric, Effect
from bakeoff.records.errors import UsageError
from bakeoff.records.failure import Failure
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Energy, Interval, Memory, Phase, Process, Record, Status, Throughput
from bakeoff.records.start_samples import Start, StartedCell
from bakeoff.reports import doubt_sentences, first_screen, headline
from tests.reports.samples import MIB, accuracy, bursts, cell, constant, ok


def right(samples: int, wrong: int = 0) -> list[float]:
    """Scores of a build that has `wrong` of the samples wrong, the first ones."""
    return [0.0] * wrong + [1.0] * (samples - wrong)


def measured(label: str, scores: list[float] | float, reference: list[float] | float, ms: float = 1.0) -> Record:
    """A record with one metric, `top1`."""
    ours, theirs = (
        Metric.of_scores(each) if isinstance(each, list) else Metric(value=each) for each in (scores, reference)
    )
    record = ok(cell(label), constant([ms] * 8))
    update = {"metrics": Metrics(values={"top1": ours}), "reference_metrics": Metrics(values={"top1": theirs})}
    return record.model_copy(update=update)


def judged(scores: list[float] | float, reference: list[float] | float, require: str) -> ContestJudgement:
    """Judge a fast build with these scores beside a slow one with those of the reference."""
    records = [measured("onnx", scores, reference), measured("eager", reference, reference, ms=2.0)]
    return judge_contest(records, Requirements.parse(require))


def test_scores_are_kept_compactly_and_come_back_as_they_were() -> None:
    scores = [random.Random(1).random() for _ in range(1000)]
    assert Metric.of_scores(scores).scores == tuple(scores)
    assert len(Metric.of_scores(right(50_000, 10_000)).packed) < 1000
    assert Metric(value=0.5).scores == ()


def test_eight_samples_stay_undecided_and_eight_hundred_decide() -> None:
    few = judged(right(8), right(8), "top1>-1%")
    assert few.fastest.winner == "onnx" and few.fastest.certainty is Certainty.DOUBTED
    [doubt] = few.doubts_by_effect[Effect.WINNER]
    assert isinstance(doubt, RequirementOpen) and doubt.labels == ("onnx",)
    assert doubt.further is not None and 365 < doubt.further < 380  # beyond the eight
    assert judged(right(8 + doubt.further), right(8 + doubt.further), "top1>-1%").fastest.certainty is Certainty.SURE
    assert judged(right(800), right(800), "top1>-1%").fastest.certainty is Certainty.SURE


def test_flipped_labels_cannot_win_however_fast_they_come() -> None:
    contest = judged(right(800, 100), right(800), "top1>-1%")
    assert contest.fastest.winner == "eager"
    assert contest.doubts == (
        RequirementMissed("onnx", Requirement("top1", ">", -0.01, "-1%", True, True), 0.875, 1.0),
    )
    assert "top1 is 0.875 (reference 1), not > -1%" in doubt_sentences.doubts(contest)[0]
    assert judged(right(800, 100), right(800), "top1>-20%").fastest.winner == "onnx"


def test_equal_scores_of_few_samples_leave_a_change_open_as_the_interval_of_the_report_does() -> None:
    scores = [0.2, 0.9, 0.5, 0.7] * 2
    few = judged(scores, scores, "top1>-3%")
    assert few.fastest.certainty is Certainty.DOUBTED
    [doubt] = few.doubts_by_effect[Effect.WINNER]
    assert isinstance(doubt, RequirementOpen) and doubt.further is not None and 100 < doubt.further < 300
    assert judged(scores * 100, scores * 100, "top1>-3%").fastest.certainty is Certainty.SURE


def test_a_reference_whose_metric_is_zero_meets_its_own_allowance() -> None:
    contest = judged([0.0] * 800, [0.0] * 800, "top1>-5%")
    assert "eager" in [cell.label for cell in contest.ranked]
    assert "eager" not in [cell.label for cell in judged([0.0] * 800, [0.0] * 800, "top1>+5%").ranked]


def test_the_samples_are_paired() -> None:
    """Scores that differ much from sample to sample tell a small change, if it is the same in all."""
    draw = random.Random(2)
    hard = [draw.gauss(10.0, 3.0) for _ in range(100)]
    contest = judged([each - 0.5 + draw.gauss(0, 0.1) for each in hard], hard, "top1>-1%")
    assert contest.fastest.winner == "eager"
    assert isinstance(contest.doubts[0], RequirementMissed)
    change = judge_metrics(measured("onnx", [each - 0.5 for each in hard], hard))["top1"].change_ci95
    assert change is not None and -0.51 < change.low <= -0.49


@pytest.mark.parametrize(
    ("require", "certainty", "winner"),
    [
        ("top1<0.12", Certainty.SURE, "onnx"),
        ("top1<0.10", Certainty.DOUBTED, "onnx"),
        ("top1<0.08", Certainty.NOTHING, None),
        ("top1<=+10%", Certainty.SURE, "onnx"),
        ("top1<+0.1%", Certainty.DOUBTED, "onnx"),
        ("top1<-50%", Certainty.NOTHING, None),
    ],
)
def test_the_sign_of_the_requirement_says_what_is_better(
    require: str, certainty: Certainty, winner: str | None
) -> None:
    draw = random.Random(3)
    rates = [0.1 + draw.uniform(-0.05, 0.05) for _ in range(400)]
    contest = judged([each + draw.uniform(-0.005, 0.005) for each in rates], rates, require)
    assert (contest.fastest.certainty, contest.fastest.winner) == (certainty, winner)


def test_a_change_of_a_negative_metric_is_a_share_of_its_size() -> None:
    reference = [-2.0 + 0.1 * (place % 7) for place in range(200)]
    lower = [each - 0.1 for each in reference]
    assert judged(lower, reference, "top1>-1%").fastest.winner == "eager"
    assert judged(lower, reference, "top1>-10%").fastest.winner == "onnx"


def test_plain_numbers_have_no_interval_and_say_so() -> None:
    contest = judged(0.75, 0.76, "top1>-2%")
    assert contest.fastest.certainty is Certainty.SURE
    assert WithoutInterval(("top1",)) in contest.doubts_by_effect[Effect.NONE]
    assert judge_metrics(contest.cells[0].record)["top1"].change_ci95 is None
    assert judged(0.75, 0.76, "top1>-1%").fastest.winner == "eager"


def test_the_float_reference_itself_changes_nothing_and_needs_no_samples() -> None:
    reference = measured("eager", right(8), right(8))
    assert judge_contest([reference], Requirements.parse("top1>-1%")).fastest.certainty is Certainty.ALONE
    assert judge_contest([reference], Requirements.parse("top1>=0%")).fastest.certainty is Certainty.ALONE
    several = reference.cell.model_copy(update={"compared": (Precision.FP32, Precision.BF16)})
    among_precisions = reference.model_copy(update={"cell": several})
    assert Requirements.parse("top1>-1%").open([among_precisions]) == []


def test_what_cannot_be_told_by_any_number_of_samples_says_so() -> None:
    contest = judged(right(800), right(800), "top1>=0%")
    [doubt] = contest.doubts_by_effect[Effect.WINNER]
    assert isinstance(doubt, RequirementOpen) and doubt.further is None
    assert "more samples would hardly tell" in doubt.say()


def test_mcnemars_test_is_exact() -> None:
    assert mcnemar(0, 0) == 1.0
    assert mcnemar(10, 0) == pytest.approx(2 / 2**10)
    assert mcnemar(3, 5) == pytest.approx(2 * sum(math.comb(8, k) for k in range(4)) / 2**8)


@pytest.mark.parametrize(("won", "lost", "samples"), [(12, 2, 50), (1, 30, 800), (0, 3, 20)])
def test_the_ends_of_tangos_interval_are_just_not_rejected(won: int, lost: int, samples: int) -> None:
    """At each end, the score statistic with the likeliest shares of that difference is 1.96."""
    build = [1.0] * (samples - lost) + [0.0] * lost
    reference = [0.0] * won + [1.0] * (samples - won)
    found = judge_metrics(measured("onnx", build, reference))["top1"]
    assert (found.lost, found.won) == (lost, won) and found.change_ci95 is not None
    for end in (found.change_ci95.low, found.change_ci95.high):
        least, most = max(0.0, -end), (1 - end) / 2
        grid = [least + (most - least) * place / 20_000 for place in range(1, 20_000)]
        alike = samples - won - lost
        likelihoods = [won * math.log(q + end) + lost * math.log(q) + alike * math.log(1 - 2 * q - end) for q in grid]
        best = grid[likelihoods.index(max(likelihoods))]
        statistic = abs(won - lost - samples * end) / math.sqrt(samples * (2 * best + end * (1 - end)))
        assert math.isclose(statistic, 1.96, abs_tol=0.002)


def failed(record: Record, **fields: Failure) -> Record:
    return record.model_copy(update={name: Metrics(failure=failure) for name, failure in fields.items()})


NAN = Failure(kind="UsageError", text="evaluate returned nan as top1 for sample 3 of 8")


def test_a_build_without_metrics_is_a_doubt_and_with_a_requirement_cannot_win() -> None:
    eager = measured("eager", right(8), right(8), ms=2.0)
    onnx = failed(measured("onnx", right(8), right(8)), metrics=NAN)
    [doubt] = judge_contest([onnx, eager]).doubts_by_effect[Effect.WINNER]
    assert doubt == NotEvaluated(("onnx",), NAN.text, of_reference=False)
    contest = judge_contest([onnx, eager], Requirements.parse("top1>-1%"))
    assert contest.fastest.winner == "eager"
    assert (
        "top1 cannot be judged: evaluate returned nan as top1 for sample 3 of 8" in doubt_sentences.doubts(contest)[0]
    )


def test_what_failed_for_the_reference_is_said_once() -> None:
    records = [failed(ok(cell(label), constant([1.0] * 8)), reference_metrics=NAN) for label in ("eager", "onnx")]
    found = [each for each in judge_contest(records).doubts if isinstance(each, NotEvaluated)]
    assert found == [NotEvaluated(("eager", "onnx"), NAN.text, of_reference=True)]


def test_other_names_or_another_number_of_scores_cannot_be_compared() -> None:
    reference = Metrics(values={"top1": Metric.of_scores(right(8))})
    other = Metrics(values={"f1": Metric(value=1.0)}).beside(reference)
    assert other.failure and other.failure.text == "evaluate returned f1, and for the reference top1"
    fewer = Metrics(values={"top1": Metric.of_scores(right(7))}).beside(reference)
    assert fewer.failure and "7 scores of top1, and for the reference 8" in fewer.failure.text
    assert reference.beside(reference) is reference


def test_a_requirement_of_a_metric_is_refused_where_nothing_is_evaluated() -> None:
    with pytest.raises(UsageError, match="unknown quantity 'p9_ms': did you mean 'p99_ms'"):
        Requirements.parse("p9_ms<5").refuse_metrics()
    with pytest.raises(UsageError, match="top1 takes a plain number, or a change such as -1%"):
        Requirements.parse("top1<5ms")


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_int8_that_is_judged_by_its_calibration_data_is_no_sure_winner(precision: str) -> None:
    records = [measured("onnx", right(800), right(800)), measured("eager", right(800), right(800), ms=2.0)]
    theirs = records[0].reference_metrics
    assert theirs is not None
    update = {"reference_metrics": theirs.model_copy(update={"judged": 800, "calibrating": 64})}
    made = [
        each.model_copy(update=update | {"cell": each.cell.model_copy(update={"precision": Precision(precision)})})
        for each in records
    ]
    contest = judge_contest(made, Requirements.parse("top1>-1%"))
    assert contest.fastest.certainty is (Certainty.DOUBTED if precision == "int8" else Certainty.SURE)
    said = "onnx and eager: 64 of the 800 samples that evaluate judges are calibration data"
    assert (said in " ".join(doubt_sentences.doubts(contest))) is (precision == "int8")


def test_the_reference_is_told_to_change_nothing_and_may_not_vary() -> None:
    scores = [random.Random(4).random() for _ in range(100)]
    change = judge_metrics(measured("eager", scores, scores))["top1"].change_ci95
    assert change is not None and (change.low, change.high) == (0.0, 0.0)
    contest = judge_contest([measured("eager", 0.62, 0.6), measured("onnx", 0.61, 0.6, ms=2.0)])
    assert EvaluationVaries("eager", "top1", 0.62, 0.6) in contest.doubts
    assert "not repeatable: eager is the reference itself, and its top1 is 0.62 here and 0.6 there" in " ".join(
        doubt_sentences.doubts(contest)
    )
    alike = judge_contest([measured("eager", 0.600001, 0.6), measured("onnx", 0.61, 0.6, ms=2.0)])
    assert not any(isinstance(each, EvaluationVaries) for each in alike.doubts)


def test_where_the_reference_failed_a_required_metric_lets_nobody_win_and_the_reason_is_told_once() -> None:
    records = [failed(ok(cell(label), constant([1.0] * 8)), reference_metrics=NAN) for label in ("eager", "onnx")]
    contest = judge_contest(records, Requirements.parse("top1>-1%"))
    assert contest.fastest.winner is None and headline.line(contest) == "nothing could be ranked (evaluate failed)"
    told = doubt_sentences.doubts(contest)
    assert sum(NAN.text in each for each in told) == 1
    assert sum("top1 cannot be judged: evaluate failed for the reference" in each for each in told) == 2


def rejected(scores: list[float] | float, precision: str = "int8", is_only_inexact: bool = True) -> Record:
    """A record of a build whose outputs are off by a third, with a metric that is 1 for the reference."""
    record = measured("onnx", scores, right(len(scores)) if isinstance(scores, list) else 1.0)
    failure = Failure(kind="outputs too far off", text="rmse 0.34, eager's 0.01")
    update = {
        "cell": record.cell.model_copy(update={"precision": Precision(precision)}),
        "status": Status.INCORRECT,
        "failure": failure,
        "reason": failure.sentence,
        "accuracy": accuracy(0.34, passed=False).model_copy(update={"is_only_inexact": is_only_inexact}),
    }
    return record.model_copy(update=update)


def accepted(record: Record, require: str = "", accept: str = "") -> Record:
    return Acceptance(parse_limits_on_errors(accept), Requirements.parse(require)).applied_to(record)


def test_a_required_metric_that_surely_holds_decides_for_a_reduced_precision() -> None:
    record = accepted(rejected(right(800)), require="top1>-1%")
    [doubt] = record.doubts
    assert isinstance(doubt, AcceptedByMetric) and (doubt.required, doubt.relative_rmse) == ("top1>-1%", 0.34)
    eager = measured("eager", right(800), right(800), ms=2.0)
    eager = eager.model_copy(update={"cell": eager.cell.model_copy(update={"precision": Precision.INT8})})
    contest = judge_contest([record, eager], Requirements.parse("top1>-1%"))
    assert contest.fastest.winner == "onnx" and contest.fastest.certainty is Certainty.SURE
    said = "onnx: the numeric check rejects it (relative RMSE 3.4e-01), but top1>-1% surely holds"
    assert said in " ".join(doubt_sentences.doubts(contest))
    told = first_screen.whether_to_ship([contest])
    assert told == (
        "The outputs of onnx are off by more than the check allows (relative RMSE 3.4e-01), but top1>-1% surely holds, "
        "which decides."
    )


@pytest.mark.parametrize(
    ("record", "require"),
    [
        (rejected(right(8)), "top1>-1%"),  # may miss it
        (rejected(right(800, 80)), "top1>-1%"),  # misses it
        (rejected(1.0), "top1>-1%"),  # a plain number has no interval
        (rejected(right(800)), "top1>-1%, f1>-1%"),  # another one was not measured
        (rejected(right(800)), "relative_rmse<0.5"),  # no metric
        (rejected(right(800)), ""),
        (rejected(right(800), precision="fp32"), "top1>-1%"),
        (rejected(right(800), precision="tf32"), "top1>-1%"),
        (rejected(right(800), is_only_inexact=False), "top1>-1%"),  # such as other shapes, or NaN
    ],
)
def test_what_a_metric_does_not_surely_accept_stays_incorrect(record: Record, require: str) -> None:
    assert accepted(record, require=require).status is Status.INCORRECT


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_error_that_the_user_accepts_wins_and_every_output_says_so(precision: str) -> None:
    record = accepted(rejected(1.0, precision), accept="relative_rmse<0.5, rmse<0.9")
    [doubt] = record.doubts
    assert isinstance(doubt, AcceptedByLimit) and doubt.required == "relative_rmse<0.5, rmse<0.9"
    assert doubt.failure == rejected(1.0).failure
    contest = judge_contest([record])
    for said in (first_screen.whether_to_ship([contest]), " ".join(doubt_sentences.doubts(contest))):
        assert "--accept 'relative_rmse<0.5, rmse<0.9'" in said
    again = accepted(record, accept="rmse<0.1")
    assert (again.status, again.failure, again.doubts) == (Status.INCORRECT, doubt.failure, [])


@pytest.mark.parametrize(
    ("record", "accept"),
    [
        (rejected(1.0), "relative_rmse<0.3"),
        (rejected(1.0), "relative_rmse<0.5, max_abs_error<1e-9"),  # both must hold
        (rejected(1.0, is_only_inexact=False), "relative_rmse<0.5"),
    ],
)
def test_an_error_beyond_what_the_user_accepts_stays_incorrect(record: Record, accept: str) -> None:
    assert accepted(record, accept=accept).status is Status.INCORRECT


@pytest.mark.parametrize(
    ("accept", "says"),
    [("p99_ms<3", "--accept 'p99_ms<3'"), ("rmse>3", "write rmse<3"), ("rmse<3GB", "plain number"), ("x", "write")],
)
def test_only_upper_limits_of_errors_are_accepted(accept: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        parse_limits_on_errors(accept)


def full() -> Record:
    """A record that has a value of every quantity."""
    stages = {"interpreter_s": 0.1, "imports_s": 0.2, "load_s": 0.3, "first_answer_s": 0.1, "later_answers_s": 0.1}
    start = Start(**stages, peak_bytes=MIB, steady_bytes=MIB, device_bytes=None)
    started = StartedCell(cell_id="onnx", label="onnx", distributions={"onnxruntime": MIB}, starts=[start])
    warm = [Phase(name="load", seconds=0.4), Phase(name="first_call", seconds=0.1)]
    memory = Memory(
        peak_resident_bytes=MIB, engine_resident_bytes=MIB, peak_device_bytes=412 * MIB, artifact_bytes=3 * MIB
    )
    return ok(
        cell("onnx", device="cuda"),
        bursts(1.0, rounds=20, calls=400),
        build_s=2.0,
        processes=[Process(index=0, warm=False, phases=[]), Process(index=1, warm=True, phases=warm)],
        starts=[started],
        energy=Energy(joules_per_call=0.02, idle_w=70.0, calls=1000, seconds=1.0, source="NVML, the whole GPU"),
        memory=memory,
    )


def unmet(text: str, record: Record | None = None) -> list[RequirementMissed]:
    return Requirements.parse(text).unmet(record or full())


def test_every_quantity_is_read_from_the_record() -> None:
    values = {name: quantity.of(full()) for name, quantity in QUANTITIES.items()}
    assert [name for name, value in values.items() if value is None] == []
    assert values["start_s"] == pytest.approx(0.7) and values["environment_bytes"] == MIB
    assert values["build_s"] == pytest.approx(2.0)
    assert values["first_answer_s"] == pytest.approx(2.01)
    assert (values["warm_build_s"], values["warm_first_answer_s"]) == (0.4, 0.5)
    assert values["peak_device_bytes"] == 412 * MIB


def test_what_is_met_has_no_reasons_and_nothing_is_required_by_no_text() -> None:
    assert unmet("p99_ms<5, peak_device_bytes<4GB, build_s<60, rmse<1e-3") == []
    assert not Requirements.parse("  ")
    assert Requirements.parse("") == Requirements() and Requirements().unmet(full()) == []
    assert Requirements.parse("build_s < 60")


def test_what_is_known_only_later_can_be_left_out_of_what_is_required() -> None:
    required = Requirements.parse("build_s<60, start_s<2, top1>-1%")
    assert [str(each) for each in (required.without_starts(), required.without_metrics(), required.of_metrics())] == [
        "build_s<60, top1>-1%",
        "build_s<60, start_s<2",
        "top1>-1%",
    ]


def test_each_doubt_has_what_is_and_what_was_asked() -> None:
    found = unmet("build_s<1.5, median_ms<5 , joules_per_call<=0.01, peak_device_bytes<400MB")
    assert [(doubt.value, str(doubt.required), doubt.required.limit) for doubt in found] == [
        (pytest.approx(2.0), "build_s<1.5", 1.5),
        (0.02, "joules_per_call<=0.01", 0.01),
        (412 * MIB, "peak_device_bytes<400 MB", 4e8),
    ]


@pytest.mark.parametrize(
    ("text", "is_met"),
    [
        ("build_s<2", False),
        ("build_s<=2", True),
        ("build_s>2", False),
        ("build_s>=2", True),
        (f"peak_device_bytes<={412 * MIB}", True),
        ("peak_device_bytes<=412MiB", True),
        ("peak_device_bytes<=412 MB", False),
        ("peak_device_bytes<0.5GB", True),
        ("peak_device_bytes<4e8B", False),
        ("build_s<.5e1", True),
    ],
)
def test_operators_and_units(text: str, is_met: bool) -> None:
    record = ok(cell("onnx", device="cuda"), constant([1.0] * 6), first_call_s=0.01).model_copy(
        update={"phases": [Phase(name="compile", seconds=2.0)]}
    )
    assert (unmet(text, record) == []) is is_met


def test_a_quantity_that_was_not_measured_is_not_met() -> None:
    few = ok(cell("onnx"), constant([1.0] * 6))
    found = unmet("p99_ms<5, peak_device_bytes<4GB, warm_build_s<4, joules_per_call<4", few)
    assert [(doubt.required.name, doubt.value) for doubt in found] == [
        (name, None) for name in ("p99_ms", "peak_device_bytes", "warm_build_s", "joules_per_call")
    ]


def test_not_a_number_meets_nothing() -> None:
    wrong = ok(cell("onnx"), constant([1.0] * 6), accuracy=accuracy(math.nan))
    assert len(unmet("rmse<1, rmse>=1", wrong)) == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p9_ms<5", "unknown quantity 'p9_ms': did you mean 'p99_ms'? (--require 'p9_ms<5'; a metric: --evaluate)"),
        ("xyz<5", "unknown quantity 'xyz': known: artifact_bytes, "),
        ("latency_ms<5", "'latency_ms': did you mean 'median_ms'?"),
        ("p50_ms<5", "'p50_ms': known: median_ms"),
        ("peak_memory_bytes<4GB", "'peak_memory_bytes': did you mean 'peak_device_bytes'?"),
        ("p99_ms<5ms", "--require 'p99_ms<5ms': p99_ms takes a plain number, not one in ms"),
        ("peak_device_bytes<4Gb", "unknown unit of bytes 'Gb': did you mean 'GB'?"),
        ("p99_ms=5", "--require 'p99_ms=5': write NAME<NUMBER"),
        ("p99_ms<", "--require 'p99_ms<': write NAME<NUMBER"),
        ("p99_ms<-1", "--require 'p99_ms<-1': write NAME<NUMBER"),
        ("p99_ms<nan", "--require 'p99_ms<nan': write NAME<NUMBER"),
        ("p99_ms<5,", "--require '': write NAME<NUMBER"),
        ("p99_ms<5 build_s<3", "--require 'p99_ms<5 build_s<3': write NAME<NUMBER"),
        ("p99_ms<4,000", "--require '000': write NAME<NUMBER"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        Requirements.parse(text).refuse_metrics()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("limit", "outcome"), [("0.05", "met"), ("0.021", "open"), ("0.019", "open"), ("0.01", "missed")]
)
def test_energy_decides_only_where_its_interval_is_beside_the_limit(limit: str, outcome: str) -> None:
    energy = Energy(
        joules_per_call=0.02,
        ci95=Interval(low=0.018, high=0.022),
        turns=5,
        idle_w=70.0,
        calls=1000,
        seconds=1.0,
        source="",
    )
    record = full().model_copy(update={"energy": energy})
    required = Requirements.parse(f"joules_per_call<{limit}")
    told = "missed" if required.unmet(record) else "open" if required.open([record]) else "met"
    assert told == outcome
    below = energy.model_copy(update={"ci95": Interval(low=-0.01, high=0.05)})
    assert required.unmet(record.model_copy(update={"energy": below}))  # less than the counter resolves: not known


def test_a_start_that_may_miss_the_limit_is_a_doubt_and_no_refusal() -> None:
    start = full().starts[0].starts[0]
    starts = [start.model_copy(update={"imports_s": 0.2 + 0.02 * number}) for number in range(7)]
    record = full().model_copy(update={"starts": [full().starts[0].model_copy(update={"starts": starts})]})
    required = Requirements.parse("start_s<0.75")
    assert not required.unmet(record)
    (doubt,) = required.open([record])
    assert doubt.say() == (
        "onnx may miss what is required: start_s is 0.76, and 7 repetitions do not show whether it is < 0.75"
    )
    assert Requirements.parse("start_s<0.5").unmet(record)


def test_a_rate_that_other_load_held_down_may_be_higher() -> None:
    rate = Throughput(calls_per_s=400.0, blocks=3, block_s=0.1)  # single calls take 1 ms
    held_down = full().model_copy(update={"throughput": rate})
    assert held_down.is_throughput_doubtful
    required = Requirements.parse("calls_per_s>500")
    assert not required.unmet(held_down) and [doubt.labels for doubt in required.open([held_down])] == [("onnx",)]
    assert not Requirements.parse("calls_per_s>300").open([held_down])
    assert unmet("calls_per_s>500", full().model_copy(update={"throughput": rate, "latency": None}))
