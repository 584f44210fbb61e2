import time
from collections.abc import Sequence

import numpy as np
import pytest

from judging.decision import MARGIN, MARGIN_UNPAIRED
from judging.verdict import judge_contest, judge_contests, spell_ms, title_of, undecided
from records.schema import Cell, Extent, Placement, Record, Settling, Status
from tests.reports.samples import (
    bursts,
    cell,
    constant,
    conv_on_cpu,
    failed,
    hostile_on_cpu,
    mlp_on_cuda,
    ok,
    over_processes,
    steady,
    strictly_on_cpu,
    under,
)

STEADY = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998]


LAYOUTS = [1.0, 1.004, 0.997, 1.002, 0.999]


def lived(level_ms: float, backend: str, layouts: Sequence[float] = LAYOUTS, **more: object) -> Record:
    """Measured in as many processes as there are layouts, each so many times as slow as `level_ms`."""
    return ok(cell(backend), steady([level_ms * layout for layout in layouts]), **more)


def times(level_ms: float, backend: str, build_s: float = 0.0, first_round: int = 0, **more: object) -> Record:
    values = [level_ms * value for value in STEADY]
    return ok(cell(backend), constant(values, first_round=first_round), build_s=build_s, **more)


def test_the_fastest_wins_when_its_lead_is_clear() -> None:
    verdict = judge_contest([times(2.0, "eager"), times(1.0, "onnx", build_s=1.0), times(1.5, "inductor", build_s=9.0)])
    assert (verdict.winner, verdict.runner_up, verdict.tied) == ("onnx", "inductor", [])
    assert verdict.lead is not None and verdict.lead.value == pytest.approx(1.5)
    assert [(standing.label, standing.rank) for standing in verdict.standings] == [
        ("onnx", 1),
        ("inductor", 2),
        ("eager", 3),
    ]
    # building against 1 ms saved per call, but for the first one (0.01 s for either)
    assert [standing.break_even_calls for standing in verdict.standings] == [1_001, 18_001, 0]
    assert verdict.sentence == (
        "conv on cpu, fp32: onnx wins at 1.00 ms, 1.50x [1.50, 1.50] as fast as inductor "
        "and 2.00x [2.00, 2.00] as fast as eager; building it (1.0 s) pays from call 1,001 on."
    )
    assert verdict.doubts == []


def test_calls_until_it_settled_are_told_beside_building() -> None:
    hot = times(1.0, "hotpath", build_s=0.5)
    first = hot.processes[0].model_copy(update={"settling": Settling(calls=1000, seconds=21.0)})
    hot = hot.model_copy(update={"processes": [first, *hot.processes[1:]]})
    sentence = judge_contest([times(2.0, "eager"), hot]).sentence
    # 20 s beyond a thousand steady calls, and half a second, against 1 ms a call
    assert "building it (0.5 s, and 21.0 s of calls until it settled) pays from call 20,50" in sentence


def test_a_lead_within_the_margin_is_a_tie_however_narrow_its_interval() -> None:
    verdict = judge_contest([times(1.0, "onnx"), times(1 + MARGIN - 0.01, "inductor"), times(2.0, "eager")])
    assert verdict.winner is None
    assert verdict.tied == ["onnx", "inductor"]
    assert [standing.rank for standing in verdict.standings] == [1, 1, 3]
    assert verdict.runner_up == "eager"
    assert verdict.sentence == (
        "conv on cpu, fp32: tie between onnx and inductor (1.00 ms to 1.03 ms), "
        "about 2.00x [2.00, 2.00] as fast as eager."
    )


def test_a_lead_over_the_margin_is_one() -> None:
    assert judge_contest([times(1.0, "onnx"), times(1 + MARGIN + 0.01, "inductor")]).winner == "onnx"


