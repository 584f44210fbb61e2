"""What the doctor reads of this machine, and of made-up folders."""

import ctypes
import ctypes.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bakeoff.backends.onnx import Onnx
from bakeoff.backends.traps import Link
from bakeoff.doctor import facts
from bakeoff.measuring.controller.launcher import Launcher, create_launcher


def test_a_backends_libraries_with_what_they_and_we_need() -> None:
    found = facts.libraries(["onnx", "eager"])
    assert found["torch"].version and found["torch"].needed == ">=2.8.0a0"
    assert found["torch"].backends == ["onnx", "eager"]
    assert any(text.startswith("onnx>=") for text in found["onnxscript"].requires)
    assert found["onnxruntime-openvino"].version is None


def test_a_backend_that_does_not_load_has_no_libraries() -> None:
    assert facts.libraries(["no-such-backend"]) == {}


@pytest.fixture(scope="module")
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Starts processes that find a module which ends them."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "crashing_on_import.py").write_text("import os; os._exit(3)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        with create_launcher("auto") as launcher:
            yield launcher


@pytest.mark.parametrize(
    ("module", "said"),
    [("json", ""), ("nowhere_at_all", "ModuleNotFoundError"), ("crashing_on_import", "exit status 3")],
)
def test_whether_a_library_imports_is_tried_in_a_child(module: str, said: str, starter: Launcher) -> None:
    reason = facts.import_error(module, starter)
    assert said in reason and bool(said) == bool(reason)


@pytest.mark.parametrize(("library", "module"), [("torch", "torch"), ("pytest", "pytest"), ("pyyaml", "yaml")])
def test_the_module_of_a_package_may_have_another_name(library: str, module: str) -> None:
    assert facts.module_of(library) == module


@pytest.mark.parametrize(
    ("installs", "module"),
    [("onnxruntime/__init__.py,,\nonnxruntime_gpu-1.0.dist-info/METADATA,,\n", "onnxruntime"), ("", "onnxruntime_gpu")],
)
def test_a_build_of_a_library_installs_the_librarys_module(
    installs: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime_gpu-1.0.dist-info").mkdir()
    (tmp_path / "onnxruntime_gpu-1.0.dist-info" / "METADATA").write_text("Name: onnxruntime-gpu\nVersion: 1.0\n")
    (tmp_path / "onnxruntime_gpu-1.0.dist-info" / "RECORD").write_text(installs)
    monkeypatch.syspath_prepend(tmp_path)
    assert facts.module_of("onnxruntime-gpu") == module


def test_the_compiler_is_the_one_that_cxx_names(tmp_path: Path) -> None:
    assert facts.compiler({"PATH": str(tmp_path)}) is None
    for name in ("g++", "my-c++"):
        (tmp_path / name).touch(0o755)
    assert facts.compiler({"PATH": str(tmp_path)}) == str(tmp_path / "g++")
    assert facts.compiler({"PATH": str(tmp_path), "CXX": "my-c++"}) == str(tmp_path / "my-c++")
    assert facts.compiler({"PATH": str(tmp_path), "CXX": "missing-c++"}) is None


def test_a_quota_is_the_narrowest_of_the_groups_above(tmp_path: Path) -> None:
    groups, membership = tmp_path / "cgroup", tmp_path / "membership"
    own = groups / "slice" / "service"
    own.mkdir(parents=True)
    membership.write_text("0::/slice/service\n")
    assert facts.quota_cores(groups, membership) is None
    (own / "cpu.max").write_text("max 100000\n")
    assert facts.quota_cores(groups, membership) is None
    (groups / "slice" / "cpu.max").write_text("250000 100000\n")
    assert facts.quota_cores(groups, membership) == 2.5
    (own / "cpu.max").write_text("50000 100000\n")
    assert facts.quota_cores(groups, membership) == 0.5


def test_a_quota_of_control_groups_of_version_1(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert facts.quota_cores(tmp_path, tmp_path / "membership") is None
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("400000\n")
    assert facts.quota_cores(tmp_path, tmp_path / "membership") == 4.0


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's ELF files")
def test_the_major_version_that_a_library_was_linked_against() -> None:
    name = ctypes.util.find_library("m")
    ctypes.CDLL(name)
    path = next(Path(word) for word in Path("/proc/self/maps").read_text().split() if word.endswith(f"/{name}"))
    assert facts.linked_major(path, "libc.so") == 6
    assert facts.linked_major(path, "libnvinfer.so") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's ELF files")
def test_what_a_backends_library_is_linked_against_is_read_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Onnx, "links", (Link("C", "made-up-gpu", "made_up/library.so", "libc.so"),))
    assert facts.linked() == {}, "it is not installed"
    information = tmp_path / "made_up_gpu-1.0.dist-info"
    for folder in (information, tmp_path / "made_up"):
        folder.mkdir()
    (information / "METADATA").write_text("Name: made-up-gpu\nVersion: 1.0\n")
    (tmp_path / "made_up" / "library.so").symlink_to(Path(sys.executable).resolve())
    monkeypatch.syspath_prepend(tmp_path)
    assert facts.linked() == {"C": 6}


def test_a_file_that_is_no_library_was_linked_against_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("not an ELF file")
    assert facts.linked_major(tmp_path / "text.so", "libc.so") is None
    assert facts.linked_major(tmp_path / "missing.so", "libc.so") is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's ELF files")
def test_without_pyelftools_it_is_not_known(install: Callable[[str, object], None]) -> None:
    assert facts.linked_major(Path(sys.executable).resolve(), "libc.so") == 6
    install("elftools.elf.elffile", None)
    assert facts.linked_major(Path(sys.executable).resolve(), "libc.so") is None


def test_cards_are_counted_on_the_bus_by_vendor_and_class(tmp_path: Path) -> None:
    for name, vendor, kind in [
        ("gpu", "0x10de", "0x030200"),
        ("its audio", "0x10de", "0x040300"),
        ("another's", "0x1002", "0x030000"),
    ]:
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    (tmp_path / "unreadable").mkdir()
    assert facts.nvidia_cards(tmp_path) == 1
    assert facts.nvidia_cards(tmp_path / "no bus") == 0
