from bakeoff.judging.judgement import contests_of
from bakeoff.judging.sweeps import Sweep, latency, sweeps_of
from bakeoff.records.schema import Record, Status
from bakeoff.reports.sentences import sweep_finding, sweep_title
from tests.reports.samples import bursts, cell, conv_on_cpu, failed, ok, report
from tests.reports.samples import sweep as sample


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
