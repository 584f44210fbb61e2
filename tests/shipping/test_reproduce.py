"""A script made of a report's cell runs without Bakeoff, computes what the cell did, and takes as long."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bakeoff import backends, models
from bakeoff.backends.aotinductor import LINKED, linker_options
from bakeoff.backends.calling import flatten_outputs, returned_by_call
from bakeoff.measuring.worker import precision
from bakeoff.measuring.worker.loading import load, move_to_device
from bakeoff.measuring.worker.reference import run_eager
from bakeoff.measuring.worker.sample import Sample as WholeSample
from bakeoff.records import report_file
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell, Record, Status
from bakeoff.records.store import Store
from bakeoff.records.text import spell_ms
from bakeoff.shipping import reproduce, script_models, script_parts
from tests.conftest import CommandLine
from tests.shipping import conftest
from tests.shipping.conftest import record_of, report_on
from tests.support.measuring import by_label, measure

pytestmark = pytest.mark.usefixtures("restored_switches")

ROOT = Path(__file__).parents[2]
ON_CPU = ["eager", "eager/channels-last", "torchscript", "onnx", "onnx/opset-23", "openvino"]
COMPILING = ["inductor", "inductor/freezing", "inductor/max-autotune", "aotinductor", "aotinductor/freezing"]
ON_CUDA = [
    "eager",
    "eager/cuda-graph",
    "torchscript/cuda-graph",
    "inductor/cuda-graph-channels-last",
    "inductor",
    "inductor/reduce-overhead",
    "aotinductor",
    "aotinductor/single-threaded",
    "aotinductor/cuda-graph",
    "onnx",
    "onnx/cuda-graph",
]
ENGINES = ["tensorrt/cuda-graph", "tensorrt/opt-5"]
"""Their scripts need TensorRT 9, and a real 8.6 is all that we can run."""
SMALL = {
    "mlp": {"batch": 2, "features": 8, "hidden": 16},
    "conv": {"batch": 1, "size": 8, "width": 4},
    "transformer": {"seq": 4, "dim": 8, "ffn": 16, "heads": 2},
}
TWO_HEADS = f"{ROOT}/examples/two_heads.py:factory"
DATACLASS = f"{ROOT}/tests/cases/dataclass_output.py:factory"
"""It returns a class that torch's pytree does not know."""
AGREEMENT = 1.25
"""A gross error is a factor of 1.5 and more; docs/method.md has the true agreement, measured on a quiet machine."""
ATTEMPTS = 4

# Imports scripts, which then build their cells and measure nothing. Keeps their models, inputs and outputs.
KEEP = """
import importlib, sys, torch
sys.path.insert(0, "")
kept = {}
for name in sys.argv[1:]:
    script = importlib.import_module(name)
    weights = {key: value.clone() for key, value in script.model.state_dict().items()}
    outputs = []
    with torch.inference_mode():
        for index in range(len(script.input_sets)):
            returned = script.bind(index)()
            leaves = torch.utils._pytree.tree_leaves(getattr(script, "outputs", returned))
            outputs.append([leaf.clone() for leaf in leaves])
    kept[name] = {"weights": weights, "inputs": script.input_sets, "outputs": outputs}
assert "bakeoff" not in sys.modules
torch.save(kept, "kept.pt")
"""


def cell_of(model: str, label: str, **fields: object) -> Cell:
    dimensions = models.find(model).resolve(SMALL.get(model, {}))
    return conftest.cell_of(label, **{"model": model, "dimensions": dimensions, **fields})


def script_of(cell: Cell, **environment: object) -> str:
    record = record_of(cell)
    return reproduce.script_for(report_on(record, **environment), record)


