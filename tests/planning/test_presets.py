"""Presets: files of several runs that anybody can copy, and what is typed beside them."""

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from bakeoff.planning import config
from bakeoff.planning.config import Options
from bakeoff.planning.plan import Contest, plan
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell

EXAMPLES = Path(__file__).parents[2] / "examples"
SEVERAL = """
backends = ["eager", "inductor"]
min-time = 0.5
[set]
batch = 2
[[run]]
model = "mlp"
task = "train_step"
[[run]]
models = ["conv", "transformer"]
backends = "eager"
set = { batch = [3, 4] }
"""


def planned(options: Options) -> list[Contest]:
    return plan(Options({"devices": ("cpu",)}).over(options).to_request())


def cells(options: Options) -> list[Cell]:
    return [one.cell for contest in planned(options) for one in contest.cells]


@pytest.fixture
def several(tmp_path: Path) -> Options:
    file = tmp_path / "several.toml"
    file.write_text(SEVERAL)
    return config.read_config(file)


def test_each_run_has_its_own_models_and_the_rest_of_the_whole(several: Options) -> None:
    found = [(cell.model, cell.task, cell.dimensions["batch"], cell.label) for cell in cells(several)]
    assert found == [
        ("mlp", "train_step", 2, "eager"),
        ("mlp", "train_step", 2, "inductor"),
        ("conv", "inference", 3, "eager"),
        ("conv", "inference", 4, "eager"),
        ("transformer", "inference", 3, "eager"),
        ("transformer", "inference", 4, "eager"),
    ]


def test_a_run_may_have_one_build_for_a_range_of_sizes(tmp_path: Path) -> None:
    file = tmp_path / "ranges.toml"
    file.write_text(SEVERAL.replace('backends = "eager"', 'backends = ["eager", "onnx"]\ndynamic = "batch=1:8"'))
    found = [(cell.model, cell.label) for cell in cells(config.read_config(file)) if cell.dynamic]
    assert found == [(model, "onnx[dynamic]") for model in ("conv", "conv", "transformer", "transformer")]


def test_what_is_typed_is_said_for_every_run(several: Options) -> None:
    typed = Options({"task": "forward_backward", "models": ("mlp",), "set": {"batch": ("7",)}})
    found = cells(typed.over(several))
    assert {(cell.model, cell.task, cell.dimensions["batch"]) for cell in found} == {("mlp", "forward_backward", 7)}
    assert [cell.label for cell in found] == ["eager", "inductor"]  # the second run's eager is the first one's


def test_a_request_of_several_runs_is_read_back_as_it_was_written(several: Options) -> None:
    request = several.to_request()
    assert Request(**request.model_dump(mode="json")) == request
    assert request.min_time_s == 0.5 and len(request.parts()) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run = 3", "'run' is a list of tables: write [[run]] above each"),
        ("[[run]]\nprocesses = 2", "unknown key of a [[run]] 'processes'"),
        ("[[run]]\nset = 3", "'set' is a table"),
        ('[[run]]\ntask = "train"', "unknown task 'train'"),
    ],
)
def test_what_is_wrong_in_a_run_is_told_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        planned(config.read_config(file))
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(UsageError, match="unknown preset 'attention_sweep': did you mean 'attention-sweep'"):
        config.read_preset("attention_sweep")
    with pytest.raises(UsageError, match=r"--preset digits: it is an example now: --config examples/digits\.toml"):
        config.read_preset("digits")


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] if path.stem.startswith(("zoo", "shipped")) else [])
        for path in sorted([*config.PRESETS.glob("*.toml"), *EXAMPLES.glob("*.toml")])
    ],
    ids=lambda path: path.stem,
)
def test_every_preset_and_example_can_be_planned(path: Path, request: pytest.FixtureRequest) -> None:
    if path.stem.startswith("zoo"):
        request.getfixturevalue("vision")
        pytest.importorskip("diffusers")
    assert cells(config.read_config(path))


@pytest.mark.parametrize(("is_installed", "expected"), [(True, "transformer-engine"), (False, "torch")])
def test_the_float8_decoders_layers_are_transformer_engines_where_that_is_installed(
    is_installed: bool, expected: str, install: Callable[[str, object], None]
) -> None:
    library = ModuleType("transformer_engine")
    library.__spec__ = ModuleSpec("transformer_engine", None)
    install("transformer_engine", library if is_installed else None)
    contests = [one for one in planned(config.read_preset("kernels")) if one.cells[0].cell.model == "fp8_transformer"]
    assert [one.cells[0].cell.dimensions["linears"] for one in contests] == [expected, "plain"]
    assert len({tuple(planned.cell.label for planned in one.cells) for one in contests}) == 1


def test_the_sweeps_have_the_sizes_they_are_for() -> None:
    attention = planned(config.read_preset("attention-sweep"))
    sizes = {tuple(one.cells[0].cell.dimensions[name] for name in ("d_model", "seq", "variant")) for one in attention}
    assert sizes == {
        (width, seq, variant)
        for width in (16, 32, 64, 128)
        for seq in (256, 1024, 4096, 8192, 16384)
        for variant in ("naive", "sdpa")
    }
    models = planned(config.read_preset("transformer-sweep"))
    assert len(models) == 5 * 4 * 3
    assert {contest.cells[0].cell.dimensions["batch"] for contest in (*models, *attention)} == {4, 8}
    modes = cells(config.read_preset("compile-modes"))
    assert {cell.dimensions["size"] for cell in modes} == {"1B", "10B", "40B"}
    assert {"inductor/static", "inductor/dynamic", "inductor/buckets"} <= {cell.label for cell in modes}
