"""An exported folder computes in a bare process what was measured, to the bit, and holds all that it needs."""

import ast
import copyreg
import gc
import importlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import threading
import venv
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bakeoff
from bakeoff import models
from bakeoff import shipped as bakeoff_shipped
from bakeoff.backends.calling import returned_by_call
from bakeoff.backends.runtime import folder as runtime_folder
from bakeoff.backends.runtime import torch_programs
from bakeoff.backends.runtime.torch_streams import Replayed
from bakeoff.measuring.worker import pickled_model
from bakeoff.measuring.worker.cell_model import load
from bakeoff.measuring.worker.sample import Sample
from bakeoff.records import report_file
from bakeoff.records.errors import BakeoffError, Unavailable
from bakeoff.records.schema import Cell
from bakeoff.records.store import Store
from bakeoff.records.traits import ModelTraits
from bakeoff.shipping import export, script_environment
from tests.backends.building import built
from tests.conftest import CommandLine
from tests.shipping import conftest
from tests.shipping.conftest import BUILDING, COMPILING, ON_CUDA, record_of, report_on
from tests.support.measuring import measure

pytestmark = pytest.mark.usefixtures("restored_switches")

ROOT = Path(__file__).parents[2]
LIBRARIES = {"numpy", "torch", "onnxruntime", "openvino", "tensorrt"}
MEDIAN = re.compile(r"median latency (\S+) ms; in the report (\S+) ms")

# Calls a folder without Bakeoff, and keeps what it answers when it is measured, and when a program calls it.
BARE = """
import sys
import threading
from pathlib import Path
sys.modules["bakeoff"] = None
sys.path.insert(0, sys.argv[1])
import numpy
from runtime import folder
path = Path(sys.argv[1])
description = folder.read(path)
folder.set_process_up(path, description)
measured = folder.Measured(path, description)
assert measured.check()
assert "torch" not in description["imports"] or not sys.modules["torch"].is_grad_enabled()
kinds = [output["type"] for output in description["outputs"]]
artifact = folder.artifact_of(path, description)
given = measured._sets[0]
answers = [measured.execution.results(), folder.load(artifact, description["loader"]).run(given)]
answers = [list(map(folder._in_float64, answer, kinds)) for answer in answers]
numpy.savez(path / "answers.npz", *answers[0], *answers[1])
"""

# Runs BARE for each folder that it reads, in a fork, so that torch is imported once.
FORKING = """
import os, sys, traceback
import numpy, torch
code = sys.argv[1]
for line in sys.stdin:
    if not (child := os.fork()):
        sys.argv[1] = folder = line.strip()
        os.chdir(folder)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, "cache")
        said = os.open("said", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1), os.dup2(said, 2)
        status = 1
        try:
            exec(code, {"__name__": "__main__"})
            status = 0
        except BaseException:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(status)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def outside_of_the_checkout() -> dict[str, str]:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = os.pathsep.join(entry for entry in entries if entry and Path(entry).resolve() != ROOT)
    return {**os.environ, "PYTHONPATH": others}


def ran(*command: object, cwd: Path, python: object = sys.executable) -> subprocess.CompletedProcess[str]:
    """Run Python outside of this repository, with compilers' caches of its own."""
    environment = {**outside_of_the_checkout(), "TORCHINDUCTOR_CACHE_DIR": str(cwd / "cache")}
    words = [str(python), *map(str, command)]
    return subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, timeout=240)


Answers = Callable[[Path], list[np.ndarray]]


@pytest.fixture(scope="module")
def answers_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """Return a function that gives what a folder answers in a process without Bakeoff."""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    where = {"cwd": tmp_path_factory.mktemp("bare"), "env": outside_of_the_checkout()}
    with subprocess.Popen([sys.executable, "-c", FORKING, BARE], **pipes, **where) as process:

        def ask(folder: Path) -> list[np.ndarray]:
            assert process.stdin and process.stdout
            print(folder, file=process.stdin, flush=True)
            assert process.stdout.readline() == "0\n", (folder / "said").read_text()
            with np.load(folder / "answers.npz") as answers:
                return list(answers.values())

        yield ask