def run_python(folder: Path, *arguments: object, limit_s: float = 240) -> str:
    """In `folder`, which is not ours, with compilers' caches of its own."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    # libraries may come from there, Bakeoff may not
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    environment["PYTHONPATH"] = os.pathsep.join(entry for entry in entries if entry and Path(entry).resolve() != ROOT)
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=limit_s)
    assert done.returncode == 0, done.stderr
    return done.stdout


def kept_by(folder: Path, scripts: Mapping[str, str]) -> Any:
    """Return what `KEEP` keeps of the scripts, by their names, in a process that never sees Bakeoff."""
    for name, script in scripts.items():
        (folder / f"{name}.py").write_text(script)
    run_python(folder, "-c", KEEP, *scripts)
    return torch.load(folder / "kept.pt")


def expected_of(cell: Cell) -> list[list[torch.Tensor]]:
    precision.apply(cell.precision)
    with torch.inference_mode():
        return [list(outputs) for outputs in run_eager(*move_to_device(load(cell), cell))]


def assert_same_outputs(folder: Path, cell: Cell) -> None:
    (found,) = kept_by(folder, {"script": script_of(cell)}).values()
    torch.testing.assert_close(found["outputs"], expected_of(cell))


# --- what a script computes

QUICK = {
    **{f"of {model}": cell_of(model, "eager", seed=3) for model in models.DEFAULT},
    **{label: cell_of("conv" if "channels" in label else "mlp", label, seed=7) for label in ON_CPU},
    **{f"{label}, own model": cell_of(TWO_HEADS, label) for label in ("eager", "torchscript", "openvino")},
    **{f"{label}, plain dataclass": cell_of(DATACLASS, label) for label in ("torchscript", "onnx", "openvino")},
    **{f"{label}, bf16": cell_of("mlp", label, precision="bf16") for label in ("eager", "openvino")},
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the scripts of `QUICK` have for a model and return. One process runs all, since each would import torch."""
    scripts = {f"script_{number}": script_of(cell) for number, cell in enumerate(QUICK.values())}
    return dict(zip(QUICK, kept_by(tmp_path_factory.mktemp("quick"), scripts).values(), strict=True))


