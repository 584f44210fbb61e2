"""The search doubles and then halves, for each backend alone, and keeps what it has found where it is interrupted."""

import json
from collections.abc import Mapping, Sequence

import pytest

from bakeoff.commands import max_batch
from bakeoff.commands.max_batch import BatchSearch, BatchTried, MaxBatchAnswer, search
from bakeoff.judging.constraints import Requirements
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Status
from tests.conftest import CommandLine
from tests.reports.samples import cell, failed, ok, once, steady, under

BUSY = {"wait_share": 0.3, "others_cores": 1.0}
LIMITED = Request(models=("mlp",), devices=("cpu",), backends=("eager", "onnx"), require="median_ms<5")


class Machine:
    """Measures batches without time. Each backend has a largest batch that fits."""

    status = Status.OOM  # of what does not fit

    def __init__(self, largest: Mapping[str, int], interrupted_in: int = 0, disturbed_in: Sequence[int] = ()) -> None:
        self.largest, self.interrupted_in, self.disturbed_in = largest, interrupted_in, disturbed_in
        self.steps: list[dict[str, int]] = []

    @property
    def is_disturbed(self) -> bool:
        return len(self.steps) in self.disturbed_in

    def measure(self, wanted: Mapping[str, int]) -> dict[str, BatchTried]:
        self.steps.append(dict(wanted))
        if len(self.steps) == self.interrupted_in:
            raise KeyboardInterrupt
        return {
            label: BatchTried(
                batch=batch,
                reason="too slow" if batch > self.largest[label] or self.is_disturbed else "",
                status=self.status if batch > self.largest[label] else Status.OK,
                is_disturbed=self.is_disturbed,
            )
            for label, batch in wanted.items()
        }

    def search(self, most: int = 1024) -> dict[str, BatchSearch]:
        begun = [BatchSearch(label=label, most=most) for label in self.largest]
        return {found.label: found for found in search(begun, self.measure)}


@pytest.mark.parametrize("largest", [1, 2, 3, 7, 64, 100, 1023, 1024, 5000])
def test_the_largest_batch_is_found_within_an_eighth(largest: int) -> None:
    machine = Machine({"eager": largest})
    found = machine.search()["eager"]
    assert found.largest is not None
    best = found.largest.batch
    assert best <= largest and (best == 1024 or best + max(1, best // 8) >= min(largest + 1, 1024))
    if found.too_large:
        assert best < found.too_large.batch <= best + max(1, best // 8)
    tried = [one.batch for one in found.tried]
    assert len(set(tried)) == len(tried) and tried[:2] == [1, 2] and max(tried) <= 1024


def test_each_backend_has_a_search_of_its_own() -> None:
    machine = Machine({"eager": 0, "onnx": 6, "inductor": 40})
    found = machine.search()
    assert {label: one.largest and one.largest.batch for label, one in found.items()} == {
        "eager": None,
        "onnx": 6,
        "inductor": 40,
    }
    assert machine.steps[0] == {"eager": 1, "onnx": 1, "inductor": 1} and "eager" not in machine.steps[1]
    assert found["eager"].finding == "eager: no batch (too slow)"


def test_an_interruption_keeps_what_was_found() -> None:
    found = Machine({"onnx": 64}, interrupted_in=4).search()["onnx"]
    assert found.largest is not None and found.largest.batch == 4 and found.next_batch == 8
    assert found.finding.endswith("nothing larger was tried")


def test_what_misses_a_limit_is_measured_once_again() -> None:
    machine = Machine({"onnx": 16}, disturbed_in=[3])
    machine.status = Status.OK
    found = machine.search()["onnx"]
    assert found.largest is not None and found.largest.batch == 16
    assert [step["onnx"] for step in machine.steps] == [1, 2, 4, 4, 8, 16, 32, 32, 24, 24, 20, 20, 18, 18]


@pytest.mark.parametrize(
    ("disturbed", "tries", "largest"), [((3, 4, 5), 4, 16), ((3, 4, 5, 6), 4, 3), ((4,), 1, 16), ((3,), 2, 16)]
)
def test_what_misses_a_limit_while_it_is_disturbed_is_measured_until_it_is_not(
    disturbed: tuple[int, ...], tries: int, largest: int
) -> None:
    """Batch 4 comes in step 3. It is measured four times at most."""
    machine = Machine({"onnx": 16}, disturbed_in=disturbed)
    machine.status = Status.OK
    found = machine.search()["onnx"]
    assert sum(step["onnx"] == 4 for step in machine.steps) == tries
    assert found.largest is not None and (found.largest.batch, found.next_batch) == (largest, None)


def test_a_record_says_whether_its_batch_is_too_large() -> None:
    required = Requirements.parse("median_ms<5")
    kept = BatchTried.measured(8, once(2.0, "onnx"), required)
    assert kept.reason == "" and kept.median_ms == pytest.approx(2.0, rel=0.01)
    assert kept.samples_per_s == pytest.approx(8 * 700) and kept.peak_bytes and not kept.is_lower_bound
    held_down = BatchTried.measured(8, once(0.1, "onnx"), required)  # other load took most of the time
    assert held_down.rate == "≥7,200"
    slow = BatchTried.measured(16, once(6.0, "onnx"), required)
    assert slow.reason.startswith("median_ms is 6") and slow.status is Status.OK
    busy = BatchTried.measured(16, ok(cell("onnx"), under(steady([6.0]), **BUSY)), required)
    assert (slow.is_disturbed, busy.is_disturbed) == (False, True) and busy.status is Status.OK
    assert BatchTried.measured(32, failed(cell("onnx"), Status.OOM, "no room"), required).reason == "oom: no room"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"set": {"batch": ("8",)}}, "leave out --set batch"),
        ({"models": ("mlp", "conv")}, "of one contest"),
        ({"set": {"hidden": ("8", "16")}}, "of one contest"),
        ({"require": Requirements()}, "say what must hold"),
    ],
)
def test_what_has_no_largest_batch_is_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        max_batch.begin(LIMITED.model_copy(update=changed), 8)


def test_the_command_measures_each_batch_in_a_run_of_its_own(command_line: CommandLine) -> None:
    briefly = ("--devices", "cpu", "--min-time", "0.05", "--out", "found", "--json")
    asked = ("--model", "mlp", "--backends", "eager", "--require", "median_ms<60000", "--most", "2")
    status, out, err = command_line("max-batch", *asked, *briefly)
    assert status == 0, err
    answer = json.loads(out)
    answer.pop("exit_status")
    assert answer.keys() == MaxBatchAnswer.model_fields.keys() and answer["complete"]
    (found,) = answer["searches"]
    assert [one["batch"] for one in found["tried"]] == [1, 2] and found["largest"]["samples_per_s"] > 0
    assert found["finding"].startswith("eager: batch 2, ")
