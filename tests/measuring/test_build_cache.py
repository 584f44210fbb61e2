"""Builds of earlier runs: what finds them, who may use them, and what removes them."""

import importlib
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config
from numpy.typing import NDArray
from torch import nn

from bakeoff import cli
from bakeoff.measuring.controller.build_cache import BUSY_CEILINGS_LIMIT_S, CEILINGS_LIMIT_S, BuildCache, key_of
from bakeoff.measuring.controller.environment import capture
from bakeoff.measuring.worker.fingerprint import MAX_READ_BYTES, digest_of_weights, fingerprint, require_weights
from bakeoff.models.base import Inputs
from bakeoff.planning.plan import PlannedCell
from bakeoff.records import plug_ins
from bakeoff.records.device import CPU
from bakeoff.records.errors import BakeoffError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Ceilings, Cell, Memory, Status
from bakeoff.records.store import FirstBuild, Store
from bakeoff.truth.user_code import is_users, noting_reads, users_data, weights_beside, weights_named_in
from tests.support.measuring import by_label, measure
from tests.support.modules import Calling
from tests.support.scripted import SEGFAULT, WRONG, Script, run_contest

PLANNED = PlannedCell(Cell(model="mlp", backend="eager"), asked_by_name=True)
SETS = (Inputs((torch.ones(2, 3),)),)


class Net(nn.Module):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 4)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale


def changed(net: nn.Module) -> nn.Module:
    with torch.no_grad():
        next(net.parameters()).view(-1)[5] += 1e-6
    return net


# --- the fingerprint


def test_equal_models_have_one_fingerprint_and_any_other_has_its_own() -> None:
    same = {fingerprint(Net(), SETS) for _ in range(2)}
    others = [
        fingerprint(changed(Net()), SETS),
        fingerprint(Net(scale=3.0), SETS),
        fingerprint(Net().half(), SETS),
        fingerprint(nn.Sequential(Net()), SETS),
        fingerprint(Net(), (Inputs((torch.zeros(2, 3),)),)),
        fingerprint(Net(), (Inputs((torch.ones(2, 3), 1)),)),
        fingerprint(Net(), (Inputs((), {"x": torch.ones(2, 3)}),)),
    ]
    assert len(same) == 1 and len({*same, *others}) == 1 + len(others)


def test_a_model_that_is_loaded_again_must_have_the_weights_that_were_measured() -> None:
    digest = digest_of_weights(Net())
    for same in (Net(scale=3.0), changed(Net())):
        require_weights(same, "")
    require_weights(Net(scale=3.0), digest)
    with pytest.raises(BakeoffError, match="the model has other weights than those that were measured"):
        require_weights(changed(Net()), digest)


def with_attribute(value: object) -> Net:
    net = Net()
    net.held = value  # type: ignore[assignment]
    return net


@dataclass(slots=True)
class Slotted:
    scale: float