def test_a_lead_whose_interval_holds_one_is_a_tie_however_large() -> None:
    noisy = ok(cell("inductor"), constant([0.6, 3.0, 0.7, 2.5, 0.8, 2.6]))
    verdict = judge_contest([times(1.0, "onnx"), noisy])
    assert verdict.lead is None
    assert verdict.tied == ["onnx", "inductor"]


def test_two_copies_of_one_backend_tie() -> None:
    verdict = judge_contest([ok(cell("null"), bursts(1.0, seed=1)), ok(cell("null", "copy"), bursts(1.0, seed=2))])
    assert sorted(verdict.tied) == ["null", "null/copy"]


def test_an_incorrect_cell_is_never_ranked_even_if_fastest() -> None:
    wrong = times(0.1, "openvino", status=Status.INCORRECT, reason="off by far")
    verdict = judge_contest([times(2.0, "eager"), wrong, times(1.0, "onnx")])
    assert verdict.winner == "onnx"
    assert "openvino" not in [standing.label for standing in verdict.standings]
    assert verdict.doubts == ["openvino is not ranked, incorrect: off by far"]


def test_what_strict_failed_is_not_ranked_however_fast() -> None:
    verdict = judge_contest(strictly_on_cpu())
    assert [standing.label for standing in verdict.standings] == ["eager"]
    assert verdict.doubts == [
        "onnx is not ranked, fallback: placement is partial, and --strict asks for full: aten.gelu, sort|x and 1 more",
        "openvino is not ranked, fallback: openvino does not tell where it ran, and --strict asks for full",
        "inductor is not ranked, error: no compiler",
    ]


def test_without_a_baseline_there_are_no_speedups_and_it_says_so() -> None:
    verdict = judge_contest([times(1.0, "onnx"), times(2.0, "inductor")])
    assert verdict.baseline is None
    assert [standing.speedup_over_baseline for standing in verdict.standings] == [None, None]
    assert any("no eager row" in doubt for doubt in verdict.doubts)


def test_nothing_ranked() -> None:
    lost = [failed(cell("onnx"), Status.CRASH, "signal 11"), failed(cell("eager"), Status.OOM, "no memory")]
    verdict = judge_contest(lost)
    assert (verdict.winner, verdict.standings) == (None, [])
    assert verdict.sentence == "conv on cpu, fp32: nothing could be ranked (1 crash, 1 oom)."


def test_a_single_ranked_cell_wins_nothing_over_nobody() -> None:
    sentence = judge_contest([times(1.0, "onnx"), failed(cell("eager"), Status.OOM, "no memory")]).sentence
    assert sentence == "conv on cpu, fp32: only onnx could be ranked, at 1.00 ms."


def test_cells_of_other_rounds_need_a_wider_margin_and_say_so() -> None:
    level = 1 + MARGIN_UNPAIRED - 0.05
    verdict = judge_contest([times(1.0, "onnx"), times(level, "inductor", first_round=50)])
    assert verdict.tied == ["onnx", "inductor"]
    assert any("not measured in the same rounds" in doubt for doubt in verdict.doubts)
    assert judge_contest([times(1.0, "onnx"), times(level, "inductor")]).winner == "onnx"


def test_eager_may_win() -> None:
    verdict = judge_contest([times(1.0, "eager"), times(2.0, "onnx", build_s=1.0)])
    assert verdict.sentence == "conv on cpu, fp32: eager wins at 1.00 ms, 2.00x [2.00, 2.00] as fast as onnx."
    assert verdict.standings[1].break_even_calls is None


def test_a_winner_that_costs_nothing_to_build_pays_from_no_call() -> None:
    assert "pays" not in judge_contest([times(2.0, "eager"), times(1.0, "onnx")]).sentence


def test_a_fallback_and_a_records_own_doubts_are_told() -> None:
    placement = Placement(extent=Extent.FALLBACK, fallbacks=["CPUExecutionProvider"])
    verdict = judge_contest([times(1.0, "onnx", placement=placement, doubts=["never steady"])])
    assert "onnx: never steady" in verdict.doubts
    assert "onnx ran only in part where it was asked to (fallback): CPUExecutionProvider" in verdict.doubts


