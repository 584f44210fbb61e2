from bakeoff.judging.judgement import contests_of
from bakeoff.records.schema import Gpu, Report, Status
from bakeoff.reports import machine
from tests.judging.test_load import carrying
from tests.reports.samples import conv_on_cpu, environment, product_on_cuda, report, strictly_on_cpu
from tests.support.golden import same_as_golden


def under_load(turns: int, **more: object) -> Report:
    """Return an interrupted run under load of two cells, of which so many have a turn."""
    records = [carrying("onnx", [400] if turns else []), carrying("openvino", [300] if turns > 1 else [])]
    records = [record.model_copy(update=more) for record in records]
    return report(records, complete=False, planned=2, request={"load": "server"})


MISSED = carrying("onnx", [], reason="p99 < 20 ms does not hold")
RUNS: dict[str, Report] = {
    "complete": report(conv_on_cpu()),
    "some cells": report(conv_on_cpu(), complete=False, planned=40),
    "no cell": report([], complete=False, planned=1),
    "every cell": report(conv_on_cpu(), complete=False),
    **{f"{turns} under load": under_load(turns) for turns in range(3)},
    "not yet under load": under_load(2, load=None),
    "ended under load": report([MISSED], complete=False, planned=1, request={"load": "server"}),
}
WRONG = [record.model_copy(update={"status": Status.INCORRECT}) for record in product_on_cuda()]
GPUS = {"one": environment().gpus, "four": [Gpu(index=n, name="NVIDIA H200") for n in range(4)], "none": []}


def test_runs_and_machines_are_told_as_before() -> None:
    lines = [f"{name}: {machine.what_is_missing(run)}" for name, run in RUNS.items()]
    for name, gpus in GPUS.items():
        lines.append(f"{name}: {machine.name(environment().model_copy(update={'gpus': gpus}))}")
    for name, records in {"a product": product_on_cuda(), "a wrong product": WRONG}.items():
        lines += [f"{name}: {machine.tensor_core_rates(contest)}" for contest in contests_of(report(records))]
    lines += [f"{name}: {fact}" for name, fact in machine.environment_facts(environment()).items()]
    same_as_golden("machines.txt", "\n".join(lines))


def test_nothing_is_said_of_tensor_cores_that_are_not_known_or_not_the_bound() -> None:
    for records in (product_on_cuda(clock_mhz=None), product_on_cuda(bound="memory"), strictly_on_cpu(), conv_on_cpu()):
        assert [machine.tensor_core_rates(contest) for contest in contests_of(report(records))] == [""]