def scaled_by(scale: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: x * scale


@pytest.mark.parametrize(
    "value_of",
    [
        lambda scale: {"scale": scale},
        lambda scale: SimpleNamespace(deeper=[SimpleNamespace(scale=scale)]),
        scaled_by,
        lambda scale: partial(torch.mul, other=scale),
        lambda scale: torch.full((3,), scale),
        lambda scale: np.full(3, scale),
        Slotted,
        lambda scale: torch.distributions.Normal(0.0, scale),
        {2.0: torch.relu, 2.5: torch.tanh}.get,
        {2.0: torch.ops.aten.relu.default, 2.5: torch.ops.aten.tanh.default}.get,
        {2.0: np.sin, 2.5: np.cos}.get,
        {2.0: nn.ReLU, 2.5: nn.GELU}.get,
    ],
    ids=[
        *("dict", "object", "closure", "partial", "tensor", "array"),
        *("slots", "distribution", "builtin", "operator", "ufunc", "class"),
    ],
)
def test_what_an_attribute_holds_is_part_of_the_fingerprint(value_of: Callable[[float], object]) -> None:
    one, same, other = (fingerprint(with_attribute(value_of(scale)), SETS) for scale in (2.0, 2.0, 2.5))
    assert one == same != other


@contextmanager
def without_onednn() -> Iterator[None]:
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = True


@pytest.mark.parametrize(
    "changing",
    [
        lambda: torch._inductor.config.patch({"cpp.simdlen": 1}),
        lambda: torch._dynamo.config.patch(specialize_int=True),
        lambda: torch._functorch.config.patch(functionalize_rng_ops=True),
        without_onednn,
        lambda: torch.backends.cudnn.flags(enabled=True, benchmark=True),
    ],
    ids=["inductor", "dynamo", "functorch", "oneDNN", "cuDNN"],
)
def test_options_of_compilers_and_global_settings_are_part_of_the_fingerprint(
    changing: Callable[[], AbstractContextManager[object]],
) -> None:
    """A model's file may take them from anywhere, such as from a file with settings."""
    before = fingerprint(Net(), SETS)
    with changing():
        changed, same = (fingerprint(Net(), SETS) for _ in range(2))
    assert before != changed == same
    assert fingerprint(Net(), SETS) == before


def test_files_that_were_read_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    settings, written, weights = (tmp_path / name for name in ("settings.json", "log.txt", "weights.bin"))

    def loaded(text: str) -> str:
        settings.write_text(text)
        weights.write_bytes(random.randbytes(MAX_READ_BYTES + 1))
        with noting_reads() as read:
            json.loads(settings.read_text())
            written.write_text(text)
            weights.read_bytes()
            Path(json.__file__).read_text()
            Path("/proc/self/stat").read_text()
            Path("/etc/hosts").read_text()
        assert users_data(read) == [settings, weights], "neither what was written, nor the system's files, nor code"
        return fingerprint(Net(), SETS, data_files=users_data(read))

    assert loaded("[1]") == loaded("[1]") != loaded("[2]"), "a large file holds what the model has as tensors"
    with noting_reads() as outer:
        with noting_reads() as inner:
            pass
        settings.read_text()
    settings.read_text()
    assert (outer, inner) == ({str(settings)}, set()), "of other blocks"


def test_safetensors_belong_to_a_model_whose_config_was_read(tmp_path: Path) -> None:
    for folder in (ours := tmp_path / "ours", other := tmp_path / "other"):
        folder.mkdir()
        (folder / "model.safetensors").touch()
    assert weights_beside([ours / "config.json", other / "settings.json"]) == [ours / "model.safetensors"]


def test_weights_belong_to_the_source_file_beside_them_that_names_them(tmp_path: Path) -> None:
    source = tmp_path / "net.py"
    source.write_text('torch.jit.load(Path(__file__).with_name("net.pt"))')
    for name in ("net.pt", "other.pt", "notes.txt"):
        (tmp_path / name).touch()
    assert weights_named_in([source]) == [tmp_path / "net.pt"]


def test_files_in_shared_memory_are_the_users() -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".pt") as weights:
        assert users_data([weights.name, "/dev/null", "/etc/passwd"]) == [Path(weights.name)]


def test_the_code_of_torchscript_is_part_of_the_fingerprint(tmp_path: Path) -> None:
    def of(function: Callable[[torch.Tensor], torch.Tensor], constant: float) -> str:
        added = torch.full((3,), constant)
        plain = Calling(lambda _, x: function(x) + added)
        torch.jit.save(torch.jit.trace(plain, torch.ones(2, 3)), tmp_path / "net.pt")
        loaded = [torch.jit.load(tmp_path / "net.pt") for _ in range(2)]
        one, same = (fingerprint(nn.Sequential(each), SETS) for each in loaded)
        assert one == same
        return one

    assert len({of(torch.relu, 1.0), of(torch.tanh, 1.0), of(torch.relu, 2.0)}) == 3


