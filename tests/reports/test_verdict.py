import pytest

from reports.schema import Cell, Extent, Placement, Record, Status
from reports.verdict import MARGIN, MARGIN_UNPAIRED, judge, judge_contest, spell_ms, title_of
from tests.reports.samples import (
    bursts,
    cell,
    constant,
    conv_on_cpu,
    failed,
    hostile_on_cpu,
    mlp_on_cuda,
    ok,
    strictly_on_cpu,
)

STEADY = [1.0, 1.001, 0.999, 1.0, 1.002, 0.998]


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
    # building and the first call (0.01 s for either) against 1 ms saved per call
    assert [standing.break_even_calls for standing in verdict.standings] == [1_000, 18_000, 0]
    assert verdict.sentence == (
        "conv on cpu, fp32: onnx wins at 1.00 ms, 1.50x [1.50, 1.50] as fast as inductor "
        "and 2.00x [2.00, 2.00] as fast as eager; building it (1.0 s) pays from call 1,000 on."
    )
    assert verdict.doubts == []


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


def test_contests_are_judged_apart_and_in_order() -> None:
    verdicts = judge([*mlp_on_cuda(), *conv_on_cpu(), *hostile_on_cpu()])
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
        return [doubt for doubt in verdict.doubts if "less than 10%" in doubt]

    assert len(doubts(1.08)) == 1
    assert doubts(1.5) == []


def test_a_lead_whose_interval_reaches_into_the_margin_is_a_tie() -> None:
    slower = [1.02, 1.10, 1.03, 1.09, 1.07, 1.08, 1.02, 1.09, 1.07, 1.08]
    records = [ok(cell("onnx"), constant([1.0] * 10)), ok(cell("inductor"), constant(slower))]
    verdict = judge_contest(records)
    assert verdict.winner is None
    assert verdict.tied == ["onnx", "inductor"]