def cell_of(label: str, model: str = "mlp", **fields: object) -> Cell:
    small = {"mlp": {"batch": 2, "features": 8, "hidden": 16}, "conv": {"batch": 1, "size": 8, "width": 4}}
    dimensions = models.find(model).resolve(small.get(model, {}))
    return conftest.cell_of(label, **{"model": model, "dimensions": dimensions, **fields})


def measured_and_exported(cell: Cell, base: Path) -> tuple[Path, list[np.ndarray]]:
    """Build a cell as a worker does. Return what is exported of it, and what the build answers for the sample."""
    (base / "run/artifacts").mkdir(parents=True)
    (base / "run/artifacts/x").mkdir()
    with built(cell, base / "run/artifacts/x") as one:
        inputs = one.sets[0]
        outputs = [output.double().cpu().numpy() for output in one.call(inputs)]
        settings = {**one.compiled.settings(), "threads": one.context.threads}
        answer = returned_by_call(one.module(*inputs.args, **inputs.kwargs))
        file = Store(base / "run").sample(cell.reference_id)
        file.parent.mkdir()
        Sample.of(one.module, inputs, answer).save(file, answer, [1e-4] * len(answer), cell.precision)
    record = record_of(cell, settings=settings)
    report_file.write_json(report_on(record), base / "run")
    export.export(base / "run", cell.id, base / "export", with_models=True)
    return base / "export", outputs


def assert_same_bits(cell: Cell, base: Path, answers_of: Answers) -> None:
    folder, outputs = measured_and_exported(cell, base)
    for ours, theirs in zip(answers_of(folder), [*outputs, *outputs], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    fast = bakeoff.load(folder)
    assert bakeoff_shipped.check(fast)
    answers = []
    for times in (1, 0):  # no call overwrites the answer of another
        args, kwargs = fast.sample_call([tensor * times for tensor in fast.sample_tensors()])
        answers.append(fast.tensors_of(fast(*args, **kwargs)))
    for ours, theirs in zip(answers[0], outputs, strict=True):
        np.testing.assert_array_equal(ours.double().numpy(), theirs)


TWO_HEADS = f"{ROOT}/examples/two_heads.py:factory"
STORY = [
    *(("mlp", label, "fp32") for label in ("eager", *BUILDING)),
    *(("conv", "torchscript/channels-last", "fp32"), ("mlp", "openvino", "bf16")),
    (TWO_HEADS, "torchscript", "fp32"),
]
SLOW_STORY = [
    *(("mlp", label, "fp32") for label in (*COMPILING, "inductor/freezing", "aotinductor/freezing", "onnx/opset-23")),
    *(("transformer", label, "fp32") for label in ("eager", "torchscript", "onnx", "openvino")),
    *((TWO_HEADS, label, "fp32") for label in ("eager", "onnx", "openvino")),
    *(("conv", "eager/channels-last", "fp32"), ("mlp", "eager", "bf16")),
]


@pytest.mark.parametrize(
    ("model", "label", "precision"), [*STORY, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOW_STORY)]
)
def test_a_folder_answers_to_the_bit_what_the_build_does(
    tmp_path: Path, model: str, label: str, precision: str, answers_of: Answers
) -> None:
    try:
        assert_same_bits(cell_of(label, model, precision=precision, seed=3), tmp_path, answers_of)
    except Unavailable as lacking:  # such as bf16, on an older CPU
        pytest.skip(str(lacking))


