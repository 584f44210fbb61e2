"""`bakeoff.compare` takes what the command line takes, and a live module as it is, and measures in another process."""

import functools
import importlib
import importlib.util
import json
import os
import pickle
import random
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import psutil
import pytest
import torch
import typer
from torch import nn

import bakeoff
from bakeoff import cli, models
from bakeoff.api import compare as api
from bakeoff.api import run_process
from bakeoff.api.run_process import RunEnded, RunFailed, RunProcess, StartRun, WholeRelay
from bakeoff.judging.judgement import judge
from bakeoff.judging.stored_report import report_at
from bakeoff.measuring.controller.progress import Progress
from bakeoff.models import live_model
from bakeoff.models.base import LIVE_MODEL, LoadedModel, Pipeline
from bakeoff.models.live_model import About
from bakeoff.models.unwrapping import completed
from bakeoff.planning import config
from bakeoff.planning.request import Request
from bakeoff.records.errors import BakeoffError, UsageError
from bakeoff.records.schema import Cell, Record, Status
from bakeoff.reports.json_answer import answer_of
from bakeoff.scaling.controller_process import Relay
from tests.conftest import CommandLine
from tests.support.checkout import python
from tests.support.measuring import Silent


def test_keywords_are_the_options_of_a_run() -> None:
    run = typer.main.get_command(cli.app).commands["run"]  # type: ignore[attr-defined]
    flags = {flag.removeprefix("--").replace("-", "_") for each in run.params for flag in each.opts}
    assert set(api.keywords()) == (flags - api.COMMAND_LINE_ONLY.keys() - {"model", "models", "inputs"}) | {"progress"}


@pytest.mark.parametrize(
    ("keyword", "value", "typed"),
    [
        ("backends", "eager,onnx", ["eager,onnx"]),
        ("backends", ["eager", "onnx/all"], ["eager", "onnx/all"]),
        ("set", {"batch": [1, 8], "act": "gelu"}, ["batch=1,8", "act=gelu"]),
        ("dynamic", {"seq": "16:512"}, ["seq=16:512"]),
        ("env", {"old": sys.executable}, [f"old={sys.executable}"]),
        ("budget", 90, "90"),
        ("require", "p99_ms<5", "p99_ms<5"),
        ("time_limit", 5, 5.0),
        ("strict", True, True),
    ],
)
def test_values_mean_what_they_mean_on_the_command_line(keyword: str, value: Any, typed: Any) -> None:
    name = api.FIELDS[keyword]
    assert Request(**{name: api._field(name, value)}) == Request(**config._parsed({name: typed}))


def test_unknown_keyword_names_the_nearest_one() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'backend': did you mean 'backends'"):
        bakeoff.compare("mlp", backend="eager")  # type: ignore[arg-type]