def test_an_installed_file_that_was_edited_is_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "site-packages" / "library_of_net.py"
    file.parent.mkdir()
    monkeypatch.setitem(sys.modules, "library_of_net", SimpleNamespace(__file__=str(file)))
    monkeypatch.setattr(Net, "__module__", "library_of_net")
    prints = []
    for text in ("SCALE = 1", "SCALE = 1", "SCALE = 2"):
        file.write_text(text, encoding="utf-8")
        prints.append(fingerprint(Net(), SETS))
    assert prints[0] == prints[1] != prints[2]


def test_what_was_installed_from_a_folder_is_reported_by_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change without another version."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    info = tmp_path / "net_of_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: net-of-mine\nVersion: 1.0\n", encoding="utf-8")
    lines = []
    for source, record in [("", "net.py,sha256=a,1"), ("{}", "net.py,sha256=a,1"), ("{}", "net.py,sha256=b,1")]:
        (info / "direct_url.json").write_text(source, encoding="utf-8")
        (info / "RECORD").write_text(record, encoding="utf-8")
        plug_ins._versions.cache_clear()
        lines.append(plug_ins.versions())
    assert lines[0] == ("net-of-mine 1.0 \n",) and len(set(lines)) == 3


@pytest.mark.parametrize(
    ("name", "hashed", "otherwise"),
    [("_original_object_hash", 1, 2), ("_use_default_values", ["dropout", "eps"], ["eps", "dropout"])],
)
def test_what_follows_pythons_hashes_is_no_part_of_the_fingerprint(
    name: str, hashed: object, otherwise: object
) -> None:
    """So transformers and diffusers keep it in their configurations."""

    def configured(value: object, scale: float) -> nn.Module:
        return with_attribute({"scale": scale, name: value})

    one, same, other = (fingerprint(configured(*each), SETS) for each in ((hashed, 2), (otherwise, 2), (hashed, 3)))
    assert one == same != other


def test_no_kind_of_attribute_stops_the_fingerprint() -> None:
    """Some objects answer for a class, as the alias of a type does, and some hold themselves."""
    cyclic: list[object] = []
    cyclic.append(cyclic)
    for value in (np.ndarray[tuple[int], np.dtype[np.float32]], NDArray[np.float32], object(), cyclic, iter(()), len):
        assert fingerprint(with_attribute(value), SETS) == fingerprint(with_attribute(value), SETS)


def test_what_another_environment_has_installed_is_not_the_users() -> None:
    assert not is_users(Path("/other/lib/python3.11/site-packages/torch/nn/__init__.py"))
    assert not is_users(Path("/usr/lib/python3/dist-packages/yaml/__init__.py"))
    assert is_users(Path("/home/me/project/models/net.py"))


def test_what_was_installed_into_any_folder_is_not_the_users(tmp_path: Path) -> None:
    """Its module may keep counters, so that no two processes would share a build."""
    (tmp_path / "library-1.0.dist-info").mkdir()
    (tmp_path / "library-1.0.dist-info" / "RECORD").write_text('"library/__init__.py",sha256=x,1\n', encoding="utf-8")
    assert not is_users(tmp_path / "library" / "__init__.py")
    assert is_users(tmp_path / "library" / "mine.py") and is_users(tmp_path / "own.py")


