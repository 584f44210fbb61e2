from reports import described
from reports.schema import Gpu
from tests.reports.samples import conv_on_cpu, environment, report


def test_what_an_interrupted_run_lacks_is_said() -> None:
    records = conv_on_cpu()
    assert described.incomplete(report(records)) == ""
    some = report(records, complete=False, planned=40)
    assert described.incomplete(some) == "Incomplete: 7 of 40 cells have ended."
    every = report(records, complete=False)
    assert described.incomplete(every).startswith("Incomplete: all 7 cells have numbers, but the run was interrupted")


def test_a_machine_is_known_by_its_gpus_or_else_by_its_cpu() -> None:
    found = environment()
    assert described.machine(found) == "NVIDIA H200"
    four = [Gpu(index=index, name="NVIDIA H200") for index in range(4)]
    assert described.machine(found.model_copy(update={"gpus": four})) == "4 x NVIDIA H200"
    assert described.machine(found.model_copy(update={"gpus": []})) == "AMD EPYC 9654"


def test_what_could_not_be_read_of_the_environment_is_left_out() -> None:
    facts = described.environment(environment())
    assert facts["cores (physical / logical / usable)"] == "96 / 192 / 16"
    assert facts["commit"] == "abc1234 with uncommitted changes"
    assert "governor" not in facts and "container" not in facts
