"""From what was typed to a Request."""

from pathlib import Path

import pytest

from bakeoff.planning.config import Options, parse_dimensions, read_config, split
from bakeoff.planning.request import Request
from bakeoff.records.errors import UsageError


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
        ("backend = 'eager'", "unknown key 'backend': did you mean 'backends'?"),
        ("time-limits = 3", "unknown key 'time-limits': did you mean 'time-limit'?"),
        ("xyz = 3", "unknown key 'xyz': known: accept, artifact-limit, backends, "),
        ("seed = -1", "--seed -1: "),
        ("seed = 1.5", "--seed 1.5: "),
        ("seed = true", "'seed' cannot be True"),
        ("seed = [1]", "--seed [1]: "),
        ("min-time = 'soon'", "--min-time soon: "),
        ("time_limit = 0", "--time-limit 0: "),
        ("min_time = nan", "--min-time nan: "),
        ("schedule = 'parallel'", "--schedule parallel: "),
        ("start-method = 'fork'", "--start-method fork: "),
        ("task = 3", "--task 3: "),
        ("strict = 1", "'strict' cannot be 1"),
        ("calls = 0", "--calls 0: "),
        ("calls = 1.5", "--calls 1.5: "),
        ("require = 5", "--require '5': "),
        ("shard = ['1/2']", "--shard ['1/2']: write a text"),
        ("budget = 'soon'", "--budget soon: write seconds, minutes or hours"),
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


def test_a_key_is_refused_with_the_file_it_stands_in(file: Path) -> None:
    assert str(file) in error_line(file, "backend = 'eager'")


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