def test_variables_and_later_imports_of_the_users_code_are_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable may come from a file of settings. A file that `forward` imports was not imported before."""
    (tmp_path / "fp_settings.py").write_text("SCALE = 2.0\nclass Config:\n    depth = 3\n    limit = None\n")
    (tmp_path / "fp_model.py").write_text("def forward(x):\n    import fp_later\n    return fp_later.twice(x)\n")
    later = tmp_path / "fp_later.py"
    later.write_text("def twice(x): return x * 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings, model = map(importlib.import_module, ("fp_settings", "fp_model"))
    monkeypatch.setitem(sys.modules, settings.__name__, settings)
    monkeypatch.setitem(sys.modules, model.__name__, model)
    found = [fingerprint(Net(), SETS), fingerprint(Net(), SETS)]
    monkeypatch.setattr(settings, "SCALE", 3.0)
    found.append(fingerprint(Net(), SETS))
    monkeypatch.setattr(settings.Config, "depth", 4)
    found.append(fingerprint(Net(), SETS))
    later.write_text("def twice(x): return x * 3\n")
    found.append(fingerprint(Net(), SETS))
    for limit in (torch.full((3,), 9.0), torch.full((3,), 10.0), np.full(3, 9.0), np.full(3, 10.0)):
        monkeypatch.setattr(settings.Config, "limit", limit)
        found.append(fingerprint(Net(), SETS))
    assert found[0] == found[1] and len(set(found)) == 8
    assert "fp_later" not in sys.modules


def test_the_text_of_a_script_that_compiles_is_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "cxx"
    monkeypatch.setenv("CXX", str(script))
    found = []
    for text in ("echo g++ 12", "echo g++ 12", "echo g++ 12 # -O0"):
        script.write_text(f"#!/bin/sh\n{text}\n")
        script.chmod(0o755)
        found.append(fingerprint(Net(), SETS))
    monkeypatch.setattr("bakeoff.measuring.worker.fingerprint.MAX_COMPILER_BYTES", 0)
    for text in ("echo g++ 12", "echo g++ 13"):
        script.write_text(f"#!/bin/sh\n{text}\n")
        found.append(fingerprint(Net(), SETS))
    assert found[0] == found[1] and len(set(found)) == 4


def test_environment_variables_that_the_users_code_names_are_part_of_the_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fp_of_variable.py").write_text("import os\ndef deep(): return os.environ.get('MY_DEPTH')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "fp_of_variable", importlib.import_module("fp_of_variable"))
    found = []
    for name, value in [("MY_DEPTH", "3"), ("MY_OTHER", "3"), ("MY_DEPTH", "4")]:
        monkeypatch.setenv(name, value)
        found.append(fingerprint(Net(), SETS))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.complex64),
        torch.tensor([True, False]),
        torch.ones(3, 3).to_sparse(),
        torch.tensor(1.0),
        torch.ones(0),
        torch.ones(2, 3).t(),
        torch.ones(2, dtype=torch.float8_e4m3fn),
    ],
)
def test_tensors_of_every_kind_have_a_fingerprint(tensor: torch.Tensor) -> None:
    assert len(fingerprint(Net(), (Inputs((tensor,)),))) == 64


@pytest.mark.gpu
def test_a_fingerprint_on_a_gpu_finds_one_changed_weight() -> None:
    one, same, other = Net().cuda(), Net().cuda(), changed(Net().cuda())
    assert fingerprint(one, SETS) == fingerprint(same, SETS) != fingerprint(other, SETS)


# --- keys, locks and room


def test_a_key_is_of_the_model_the_cell_and_the_machine_and_of_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(PLANNED, "f", 2)
    renamed = replace(PLANNED, cell=PLANNED.cell.model_copy(update={"model": "other.py:factory"}))
    assert key_of(renamed, "f", 2) == key
    other_mode = replace(PLANNED, cell=PLANNED.cell.model_copy(update={"mode": "cuda-graph"}))
    others = {key_of(PLANNED, "g", 2), key_of(PLANNED, "f", 3), key_of(other_mode, "f", 2)}
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    others.add(key_of(PLANNED, "f", 2))
    assert len({key, *others}) == 5


def test_another_terminal_has_the_same_key_and_another_compiler_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = key_of(PLANNED, "f", 2)
    for name in ("TERM", "SHELL", "LANG", "LC_ALL", "VIRTUAL_ENV"):
        monkeypatch.setenv(name, "another")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert key_of(PLANNED, "f", 2) == key
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    assert key_of(PLANNED, "f", 2) != key


def built(cache: BuildCache, fingerprint: str, size_bytes: int = 10) -> Path:
    folder = cache.claim(PLANNED, fingerprint, 2)
    (folder / "0").mkdir(parents=True)
    (folder / "0" / "model").write_bytes(bytes(size_bytes))
    build = FirstBuild(folder=str(folder / "0"), phases=[], memory=Memory(), built_at="2026-01-02T03:04:05+00:00")
    Store.keep_build(build)
    return folder


def test_two_runs_do_not_build_in_one_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BAKEOFF_CACHE_DIR", str(tmp_path))
    with BuildCache(tmp_path) as first, BuildCache(tmp_path) as second:
        built(first, "f")
        assert second.claim(PLANNED, "f", 2) is None
        assert second.used_by_others == ["eager"] and not first.used_by_others
        assert second.clear() == 0
        assert cli.main(["cache", "clear"]) == 0
        assert capsys.readouterr().out == "Removed 0.0 MB. A run uses 1 build, which stayed.\n"
    with BuildCache(tmp_path) as third:
        assert third.claim(PLANNED, "f", 2) is not None
    assert cli.main(["cache", "clear"]) == 0 and capsys.readouterr().out == "Removed 0.0 MB.\n"


def test_an_entry_that_is_cleared_while_it_is_locked_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run makes it anew and locks that: both would build in one folder."""
    fcntl = pytest.importorskip("fcntl")
    lock = fcntl.flock

    def cleared_before(*arguments: int) -> None:
        (file,) = tmp_path.glob("*/lock")
        file.unlink()
        lock(*arguments)

    monkeypatch.setattr(fcntl, "flock", cleared_before)
    assert BuildCache(tmp_path).claim(PLANNED, "f", 2) is None
    monkeypatch.undo()
    with BuildCache(tmp_path) as cache:
        assert cache.claim(PLANNED, "f", 2) is not None