@pytest.mark.parametrize("name", QUICK)
def test_it_computes_what_the_model_does_on_every_input_set(quick: dict[str, Any], name: str) -> None:
    cell = QUICK[name]
    found, expected = quick[name]["outputs"], expected_of(cell)
    if cell.precision == "bf16":
        assert found[0][0].dtype is torch.bfloat16
        torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    else:
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("model", models.DEFAULT)
def test_weights_and_inputs_are_the_models_own_bit_for_bit(quick: dict[str, Any], model: str) -> None:
    found, loaded = quick[f"of {model}"], load(QUICK[f"of {model}"])
    torch.testing.assert_close(found["weights"], dict(loaded.module.state_dict()), rtol=0, atol=0)
    torch.testing.assert_close(found["inputs"], [one.args for one in loaded.inputs], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("label", ON_CPU)
@pytest.mark.parametrize("model", [model for model in models.DEFAULT if model != "mlp"])
def test_it_computes_what_larger_models_do(tmp_path: Path, model: str, label: str) -> None:
    assert_same_outputs(tmp_path, cell_of(model, label, seed=7))


PROJECT = {
    "models/__init__.py": "",
    "models/blocks.py": "from torch import nn\n\n\nclass Block(nn.Linear):\n    pass\n",
    "models/net.py": (
        "import torch\nfrom .blocks import Block\n\n\ndef factory(batch: int = 2):\n"
        "    return Block(3, 4), torch.randn(batch, 3)\n"
    ),
    "detect.py": "from models.net import factory as made\n\n\ndef factory(batch: int = 2):\n    return made(batch)\n",
}
OF_PROJECT = {"of_file": "detect.py:factory", "of_module": "models.net:factory"}


def test_a_project_with_modules_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file and a module of a project that has a package `models`. The script lies and runs elsewhere."""
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    (project / "models").mkdir(parents=True)
    elsewhere.mkdir()
    for name, text in PROJECT.items():
        (project / name).write_text(text)
    monkeypatch.chdir(project)
    for name in ("detect", "models", "models.net", "models.blocks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    cells = {name: cell_of(model, "eager", seed=5) for name, model in OF_PROJECT.items()}
    found = kept_by(elsewhere, {name: script_of(cell) for name, cell in cells.items()})
    for name, cell in cells.items():
        torch.testing.assert_close(found[name]["outputs"], expected_of(cell))


@pytest.mark.slow
@pytest.mark.parametrize("label", COMPILING)
def test_it_compiles_as_the_backend_does(tmp_path: Path, label: str) -> None:
    assert_same_outputs(tmp_path, cell_of("transformer", label))


@pytest.mark.slow
@pytest.mark.parametrize("label", ["eager", "torchscript", "onnx"])
def test_a_hugging_face_folder_is_read_by_transformers(tmp_path: Path, label: str) -> None:
    transformers = pytest.importorskip("transformers")
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(**tiny, vocab_size=40, max_position_embeddings=32)
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    assert_same_outputs(tmp_path, cell_of(f"hf:{tmp_path}/bert", label))


TINY_BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}  # fmt: skip
TINY_DIT = {"_class_name": "DiTTransformer2DModel", "sample_size": 8, "num_layers": 1, "num_attention_heads": 2,
            "attention_head_dim": 8, "num_embeds_ada_norm": 10}  # fmt: skip


def of_a_library(source: str, folder: Path) -> Cell:
    """Return a small cell of a model of this source, which is written to `folder` if it is no name of a library."""
    if source == "pt2":
        program = torch.export.export(torch.nn.Linear(3, 2), (torch.randn(4, 3),))
        torch.export.save(program, folder / "linear.pt2")
        return cell_of(f"pt2:{folder}/linear.pt2", "eager")
    if source in ("hf", "diffusers"):
        (folder / "config.json").write_text(json.dumps({"hf": TINY_BERT, "diffusers": TINY_DIT}[source]))
        return cell_of(f"{source}:{folder}", "eager")
    sizes = {"timm:test_resnet": {"size": 32}, "torchvision:mc3_18": {"batch": 2, "size": 16, "frames": 2}}
    dimensions = models.find(source).resolve(sizes[source])
    return Cell(model=source, dimensions=dimensions, device=CPU, backend="eager")


@pytest.mark.usefixtures("vision")
@pytest.mark.parametrize("source", ["timm:test_resnet", "torchvision:mc3_18", "hf", "diffusers", "pt2"])
def test_a_model_of_a_library_is_the_same_bit_for_bit(tmp_path: Path, source: str) -> None:
    pytest.importorskip({"hf": "transformers", "diffusers": "diffusers"}.get(source, "torch"))
    cell = of_a_library(source, tmp_path)
    script = tmp_path / "script.py"
    script.write_text(script_of(cell))
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--select=F,I", tmp_path]  # a folder may be long
    subprocess.run(ruff, check=True)
    # here and not in a process of its own, where torchvision may not import
    found, loaded = runpy.run_path(str(script)), load(cell)
    weights, expected = found["model"].state_dict(), loaded.module.state_dict()
    torch.testing.assert_close(dict(weights), dict(expected), rtol=0, atol=0)
    for inputs, one in zip(found["input_sets"], loaded.inputs, strict=True):
        tensors = [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        torch.testing.assert_close(tensors, list(one.tensors()), rtol=0, atol=0)
    second = loaded.inputs[1]
    with torch.inference_mode():
        returned = flatten_outputs(found["bind"](1)())
        torch.testing.assert_close(returned, flatten_outputs(loaded.module(*second.args, **second.kwargs)))


def test_example_calls_of_a_factory_are_the_scripts_inputs(tmp_path: Path) -> None:
    code = "import bakeoff, torch\ndef factory(batch: int = 2):\n    x = torch.randn(batch, 3)\n"
    (tmp_path / "net.py").write_text(code + "    return torch.nn.Linear(3, 2), (bakeoff.Call(x + n) for n in range(3))")
    cell, script = cell_of(f"{tmp_path}/net.py:factory", "eager"), tmp_path / "script.py"
    script.write_text(script_of(cell))
    found, sets = runpy.run_path(str(script))["input_sets"], load(cell).inputs
    assert len(found) == len(sets) == 3
    assert all(torch.equal(args[0], one.args[0]) for (args, _), one in zip(found, sets, strict=True))


def test_models_that_no_script_covers_are_named(tmp_path: Path, vision: object) -> None:
    cell = Cell(model="torchvision:ssdlite320_mobilenet_v3_large", device=CPU, backend="eager")
    with pytest.raises(UsageError, match=r"no script for torchvision:.*: detectors take a list of images"):
        script_of(cell)
    for source in models.CLASSES.keys() - script_models.SOURCES:
        with pytest.raises(UsageError, match=rf"no script for model {source}:x: there is one for each of mlp"):
            script_of(Cell(model=f"{source}:x", device=CPU, backend="eager"))
    templates = {
        path.name.partition(".")[0]
        for path in Path(script_models.__file__).with_name("scripts").joinpath("models").iterdir()
    }
    assert {*script_models.SOURCES, *script_models.TEMPLATES} - {"hf"} < templates


@pytest.mark.gpu
@pytest.mark.parametrize("label", ON_CUDA)
def test_it_computes_the_same_on_cuda(tmp_path: Path, label: str) -> None:
    cell = cell_of("mlp", label, device="cuda")
    if not (available := backends.create(cell.backend).available(Device("cuda"))):
        pytest.skip(available.reason)
    settings: dict[str, object] = {"threads": 1}
    if cell.backend == "aotinductor" and linker_options():
        settings[LINKED] = linker_options()[LINKED][0]
    record = record_of(cell, settings=settings)
    script = reproduce.script_for(report_on(record), record)
    (kept,) = kept_by(tmp_path, {"script": script}).values()
    found = [[tensor.cpu() for tensor in one] for one in kept["outputs"]]
    torch.testing.assert_close(found, [[tensor.cpu() for tensor in one] for one in expected_of(cell)])


def test_a_library_that_a_package_had_to_be_linked_with_is_named_and_only_then() -> None:
    cell = cell_of("mlp", "aotinductor")
    record = record_of(cell, settings={"threads": 1, LINKED: ":libstdc++.so.6"})
    told = 'inductor_configs={"aot_inductor.custom_op_libs": [":libstdc++.so.6"]}'
    assert told in reproduce.script_for(report_on(record), record)
    assert "inductor_configs" not in script_of(cell)


def keep_sample(cell: Cell, run: Path) -> Path:
    """Write what a run keeps of the cell's contest, and return the file."""
    loaded = load(cell)
    first = loaded.inputs[0]
    with torch.inference_mode():
        answer = returned_by_call(loaded.module(*first.args, **first.kwargs))
    file = Store(run).sample(cell.reference_id)
    file.parent.mkdir(parents=True)
    WholeSample.of(loaded.module, first, answer).save(file, answer, [0.0] * len(answer), cell.precision)
    return file


COMPLEX = """
import torch

class Spectrum(torch.nn.Linear):
    def forward(self, x):
        return torch.fft.rfft(super().forward(x)).conj()

def factory(batch: int = 2):
    return Spectrum(3, 8), torch.randn(batch, 3)
"""


@pytest.mark.parametrize("places", [None, [7, 0, 3]])
def test_complex_outputs_are_compared_whole_and_in_part(tmp_path: Path, places: list[int] | None) -> None:
    (tmp_path / "spectrum.py").write_text(COMPLEX)
    cell = cell_of(f"{tmp_path}/spectrum.py:factory", "eager")
    record, sample = record_of(cell), keep_sample(cell, tmp_path / "run")
    if places:
        with np.load(sample) as whole:
            part = {**whole, "output_0": whole["output_0"].reshape(-1, 2)[places], "places_0": np.array(places)}
        np.savez(sample, **part)
    script = reproduce.script_for(report_on(record), record, tmp_path / "run")
    (tmp_path / "right.py").write_text(script)
    runpy.run_path(str(tmp_path / "right.py"))["check"]()
    (tmp_path / "wrong.py").write_text(script.replace("torch.manual_seed(0)", "torch.manual_seed(1)"))
    with pytest.raises(SystemExit, match="output 0 is wrong"):
        runpy.run_path(str(tmp_path / "wrong.py"))["check"]()


@pytest.mark.parametrize("model", ["mlp", DATACLASS])
@pytest.mark.parametrize("label", ["eager", "torchscript"])
def test_a_script_refuses_outputs_that_are_not_those_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, label: str
) -> None:
    cell = cell_of(model, label)
    record = record_of(cell)
    sample = keep_sample(cell, tmp_path / "run")
    script = reproduce.script_for(report_on(record), record, tmp_path / "run")
    (tmp_path / "right.py").write_text(script)
    assert script.index("    check()\n") < script.index('print(f"median latency')
    check = runpy.run_path(str(tmp_path / "right.py"))["check"]
    check()
    said = capsys.readouterr().out
    assert said.count("is right") == len(flatten_outputs(run_eager(*move_to_device(load(cell), cell))[0]))
    (tmp_path / "wrong.py").write_text(script.replace("torch.manual_seed(0)", "torch.manual_seed(1)"))
    with pytest.raises(SystemExit, match="output 0 is wrong"):
        runpy.run_path(str(tmp_path / "wrong.py"))["check"]()
    sample.unlink()
    check()
    assert capsys.readouterr().out.startswith("not checked")