@pytest.mark.gpu
@pytest.mark.parametrize("label", ["eager", "eager/cuda-graph", "torchscript/cuda-graph", *ON_CUDA])
def test_a_folder_answers_on_cuda_what_the_build_does(tmp_path: Path, label: str, answers_of: Answers) -> None:
    folder, outputs = measured_and_exported(cell_of(label, device="cuda"), tmp_path)
    for ours, theirs in zip(answers_of(folder), [*outputs, *outputs], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_script_checks_and_measures(run: Path, tmp_path: Path) -> None:
    export.export(run, "onnx", tmp_path / "export")
    (tmp_path / "elsewhere").mkdir()
    done = ran(tmp_path / "export" / "load.py", cwd=tmp_path / "elsewhere")
    assert done.returncode == 0, done.stderr
    right, median = done.stdout.splitlines()
    told = ran(tmp_path / "export" / "load.py", "--help", cwd=tmp_path)
    assert told.returncode == 0 and "checks it on a stored input" in told.stdout and "median" not in told.stdout
    assert re.fullmatch(r"output 0 is right: its RMSE is \S+, and \S+ is allowed", right) and MEDIAN.fullmatch(median)
    with np.load(tmp_path / "export" / "sample.npz") as arrays:
        changed = {name: arrays[name] + 1e-3 if name == "output_0" else arrays[name] for name in arrays.files}
    np.savez(tmp_path / "export" / "sample.npz", **changed)
    done = ran("load.py", cwd=tmp_path / "export")
    assert done.returncode == 1 and not done.stdout
    assert re.search(r"output 0 is wrong: its RMSE is 0.001, and \S+ is allowed", done.stderr)


COUNTING = """
import torch

class Counting(torch.nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        return super().forward(x) + self.calls

def factory(batch: int = 4):
    return Counting(), torch.randn(batch, 16)
"""


@pytest.mark.parametrize("labels", [("torchscript",), pytest.param(("eager", "inductor"), marks=pytest.mark.slow)])
def test_a_folder_begins_with_the_state_that_the_model_began_with(
    tmp_path: Path, labels: tuple[str, ...], answers_of: Answers
) -> None:
    (tmp_path / "counting.py").write_text(COUNTING)
    report = measure(tmp_path / "run", *labels, models=[f"{tmp_path}/counting.py:factory"])
    report_file.write_json(report, tmp_path / "run")
    for label in labels:
        export.export(tmp_path / "run", label, tmp_path / label, with_models=True)
        assert answers_of(tmp_path / label), "they are checked there"


def test_what_was_compiled_elsewhere_is_added_to_the_cache_and_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, folder = tmp_path / "cache", tmp_path / torch_programs.COMPILED
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache))
    assert torch_programs.bring_compiled(folder) == "" and not cache.exists()
    for place, text in {folder: "new", cache: "used by a process"}.items():
        (place / "ab").mkdir(parents=True)
        (place / "ab" / "one.so").write_text(text)
    (folder / "ab" / "two.so").write_text("new")
    (folder / torch_programs.MADE_BY).write_text(torch_programs.maker())
    assert torch_programs.bring_compiled(folder).startswith(f"torch {torch.__version__} in ")
    assert {file.name: file.read_text() for file in cache.glob("ab/*")} == {
        "one.so": "used by a process",
        "two.so": "new",
    }


def test_only_what_this_process_compiled_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    cache = tmp_path / "cache" / "ab"
    cache.mkdir(parents=True)
    (cache / "brought.main.so").touch()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(cache.parent))
    before = torch_programs.Compiled.now()
    (cache / "of_another_process.so").touch()
    monkeypatch.setitem(CppPythonBindingsCodeCache.cache, "brought", lambda: None)
    assert not torch_programs.Compiled.now().is_more_than(before)
    (cache / "ours.so").touch()
    monkeypatch.setitem(CppPythonBindingsCodeCache.cache, "ours", lambda: None)
    assert torch_programs.Compiled.now().is_more_than(before)


def test_a_memory_format_is_pickled_alike_in_all_programs() -> None:
    with torch_programs.alike_in_all_programs():
        pickled = pickle.dumps(torch.channels_last)
    assert b"torch:channels_last" in pickled and pickle.loads(pickled) is torch.channels_last
    assert torch.memory_format not in copyreg.dispatch_table


SWITCHED = """
import torch
from bakeoff.backends.runtime.torch_programs import computes_in_tf32

found = [computes_in_tf32()]
for precision in ("highest", "high"):
    torch.set_float32_matmul_precision(precision)
    found.append(computes_in_tf32())
if hasattr(torch.backends, "fp32_precision"):  # of torch from 2.9, beside which the older ones raise
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    found.append(computes_in_tf32())
print(found)
"""