def test_what_was_used_longest_ago_makes_room_and_what_was_not_built_goes(tmp_path: Path) -> None:
    with BuildCache(tmp_path, max_bytes=3000) as cache:
        folders = [built(cache, name, 1000) for name in ("a", "b", "c")]
        for age, folder in enumerate(folders):
            os.utime(folder.parent / "used", (10**9 - age, 10**9 - age))
        begun = cache.claim(PLANNED, "d", 2)
    assert [folder.exists() for folder in folders] == [True, True, False]
    assert begun is not None and not begun.parent.exists()
    entries = BuildCache(tmp_path).entries()
    assert [each.key for each in entries] == [folder.parent.name for folder in folders[:2]]
    assert entries[0].what.endswith("eager") and entries[0].size_bytes > 1000
    (folders[0].parent / "used").write_bytes(b"caf\xe9: eager")
    assert {each.what for each in BuildCache(tmp_path).entries()} == {"caf\ufffd: eager", entries[1].what}
    (tmp_path / "reference-of-an-earlier-version.safetensors").write_bytes(b"old")
    with BuildCache(tmp_path) as cache:
        assert cache.clear() > 2000
    assert not list(tmp_path.iterdir())


def test_a_build_that_another_version_has_kept_is_none(tmp_path: Path) -> None:
    with BuildCache(tmp_path) as cache:
        file = built(cache, "f") / "0" / "build.json"
        file.write_text(file.read_text().replace("{", '{"a_later_field": 1, ', 1))
        assert Store.build_in(file.parent) is None and cache.entries() == []


def test_a_cache_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with BuildCache(tmp_path / "file") as cache:
        assert cache.claim(PLANNED, "f", 2) is None
        assert cache.why_unusable() == f"{tmp_path / 'file'} cannot be written (it is a file)"


