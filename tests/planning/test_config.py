"""From what was typed, and from presets, to a Request."""

from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from bakeoff.planning import config
from bakeoff.planning.config import Options, parse_dimensions, read_config, split
from bakeoff.planning.load_plan import LoadPlan, Traffic, parse_objective
from bakeoff.planning.plan import Contest, plan
from bakeoff.planning.request import Request
from bakeoff.planning.sampling_plan import MIN_PROCESSES
from bakeoff.records.errors import UsageError
from bakeoff.records.load_samples import Objective
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Cell


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def written(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


def error_line(file: Path, text: str | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        read_config(file if text is None else written(file, text)).to_request()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_option_has_its_key(file: Path) -> None:
    options = read_config(
        written(
            file,
            """
            model = ["mlp", "conv"]
            backends = "eager,inductor/max-autotune"
            devices = ["cpu", "cuda:1"]
            precision = "fp32, bf16"
            task = "inference"
            seed = 3
            time-limit = 12
            min-time = 0.5
            schedule = "sequential"
            start-method = "spawn"
            strict = true
            calls = 100
            require = "p99_ms<5, build_s<60"
            out = "somewhere"
            quiet = true
            [set]
            batch = [1, 8]
            text = "a"
            """,
        )
    )
    assert options.to_request() == Request(
        models=("mlp", "conv"),
        backends=("eager", "inductor/max-autotune"),
        devices=("cpu", "cuda:1"),
        precision=("fp32", "bf16"),
        task="inference",
        seed=3,
        time_limit_s=12.0,
        min_time_s=0.5,
        schedule="sequential",
        start_method="spawn",
        strict=True,
        calls=100,
        require="p99_ms<5, build_s<60",
        set={"batch": ("1", "8"), "text": ("a",)},
    )
    assert (options.out, options.quiet) == (Path("somewhere"), True)


def test_an_empty_file_asks_for_the_defaults(file: Path) -> None:
    assert read_config(written(file, "")).to_request() == Request()


@pytest.mark.parametrize("key", ["model", "models"])
def test_model_has_two_names(file: Path, key: str) -> None:
    assert read_config(written(file, f"{key} = 'conv,mlp,conv'")).request == {"models": ("conv", "mlp")}


@pytest.mark.parametrize("key", ["time-limit", "time_limit"])
def test_dashes_and_underscores_are_the_same(file: Path, key: str) -> None:
    assert read_config(written(file, f"{key} = 5")).to_request().time_limit_s == 5.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time-limits = 3", "unknown key 'time-limits': did you mean 'time-limit'?"),
        ("xyz = 3", "unknown key 'xyz': known: accept, artifact-limit, backends, "),
        ("seed = -1", "--seed -1: "),
        ("seed = 1.5", "--seed 1.5: "),
        ("seed = true", "'seed' cannot be True"),
        ("seed = [1]", "--seed [1]: "),
        ("task = 3", "--task 3: "),
        ("strict = 1", "'strict' cannot be 1"),
        ("calls = 1.5", "--calls 1.5: "),
        ("require = 5", "--require '5': "),
        ("shard = ['1/2']", "--shard ['1/2']: write a text"),
        ("price = {hour = 2}", "--price {'hour': 2}: write a text"),
        ("backends = 1.5", "'backends' takes names or whole numbers, or a list of them, not 1.5"),
        ("backends = [true]", "'backends' takes names"),
        ("model = {a = 1}", "'model' takes names"),
        ("set = 'batch=1'", "'set' is a table"),
        ("set.batch = 1.5", "'set.batch' takes names or whole numbers"),
        ("set.batch.x = 1", "'set.batch' takes names or whole numbers"),
        ("out = 3", "'out' cannot be 3"),
        ("quiet = 'yes'", "'quiet' cannot be 'yes'"),
        ("seed = ", "not TOML"),
        ("seed = 1\nseed = 2", "not TOML"),
        ("just words", "not TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(file: Path, text: str, said: str) -> None:
    assert said in error_line(file, text)


def test_a_file_that_cannot_be_read_is_refused(file: Path) -> None:
    assert error_line(file) == f"--config {file}: No such file or directory"
    assert error_line(file.parent) == f"--config {file.parent}: Is a directory"
    file.write_bytes(b"\xff\xfe")
    assert "not TOML" in error_line(file)


def test_what_was_typed_goes_over_the_file() -> None:
    typed = Options({"models": ("mlp",), "seed": 0}, out=Path("typed"))
    file = Options({"models": ("conv",), "seed": 5, "task": "inference"}, out=Path("file"), quiet=True)
    both = typed.over(file)
    assert both.request == {"models": ("mlp",), "seed": 0, "task": "inference"}
    assert (both.out, both.quiet) == (Path("typed"), True)
    assert Options().over(file) == file
    assert Options().over(Options({"strict": True})).to_request().strict


def test_dimensions_typed_join_those_of_the_file() -> None:
    typed = Options({"set": {"batch": ("1",)}})
    file = Options({"set": {"batch": ("8", "9"), "hidden": ("2",)}})
    assert typed.over(file).request == {"set": {"batch": ("1",), "hidden": ("2",)}}
    assert file.request["set"]["batch"] == ("8", "9")


def test_lists_are_split_at_commas_and_kept_in_order() -> None:
    assert split(["b, a", "a", "c"]) == ("b", "a", "c")


def test_dimensions_are_parsed() -> None:
    assert parse_dimensions(["batch=1,8", " seq = 128", "text=a=b"]) == {
        "batch": ("1", "8"),
        "seq": ("128",),
        "text": ("a=b",),
    }


@pytest.mark.parametrize("entry", ["batch", "=3", "", " =1"])
def test_a_dimension_of_another_form_is_refused(entry: str) -> None:
    with pytest.raises(UsageError, match=r"write --set KEY=VALUE\[,VALUE\.\.\.\]"):
        parse_dimensions([entry])


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
    assert request.min_time_s == 0.5 and len(request.parts) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("run = 3", "'run' is a list of tables: write [[run]] above each"),
        ("[[run]]\nprocesses = 2", "unknown key of a [[run]] 'processes'"),
        ("[[run]]\nset = 3", "'set' is a table"),
        ('[[run]]\ntask = "train"', "unknown task 'train'"),
    ],
)
def test_what_is_wrong_in_a_run_is_reported_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as error:
        planned(config.read_config(file))
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1


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


def test_an_objective_belongs_to_the_scenario_server() -> None:
    found = LoadPlan.of(Traffic.parse("server"), parse_objective("p99_ms<20"), 60.0, 1.5)
    assert found == LoadPlan(Scenario.SERVER, 1, Objective(percentile="p99", limit_ms=20.0), 60.0, 1.0)
    assert found.objective is not None and found.objective.quantile == 0.99


@pytest.mark.parametrize(
    ("rate", "share", "requests"),
    [(5.0, 1.0, 20), (50.0, 1.0, 200), (100.0, 1.0, 200), (400.0, 1.0, 800), (5000.0, 1.0, 1000), (400.0, 0.25, 200)],
)
def test_windows_with_few_requests_last_longer(rate: float, share: float, requests: int) -> None:
    found = LoadPlan.of(Traffic.parse("server"), parse_objective("p99_ms<20"), None, 1.5)
    assert found is not None and found.requests_of(rate, share) == requests


def test_two_cells_under_load_are_planned_to_take_less_than_two_minutes() -> None:
    found = LoadPlan.of(Traffic.parse("server"), parse_objective("p99_ms<20"), None, 1.5)
    assert found is not None and 2 * (found.once_s + MIN_PROCESSES * found.turns_s(MIN_PROCESSES)) <= 100


def test_streams_have_a_number() -> None:
    found = [
        LoadPlan.of(Traffic.parse(text), None, 0.0, 0.75)
        for text in ("multi-stream:4", "multi-stream", "single-stream")
    ]
    assert [each and (each.scenario, each.streams, each.window_s) for each in found] == [
        (Scenario.MULTI_STREAM, 4, 0.5),
        (Scenario.MULTI_STREAM, 8, 0.5),
        (Scenario.SINGLE_STREAM, 1, 0.5),
    ]


def test_nothing_is_planned_where_nothing_is_asked_for() -> None:
    assert LoadPlan.of(None, None, 60.0, 1.5) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"load": "servr", "slo": "p99_ms<20"}, "did you mean 'server'"),
        ({"load": "server"}, "--load server needs an objective: add --slo 'p99_ms<20'"),
        ({"load": "offline", "slo": "p99_ms<20"}, "--load offline takes no --slo"),
        ({"load": "server:3", "slo": "p99_ms<20"}, "only multi-stream takes a number"),
        ({"load": "multi-stream:0"}, "write multi-stream:N"),
        ({"load": "server", "slo": "p98_ms<20"}, "such as p99_ms<20"),
        ({"load": "server", "slo": "p99_ms<0"}, "such as p99_ms<20"),
        ({"slo": "p99_ms<20"}, "add --load server"),
        ({"price": "2.5/h"}, "add --load server"),
        ({"load": "offline", "price": "2.5"}, "such as 2.5/h"),
        ({"load": "offline", "task": "train_step"}, "only inference is served"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(fields: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan(Request(**{"devices": ("cpu",), **fields}))
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1
