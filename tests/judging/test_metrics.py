"""The user's own metrics beside the reference's, and what is required of them and of every other quantity."""

import math
import random

import pytest

from bakeoff.judging.acceptance import Acceptance
from bakeoff.judging.answer import Certainty
from bakeoff.judging.constraints import QUANTITIES, RequirementMissed, Requirements, parse_limits_on_errors
from bakeoff.judging.contest import judge_contest
from bakeoff.judging.metric_changes import judge_metrics, mcnemar
from bakeoff.records.doubts import AcceptedByLimit, AcceptedByMetric
from bakeoff.records.errors import UsageError
from bakeoff.records.failure import Failure
from bakeoff.records.metrics import Metric, Metrics
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Energy, Interval, Memory, Phase, Process, Record, Status, Throughput
from bakeoff.records.start_samples import StartedCell
from bakeoff.reports import first_screen, sentences
from tests.reports.samples import MIB, Scores, accuracy, bursts, cell, constant, ok, scored, start


def right(samples: int, wrong: int = 0) -> list[float]:
    """Scores of a build that has `wrong` of the samples wrong, the first ones."""
    return [0.0] * wrong + [1.0] * (samples - wrong)


def measured(label: str, scores: Scores, reference: Scores, ms: float = 1.0) -> Record:
    return scored(ok(cell(label), constant([ms] * 8)), scores, reference)


def test_scores_are_kept_compactly_and_come_back_as_they_were() -> None:
    scores = [random.Random(1).random() for _ in range(1000)]
    assert Metric.of_scores(scores).scores == tuple(scores)
    assert len(Metric.of_scores(right(50_000, 10_000)).packed) < 1000
    assert Metric(value=0.5).scores == ()


HARD = [random.Random(2).gauss(10.0, 3.0) for _ in range(100)]


@pytest.mark.parametrize(
    ("label", "scores", "reference", "ends"),
    [
        ("onnx", [each - 0.5 for each in HARD], HARD, (-0.5, -0.5)),  # paired, as far as samples differ
        ("eager", HARD, HARD, (0.0, 0.0)),  # the reference itself
        ("onnx", 0.75, 0.76, None),  # plain numbers
    ],
)
def test_a_change_has_an_interval(
    label: str, scores: Scores, reference: Scores, ends: tuple[float, float] | None
) -> None:
    change = judge_metrics(measured(label, scores, reference))["top1"].change_ci95
    assert (change and (change.low, change.high)) == (ends and pytest.approx(ends, abs=0.01))


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
    return record.but(**{name: Metrics(failure=failure) for name, failure in fields.items()})


NAN = Failure(kind="UsageError", text="evaluate returned nan as top1 for sample 3 of 8")


def test_other_names_or_another_number_of_scores_cannot_be_compared() -> None:
    reference = Metrics(values={"top1": Metric.of_scores(right(8))})
    other = Metrics(values={"f1": Metric(value=1.0)}).beside(reference)
    assert other.failure and other.failure.text == "evaluate returned f1, and for the reference top1"
    fewer = Metrics(values={"top1": Metric.of_scores(right(7))}).beside(reference)
    assert fewer.failure and "7 scores of top1, and for the reference 8" in fewer.failure.text
    assert reference.beside(reference) is reference


def rejected(scores: list[float] | float, precision: str = "int8", is_only_inexact: bool = True) -> Record:
    """A record of a build whose outputs are off by a third, with a metric that is 1 for the reference."""
    record = measured("onnx", scores, right(len(scores)) if isinstance(scores, list) else 1.0)
    failure = Failure(kind="outputs too far off", text="rmse 0.34, eager's 0.01")
    update = {
        "cell": record.cell.but(precision=Precision(precision)),
        "status": Status.INCORRECT,
        "failure": failure,
        "reason": failure.sentence,
        "accuracy": accuracy(0.34, passed=False).but(is_only_inexact=is_only_inexact),
    }
    return record.but(**update)


def accepted(record: Record, require: str = "", accept: str = "") -> Record:
    return Acceptance(parse_limits_on_errors(accept), Requirements.parse(require)).applied_to(record)