@pytest.mark.slow
def test_a_cache_that_cannot_be_written_is_reported_by_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("BAKEOFF_CACHE_DIR", str(file))
    notes = measure(tmp_path / "run", "null").notes
    assert f"builds are not kept: {file} cannot be written (it is a file); the next run builds anew" in notes


def test_a_cache_that_cannot_be_written_is_reported_by_its_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("BAKEOFF_CACHE_DIR", str(file))
    assert cli.main(["cache", "list"]) == cli.main(["cache", "clear"]) == 2
    told = capsys.readouterr()
    assert "cannot be written (it is a file)" in " ".join(told.err.split()) and " MB" not in told.out
    monkeypatch.setenv("BAKEOFF_CACHE_DIR", str(tmp_path / "made"))
    assert cli.main(["cache", "list"]) == 0
    assert capsys.readouterr().out.startswith("0.0 MB in ")


def test_dynamic_builds_and_other_environments_are_not_kept(tmp_path: Path) -> None:
    other = replace(PLANNED, cell=PLANNED.cell.model_copy(update={"environment": "old"}))
    assert BuildCache(tmp_path).claim(other, "f", 2) is None


def test_builds_of_a_contest_that_is_distrusted_are_made_anew(tmp_path: Path) -> None:
    with BuildCache(tmp_path) as cache:
        built(cache, "f")
    with BuildCache(tmp_path) as cache:
        assert (folder := cache.claim(PLANNED, "f", 2)) is not None and folder.exists()
    with BuildCache(tmp_path) as cache:
        cache.distrust(PLANNED.cell.contest_id)
        assert cache.claim(PLANNED, "f", 2) == folder and not folder.exists()


@pytest.mark.parametrize("is_built", [False, True])
def test_with_fresh_what_is_kept_stays_until_the_new_build_is_complete(tmp_path: Path, is_built: bool) -> None:
    """The run may end before it has built. Both folders keep their paths, because compilers' caches need that."""
    with BuildCache(tmp_path) as cache:
        before = built(cache, "f")
    with BuildCache(tmp_path, is_fresh=True) as cache:
        anew = cache.claim(PLANNED, "f", 2)
        assert anew is not None and anew != before and not anew.exists() and before.exists()
        assert cache.claim(PLANNED, "f", 2) == anew, "another cell shares the build"
        if is_built:
            assert built(cache, "f") == anew
        else:
            (anew / "0").mkdir(parents=True)
    kept, gone = (anew, before) if is_built else (before, anew)
    assert kept.exists() and not gone.exists()
    with BuildCache(tmp_path) as cache:
        assert cache.claim(PLANNED, "f", 2) == kept
    with BuildCache(tmp_path, is_fresh=True) as cache:
        assert cache.claim(PLANNED, "f", 2) == gone, "the two take turns"


CALM = Ceilings(flops_per_s=2e11, bytes_per_s=1e10)


def undated(ceilings: Ceilings | None) -> Ceilings | None:
    assert ceilings is None or abs(datetime.fromisoformat(ceilings.kept_at).timestamp() - time.time()) < 60
    return ceilings and ceilings.model_copy(update={"kept_at": ""})


def test_ceilings_are_kept_for_some_days_on_the_same_machine(tmp_path: Path) -> None:
    cache, machine = BuildCache(tmp_path), capture()
    cache.keep_ceilings(machine, CPU, Precision.FP32, CALM)
    assert undated(cache.ceilings(machine, CPU, Precision.FP32)) == CALM
    assert cache.ceilings(machine, CPU, Precision.BF16) is None
    assert cache.ceilings(machine.model_copy(update={"torch_threads": 7}), CPU, Precision.FP32) is None
    assert BuildCache(tmp_path, is_fresh=True).ceilings(machine, CPU, Precision.FP32) is None
    (file,) = tmp_path.iterdir()
    os.utime(file, (time.time() - CEILINGS_LIMIT_S - 1,) * 2)
    assert cache.ceilings(machine, CPU, Precision.FP32) is None
    cache.clear()
    assert not list(tmp_path.iterdir())