def test_what_several_records_doubt_is_told_once() -> None:
    records = [
        times(2.0, "eager", doubts=["no trend"]),
        times(1.0, "onnx", doubts=["odd", "no trend"]),
        times(3.0, "openvino"),
    ]
    doubts = judge_contest(records).doubts
    assert doubts[:2] == ["onnx: odd", "onnx, eager: no trend"]
    assert sum("no trend" in doubt for doubt in doubts) == 1


def test_contests_are_judged_apart_and_in_order() -> None:
    verdicts = judge_contests([*mlp_on_cuda(), *conv_on_cpu(), *hostile_on_cpu()])
    assert [verdict.title.split(" ")[0] for verdict in verdicts] == ["mlp", "conv", "./my|models/<net>_v2$x$.py:Net"]
    assert [verdict.winner for verdict in verdicts] == [None, "onnx", "third_party*"]
    with pytest.raises(ValueError, match="exactly one contest"):
        judge_contest([*mlp_on_cuda(), *conv_on_cpu()])


@pytest.mark.parametrize(
    ("milliseconds", "spelt"),
    [
        (0.0, "0.0000 ms"),
        (0.0000214, "0.000021 ms"),  # a clock in nanoseconds has no more digits
        (0.00175, "0.00175 ms"),
        (0.0175, "0.0175 ms"),
        (0.175, "0.175 ms"),
        (1.234, "1.23 ms"),
        (12.34, "12.3 ms"),
        (1234.5, "1,234 ms"),
    ],
)
def test_milliseconds_have_three_digits(milliseconds: float, spelt: str) -> None:
    assert spell_ms(milliseconds) == spelt


def test_the_title_names_what_is_not_usual() -> None:
    assert title_of(Cell(model="mlp", backend="eager")) == "mlp on cpu, fp32"
    training = Cell(model="mlp", dimensions={"batch": 4}, task="training", device="cuda", precision="bf16", backend="x")
    assert title_of(training) == "mlp (batch 4) on cuda, bf16, training"


def test_a_narrow_lead_is_called_with_a_doubt() -> None:
    def doubts(factor: float) -> list[str]:
        records = [ok(cell("onnx"), bursts(1.0)), ok(cell("eager"), bursts(factor, seed=1))]
        verdict = judge_contest(records)
        assert verdict.winner == "onnx"
        return [doubt for doubt in verdict.doubts if "less than 10 %" in doubt]

    assert len(doubts(1.08)) == 1
    assert doubts(1.5) == []


def test_a_lead_whose_interval_reaches_into_the_margin_is_a_tie() -> None:
    slower = [1.02, 1.10, 1.03, 1.09, 1.07, 1.08, 1.02, 1.09, 1.07, 1.08]
    records = [ok(cell("onnx"), constant([1.0] * 10)), ok(cell("inductor"), constant(slower))]
    verdict = judge_contest(records)
    assert verdict.winner is None
    assert verdict.tied == ["onnx", "inductor"]


def test_over_processes_a_lead_of_five_percent_wins_with_its_interval() -> None:
    records = [lived(2.0, "eager"), lived(1.0, "onnx"), lived(1.05, "inductor", LAYOUTS[::-1])]
    verdict = judge_contest(records)
    assert (verdict.winner, verdict.runner_up, verdict.unstable) == ("onnx", "inductor", False)
    assert verdict.lead is not None and verdict.lead.processes == 5
    assert verdict.sentence == (
        "conv on cpu, fp32: onnx wins at 1.00 ms, 1.05x [1.05, 1.05] as fast as inductor and 2.00x [2.00, 2.00] as "
        "fast as eager over 5 processes of each."
    )
    assert verdict.doubts == []
    assert undecided(records) == []


