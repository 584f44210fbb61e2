"""What keeps cells of a decode step from the floor, as every output says it."""

from bakeoff.judging.judgement import contests_of
from bakeoff.records.schema import Kernel, KernelTimes, Record
from bakeoff.reports import sentences
from tests.reports.samples import bursts, cell, judged, ok, once, report, roofline
from tests.support.printed import every_output


def step(backend: str, median_ms: float, busy_ms: float | None, task: str = "decode") -> Record:
    """Return a step whose floor is 0.151 ms, as traced."""
    name = "void gemv<at::BFloat16>(" + "int, " * 40 + ")"
    longest = [Kernel(name=name, share=0.614), Kernel(name="copy", share=0.2)]
    times = None if busy_ms is None else KernelTimes(busy_ms=busy_ms, kernels=1412, longest=longest, calls=3)
    measured = cell(backend, device="cuda", task=task)
    return ok(measured, bursts(median_ms), roofline=roofline(median_ms), kernel_times=times)


def told(*records: Record) -> list[str]:
    (contest,) = contests_of(report(list(records)))
    return sentences.floor_sentences(contest)


def test_a_gpu_that_waits_is_told_from_kernels_that_are_slow() -> None:
    first, second = told(step("eager", 2.0, 0.3), step("inductor", 0.3, 0.28))
    assert first == (
        "inductor reaches 50 % of the floor: its 1,412 kernels take 0.2800 ms, 1.85 times the floor; "
        "gemv<at::BFloat16>(int, int, int, int, int, int, int, int,… takes 61 % of that."
    )
    assert second == (
        "eager reaches 8 % of the floor: the GPU works in 0.3000 of 2.040 ms, and waits for the host between 1,412 "
        "kernels."
    )


def test_nothing_is_told_without_a_trace_or_of_another_task() -> None:
    assert told(step("eager", 2.0, None)) == []
    assert told(step("eager", 2.0, 0.3, task="inference")) == []


def test_a_floor_that_was_not_measured_is_told_with_the_reason_on_the_terminal_and_in_both_reports() -> None:
    judgement = judged([once(1.0, "onnx", no_floor="scripted: no time"), once(2.0, "eager")])
    outputs = every_output(judgement)
    for name in ("terminal", "report.md", "details.md"):
        assert outputs[name].count("No floor: scripted: no time.") == 1, name