def test_ceilings_of_a_busy_machine_serve_an_hour_and_damaged_ones_not_at_all(tmp_path: Path) -> None:
    cache, machine = BuildCache(tmp_path / "cache"), capture()
    busy = CALM.model_copy(update={"wait_share": 0.5})
    cache.keep_ceilings(machine, CPU, Precision.FP32, busy)
    assert undated(cache.ceilings(machine, CPU, Precision.FP32)) == busy
    (file,) = cache.folder.iterdir()
    os.utime(file, (time.time() - BUSY_CEILINGS_LIMIT_S - 1,) * 2)
    assert cache.ceilings(machine, CPU, Precision.FP32) is None
    for one in (CALM, busy):
        cache.keep_ceilings(machine, CPU, Precision.FP32, one)
    assert undated(cache.ceilings(machine, CPU, Precision.FP32)) == CALM
    whole = file.read_text()
    for damaged in ("{}", whole[:40], whole.replace("200000000000.0", "900000000000.0")):
        file.write_text(damaged)
        assert cache.ceilings(machine, CPU, Precision.FP32) is None


# --- whole runs

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(4, width)
    def forward(self, x):
        for _ in range(len(open("FOLDER/turns").read())):
            x = x + 1 - 1
        return self.layer(x).SHAPE()

def factory(batch: int = 2, width: int = 8):
    return Net(width), torch.randn(batch, 4)
"""


Run = Callable[..., tuple[dict[str, list[str]], set[str]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Measure the net, and return the names of the phases by label, and when they were built."""
    (tmp_path / "net.py").write_text(NET.replace("FOLDER", str(tmp_path)).replace("SHAPE", "relu"))
    (tmp_path / "turns").write_text("1")

    def measured(name: str, *labels: str, **asked: object) -> tuple[dict[str, list[str]], set[str]]:
        records = by_label(measure(tmp_path / name, *labels, models=[f"{tmp_path}/net.py:factory"], **asked))
        assert {record.status for record in records.values()} == {Status.OK}
        phases = {label: records[label].phases for label in labels}
        dates = {phase.built_at for label in labels for phase in phases[label]}
        return {label: [phase.name for phase in phases[label]] for label in labels}, dates

    return measured


def test_a_second_run_uses_the_builds_of_the_first_and_says_so(run: Run) -> None:
    cold, dates = run("first", "torchscript")
    assert "export" in cold["torchscript"] and dates == {""}
    warm, dates = run("second", "torchscript")
    assert warm == cold, "build times are those of the run that built"
    assert "" not in dates, "and they have its date"


@pytest.mark.slow
def test_a_run_of_another_model_or_with_fresh_builds_anew(run: Run, tmp_path: Path) -> None:
    assert run("first", "torchscript", "onnx")[1] == run("fresh", "torchscript", "onnx", fresh=True)[1] == {""}
    assert "" not in run("second", "torchscript", "onnx")[1]
    (tmp_path / "turns").write_text("12")
    assert run("longer", "torchscript")[1] == {""}, "eager calls more functions, for the same outputs"
    net = (tmp_path / "net.py").read_text()
    (tmp_path / "net.py").write_text(net.replace("relu", "tanh"))
    assert run("changed", "torchscript")[1] == {""}, "the code of the model is another"


def test_what_failed_is_not_kept(tmp_path: Path) -> None:
    builds = Script(phases=("export",))
    wrong, dies = replace(builds, answers={(0, "start"): WRONG}), replace(builds, endings={(0, "burst 3"): SEGFAULT})
    with BuildCache(tmp_path / "cache") as cache:
        run_contest(tmp_path, {"torchscript": builds, "onnx": wrong, "openvino": dies}, build_cache=cache)
    assert [entry.what.rpartition(": ")[2] for entry in BuildCache(tmp_path / "cache").entries()] == ["torchscript"]
