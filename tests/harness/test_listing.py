"""The tables of `runner.py list`."""

from io import StringIO

from rich.console import Console

from backends.tensorrt import TensorRT
from harness.listing import backends_table


def shown(name: str, reason: str) -> list[str]:
    file = StringIO()
    Console(file=file, width=250).print(backends_table({(name, "cpu"): reason}))
    return file.getvalue().splitlines()


def test_a_caveat_stands_under_the_description() -> None:
    lines = shown("tensorrt", "needs CUDA")
    (number,) = [number for number, line in enumerate(lines) if TensorRT.caveat in line]
    assert TensorRT.description in lines[number - 1]
    assert any("no: needs CUDA" in line for line in lines)


def test_a_backend_that_is_there_has_a_yes_and_its_modes() -> None:
    assert any("eager" in line and "default" in line and "yes" in line for line in shown("eager", ""))