def test_an_option_of_the_command_line_alone_is_reported_as_such() -> None:
    for name in api.COMMAND_LINE_ONLY:
        with pytest.raises(TypeError, match=f"no keyword '{name}', an option of the command line only: "):
            bakeoff.compare("mlp", **{name: True})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("model", "inputs", "fields", "said"),
    [
        (nn.Linear(2, 2), None, {}, "inputs are missing"),
        (5, None, {}, "model is a int"),
        pytest.param("mlp", "none.pt", {}, "no file none.pt", marks=pytest.mark.slow),
        ("no-such-model", None, {}, "unknown model 'no-such-model'"),
        ("mlp", None, {"budget": "soon"}, "--budget soon"),
        (nn.Linear(2, 2), torch.ones(1, 2), {"cluster": "auto"}, "do not have a live model"),
        (nn.Linear(2, 2), torch.ones(1, 2), {"backends": "egaer"}, "did you mean 'eager'"),
        (nn.Linear(2, 2), torch.ones(1, 2), {"backends": "onnx/fats"}, "unknown mode of onnx 'fats'"),
        (nn.Linear(2, 2), torch.ones(1, 2), {"out": sys.executable}, "cannot be written"),
        (nn.Linear(2, 2), [], {}, "inputs are an empty list"),
        (nn.Linear(2, 2), np.ones((1, 2)), {}, "the example inputs are a value of type ndarray: expected a tensor"),
        (nn.Linear(2, 2), {"x": torch.ones(1, 2)}, {}, r"do not fit Linear.forward\(input.*: missing .*'input'"),
    ],
)
def test_what_is_wrong_is_reported_before_weights_are_written(
    model: Any, inputs: Any, fields: Mapping[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bakeoff.models.live_model.save", None)
    with pytest.raises(UsageError, match=said):
        bakeoff.compare(model, inputs, progress=False, **fields)


def test_importing_it_draws_no_random_number_of_the_program() -> None:
    code = "import random; s = random.getstate(); import bakeoff.api.progress; assert random.getstate() == s"
    python(code)


WEIGHT = torch.arange(64.0).view(4, 16) / 64


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


def globals_of_process() -> dict[str, Any]:
    return {
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_rng_state().tolist()),
        "random": (random.getstate(), str(np.random.get_state())),
        "process": (Path.cwd(), list(sys.path), dict(os.environ), os.sched_getaffinity(0)),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
        "threads of Python": set(threading.enumerate()),
        "children": {child.pid for child in psutil.Process().children(recursive=True)},
        "files": psutil.Process().num_fds(),
    }


class Compared(NamedTuple):
    """A comparison, and this process before and after it."""

    result: bakeoff.Result
    before: dict[str, Any]
    after: dict[str, Any]
    left_behind: list[str]
    bias: torch.Tensor


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """One comparison in a thread of its own, while the program holds a lock."""
    folder, results = tmp_path_factory.mktemp("compared"), list[bakeoff.Result]()
    temporary = folder / "tmp"
    temporary.mkdir()
    module, inputs = Net().train(), torch.randn(8, 16)
    with torch.no_grad():
        module.layer.weight.copy_(WEIGHT)

    def compare() -> None:
        brief = {"min_time": 0.05, "processes": 1, "progress": False}
        found = bakeoff.compare(
            module, inputs, backends="eager,torchscript", devices="cpu", out=folder / "run", **brief
        )
        results.append(found)

    with pytest.MonkeyPatch.context() as patch, threading.Lock():
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr("tempfile.tempdir", None)
        before = globals_of_process()
        thread = threading.Thread(target=compare)
        thread.start()
        thread.join()
        after = globals_of_process()
    assert module.training and module.layer.weight.grad is None
    # the headers of torch's C++ are the machine's, and are kept on purpose
    left_behind = [path.name for path in temporary.iterdir() if not path.name.startswith("torchinductor_")]
    return Compared(results[0], before, after, left_behind, module.layer.bias.detach())


def test_nothing_in_this_process_changes(compared: Compared) -> None:
    for what, value in compared.before.items():
        assert compared.after[what] == value, what
    assert compared.left_behind == []


def test_verdict_is_that_of_the_command_line(compared: Compared) -> None:
    result = compared.result
    printed = answer_of(judge(report_at(result.folder)), result.folder)
    assert result.to_dict() == printed.model_dump(mode="json")
    assert result.contests[0].title == "live:Net on cpu, fp32" and result.complete


NET = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x.relu()

def factory():
    return Net(), torch.ones(8, 16)
"""


def structure(value: object) -> object:
    """Return the keys and types of an answer without its numbers and texts."""
    if isinstance(value, dict):
        return {key: structure(inner) for key, inner in value.items()}
    return [structure(inner) for inner in value] if isinstance(value, list) else type(value).__name__


@pytest.mark.slow
def test_a_live_model_and_its_file_get_the_same_verdict(command_line: CommandLine) -> None:
    """Here null answers in exactly half of the time."""
    Path("net.py").write_text(NET)
    sys.path.insert(0, "")
    module, x = importlib.import_module("net").factory()
    brief = {"backends": "null,null/double", "devices": "cpu", "min_time": 0.05, "processes": 2}
    result = bakeoff.compare(module, x, progress=False, out="live", **brief)  # type: ignore[arg-type]
    options = [part for key, value in brief.items() for part in (f"--{key.replace('_', '-')}", value)]
    status, printed, _ = command_line("--model", "net.py:factory", "--json", "--out", "file", *options)
    of_file, of_live = json.loads(printed), result.to_dict()
    assert status == 0 and result.winner == of_file["contests"][0]["winner"] == "null"
    assert result.contests[0].runner_up == of_file["contests"][0]["runner_up"] == "null/double"
    for each in (of_file, of_live):  # how busy the machine was is no part of the verdict
        each["contests"][0]["doubts"] = []
    assert structure(of_live) == structure(of_file)


def test_program_is_measured_with_its_own_weights(compared: Compared) -> None:
    rows = compared.result.rows
    assert {row["backend"]: row["status"] for row in rows} == {"eager": "ok", "torchscript": "ok"}
    x = torch.ones(8, 16)
    assert torch.equal(
        compared.result.load("torchscript")(x), torch.nn.functional.linear(x, WEIGHT, compared.bias).relu()
    )


def test_eager_has_nothing_to_load(compared: Compared) -> None:
    with pytest.raises(UsageError, match="eager compiles nothing: ship the model as it is"):
        compared.result.load("eager")


def test_a_result_prints_its_report(compared: Compared) -> None:
    result = compared.result
    assert "live:Net on cpu, fp32" in str(result) and repr(result) == str(result)
    html = result._repr_html_()
    assert (
        "<script" not in html
        and "light-dark(" in html
        and "color-scheme:light dark" in html
        and "eager" in html
        and "<svg" in html
    )
    assert result.figure()._repr_svg_().startswith("<?xml")
    assert all(path.exists() for path in result.paths.values())


def test_result_can_be_pickled_and_opened_again(compared: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    result = compared.result
    assert pickle.loads(pickle.dumps(result)).to_dict() == result.to_dict()
    assert bakeoff.open_run(result.folder).to_dict() == result.to_dict()
    monkeypatch.setattr("bakeoff.api.pipelines.RESULTS", result.folder.parent)
    assert bakeoff.open_run(result.folder.name).rows == result.rows


def test_rows_become_a_data_frame(compared: Compared, install: Callable[[str, object], None]) -> None:
    install("pandas", SimpleNamespace(DataFrame=list))
    assert compared.result.to_pandas() == compared.result.rows
    install("pandas", None)
    with pytest.raises(UsageError, match="pip install pandas"):
        compared.result.to_pandas()


def test_no_run_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no report at"):
        bakeoff.open_run(tmp_path / "nothing")


@pytest.mark.slow
def test_winner_that_is_exported_anew_can_be_loaded_though_the_model_is_gone(tmp_path: Path) -> None:
    module, x = Net().eval(), torch.randn(8, 16)
    brief: dict[str, Any] = {"min_time": 0.05, "processes": 1, "progress": False, "out": tmp_path / "run"}
    result = bakeoff.compare(module, x, backends="inductor", devices="cpu", **brief)
    assert torch.allclose(result.load("inductor")(x), module(x), atol=1e-5)


@pytest.mark.gpu
def test_live_model_of_a_billion_weights_on_a_gpu(tmp_path: Path) -> None:
    """It stays on the GPU, and is written to the host one weight after the other."""
    blocks = [nn.Sequential(nn.Linear(4096, 16384, bias=False), nn.ReLU(), nn.Linear(16384, 4096)) for _ in range(8)]
    module, x = nn.Sequential(*blocks).half().cuda(), torch.randn(1, 4096, device="cuda", dtype=torch.float16)
    before, allocated = module(x), torch.cuda.memory_allocated()
    result = bakeoff.compare(
        module, x, backends="eager,inductor", precision="fp16", processes=1, progress=False, out=tmp_path / "run"
    )
    assert {row["device"] for row in result.rows} == {"cuda:0"}
    assert {row["backend"]: row["status"] for row in result.rows} == {"eager": "ok", "inductor": "ok"}
    assert torch.cuda.memory_allocated() == allocated and torch.equal(module(x), before)
    assert all(weight.is_cuda and weight.dtype is torch.float16 for weight in module.parameters())


BEGIN = """
import os, signal, sys, time
from multiprocessing.connection import Connection
from pathlib import Path
from bakeoff.api.run_process import ProgressEvent, RunEnded, RunFailed
from bakeoff.records.errors import UsageError
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background begins with it ignored
connection = Connection(int(sys.argv[1]))
begin = connection.recv()
def note(text):
    connection.send(ProgressEvent("note", (text,)))
    connection.recv()
"""

UNTIL_INTERRUPTED = """
try:
    while True:
        note("still measuring")
except KeyboardInterrupt:
    time.sleep(LEAVES_S)
    connection.send(RunEnded(begin.folder))
"""


@pytest.fixture
def no_child_is_left() -> Iterator[None]:
    """Fail if the test leaves a process. Those of earlier tests, such as their fork servers, may live on."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


def process_doing(patch: pytest.MonkeyPatch, code: str) -> RunProcess:
    """Return a process that does something else than a run."""
    patch.setattr(run_process, "START", BEGIN + code)
    return RunProcess(StartRun(Request(), Path("run"), "test"))


class Stopping(Silent):
    """Someone presses Ctrl-C at the second note, and again at each of `more` later ones."""

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.left = 1 + more

    def note(self, text: str) -> None:
        super().note(text)
        if len(self.notes) >= 2 and self.left:
            self.left -= 1
            raise KeyboardInterrupt


def test_events_are_shown_and_an_interruption_gives_the_result_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Stopping()
    with process_doing(monkeypatch, UNTIL_INTERRUPTED.replace("LEAVES_S", "0")) as process:
        assert process.result(shown) == RunEnded(Path("run"))
    assert set(shown.notes) == {"still measuring"} and len(shown.notes) >= 2


@pytest.mark.slow
def test_an_interruption_while_the_process_imports_is_one_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    imports = "note('one'); note('two')\nwhile True: time.sleep(0.01)"
    with process_doing(monkeypatch, imports) as process, pytest.raises(KeyboardInterrupt):
        process.result(Stopping())


@pytest.mark.usefixtures("no_child_is_left")
def test_a_second_interruption_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forever = "signal.signal(signal.SIGINT, lambda *_: None)\nwhile True: note('still measuring')"
    with process_doing(monkeypatch, forever) as process, pytest.raises(KeyboardInterrupt):
        process.result(Stopping(more=1))


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('no memory', flush=True); os.kill(os.getpid(), signal.SIGKILL)", "ended: signal 9 no memory"),
        pytest.param("sys.exit('it is broken')", "ended: exit status 1 it is broken", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_dies_is_reported_with_its_last_words(
    code: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process_doing(monkeypatch, code) as process, pytest.raises(BakeoffError, match=said):
        process.result(Silent())


def test_an_error_keeps_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    with process_doing(monkeypatch, "connection.send(RunFailed(UsageError('write it otherwise')))") as process:
        failed = process.result(Silent())
    assert isinstance(failed, RunFailed) and type(failed.error) is UsageError


@pytest.mark.slow
@pytest.mark.usefixtures("no_child_is_left")
def test_a_program_that_is_gone_ends_the_run_and_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Here the program leaves while the process of a real run has just begun to ask the machine."""
    live = tmp_path / "live"
    live.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    request: Any = Request(models=("mlp",), devices=("cpu",), backends=("eager",))
    with RunProcess(StartRun(request, tmp_path / "run", "test"), live):
        pass
    assert not live.exists()


def test_each_call_of_a_progress_is_made_again_elsewhere() -> None:
    calls: list[tuple[str, object]] = []

    class Shown(Silent):
        def built(self, cell: Cell, seconds: float, is_cached: bool = False) -> None:
            calls.append(("built", (cell, seconds, is_cached)))

        def tick(self) -> None:
            calls.append(("tick", ()))

    cell, shown = Cell(model="mlp", backend="eager"), Shown()
    relay: Progress = Relay(lambda event: event.show(shown))
    relay.built(cell, 2.0, is_cached=True)
    relay.tick()
    relay.note("one")
    assert calls == [("built", (cell, 2.0, True)), ("tick", ())] and shown.notes == ["one"]


def test_an_interruption_is_heard_once_and_only_while_something_is_measured() -> None:
    cells = [Cell(model="mlp", backend=name) for name in ("eager", "onnx")]
    records = [Record(cell=cell, status=Status.ERROR, reason="scripted") for cell in cells]
    relay, done = WholeRelay(lambda message: None), WholeRelay(lambda message: None)
    relay.planned(cells)
    relay.ended(records[0])
    with pytest.raises(KeyboardInterrupt):
        relay.interrupt(2, None)
    relay.interrupt(2, None)
    done.planned(cells)
    for record in records:
        done.ended(record)
    done.interrupt(2, None)
    assert relay.is_interrupted and not done.is_interrupted


class Tied(nn.Module):
    """Weights that are tied, and a buffer that a state dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.arange(8.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x)) * self.scale


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LoadedModel]:
    """Return what a worker would load of a model and its inputs."""

    def take(model: Any, inputs: Any, **dimensions: int) -> LoadedModel:
        name = live_model.save(model, inputs, tmp_path)
        monkeypatch.setenv(LIVE_MODEL, str(tmp_path))
        family = models.find(name)
        return family.load(family.resolve(dimensions), 0)

    return take


Take = Callable[..., LoadedModel]


def test_module_comes_with_its_weights_and_buffers(taken: Take) -> None:
    module, inputs = Tied().train(), torch.randn(4, 8)
    loaded = taken(module, inputs)
    assert torch.equal(loaded.module(inputs), module(inputs))
    assert loaded.module.first.weight is loaded.module.last.weight
    assert torch.equal(loaded.inputs[0].tensors()[0], inputs)


def test_description_is_the_docstring_of_its_own_class(taken: Take) -> None:
    for module, said in (
        (Tied(), Tied.__doc__),
        (nn.Identity(), "A placeholder identity operator"),
        (Bare(), "a live"),
    ):
        taken(module, torch.ones(1, 8))
        assert models.find(f"live:{type(module).__name__}").description.startswith(str(said))


class Bare(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_module_here_stays_as_it_is(taken: Take) -> None:
    module = Tied().train()
    module(torch.randn(4, 8)).sum().backward()
    gradient, version = module.first.weight.grad, module.first.weight._version
    inputs, by_value = torch.randn(4, 8, requires_grad=True) * 2, cloudpickle.list_registry_pickle_by_value()
    random = torch.get_rng_state()
    taken(module, inputs)
    assert module.training and module.first.weight.grad is gradient and module.first.weight._version == version
    assert torch.equal(torch.get_rng_state(), random)
    assert cloudpickle.list_registry_pickle_by_value() == by_value


def test_hooks_come_too(taken: Take) -> None:
    module = nn.Linear(8, 8)
    module.register_forward_hook(lambda module, args, output: output + 1)
    inputs = torch.randn(2, 8)
    assert torch.equal(taken(module, inputs).module(inputs), module(inputs))


def test_weights_are_mapped_and_not_copied(taken: Take, tmp_path: Path) -> None:
    loaded = taken(nn.Linear(1000, 1000), torch.randn(1, 1000))
    start = loaded.module.weight.data_ptr()
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    ranges = [(line, *(int(end, 16) for end in line.split()[0].split("-"))) for line in lines]
    (line,) = [line for line, low, high in ranges if low <= start < high]
    assert str(tmp_path) in line


def test_function_makes_the_model_of_each_size(taken: Take) -> None:
    def factory(width: int = 8, seed: int = 3) -> tuple[nn.Module, torch.Tensor]:
        return nn.Linear(width, 2), torch.randn(1, width)

    loaded = taken(factory, None, width=16)
    assert loaded.module.in_features == 16


def test_function_may_take_its_inputs_from_the_caller(taken: Take) -> None:
    inputs = torch.randn(1, 4)
    assert torch.equal(taken(lambda: nn.Linear(4, 2), inputs).inputs[0].tensors()[0], inputs)


def test_parameter_of_a_function_needs_a_default(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"'width' of this one has no default: .*width=8.*the forward of a"):
        live_model.save(lambda width: nn.Linear(width, 2), None, tmp_path)


def test_compiled_module_comes_without_its_compiler(taken: Take) -> None:
    loaded = taken(torch.compile(nn.Sequential(torch.compile(nn.Linear(8, 8)))), torch.randn(1, 8))
    assert type(loaded.module) is nn.Sequential and type(loaded.module[0]) is nn.Linear
    assert loaded.unwrapped == ("torch.compile",)


def test_what_the_user_kept_from_compilers_stays_so(taken: Take) -> None:
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = torch.compiler.disable(nn.Linear(8, 8))

        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x)

    inputs, module = torch.randn(1, 8), Kept()
    loaded = taken(module, inputs)
    assert completed(loaded, 0).unwrapped == loaded.unwrapped == ()
    assert torch.equal(loaded.module(inputs), module(inputs))
    assert type(loaded.module).forward._torchdynamo_disable and type(loaded.module.part) is not nn.Linear


def test_a_function_around_one_that_is_kept_from_compilers_comes_whole(taken: Take) -> None:
    plain = torch.compiler.disable(lambda x: 2 * x)

    class Around(nn.Linear):
        @functools.wraps(plain)
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(plain(x))

        skipped = torch._dynamo.decorators.skip(lambda self: 0)

    inputs, module = torch.randn(1, 8), Around(8, 8)
    assert torch.equal(taken(module, inputs).module(inputs), module(inputs))


def test_scripted_part_comes_along(taken: Take) -> None:
    inputs, module = torch.randn(1, 8), nn.Sequential(torch.jit.script(nn.Linear(8, 8)))
    assert torch.equal(taken(module, inputs).module(inputs), module(inputs))


def test_class_of_a_module_that_no_worker_can_import_travels_by_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "elsewhere" / "hidden_layers.py"
    file.parent.mkdir()
    file.write_text("from torch import nn\nclass Hidden(nn.Linear):\n    def extra(self): return 5\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("hidden_layers", file)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "hidden_layers", module)
    spec.loader.exec_module(module)
    hidden = module.Hidden(4, 4)
    name = live_model.save(hidden, torch.randn(1, 4), tmp_path)
    del sys.modules["hidden_layers"]
    monkeypatch.setenv(LIVE_MODEL, str(tmp_path))
    assert models.find(name).load({}, 0).module.extra() == 5  # type: ignore[operator]


class Encoder(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def encoder_with(name: str, value: object) -> nn.Module:
    encoder = Encoder()
    setattr(encoder, name, value)
    return nn.Sequential(encoder)


def test_a_search_path_stays_what_it_was_when_the_program_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("lib")
    assert importlib.util.find_spec("no_such_module_anywhere") is None
    monkeypatch.chdir("/")
    assert str(tmp_path / "lib") in live_model.own_search_path()


def test_what_cannot_travel_is_reported_by_its_path(tmp_path: Path) -> None:
    log = (tmp_path / "log.txt").open("w", encoding="utf-8")
    lock = threading.Lock()
    cases = {
        "model.0.log is an open file": encoder_with("log", log),
        "model.0.state['guard'] is a lock": encoder_with("state", {"guard": lock}),
        "model.0.pick, which uses 'lock': that is a lock": encoder_with("pick", lambda: lock),
        "model._forward_hooks": nn.Sequential(),
        "model.0.rows is a generator": encoder_with("rows", (each for each in ())),
    }
    cases["model._forward_hooks"].register_forward_hook(lambda *_: log.flush())
    with log:
        for path, module in cases.items():
            with pytest.raises(UsageError) as told:
                live_model.save(module, torch.ones(1), tmp_path)
            assert str(told.value).startswith(path), told.value
            assert "which no other process can have" in str(told.value)


def test_model_is_gone_with_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LIVE_MODEL, raising=False)
    with pytest.raises(UsageError, match=r"call bakeoff\.compare again"):
        models.find("live:Net")


NOTEBOOK = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x * FACTOR

FACTOR = {factor}
"""


def test_equal_code_has_one_digest(tmp_path: Path) -> None:
    """Otherwise no build of an earlier run would be found, or one of other code."""

    def digest(factor: int) -> str:
        notebook: dict[str, Any] = {"__name__": "__main__"}
        exec(NOTEBOOK.format(factor=factor), notebook)
        live_model.save(notebook["Net"](), torch.ones(1), tmp_path)
        return About.model_validate_json((tmp_path / live_model.ABOUT).read_bytes()).code

    assert digest(2) == digest(2) != digest(3)


def test_a_pipeline_travels_with_its_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"a": 1.0, "b": 2.0}
    pipeline = Pipeline(lambda text: torch.tensor([[words[each] for each in text]]), nn.Linear(2, 2), torch.argmax)
    name = live_model.save(pipeline, "ab", tmp_path)
    monkeypatch.setenv(LIVE_MODEL, str(tmp_path))
    loaded = live_model.LiveModel(name).load({}, 0)
    assert name == "live:Linear"
    assert loaded.inputs[0].args[0].tolist() == [[1.0, 2.0]]
    assert loaded.around.raw == "ab"


def test_a_function_that_evaluates_comes_with_what_it_uses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.arange(4)

    def top1(predict: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"top1": predict(labels) == labels}

    top1.higher_is_better = {"top1": True}  # type: ignore[attr-defined]
    name = live_model.save_evaluate(top1, tmp_path)
    with pytest.raises(UsageError, match="is not kept"):
        models.find_evaluate(name)
    monkeypatch.setenv(LIVE_MODEL, str(tmp_path))
    found: Any = models.find_evaluate(name)
    assert name == "live:top1" and found.higher_is_better == {"top1": True}
    assert found(lambda given: given)["top1"].all() and found is not top1


def test_a_function_that_cannot_travel_is_refused_by_its_part(tmp_path: Path) -> None:
    lock = threading.Lock()

    def evaluate(predict: object) -> dict[str, bool]:
        return {"is_free": lock.acquire(blocking=False)}

    with pytest.raises(UsageError, match="evaluate, which uses 'lock': that is a lock"):
        live_model.save_evaluate(evaluate, tmp_path)