def test_a_required_metric_that_surely_holds_decides_for_a_reduced_precision() -> None:
    record = accepted(rejected(right(800)), require="top1>-1%")
    [doubt] = record.doubts
    assert isinstance(doubt, AcceptedByMetric) and (doubt.required, doubt.relative_rmse) == ("top1>-1%", 0.34)
    eager = measured("eager", right(800), right(800), ms=2.0)
    eager = eager.but(cell=eager.cell.but(precision=Precision.INT8))
    contest = judge_contest([record, eager], Requirements.parse("top1>-1%"))
    assert contest.fastest.winner == "onnx" and contest.fastest.certainty is Certainty.SURE
    said = "onnx: the numeric check rejects it (relative RMSE 3.4e-01), but top1>-1% surely holds"
    assert said in " ".join(sentences.doubts(contest))
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
    for said in (first_screen.whether_to_ship([contest]), " ".join(sentences.doubts(contest))):
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
    began = start(0.2, load_s=0.3, peak_bytes=MIB, steady_bytes=MIB)
    started = StartedCell(cell_id="onnx", label="onnx", distributions={"onnxruntime": MIB}, starts=[began])
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
    record = ok(cell("onnx", device="cuda"), constant([1.0] * 6), first_call_s=0.01).but(
        phases=[Phase(name="compile", seconds=2.0)]
    )
    assert (unmet(text, record) == []) is is_met


def test_a_quantity_that_was_not_measured_is_not_met() -> None:
    few = ok(cell("onnx"), constant([1.0] * 6))
    found = unmet("p99_ms<5, peak_device_bytes<4GB, warm_build_s<4, joules_per_call<4", few)
    assert [(doubt.required.name, doubt.value) for doubt in found] == [
        (name, None) for name in ("p99_ms", "peak_device_bytes", "warm_build_s", "joules_per_call")
    ]


def test_what_a_stop_left_out_is_open() -> None:
    cut_short = ok(cell("onnx"), constant([1.0] * 6)).but(is_in_part=True)
    required = Requirements.parse("p99_ms<5, peak_device_bytes<1GB, top1>0.5, median_ms<0.5")
    assert [doubt.unmet for doubt in required.unmet(cut_short)] == ["median_ms is 1, not < 0.5"]
    assert [doubt.say() for doubt in required.open([cut_short])] == [
        "onnx may miss p99_ms < 5: the sample is too small for this percentile: raise --min-time",
        "onnx may miss peak_device_bytes < 1 GB: no memory of a device was read",
        "onnx may miss top1 > 0.5: it was not evaluated",
    ]
    evaluated = cut_short.but(metrics=Metrics(failure=Failure(kind="KeyError", text="KeyError: label"), seconds=1.0))
    assert [doubt.required.name for doubt in required.unmet(evaluated)] == ["top1", "median_ms"]


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
    record = full().but(energy=energy)
    required = Requirements.parse(f"joules_per_call<{limit}")
    told = "missed" if required.unmet(record) else "open" if required.open([record]) else "met"
    assert told == outcome
    below = energy.but(ci95=Interval(low=-0.01, high=0.05))
    assert required.unmet(record.but(energy=below))  # less than the counter resolves: not known


def test_a_start_that_may_miss_the_limit_is_a_doubt_and_no_refusal() -> None:
    start = full().starts[0].starts[0]
    starts = [start.but(imports_s=0.2 + 0.02 * number) for number in range(7)]
    record = full().but(starts=[full().starts[0].but(starts=starts)])
    required = Requirements.parse("start_s<0.75")
    assert not required.unmet(record)
    (doubt,) = required.open([record])
    assert doubt.say() == (
        "onnx may miss what is required: start_s is 0.76, and 7 repetitions do not show whether it is < 0.75"
    )
    assert Requirements.parse("start_s<0.5").unmet(record)
    few = record.but(starts=[record.starts[0].but(starts=starts[:3])])
    assert not Requirements.parse("start_s<0.5").unmet(few), "three starts have no interval, and show nothing surely"


def test_a_rate_that_other_load_held_down_may_be_higher() -> None:
    rate = Throughput(calls_per_s=400.0, blocks=3, block_s=0.1)  # single calls take 1 ms
    held_down = full().but(throughput=rate)
    assert held_down.is_throughput_doubtful
    required = Requirements.parse("calls_per_s>500")
    assert not required.unmet(held_down) and [doubt.labels for doubt in required.open([held_down])] == [("onnx",)]
    assert not Requirements.parse("calls_per_s>300").open([held_down])
    assert unmet("calls_per_s>500", full().but(throughput=rate, latency=None))