# --- what it takes


@pytest.mark.slow
@pytest.mark.parametrize("label", ["eager", "torchscript", "inductor", "onnx", "openvino"])
def test_a_script_measures_the_latency_of_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, label: str
) -> None:
    """Within 25 % in one of four attempts: one machine, other loads. One thread, which a neighbour disturbs least."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ratios = []
    for attempt in range(ATTEMPTS):
        report = measure(tmp_path / str(attempt), label, min_time_s=0.5)
        record = by_label(report)[label]
        assert record.latency is not None
        (tmp_path / "script.py").write_text(reproduce.script_for(report, record, tmp_path / str(attempt)))
        said = run_python(tmp_path, "script.py")
        found = re.search(r"^median latency (\S+) ms; in the report (\S+) ms$", said, re.MULTILINE)
        assert found and "output 0 is right" in said
        ratios.append(float(found[1]) / record.latency.median_ms)
        if 1 / AGREEMENT < ratios[-1] < AGREEMENT:
            return
    pytest.fail(f"script / report: {ratios}")


# --- what a script says

EVERY_CELL = [
    *((label, "cpu", "fp32") for label in (*ON_CPU, *COMPILING)),
    *((label, "cuda", "tf32") for label in (*ON_CUDA, *ENGINES)),
    *((label, "cuda:1", "fp16") for label in (*ON_CUDA, *ENGINES)),
]


@pytest.mark.parametrize("model", [*models.DEFAULT, TWO_HEADS])
def test_every_script_is_python_that_ruff_leaves_as_it_is(tmp_path: Path, model: str) -> None:
    for number, (label, device, cell_precision) in enumerate(EVERY_CELL):
        script = script_of(cell_of(model, label, device=device, precision=cell_precision))
        (tmp_path / f"script_{number}.py").write_text(script)
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--isolated", "--line-length=120", "--select=E,F,I", tmp_path], check=True)
    subprocess.run([*ruff, "format", "--isolated", "--line-length=120", "--diff", tmp_path], check=True)


@pytest.mark.parametrize("label", [*ON_CPU, *COMPILING])
def test_weights_are_constants_in_the_script_of_freezing_only(label: str) -> None:
    settings = {
        "inductor": 'os.environ["TORCHINDUCTOR_FREEZING"] = "1"',
        "aotinductor": 'inductor_configs={"freezing": True}',
    }
    written = {backend for backend, setting in settings.items() if setting in script_of(cell_of("mlp", label))}
    assert written == ({label.removesuffix("/freezing")} if label.endswith("/freezing") else set())


@pytest.mark.parametrize("label", [*ON_CPU, *COMPILING])
def test_a_script_is_about_a_page_long(label: str) -> None:
    assert len(script_of(cell_of("mlp", label)).splitlines()) <= 90


def test_the_heading_says_where_the_number_comes_from() -> None:
    fields = {"command": "python runner.py run --model mlp", "precision_in_force": {"use_tf32": "0"}}
    record = record_of(cell_of("mlp", "onnx"), **fields)
    assert record.latency
    script = reproduce.script_for(report_on(record, git_commit="abc123", variables={"LD_PRELOAD": "x.so"}), record)
    heading = [line for line in script.splitlines() if line.startswith("# ")]
    for said in (
        "python runner.py run --model mlp",
        "abc123",
        "EPYC",
        "torch 2.13.0",
        "use_tf32 0",
        f"{record.latency.calls:,} calls",
        "x.so",
    ):
        assert any(said in line for line in heading), said
    assert record.latency is not None
    assert f"in the report {spell_ms(record.latency.median_ms)}" in script


def test_only_the_script_of_a_gpu_cell_mentions_gpus() -> None:
    assert "H200" in script_of(cell_of("mlp", "eager", device="cuda"))
    for said in ("H200", "cuda", "stream", "synchronize"):
        assert said not in script_of(cell_of("mlp", "eager"))


def test_variables_that_affect_speed_are_set_before_torch_is_imported_or_named() -> None:
    at_start = {"LD_PRELOAD": "x.so", "MALLOC_TRIM_THRESHOLD_": "1"}
    script = script_of(cell_of("mlp", "eager"), variables={"OMP_NUM_THREADS": "1", **at_start})
    assert script.index('os.environ["OMP_NUM_THREADS"] = "1"') < script.index("import torch\n")
    assert re.findall(r'os\.environ\["(\w+)"\]', script) == ["OMP_NUM_THREADS"]
    assert "# Start:    with LD_PRELOAD=x.so MALLOC_TRIM_THRESHOLD_=1, set before Python starts" in script


def test_a_hostile_report_puts_no_code_into_the_script() -> None:
    hostile = "x\nraise SystemExit(1)\r\u2028\"\"\"'''\\"
    record = record_of(cell_of("mlp", "eager"), command=hostile, versions={hostile: hostile}, started_at=hostile)
    script = reproduce.script_for(report_on(record, hostname=hostile, variables={f"OMP_{hostile}": hostile}), record)
    harmless = script_of(cell_of("mlp", "eager"), variables={"OMP_": ""})
    assert [type(node) for node in ast.parse(script).body] == [type(node) for node in ast.parse(harmless).body]


def test_a_cell_that_died_can_be_reproduced_too() -> None:
    record = Record(cell=cell_of("mlp", "eager"), status=Status.CRASH, reason="died of signal 11", command="runner.py")
    script = reproduce.script_for(report_on(record), record)
    assert "crash: died of signal 11" in script
    assert "in the report" not in script
    assert "torch.set_num_threads(1)" in script


def test_neither_the_controller_nor_the_doctor_nor_a_script_needs_torch() -> None:
    code = "import sys, bakeoff.commands.run, bakeoff.shipping.reproduce, bakeoff.doctor.examine\n"
    code += "assert not {'torch', 'onnxruntime', 'openvino'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


@pytest.mark.parametrize("name", backends.names())
def test_a_backend_whose_artefact_is_loaded_elsewhere_has_a_script(name: str) -> None:
    backend = backends.create(name)
    for device in (CPU, Device("cuda")):
        part = backend.script(cell_of("mlp", name, device=device), {})
        assert part is None or "bind" in part.template
        if (runtime := backend.runtime(device)) is not None:
            assert part is not None and runtime.files and "numpy" in runtime.libraries


# --- what is refused


@pytest.mark.parametrize(
    ("label", "fields", "said"),
    [
        (
            "torch-tensorrt",
            {"device": "cuda"},
            "no script for backend torch-tensorrt: there is one for each of eager, torchscript",
        ),
        (
            "onnx/tensorrt-ep",
            {"device": "cuda"},
            "no script for mode onnx/tensorrt-ep: the script sets up the CPU's and CUDA's",
        ),
        ("inductor/gone", {}, "no script for mode inductor/gone, which this version does not have"),
        ("eager", {"precision": "int8"}, "no script for precision int8: quantising the model takes more than a page"),
        ("eager", {"model": "mine.py:factory"}, "reproduce it from the folder that it was measured from"),
        ("eager", {"dimensions": {"batch": "print()"}}, "dimension 'batch' takes a whole number"),
    ],
)
def test_what_no_script_covers_is_refused_with_the_reason(label: str, fields: dict[str, Any], said: str) -> None:
    cell = Cell.model_validate({**cell_of("mlp", label).model_dump(), **fields})
    record = record_of(cell, command="runner.py run")
    with pytest.raises(UsageError, match=re.escape(said)):
        reproduce.script_for(report_on(record), record)


def test_a_cell_that_was_never_measured_has_nothing_to_reproduce() -> None:
    record = Record(cell=cell_of("mlp", "openvino"), status=Status.UNAVAILABLE, reason="openvino is not installed")
    with pytest.raises(UsageError, match=r"it was unavailable: openvino is not installed$"):
        reproduce.script_for(report_on(record), record)


# --- which cell


def found_as(name: str, *records: Record) -> str:
    return script_parts.find_record(report_on(*records), name).cell.label


def test_a_cell_is_named_by_its_id_its_label_or_the_beginning_of_one() -> None:
    records = [record_of(cell_of("mlp", label)) for label in ("onnx", "onnx/opset-23", "openvino", "eager")]
    assert found_as("onnx", *records) == "onnx"  # a whole label, though another begins so
    assert found_as("onnx/o", *records) == "onnx/opset-23"
    assert found_as("op", *records) == "openvino"
    for record in records:
        assert found_as(record.cell.id, *records) == record.cell.label


def test_a_name_of_several_cells_is_refused_with_their_ids() -> None:
    records = [record_of(cell_of(model, "eager")) for model in ("mlp", "conv")]
    with pytest.raises(UsageError, match="'eager' stands for 2 cells: give one of") as refused:
        found_as("eager", *records)
    assert all(record.cell.id in str(refused.value) for record in records)
    assert found_as("mlp_", *records) == "eager"


@pytest.mark.parametrize(("name", "near"), [("egaer", "eager"), ("", "known: eager, onnx")])
def test_an_unknown_cell_is_refused_with_a_near_one(name: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"unknown cell '{name}': .*{near}"):
        found_as(name, record_of(cell_of("mlp", "eager")), record_of(cell_of("mlp", "onnx")))


# --- the command


def test_the_command_writes_the_script_to_a_file_or_prints_it(tmp_path: Path, command_line: CommandLine) -> None:
    record = record_of(cell_of("mlp", "eager"))
    report = report_on(record)
    expected = reproduce.script_for(report, record)
    (tmp_path / "report.json").write_text(report_file.to_json(report))
    command = ("reproduce", tmp_path / "report.json", "eager")
    assert command_line(*command) == (0, expected, "")
    file = tmp_path / "eager.py"
    assert command_line(*command, "--out", file) == (0, f"Script: {file}\n", "")
    assert (tmp_path / "eager.py").read_text() == expected


def test_a_file_name_that_hides_the_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the script would import itself as 'onnx': give the file another name"):
        reproduce.write(script_of(cell_of("mlp", "onnx")), tmp_path / "onnx.py")
    assert not list(tmp_path.iterdir())
