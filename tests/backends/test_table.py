"""Finding a backend by its name, by an alias, or in another distribution."""

import re
import sys
from pathlib import Path

import pytest

from bakeoff import backends
from bakeoff.backends.base import Backend
from bakeoff.planning.configurations import expand_backends
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Cell
from tests.support.distributions import distribute

ROOT = Path(__file__).parents[2]

THIRD_PARTY = """
from bakeoff.backends.base import ANYWHERE, Backend, Mode
from bakeoff.backends.eager import Callables, torch_available


class Mine(Backend):
    name = "mine"
    description = "somebody else's"
    modes = (Mode(worth_trying=ANYWHERE), Mode("faster", {"level": 3}))

    def available(self, device):
        return torch_available(device)

    def build(self, module, inputs, context):
        with context.phase("compile"):
            return Callables(module)
"""


def install(folder: Path, name: str, source: str, entry_point: str) -> None:
    """Write what pip would install of a distribution with one module and one entry point."""
    (folder / f"bakeoff_{name}.py").write_text(source)
    distribute(name, entry_point, folder, f"bakeoff-{name}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", [*backends.TABLE, *backends.SELFCHECK])
def test_every_row_makes_a_backend(name: str) -> None:
    assert isinstance(backends.create(name), Backend)


@pytest.mark.parametrize(("alias", "name"), backends.ALIASES.items())
def test_an_alias_is_the_backend_it_stands_for(alias: str, name: str) -> None:
    assert backends.canonical(alias) == backends.create(alias).name == name
    assert alias not in backends.names()


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("eager", False),
        ("torchscript", False),
        ("inductor", False),
        ("inductor/reduce-overhead", False),
        ("inductor/max-autotune", True),
        ("inductor/max-autotune-no-cudagraphs", True),
        ("inductor/coordinate-descent", True),
        ("inductor/coordinate-descent-overlapped", True),
        ("aotinductor/cuda-graph", False),
        ("aotinductor/max-autotune-freezing", True),
        ("onnx", True),
        ("tensorrt", True),
        ("triton", True),
    ],
)
def test_what_tries_out_kernels_says_so(label: str, expected: bool) -> None:
    name, _, mode = label.partition("/")
    cell = Cell(model="mlp", backend=name, mode=mode or "default", device=Device("cuda"))
    assert backends.create(name).times_kernels(cell) is expected


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("onx", "onnx"), ("inducter", "inductor"), ("torch_compil", "torch_compile"), ("Eager", "eager")],
)
def test_a_name_nobody_knows_gets_the_nearest(typed: str, meant: str) -> None:
    for find in (backends.canonical, backends.create):
        with pytest.raises(
            UsageError, match=rf"^unknown backend '{typed}': did you mean '{meant}'\? \(bakeoff list\)$"
        ):
            find(typed)


def test_a_name_like_no_other_gets_all_of_them() -> None:
    with pytest.raises(UsageError, match=r"known: .*eager.*torchscript") as raised:
        backends.canonical("xyzzy")
    assert "eager-again" not in str(raised.value)


def test_the_copy_for_selfcheck_is_in_no_list() -> None:
    assert "eager-again" not in backends.names()
    assert backends.canonical("eager-again") == "eager-again"


def test_a_distribution_can_keep_its_backend_out_of_all() -> None:
    assert "null" in backends.names() and "null" not in backends.in_all()
    assert backends.canonical("null") == "null"


def test_an_installed_distribution_brings_its_backend(site: Path) -> None:
    install(site, "mine", THIRD_PARTY, "bakeoff_mine:Mine")
    assert "mine" in backends.names()[len(backends.TABLE) :]
    mine = backends.create("mine")
    assert (mine.name, mine.mode_names()) == ("mine", ["default", "faster"])
    assert mine.supports(Cell(model="mlp", backend="mine"))
    assert ("mine", "faster", True) in expand_backends(["mine/faster"])
    assert ("mine", "default", False) in expand_backends(["all"])


def test_a_distribution_does_not_replace_a_row_of_the_table(site: Path) -> None:
    install(site, "eager", THIRD_PARTY, "bakeoff_eager:Mine")
    assert backends.names().count("eager") == 1
    assert type(backends.create("eager")).__module__ == "bakeoff.backends.eager"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import a_library_that_is_not_here", "No module named 'a_library_that_is_not_here'"),
        ("def", "SyntaxError"),
        ("", "has no attribute 'Broken'"),
        ("class Broken:\n    def __init__(self):\n        raise ValueError('first\\nsecond')", "ValueError: first"),
        ("import bakeoff.backends.base\nclass Broken(bakeoff.backends.base.Backend):\n    pass", "abstract"),
    ],
    ids=["import", "syntax", "no-class", "constructor", "abstract"],
)
def test_a_broken_one_is_one_line_and_spoils_nothing(source: str, said: str, site: Path) -> None:
    name = "broken"
    sys.modules.pop(f"bakeoff_{name}", None)
    install(site, name, source, f"bakeoff_{name}:Broken")
    assert name in backends.names()
    with pytest.raises(BakeoffError) as raised:
        backends.create(name)
    message = str(raised.value)
    assert message.startswith(f"backend '{name}' (bakeoff_{name}:Broken) does not load: ")
    assert said in message
    assert len(message.splitlines()) == 1
    assert backends.create("eager").name == "eager"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('modes = {"default": {}}', "Mine.modes is no tuple of Mode"),
        ('modes = (Mode("faster"),)', "the first one is 'default'"),
        ("modes = (Mode(), Mode())", "every name is there once"),
        ('colour = "blue"', "Mine.colour is 'blue': write it as '#0072b2'"),
    ],
)
def test_a_backend_that_says_something_in_another_form_does_not_load(site: Path, line: str, said: str) -> None:
    install(
        site,
        "odd",
        THIRD_PARTY.replace('    name = "mine"\n', f'    name = "odd"\n    {line}\n', 1).replace(
            '    modes = (Mode(worth_trying=ANYWHERE), Mode("faster", {"level": 3}))\n', ""
        ),
        "bakeoff_odd:Mine",
    )
    sys.modules.pop("bakeoff_odd", None)
    with pytest.raises(BakeoffError, match=f"does not load: TypeError: .*{re.escape(said)}"):
        backends.create("odd")