def test_over_processes_two_copies_of_one_backend_tie_whichever_comes_first() -> None:
    first = ok(cell("null"), over_processes(1.0, LAYOUTS, seed=1))
    second = ok(cell("null", "copy"), over_processes(1.0, LAYOUTS[::-1], seed=2))
    for records in ([first, second], [second, first]):
        verdict = judge_contest(records)
        assert (verdict.winner, sorted(verdict.tied), verdict.unstable) == (None, ["null", "null/copy"], False)
        assert "over 5 processes of each." in verdict.sentence
    assert undecided([first, second]) == []


def test_processes_that_disagree_leave_the_verdict_open_and_it_says_what_to_do() -> None:
    records = [lived(1.0, "onnx", [1.0, 1.04, 0.96]), lived(1.03, "inductor", [0.97, 1.0, 1.03]), lived(3.0, "eager")]
    verdict = judge_contest(records)
    assert (verdict.winner, verdict.tied, verdict.unstable) == (None, ["onnx", "inductor"], True)
    assert undecided(records) == [("onnx", "inductor")]
    assert verdict.sentence == (
        "conv on cpu, fp32: no winner yet between onnx and inductor (1.00 ms to 1.03 ms), about 3.00x [2.74, 3.29] as "
        "fast as eager over 3 processes of each; unstable, since measuring ended before this was decided."
    )
    (doubt,) = [doubt for doubt in verdict.doubts if doubt.startswith("unstable")]
    assert doubt.startswith("unstable: 3 processes of each do not decide onnx against inductor, 1.03x [0.89, 1.20]: ")
    assert doubt.endswith("raise --time-limit, or --processes over 3, or find a quieter machine")
    assert [standing.median_ms for standing in verdict.standings] == [1.0, 1.03, 3.0]  # numbers are kept


def test_a_lead_that_only_95_percent_believe_in_is_not_called() -> None:
    verdict = judge_contest([lived(1.0, "onnx", [1.0, 1.0, 1.0]), lived(1.05, "eager", [0.995, 1.0, 1.005])])
    lead = verdict.standings[0].speedup_over_baseline
    assert lead is not None and lead.ci95 is not None and lead.ci95.low > 1.03
    assert (verdict.tied, verdict.unstable) == (["onnx", "eager"], True)


def test_a_clear_winner_of_two_processes_is_called_by_the_margin() -> None:
    records = [lived(1.0, "onnx", [1.0, 1.002]), lived(1.5, "eager", [1.0, 1.001])]
    verdict = judge_contest(records)
    assert (verdict.winner, verdict.unstable) == ("onnx", False)
    assert undecided(records) == [("onnx", "eager")]


def test_one_process_of_each_leaves_nothing_open_but_the_doubt() -> None:
    verdict = judge_contest([times(1.0, "onnx"), times(1.02, "inductor")])
    assert (verdict.tied, verdict.unstable) == (["onnx", "inductor"], False)


def test_a_cell_far_behind_that_cannot_be_told_apart_is_still_undecided() -> None:
    noisy = lived(1.6, "openvino", [0.6, 1.0, 1.9, 1.2, 0.7])
    records = [lived(1.0, "onnx"), lived(1.3, "inductor"), noisy]
    assert undecided(records) == [("onnx", "openvino")]
    verdict = judge_contest(records)
    assert (verdict.winner, verdict.unstable) == ("onnx", True)
    assert any("do not decide onnx against openvino" in doubt for doubt in verdict.doubts)


def test_a_single_process_that_varies_too_much_to_be_beaten_is_named_behind_the_winner() -> None:
    wild = [1.6 * factor for factor in (0.5, 1.0, 2.0, 0.6, 1.9, 1.0, 0.5, 2.1)]
    noisy = ok(cell("openvino"), constant(wild))
    verdict = judge_contest([times(1.0, "onnx"), times(1.3, "inductor"), noisy])
    assert (verdict.winner, verdict.unstable) == ("onnx", False)
    (doubt,) = [doubt for doubt in verdict.doubts if "told apart" in doubt]
    assert doubt.startswith("onnx is not told apart from what has a longer median and varies more: openvino, 1.60x [")


