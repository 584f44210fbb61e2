"""Reports of several machines side by side: who is the fastest, who is the cheapest, and what cannot be told."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from bakeoff.judging.history import history_of
from bakeoff.judging.machines import machines_of, names_of, parse_prices
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Energy, Record, Report, Throughput
from bakeoff.reports import markdown
from bakeoff.reports.machines import answer, blocks_of
from tests.reports.samples import cell, ok, over_processes, report, roofline
from tests.support.golden import same_as_golden


def build(median_ms: float, label: str, device: str = "cpu", model: str = "conv") -> Record:
    """Return a record of a cell that does ten calls in the time of its median, at 2 mJ each."""
    made = ok(cell(label, model=model, device=Device(device)), over_processes(median_ms))
    throughput = Throughput(calls_per_s=1e4 / median_ms, blocks=3, block_s=0.1)
    energy = Energy(joules_per_call=0.002, idle_w=100, calls=1000, seconds=1, source="NVML, the whole GPU")
    return made.model_copy(update={"throughput": throughput, "energy": energy})


def test_the_fastest_machine_and_the_cheapest_one_are_named() -> None:
    reports = {
        "large": report([build(4.0, "eager", "cuda"), build(1.0, "inductor", "cuda"), build(1.0, "onnx", model="mlp")]),
        "small": report([build(9.0, "eager"), build(3.0, "onnx")]),
    }
    found = machines_of(reports, {"large": 3.6, "small": 0.36})
    (question,) = found.questions
    assert "cpu" not in question.title and "cuda" not in question.title
    assert [offer.machine for offer in question.offers] == ["large", "small"]
    assert question.fastest == ["large"]
    assert question.cheapest is question.offers[1]
    # 3.6 an hour is 0.001 a second: a million calls take 100 s on the large machine, and 300 s on the small one
    assert [offer.price_per_million for offer in question.offers] == pytest.approx([0.1, 0.03])


def test_a_rate_that_other_load_held_down_may_be_that_of_the_cheapest_machine() -> None:
    small = build(3.0, "onnx")
    dear = build(1.0, "onnx")
    held = dear.model_copy(update={"throughput": Throughput(calls_per_s=100.0, blocks=3, block_s=0.1)})
    assert held.is_throughput_doubtful
    for fast, candidates in ((dear, ["small"]), (held, ["small", "large"])):
        reports = {"large": report([build(4.0, "eager"), fast]), "small": report([build(9.0, "eager"), small])}
        (question,) = machines_of(reports, {"large": 3.6, "small": 0.36}).questions
        assert [offer.machine for offer in question.maybe_cheapest] == candidates
        assert (question.cheapest is None) is (fast is held)


def test_machines_whose_intervals_overlap_are_not_told_apart() -> None:
    reports = {name: report([build(2.0, "eager"), build(ms, "onnx")]) for name, ms in (("a", 1.0), ("b", 1.001))}
    (question,) = machines_of(reports).questions
    assert set(question.fastest) == {"a", "b"} and question.cheapest is None


def test_a_machine_that_never_tried_what_is_fastest_elsewhere_is_named() -> None:
    reports = {
        "a": report([build(2.0, "eager", "cuda"), build(0.5, "inductor", "cuda")]),
        "b": report([build(2.1, "eager", "cuda"), build(2.0, "onnx", "cuda")]),
        "c": report([build(9.0, "eager")]),
    }
    found = machines_of(reports)
    assert found.questions[0].untried == {"b": ["inductor"]}, "c has another kind of device"
    del reports["b"]
    assert machines_of(reports).questions[0].untried == {}


def test_widths_of_one_model_are_kept_apart() -> None:
    """Two runs of `live:Net`: no dimension says that one of them is twice as wide."""

    def run(flops: int, device: str = "cpu") -> Report:
        record = build(2.0, "eager", device, model="live:Net")
        floor = roofline(2.0).model_copy(update={"flops": flops})
        return report([record.model_copy(update={"roofline": floor})])

    alike = machines_of({"a": run(1_000), "b": run(1_000, "cuda")})
    assert len(alike.questions) == 1 and "FLOP" not in alike.questions[0].title
    differing = machines_of({"a": run(1_000), "b": run(4_000, "cuda")})
    assert not differing.questions
    assert differing.asked_once == ("live:Net (1,000 FLOP), fp32", "live:Net (4,000 FLOP), fp32")
    runs = {(datetime(2026, 1, day, tzinfo=UTC), f"run{day}"): run(flops) for day, flops in ((1, 1_000), (2, 4_000))}
    assert len(history_of(runs, []).contests) == 2


def test_runs_of_one_host_are_of_one_machine() -> None:
    reports = {name: report([build(2.0, "eager")]) for name in ("a", "b", "c")}
    elsewhere = reports["c"].environment.model_copy(update={"hostname": "other"})
    reports["c"] = reports["c"].model_copy(update={"environment": elsewhere})
    found = machines_of(reports)
    assert found.hosts == [["a", "b"], ["c"]]


def test_machines_are_told_as_before() -> None:
    small, large = [build(9.0, "eager"), build(3.0, "onnx")], [build(4.0, "eager", "cuda")]
    fast = [*large, build(1.0, "inductor", "cuda"), build(1.0, "onnx", model="mlp")]
    alike = {name: report([build(2.0, "eager"), build(ms, "onnx")]) for name, ms in (("a", 1.0), ("b", 1.001))}
    held = small[1].model_copy(update={"throughput": Throughput(calls_per_s=9.0, blocks=3, block_s=0.1)})
    cases = {
        "priced": machines_of({"large": report(fast), "small": report(small)}, {"large": 3.6, "small": 0.36}),
        "alike": machines_of(alike),
        "a rate held down": machines_of(
            {"large": report(fast), "small": report([held, build(9.0, "eager")])}, {"large": 0.36, "small": 3.6}
        ),
        "one never tried": machines_of({"a": report(fast), "b": report([*large, build(2.0, "onnx", "cuda")])}),
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
