import pytest

from bakeoff.judging.judgement import contests_of
from bakeoff.records.schema import Gpu, Status
from bakeoff.reports import machine
from tests.judging.test_load import carrying
from tests.reports.samples import conv_on_cpu, environment, product_on_cuda, report, strictly_on_cpu


def test_what_an_interrupted_run_lacks_is_said() -> None:
    records = conv_on_cpu()
    assert machine.what_is_missing(report(records)) == ""
    some = report(records, complete=False, planned=40)
    assert machine.what_is_missing(some) == "Incomplete: 7 of 40 cells have ended or were measured in part."
    one = report([], complete=False, planned=1)
    assert machine.what_is_missing(one) == "Incomplete: 0 of 1 cell has ended or was measured in part."
    every = report(records, complete=False)
    assert "Interrupted: all 7 cells have numbers" in machine.what_is_missing(every)


@pytest.mark.parametrize(
    ("turns", "told"), [(0, "2 of 2 cells have no"), (1, "1 of 2 cells has no"), (2, "all 2 cells")]
)
def test_a_run_that_is_interrupted_under_load_says_how_many_cells_have_no_number_there(turns: int, told: str) -> None:
    records = [carrying("onnx", [400] if turns else []), carrying("openvino", [300] if turns > 1 else [])]
    made = report(records, complete=False, planned=2, request={"load": "server"})
    assert machine.what_is_missing(made).startswith(f"Interrupted: {told}")
    assert machine.what_is_missing(made).endswith("the answers are those so far.")
    before = [record.model_copy(update={"load": None}) for record in records]
    unloaded = report(before, complete=False, planned=2, request={"load": "server"})
    assert "2 of 2 cells have no number under load yet" in machine.what_is_missing(unloaded)
    missed = [carrying("onnx", [], reason="p99 < 20 ms does not hold")]
    ended = report(missed, complete=False, planned=1, request={"load": "server"})
    assert "its cell has numbers" in machine.what_is_missing(ended)


def test_a_machine_is_known_by_its_gpus_or_else_by_its_cpu() -> None:
    found = environment()
    assert machine.name(found) == "NVIDIA H200"
    four = [Gpu(index=index, name="NVIDIA H200") for index in range(4)]
    assert machine.name(found.model_copy(update={"gpus": four})) == "4 x NVIDIA H200"
    assert machine.name(found.model_copy(update={"gpus": []})) == "AMD EPYC 9654"


def test_a_product_and_the_best_cell_are_held_against_the_tensor_cores() -> None:
    (contest,) = contests_of(report(product_on_cuda()))
    assert machine.tensor_core_rates(contest) == (
        "1.07 PFLOP/s nominally, at the highest clock of 1.98 GHz; a large product reaches 68 % of that, "
        "triton 66 % (709 TFLOP/s)"
    )
    (unranked,) = contests_of(
        report([record.model_copy(update={"status": Status.INCORRECT}) for record in product_on_cuda()])
    )
    assert machine.tensor_core_rates(unranked).endswith("a large product reaches 68 % of that")


def test_nothing_is_said_of_tensor_cores_that_are_not_known_or_not_the_bound() -> None:
    for records in (product_on_cuda(clock_mhz=None), product_on_cuda(bound="memory"), strictly_on_cpu(), conv_on_cpu()):
        assert [machine.tensor_core_rates(contest) for contest in contests_of(report(records))] == [""]


def test_what_could_not_be_read_of_the_environment_is_left_out() -> None:
    facts = machine.environment_facts(environment())
    assert facts["cores (physical / logical / usable)"] == "96 / 192 / 16"
    assert facts["commit"] == "abc1234 with uncommitted changes"
    assert "governor" not in facts and "container" not in facts
