"""A call on its way into another process."""

import runpy
import time
from pathlib import Path

import pytest
import torch

from bakeoff_hotpath import handover, settings
from bakeoff_hotpath.handover import MAX_COPIED_BYTES, CannotHandOver


def sent(tmp_path: Path, module: torch.nn.Module, *args: object, **kwargs: object) -> handover.Task:
    file = tmp_path / "task.pkl"
    handover.write(file, module, args, kwargs, is_training=True)
    return handover.read(file)


def test_small_tensors_and_constants_arrive_as_they_are(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).train()
    rows = torch.randn(2, 3).t().contiguous().t()
    task = sent(tmp_path, module, rows, scale=2.5, index=torch.tensor([1, 2]))
    arrived = task.module.state_dict()
    assert all(torch.equal(tensor, arrived[name]) for name, tensor in module.state_dict().items())
    assert torch.equal(task.args[0], rows) and task.args[0].stride() == rows.stride()
    assert task.kwargs["scale"] == 2.5 and torch.equal(task.kwargs["index"], torch.tensor([1, 2]))
    assert task.module.training and task.is_training and task.settings == settings.read()
    assert all(isinstance(parameter, torch.nn.Parameter) for parameter in task.module.parameters())


def test_large_weights_are_described_and_large_integers_copied(tmp_path: Path) -> None:
    module = torch.nn.Linear(512, 512).bfloat16()
    index = torch.arange(MAX_COPIED_BYTES)
    task = sent(tmp_path, module, index)
    # the integers' eight bytes each; the weight's half megabyte is not among them
    assert (tmp_path / "task.pkl").stat().st_size < 8 * MAX_COPIED_BYTES + 100_000
    assert torch.equal(task.args[0], index)
    weight = task.module.get_parameter("weight")
    assert (weight.dtype, weight.shape, weight.requires_grad) == (torch.bfloat16, (512, 512), True)
    assert weight.isfinite().all() and weight.std() > 0


def test_calls_do_not_wait_for_the_bytes_of_small_weights(tmp_path: Path) -> None:
    """Nothing is computed while a call is handed over."""
    module = torch.nn.Sequential(*(torch.nn.LayerNorm(MAX_COPIED_BYTES // 4) for _ in range(16)))
    module.register_buffer("empty", torch.empty(0, 3))
    begun = time.thread_time()
    handover.write(tmp_path / "task.pkl", module, (), {}, is_training=True)
    assert time.thread_time() - begun < 0.5  # 5 s if copied byte by byte
    arrived = handover.read(tmp_path / "task.pkl").module.state_dict()
    assert all(torch.equal(tensor, arrived[name]) for name, tensor in module.state_dict().items())


def test_values_are_read_from_the_hosts_memory_wherever_tensors_are_made(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 3)
    with torch.device("meta"):
        handover.write(tmp_path / "task.pkl", module, (), {}, is_training=True)
    assert torch.equal(handover.read(tmp_path / "task.pkl").module.get_parameter("weight"), module.weight)


def test_two_names_of_one_tensor_stay_so(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    module[1].weight = module[0].weight
    task = sent(tmp_path, module, torch.ones(4))
    assert task.module.get_parameter("0.weight") is task.module.get_submodule("1").weight


def test_a_constant_of_the_program_is_copied_however_large(tmp_path: Path) -> None:
    module = torch.nn.Identity()
    module.table = torch.randn(MAX_COPIED_BYTES)  # no buffer: its values go into the code
    assert torch.equal(sent(tmp_path, module).module.table, module.table)


def test_a_module_that_cannot_be_pickled_is_named(tmp_path: Path) -> None:
    module = torch.nn.Identity()
    module.function = lambda rows: rows  # type: ignore[assignment]
    with pytest.raises(CannotHandOver, match="Identity cannot be pickled: "):
        sent(tmp_path, module)


SCRIPT = """
import sys, torch
from bakeoff_hotpath import handover, settings
class Mine(torch.nn.Module): pass
def go():
    try:
        print(handover.main_script(torch.nn.Sequential(Mine())))
    except handover.CannotHandOver as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ('if __name__ == "__main__":\n    go()\n', "script.py"),
        ("go()\n", "Mine is defined in the main script, which another process can only read if what it does stands"),
    ],
)
def test_a_script_is_read_again_only_if_reading_does_nothing(
    start: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + start)
    runpy.run_path(str(script), run_name="__main__")
    assert expected in capsys.readouterr().out


def test_a_module_from_a_library_needs_no_script() -> None:
    assert handover.main_script(torch.nn.Linear(2, 2)) is None
