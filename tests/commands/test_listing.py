"""The tables of `bakeoff list`."""

from io import StringIO

import pytest
from rich.console import Console

from bakeoff import backends, models
from bakeoff.backends.inductor import Inductor
from bakeoff.backends.tensorrt import TensorRT
from bakeoff.commands.listing import answer, backends_table, models_table


def shown(width: int, asked: dict[tuple[str, str], str] | None = None) -> str:
    console = Console(width=width, record=True, file=StringIO(), markup=False, emoji=False)
    listed = answer(asked or {})
    console.print(backends_table(listed.backends), models_table(listed.models), highlight=False)
    return console.export_text()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_every_name_stands_whole(width: int) -> None:
    words = shown(width).replace(",", " ").split()
    listed = [*backends.names(), *backends.ALIASES, *models.TABLE, *Inductor.mode_names()]
    for name in [*listed, "hf:FOLDER", "FILE.py:FACTORY"]:
        assert name in words


def test_a_backend_is_shown_with_its_caveat_and_what_is_installed() -> None:
    text = shown(200)
    assert TensorRT.description in text and TensorRT.caveat in text
    assert "torch 2." in text
    assert "eager-again" not in text, "the copy for selfcheck is in no list"


def test_a_device_that_was_asked_has_an_answer_and_it_is_printed_as_it_is() -> None:
    text = shown(200, {("eager", "cpu"): "", ("tensorrt", "cpu"): "[x] zoo.py:factory: needs :llama:"})
    assert "cpu: yes" in text
    assert "cpu: no: [x] zoo.py:factory: needs :llama:" in text


def test_a_dimension_has_its_default() -> None:
    assert "batch (4), features (256), hidden (512)" in shown(200)