def test_tf32_is_seen_by_whatever_switch_a_program_has_set_it() -> None:
    done = subprocess.run([sys.executable, "-c", SWITCHED], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() in ("[False, False, True, False]", "[False, False, True]"), done.stderr


SERVING = """
import sys
import mine
mine.torch.set_float32_matmul_precision("highest")
sys.path.insert(0, {folder!r})
from pathlib import Path
from runtime import folder

path = Path({folder!r})
description = folder.read(path)
folder.set_process_up(path, description)
folder.load(folder.artifact_of(path, description), description["loader"])
"""
"""A program with another module, before the folder's, that has torch in a variable, and that sets torch's default."""


@pytest.mark.slow
def test_a_folder_brings_what_was_compiled_and_says_where_it_does_not_fit(tmp_path: Path) -> None:
    folder, _ = measured_and_exported(cell_of("inductor"), tmp_path)
    compiled = folder / export.COMPILED
    (tmp_path / "fresh").mkdir()
    done = ran(folder / "load.py", cwd=tmp_path / "fresh")
    assert done.returncode == 0 and "was compiled anew" not in done.stderr, done.stderr
    (tmp_path / "mine.py").write_text("import torch\n")
    (tmp_path / "serving.py").write_text(SERVING.format(folder=str(folder)))
    (tmp_path / "serves").mkdir()
    done = ran(tmp_path / "serving.py", cwd=tmp_path / "serves")
    assert done.returncode == 0 and "was compiled anew" not in done.stderr, done.stderr
    (compiled / torch_programs.MADE_BY).write_text("torch 1.0")
    for library in compiled.rglob("*.so"):
        library.unlink()
    (tmp_path / "other").mkdir()
    done = ran(folder / "load.py", cwd=tmp_path / "other")
    assert done.returncode == 0, done.stderr
    assert "model.pt2 was compiled anew: what came with it, of torch 1.0, does not fit torch" in done.stderr


@pytest.mark.slow
def test_a_folder_that_does_not_load_here_is_exported_without_what_is_compiled(run: Path, tmp_path: Path) -> None:
    export.export(run, "torchscript", tmp_path / "export")
    (tmp_path / "export" / "model.pt").unlink()
    assert "model.pt" in export.compile_folder(tmp_path / "export")
    assert not (tmp_path / "export" / export.COMPILED).exists()


@pytest.mark.parametrize("label", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_folder_without_torch_needs_none(run: Path, tmp_path: Path, label: str) -> None:
    export.export(run, label, tmp_path / "export")
    hidden = "import sys, runpy; sys.modules['torch'] = None; sys.path[0] = '.'; runpy.run_path('load.py')"
    measuring = f"{hidden}; from pathlib import Path; from runtime import folder; sys.exit(folder.main(Path('.')))"
    done = ran("-c", measuring, cwd=tmp_path / "export")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("label", "library"), [("onnx", "onnxruntime"), ("torchscript", "torch")])
def test_a_machine_without_the_library_is_reported_what_to_install(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    label: str,
    library: str,
) -> None:
    """Both by `load.py` and by `python -m bakeoff.shipped`."""
    folder = tmp_path / "export"
    export.export(run, label, folder)
    hidden = f"import sys, runpy; sys.modules['{library}'] = None; sys.path[0] = '.'"
    done = ran("-c", f"{hidden}; runpy.run_path('load.py', run_name='__main__')", cwd=folder)
    capsys.readouterr()
    monkeypatch.setitem(sys.modules, library, None)
    status = bakeoff_shipped.main([str(folder)])
    said = {done.stderr: done.returncode, capsys.readouterr().err: status}
    packages = [line for line in (folder / "requirements.txt").read_text().splitlines() if not line.startswith("#")]
    assert any(line.startswith(f"{library}==") for line in packages)
    for text, status in said.items():
        assert status == 2 and len(text.splitlines()) == 1, text
        assert ", ".join(packages) in text and f"pip install -r {folder / 'requirements.txt'}" in text


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("label", [*BUILDING, *COMPILING])
def test_an_export_installs_elsewhere_and_takes_as_long_as_in_the_report(tmp_path: Path, label: str) -> None:
    """In one of four attempts, because other programs use the machine. The model is large enough to be measured."""
    python = tmp_path / "venv" / "bin" / "python"
    ratios = []
    for attempt in range(4):
        run = tmp_path / str(attempt)
        report_file.write_json(measure(run, label, set={"hidden": ("2048",)}, min_time_s=1.5, processes=3), run)
        _, script = export.export(run, label, tmp_path / f"export-{attempt}")
        if attempt == 0:
            venv.create(tmp_path / "venv", with_pip=True)
            install = [python, "-m", "pip", "install", "-q", "-r", script.parent / "requirements.txt"]
            subprocess.run(install, check=True, timeout=3000)
        done = ran(script, cwd=tmp_path, python=python)
        found = MEDIAN.search(done.stdout)
        assert found, done.stderr
        ratios.append(float(found[1]) / float(found[2]))
        if 1 / 1.1 < ratios[-1] < 1.1:
            return
    pytest.fail(f"load.py / report: {ratios}")


# --- what a folder holds


def imports_of(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names} - sys.stdlib_module_names


def test_the_files_that_load_import_one_another_and_libraries_only(tmp_path: Path) -> None:
    here = Path(runtime_folder.__file__).parent
    for file in here.glob("*.py"):
        if file.name not in ("errors.py", "library.py", "lazily.py", "folder.py", "contract.py", "__init__.py"):
            export.copy_runtime(f"{file.stem}:load", tmp_path / file.stem)
            assert (tmp_path / file.stem / file.name).read_bytes() == file.read_bytes()
    copies = list(tmp_path.rglob("*.py"))
    assert {name for file in copies for name in imports_of(file)} <= LIBRARIES
    assert {file.name for file in copies} == {file.name for file in here.glob("*.py")}
    assert {path.name for path in (tmp_path / "onnx").iterdir()} == {
        *("__init__.py", "folder.py", "contract.py", "errors.py", "library.py", "lazily.py", "onnx.py"),
        "torch_streams.py",
    }


def test_the_variables_and_threads_of_the_measurement_are_data(tmp_path: Path) -> None:
    for label, has_torch in {"onnx": False, "torchscript": True, "inductor/freezing": True}.items():
        record = record_of(label)
        report = report_on(record, variables={"OMP_NUM_THREADS": "1", "LD_PRELOAD": "x.so"})
        runtime = conftest.runtime_of(record)
        sample = conftest.SAMPLE
        described = json.loads(json.dumps(export.description(report, record, runtime, sample, runtime.files[0])))
        freezing = {"TORCHINDUCTOR_FREEZING": "1"} if "freezing" in label else {}
        assert described["settings"]["variables"] == ({"OMP_NUM_THREADS": "1", **freezing} if has_torch else {})
        assert described["settings"]["threads"] == 2


@pytest.mark.parametrize(("needs_autograd", "calling"), [(True, "no_grad"), (False, "inference_mode")])
def test_a_model_that_computes_gradients_is_not_called_in_inference_mode(needs_autograd: bool, calling: str) -> None:
    record = record_of("torchscript", traits=ModelTraits(needs_autograd=needs_autograd))
    runtime = conftest.runtime_of(record)
    described = export.description(report_on(record), record, runtime, conftest.SAMPLE, runtime.files[0])
    assert described["settings"]["calling"] == calling


def test_what_a_folder_loads_lives_as_long_as_its_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A CUDA graph works with memory of the engine, which frees it when it goes."""
    made = []

    class Loaded:
        def execution(self) -> object:
            return object()

    def load(*_: object) -> Loaded:
        loaded = Loaded()
        made.append(weakref.ref(loaded))
        return loaded

    monkeypatch.setattr(runtime_folder, "load", load)
    record = record_of("onnx")
    runtime = conftest.runtime_of(record)
    described = export.description(report_on(record), record, runtime, conftest.SAMPLE, runtime.files[0])
    monkeypatch.setattr(runtime_folder, "sample_inputs", lambda *_: [])
    measured = runtime_folder.Measured(tmp_path, described)
    gc.collect()
    assert measured.execution is not None and made[0]() is not None


def test_fixed_buffers_take_inputs_in_every_layout() -> None:
    images = torch.empty(1, 2, 4, 4).contiguous(memory_format=torch.channels_last)
    buffers, sums = [torch.empty(1, 3).expand(4, 3), images], torch.empty(2)
    replayed = Replayed(buffers, [sums], lambda: sums.copy_(torch.stack([each.sum() for each in buffers])), None)
    replayed.bind([torch.ones(4, 3), torch.ones(1, 2, 4, 4)])
    replayed.run()
    assert replayed.results()[0].tolist() == [12.0, 32.0]


# --- a model itself

COMPLEX = """
import torch

class Spectrum(torch.nn.Linear):
    def forward(self, x):
        return torch.fft.rfft(super().forward(x)).conj()

def factory(batch: int = 2):
    return Spectrum(3, 8), torch.randn(batch, 3)
"""
PROJECT = {
    "models/__init__.py": "",
    "models/blocks.py": "from torch import nn\n\n\nclass Block(nn.Linear):\n    pass\n",
    "models/net.py": (
        "import torch\nfrom .blocks import Block\n\n\ndef factory(batch: int = 2):\n"
        "    return Block(3, 4), torch.randn(batch, 3)\n"
    ),
    "spectrum.py": COMPLEX,
}
TINY_BERT = {"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 8, "num_hidden_layers": 1,
             "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 40}  # fmt: skip


def project_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in PROJECT.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.chdir(folder)
    for name in ("spectrum", "models", "models.net", "models.blocks"):
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.mark.parametrize(
    "model", ["models.net:factory", "spectrum.py:factory", f"{ROOT}/tests/cases/dataclass_output.py:factory"]
)
def test_a_model_is_pickled_with_all_code_that_no_library_has_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, answers_of: Answers
) -> None:
    project_in(tmp_path / "project", monkeypatch)
    made = load(cell_of("eager", model))
    inputs = made.inputs[0]
    record = record_of(cell_of("eager", model))
    export.copy_runtime("torch_programs:load_model", tmp_path / "runtime")
    pickled_model.write(made.module.eval(), inputs, tmp_path / "model.pt")
    with torch.no_grad():
        answer = returned_by_call(made.module(*inputs.args, **inputs.kwargs))
    sample = Sample.of(made.module, inputs, answer)
    sample.save(tmp_path / "sample.npz", answer, [1e-5] * len(answer), record.cell.precision)
    facts = export.Sample.read(tmp_path / "sample.npz")
    described = export.description(report_on(record), record, conftest.runtime_of(record), facts, "model.pt")
    (tmp_path / "bakeoff.json").write_text(json.dumps(described))
    shutil.move(tmp_path / "project", tmp_path / "gone")
    found = answers_of(tmp_path)
    with np.load(tmp_path / "sample.npz") as arrays:
        for number in range(len(facts.outputs)):
            np.testing.assert_allclose(found[number].reshape(-1), arrays[f"output_{number}"].reshape(-1), atol=1e-5)


def test_an_environment_inside_of_a_project_is_not_the_projects_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, project = tmp_path / ".venv" / "site-packages", tmp_path
    for folder, name in ((installed, "brought_module"), (project, "own_module")):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.py").write_text("")
        monkeypatch.syspath_prepend(folder)
    (installed / "brought-1.0.dist-info").mkdir()
    modules = [importlib.import_module(name) for name in ("own_module", "brought_module")]
    own = pickled_model._own_modules()
    assert [module in own for module in (*modules, bakeoff, torch)] == [True, False, True, False]


def test_the_libraries_of_a_models_code_are_required(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(TINY_BERT))
    made = load(cell_of("eager", f"hf:{tmp_path}"))
    pickled_model.write(made.module, made.inputs[0], tmp_path / "model.pt")
    assert script_environment.distributions_in(tmp_path / "model.pt", ("torch", "numpy")) == ["transformers"]


def test_a_model_that_holds_what_belongs_to_its_process_is_refused(tmp_path: Path) -> None:
    made = load(cell_of("eager"))
    made.module.lock = threading.Lock()
    with pytest.raises(BakeoffError, match="the model cannot be pickled: "):
        pickled_model.write(made.module, made.inputs[0], tmp_path / "model.pt")


@pytest.mark.usefixtures("forked_programs")
def test_eager_is_reproduced_and_not_exported(run: Path, tmp_path: Path, command_line: CommandLine) -> None:
    assert "see bakeoff reproduce" in command_line("export", run, "eager", "--out", tmp_path / "export")[2]
    status, out, _ = command_line("reproduce", run, "eager", "--out", tmp_path / "again", "--json")
    answer = json.loads(out)
    assert (status, answer["path"]) == (0, str(tmp_path / "again/load.py"))
    assert answer["script"] == (tmp_path / "again/load.py").read_text()
    assert "cloudpickle" in (tmp_path / "again/requirements.txt").read_text()
