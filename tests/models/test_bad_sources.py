"""A source that cannot be measured is refused by the command line in one line, with exit status 2."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.conftest import CommandLine


@pytest.fixture
def files(tmp_path: Path) -> None:
    """Files and folders with one fault each, in the folder that the command line starts from."""
    config = {"model_type": "bert", "vocab_size": 9}
    for name, known, more in (
        ("pickled", config, "pytorch_model.bin"),
        ("mistyped", config | {"model_type": "brt"}, "empty"),
        ("pipeline", None, "model_index.json"),
    ):
        folder = tmp_path / name
        folder.mkdir()
        (folder / more).write_text("{}")
        if known:
            (folder / "config.json").write_text(json.dumps(known))
    (tmp_path / "short.onnx").write_bytes(b"\x08\x0a\x12\x07pytorch:\xff")
    torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), tmp_path / "linear.pt2")
    _rewrite(tmp_path / "linear.pt2", tmp_path / "future.pt2", _of_the_future)
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
    torch.jit.script(torch.nn.Linear(2, 2)).save(tmp_path / "scripted.pt")
    (tmp_path / "exported.pt").write_bytes((tmp_path / "linear.pt2").read_bytes())
    (tmp_path / "net.safetensors").write_bytes(b"")
    for file in ("problems/1.py", "graph/model.py", "graph/weight_meta.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "unet").mkdir()
    (tmp_path / "unet/config.json").write_text(json.dumps({"_class_name": "UNet2DModel"}))
    (tmp_path / "short.pt2").write_bytes((tmp_path / "linear.pt2").read_bytes()[:999])
    (tmp_path / "mine.py").write_text(
        "class Net:\n    pass\n\n\ndef factory(batch=2):\n    return 3\n\n\n"
        "partial = functools.partial(factory, 3)\nalias = other.build\nmodel: Net = Net()\nif model:\n"
        "    def late(batch=2):\n        return model\n"
    )
    functions = "def get_inputs():\n    return [1]\n", "def get_init_inputs():\n    return []\n"
    (tmp_path / "no_initial.py").write_text(f"class Model:\n    pass\n{functions[0]}")
    (tmp_path / "no_inputs.py").write_text(f"class Model:\n    pass\n{functions[1]}")
    (tmp_path / "no_model.py").write_text("".join(functions))
    (tmp_path / "number.py").write_text("x = 1\n")
    (tmp_path / "assigned.py").write_text("make = functools.partial(build, 3)\n")


def _rewrite(file: Path, to: Path, change: Callable[[str, bytes], bytes]) -> None:
    with zipfile.ZipFile(file) as archive, zipfile.ZipFile(to, "w") as written:
        for name in archive.namelist():
            written.writestr(name, change(name, archive.read(name)))


def _of_the_future(name: str, content: bytes) -> bytes:
    if not name.endswith("models/model.json"):
        return content
    later = {"schema_version": {"major": 99, "minor": 1}, "torch_version": "9.1"}
    return json.dumps({**json.loads(content), **later}).encode()


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("hf:mistyped", "unknown type of model in hf:mistyped 'brt': did you mean 'bert'?"),
        ("diffusers:nowhere", "no folder nowhere"),
        ("diffusers:pipeline", "such as the subfolder unet of a pipeline"),
        ("onnx:nowhere.onnx", "no file nowhere.onnx"),
        ("onnx:short.onnx", "is no whole ONNX model"),
        ("pt2:nowhere.pt2", "no file nowhere.pt2"),
        ("pt2:short.pt2", "cannot be read by torch"),
        ("pt2:future.pt2", "(torch 9.1 wrote it, in schema 99.1)"),
        ("timm:resnt50", "unknown model of timm 'resnt50': did you mean 'resnet50'"),
        ("torchvision:resnt50", "unknown model of torchvision 'resnt50': did you mean 'resnet50'"),
        ("tim:resnet50", "unknown model 'tim:resnet50': known: "),
        ("nowhere.py:factory", "no file nowhere.py"),
        (
            "mine.py:Net",
            "Net in mine.py is a class. A factory is a function that returns the model and the inputs of a call: "
            "def factory(batch: int = 1): return Net(...), torch.randn(batch, ...)",
        ),
        *(
            (
                f"mine.py:{name}",
                f"{name} in mine.py, line {line}, is not written with def at the top level, and Bakeoff ",
            )
            for name, line in (("partial", 9), ("alias", 10), ("model", 11), ("late", 13))
        ),
        ("assigned.py", "make in assigned.py, line 1, is not written with def at the top level"),
        ("no_initial.py", "has the class Model and function get_inputs, and lacks the function get_init_inputs"),
        ("no_inputs.py", "has the class Model and function get_init_inputs, and lacks the function get_inputs"),
        ("no_model.py", "has the function get_inputs and function get_init_inputs, and lacks the class Model"),
        ("number.py", "unknown top-level function of number.py 'factory'"),
        ("mine.py:factry", "unknown top-level function of mine.py 'factry': did you mean 'factory'?"),
        ("mlp:factory", "unknown model 'mlp:factory'"),
        ("short.onnx", "unknown model 'short.onnx': did you mean onnx:short.onnx?"),
        ("linear.pt2", "unknown model 'linear.pt2': did you mean pt2:linear.pt2?"),
        ("exported.pt", "unknown model 'exported.pt': did you mean pt2:exported.pt?"),
        ("./pickled", "unknown model './pickled': did you mean hf:./pickled?"),
        ("unet", "unknown model 'unet': did you mean diffusers:unet?"),
        ("graph", "unknown model 'graph': did you mean graphnet:graph?"),
        ("problems/", "unknown model 'problems/': it is a folder: write --model 'problems/*.py'"),
        (
            "scripted.pt",
            "unknown model 'scripted.pt': a file of TorchScript needs a factory, --model FILE.py:factory, with def "
            "factory(batch: int = 1) that returns torch.jit.load('scripted.pt'), torch.randn(batch, ...)",
        ),
        ("weights.pt", "unknown model 'weights.pt': weights without code need a factory, --model FILE.py:factory"),
        ("net.safetensors", "unknown model 'net.safetensors': weights without code need a factory"),
        ("nowhere.onnx", "unknown model 'nowhere.onnx': known: "),
    ],
)
def test_a_bad_source_is_refused_in_one_line(
    command_line: CommandLine, request: pytest.FixtureRequest, source: str, said: str
) -> None:
    if source.startswith(("timm:", "torchvision:")):
        request.getfixturevalue("vision")
    pytest.importorskip({"hf": "transformers", "onnx": "onnx"}.get(source.partition(":")[0], "torch"))
    status, out, err = command_line("--model", source, "--devices", "cpu", "--dry-run")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and said in line


@pytest.mark.usefixtures("files")
def test_a_file_without_an_option_is_told_the_one_that_it_needs(command_line: CommandLine) -> None:
    status, _, err = command_line("short.onnx")
    assert (status, err) == (
        2,
        "error: 'short.onnx' is a model, not a command: write bakeoff --model onnx:short.onnx\n",
    )