def test_cells_of_two_groups_are_compared_through_the_baseline_even_against_their_medians() -> None:
    """The machine was half as fast while onnx was measured."""
    onnx = ok(cell("onnx"), steady([1.2] * 5))
    inductor = ok(cell("inductor"), steady([1.0] * 5, group=10))
    eager = ok(cell("eager"), [*steady([4.0] * 5), *steady([2.0] * 5, group=10)])
    verdict = judge_contest([eager, onnx, inductor])
    assert (verdict.winner, verdict.runner_up) == ("onnx", "inductor")
    assert verdict.lead is not None
    assert (verdict.lead.value, verdict.lead.paired) == (pytest.approx(1.667, rel=1e-3), True)
    assert [standing.label for standing in verdict.standings] == ["onnx", "inductor", "eager"]
    assert verdict.doubts == [
        "inductor has the lower median (1.00 ms), but measured against the same rounds onnx was 1.67x [1.67, 1.67] "
        "as fast"
    ]


def test_what_is_not_as_required_does_not_win_and_is_named() -> None:
    class SmallOnly:
        def unmet(self, record: Record) -> list[str]:
            return ["build_s is 20, not < 10"] if record.cell.backend in ("onnx", "eager") else []

    records = [lived(1.0, "onnx"), lived(1.5, "inductor"), lived(2.0, "openvino"), lived(3.0, "eager")]
    verdict = judge_contest(records, SmallOnly())
    assert (verdict.winner, verdict.runner_up, verdict.baseline) == ("inductor", "openvino", "eager")
    assert [standing.label for standing in verdict.standings] == ["inductor", "openvino"]
    assert verdict.doubts == [
        "onnx may not win: build_s is 20, not < 10",
        "eager may not win: build_s is 20, not < 10",
    ]
    assert judge_contests(records, SmallOnly()) == [verdict]
    uneven = [
        records[0],
        records[3],
        lived(1.5, "inductor", [1.0, 1.04, 0.96]),
        lived(1.53, "openvino", [0.97, 1.0, 1.03]),
    ]
    assert undecided(uneven) == []
    assert undecided(uneven, SmallOnly()) == [("inductor", "openvino")]  # which one of them wins is now the question
    nobody = judge_contest([lived(1.0, "onnx"), failed(cell("inductor"), Status.OOM, "no memory")], SmallOnly())
    assert nobody.sentence == "conv on cpu, fp32: nothing could be ranked (1 not as required, 1 oom)."


def test_processes_of_one_cell_that_are_far_apart_are_named() -> None:
    records = [lived(1.0, "onnx", [1.0, 1.08, 1.0, 1.0, 1.0]), lived(2.0, "eager")]
    assert judge_contest(records).doubts == ["slowest over fastest process of the same cell: onnx 8 %"]


def test_what_disturbed_a_contest_is_said_once_at_the_end() -> None:
    calm = steady([1.0] * 3)
    disturbed = [*under(calm[:12], steal_share=0.0), *under(calm[12:], steal_share=0.3)]
    records = [ok(cell("onnx"), disturbed), ok(cell("eager"), disturbed)]
    assert judge_contest(records).doubts == ["the hypervisor gave our cores to others in 33 % of the bursts"]


def test_undecided_is_fast_enough_to_be_asked_after_every_epoch() -> None:
    random = np.random.default_rng(0)
    records = [
        ok(cell(f"b{number}"), over_processes(1.0 + number / 99, random.normal(1, 0.01, 10).tolist(), seed=number))
        for number in range(10)
    ]
    begun = time.perf_counter()
    undecided(records)
    assert time.perf_counter() - begun < 0.5  # 0.03 s on two idle cores


def test_no_records_leave_nothing_undecided() -> None:
    assert undecided([]) == []
    assert undecided([failed(cell("onnx"), Status.OOM, "no memory")]) == []
