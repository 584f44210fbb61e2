"""The doctor tries backends with scripted behaviour, reads facts of machines and folders, and finds the traps there."""

import ctypes
import ctypes.util
import re
import sys
from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff import backends
from bakeoff.backends.onnx import Onnx
from bakeoff.backends.traps import Facts, Finding, GpuState, Library, Link, Weight
from bakeoff.commands import environments as made
from bakeoff.doctor import examine, facts, traps
from bakeoff.doctor.diagnosis import BackendTrial, Diagnosis, OtherEnvironment, Outcome, blocks_of
from bakeoff.measuring.controller import launcher
from bakeoff.measuring.messages import TryImport
from bakeoff.measuring.probes import why_not
from bakeoff.planning.plan import PlannedCell
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Status
from bakeoff.reports import terminal
from tests.support.cells import cell_of, labelled
from tests.support.checkout import ROOT
from tests.support.golden import same_as_golden
from tests.support.wheels import wheel

MODES = ["wrong", "crash-in-load", "error", "unsupported"]
ASKED = ["eager", "null-packaged", *(f"null/{mode}" for mode in MODES)]


@pytest.fixture(scope="module")
def examined() -> tuple[Diagnosis, list[str]]:
    """Return a diagnosis of `ASKED` on the CPU and on CUDA, and what was said while it was made."""
    said: list[str] = []
    return examine.examine(ASKED, ["cpu", "cuda"], said.append), said


def outcomes(found: Diagnosis, device: str) -> dict[str, Outcome]:
    return {trial.label: trial.outcome for trial in found.trials if trial.device == device}


def test_every_way_to_end_is_reported(examined: tuple[Diagnosis, list[str]]) -> None:
    found, said = examined
    assert "trying null/wrong on cpu" in said and "importing torch" in said
    assert any(text.startswith("FAIL null/wrong on cpu, after ") for text in said), "as it goes"
    assert outcomes(found, "cpu") == {
        "eager": Outcome.PASS,
        "null-packaged": Outcome.PASS,
        "null/wrong": Outcome.FAIL,
        "null/crash-in-load": Outcome.FAIL,
        "null/error": Outcome.FAIL,
        "null/unsupported": Outcome.ABSENT,
    }
    trials = {trial.label: trial for trial in found.trials if trial.device == "cpu"}
    assert trials["eager"].relative_error is not None and trials["eager"].relative_error < 1e-5
    assert trials["null/wrong"].status is Status.INCORRECT and "neither rounding" in trials["null/wrong"].reason
    assert trials["null/crash-in-load"].reason == "died of signal 11 (SIGSEGV) in load"
    assert "--backends null/error --devices cpu" in trials["null/error"].remedy
    assert trials["null/error"].log_tail
    assert trials["null/unsupported"].reason == "found out while building"
    assert [name for name in found.broken if name.endswith("cpu")] == [f"null/{mode} on cpu" for mode in MODES]
    assert found.exit_status == 1
    assert Diagnosis.model_validate_json(found.model_dump_json()) == found


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="is about a machine without a GPU")
def test_on_a_device_that_is_not_there_each_backend_says_so(examined: tuple[Diagnosis, list[str]]) -> None:
    """The null backend takes itself for available anywhere: there, not even what is right can be computed."""
    found, _ = examined
    on_cuda = outcomes(found, "cuda")
    assert on_cuda.pop("eager") is Outcome.ABSENT
    assert set(on_cuda.values()) == {Outcome.FAIL}
    trials = {trial.label: trial for trial in found.trials if trial.device == "cuda"}
    assert trials["eager"].status is Status.UNAVAILABLE and "CUDA" in trials["eager"].reason
    assert trials["null/wrong"].reason.startswith("the reference could not be computed: ")
    assert "eager on cuda" in found.broken and "every backend on cuda" in found.broken


@pytest.mark.parametrize("asked", [(["nul"], []), (["null/no-such"], []), ([], ["gpu"])])
def test_a_name_that_does_not_exist_is_found_before_anything_is_asked(asked: tuple[list[str], list[str]]) -> None:
    said: list[str] = []
    with pytest.raises(UsageError):
        examine.examine(*asked, said.append)
    assert said == []


@pytest.mark.parametrize("name", backends.TABLE)
def test_every_backend_is_tried_with_a_model_that_it_can_build(name: str) -> None:
    backend = backends.create(name)
    model, sizes = backend.trial
    answers = [backend.supports(cell_of(model, name, sizes, device=device)) for device in ("cpu", "cuda")]
    if not backend.tasks:  # its models are no family of Bakeoff's own, so it is only asked whether it is there
        assert all("nothing but the models of --task generate" in answer.reason for answer in answers)
        return
    assert any(answers)


def trial(label: str, device: str, outcome: Outcome) -> BackendTrial:
    cell = labelled(label)
    asked = {"backend": cell.backend, "mode": cell.mode, "device": device, "remedy": "ask"}
    return BackendTrial(outcome=outcome, status=Status.OK, **asked)


def planned(label: str, by_name: bool = True) -> PlannedCell:
    return PlannedCell(labelled(label), by_name)


ON_BOTH = [
    trial("eager", "cpu", Outcome.PASS),
    trial("eager", "cuda", Outcome.PASS),
    trial("openvino", "cpu", Outcome.PASS),
    trial("openvino", "cuda", Outcome.ABSENT),
    trial("onnx", "cpu", Outcome.PASS),
    trial("onnx", "cuda", Outcome.FAIL),
]


@pytest.mark.parametrize(
    ("named", "devices", "broken"),
    [
        ([], [], []),
        (["openvino"], [], []),
        (["openvino"], ["cpu", "cuda"], ["openvino on cuda"]),
        (["onnx"], [], ["onnx on cuda"]),
        (["eager", "onnx"], ["cuda"], ["onnx on cuda"]),
        ([], ["cuda"], []),
    ],
)
def test_what_was_asked_for_and_does_not_work(named: list[str], devices: list[str], broken: list[str]) -> None:
    trials = [trial for trial in ON_BOTH if not devices or trial.device in devices]
    cells = [planned(name, by_name=name in named) for name in ("eager", "openvino", "onnx")]
    assert examine.broken(trials, cells, devices) == broken


def test_a_mode_is_not_its_backend() -> None:
    trials = [trial("onnx", "cpu", Outcome.PASS), trial("onnx/openvino-ep", "cpu", Outcome.ABSENT)]
    assert examine.broken(trials, [planned("onnx"), planned("onnx/openvino-ep")], []) == ["onnx/openvino-ep on cpu"]


CAUSE = Finding(
    trap="several-onnxruntimes",
    weight=Weight.PROBLEM,
    text="two",
    remedy="remove one",
    backends=["onnx"],
    devices=["cuda"],
)


@pytest.mark.parametrize(
    ("trap", "backend", "device", "before", "after", "remedy"),
    [
        ({}, "onnx", "cuda:1", Outcome.ABSENT, Outcome.FAIL, "remove one"),
        ({}, "onnx", "cuda", Outcome.FAIL, Outcome.FAIL, "remove one"),
        ({}, "onnx", "cuda", Outcome.PASS, Outcome.PASS, "ask"),
        ({}, "onnx", "cpu", Outcome.ABSENT, Outcome.ABSENT, "ask"),
        ({}, "eager", "cuda", Outcome.FAIL, Outcome.FAIL, "ask"),
        ({"backends": []}, "eager", "cuda", Outcome.ABSENT, Outcome.FAIL, "remove one"),  # it is the device's
        ({"weight": Weight.WARNING}, "onnx", "cuda", Outcome.ABSENT, Outcome.ABSENT, "ask"),
    ],
)
def test_a_trap_explains_what_it_keeps_from_working(
    trap: dict[str, object], backend: str, device: str, before: Outcome, after: Outcome, remedy: str
) -> None:
    found = examine.explained(trial(backend, device, before), [CAUSE.model_copy(update=trap)])
    assert (found.outcome, found.remedy) == (after, remedy)


KNOWN = {
    "torch": Library(name="torch", backends=["eager", "planted"]),
    "planted": Library(name="planted", backends=["planted"]),
    "numpy": Library(name="numpy", backends=["other"]),
}


@pytest.mark.slow
def test_a_library_that_does_not_import_there_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = wheel(tmp_path, "planted", "0.0.1", "raise ImportError('planted')")
    made.add("old", ["--no-index", str(broken)])

    found = examine.examine_environment("old", KNOWN, [], "auto")
    assert (found.name, Path(found.python)) == ("old", made.python_of("old"))
    assert found.differs == {"planted": ("0.0.1", None)}
    assert {library.name: library.imports for library in found.libraries} == {
        "torch": True,
        "pydantic": True,
        "planted": False,
    }
    assert "planted" in found.libraries[-1].import_error
    assert examine.broken_libraries([found], ["planted"]) == ["planted in environment old"]
    assert examine.broken_libraries([found], ["eager"]) == []


def test_only_versions_that_are_not_the_same_differ() -> None:
    here = examine.differing_packages({"pytest": pytest.__version__, "numpy": "0.1"})
    assert list(here) == ["numpy"] and here["numpy"][0] == "0.1"


FACTS = Facts(
    python="3.12.3",
    torch="2.8.0",
    torch_cuda="12.8",
    driver_cuda="13.0",
    container="docker",
    gpus=[GpuState(index=0, name="NVIDIA H200")],
    libraries={
        "torch": Library(name="torch", version="2.8.0", needed=">=2.8.0a0", backends=["eager", "onnx"]),
        "onnxruntime-gpu": Library(
            name="onnxruntime-gpu", version="1.31.1", needed=">=1.24", requires=["onnx>=1.17"], backends=["onnx"]
        ),
        "onnxruntime": Library(name="onnxruntime", backends=["onnx"]),
        "openvino": Library(name="openvino", version="2026.4.1", backends=["openvino"]),
    },
)
TRIALS = [
    BackendTrial(backend="eager", device="cuda", outcome=Outcome.PASS, status=Status.OK, seconds=0.42),
    BackendTrial(
        backend="onnx",
        mode="tensorrt-ep",
        device="cuda",
        outcome=Outcome.FAIL,
        status=Status.ERROR,
        reason="libcudart.so.13: [red]no such file[/red]\x1b[2J",
        remedy="pip install torch",
    ),
]
FINDING = Finding(trap="driver-too-old", weight=Weight.WARNING, text="the driver is [old]", remedy="renew it")


def shown(
    trials: list[BackendTrial],
    findings: list[Finding],
    broken: list[str],
    environments: Sequence[OtherEnvironment] = (),
) -> str:
    file = StringIO()
    found = Diagnosis(
        created_at="now", facts=FACTS, trials=trials, findings=findings, environments=list(environments), broken=broken
    )
    terminal.print_blocks(blocks_of(found), Console(file=file, width=160))
    return file.getvalue()


OTHER = OtherEnvironment(
    name="old",
    python="/envs/old/bin/python",
    differs={"onnxruntime": ("1.30.0", "1.31.1"), "extra": ("1.0", None)},
    libraries=[
        Library(name="torch", version="2.13.0", imports=True),
        Library(name="onnxruntime", version="1.30.0", imports=False, import_error="no libfoo\nat all"),
    ],
)


def test_a_diagnosis_reads_as_before_and_text_from_outside_is_not_obeyed() -> None:
    text = shown(TRIALS, [FINDING], ["onnx on cuda"], [OTHER])
    assert "\x1b" not in text
    same_as_golden("doctor.txt", "\n".join(line.rstrip() for line in text.splitlines()))
    assert shown(TRIALS, [], []).splitlines()[-1] == "1 passed, 1 failed, 0 absent"


def test_a_backends_libraries_with_what_they_and_we_need() -> None:
    found = facts.libraries(["onnx", "eager"])
    assert found["torch"].version and found["torch"].needed == ">=2.8.0a0"
    assert found["torch"].backends == ["onnx", "eager"]
    assert any(text.startswith("onnx>=") for text in found["onnxscript"].requires)
    assert found["onnxruntime-openvino"].version is None


def test_a_backend_that_does_not_load_has_no_libraries() -> None:
    assert facts.libraries(["no-such-backend"]) == {}


@pytest.mark.parametrize(
    ("module", "said"),
    [("json", ""), ("nowhere_at_all", "ModuleNotFoundError"), ("crashing_on_import", "exit status 3")],
)
def test_whether_a_library_imports_is_tried_in_a_child(module: str, said: str) -> None:
    with launcher.create_launcher("auto") as starter:
        reason = why_not(starter, TryImport(module=module))
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
def test_the_major_version_that_a_library_was_linked_against(
    tmp_path: Path, install: Callable[[str, object], None]
) -> None:
    name = ctypes.util.find_library("m")
    ctypes.CDLL(name)
    path = next(Path(word) for word in Path("/proc/self/maps").read_text().split() if word.endswith(f"/{name}"))
    assert facts.linked_major(path, "libc.so") == 6
    assert facts.linked_major(path, "libnvinfer.so") is None
    (tmp_path / "text.so").write_text("not an ELF file")
    assert facts.linked_major(tmp_path / "text.so", "libc.so") is None
    assert facts.linked_major(tmp_path / "missing.so", "libc.so") is None
    install("elftools.elf.elffile", None)
    assert facts.linked_major(path, "libc.so") is None, "it is not known without pyelftools"


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


H200 = GpuState(
    index=0,
    name="NVIDIA H200",
    persistence_mode=True,
    application_sm_clock_mhz=1980,
    default_sm_clock_mhz=1980,
    processes=0,
)


def machine(*installed: str, gpu: GpuState | None = None, **fields: object) -> Facts:
    """A sound machine with `name==version` installed, on the CPU or with one GPU, but for `fields`."""
    versions = dict(text.split("==") for text in ("torch==2.13.0", *installed))
    sound = Facts(
        python="3.12.3",
        libraries={name: Library(name=name, version=version) for name, version in versions.items()},
        torch=versions["torch"],
        has_nvml=True,
        cxx="/usr/bin/g++",
        shared_memory_bytes=2**34,
        governor="performance",
        cores=8,
        affinity_cores=8,
    )
    with_gpu = {"gpus": [gpu], "nvidia_cards": 1, "cuda_devices": 1, "torch_cuda": "13.0", "driver_cuda": "13.0"}
    return sound.model_copy(update={**(with_gpu if gpu else {}), **fields})


def library(name: str, version: str, **fields: object) -> dict[str, object]:
    """Fields of a machine that has this library, and no other one."""
    return {"libraries": {name: Library.model_validate({"name": name, "version": version, **fields})}}


RUNTIME, ON_GPU = "onnxruntime==1.31.1", "onnxruntime-gpu==1.31.1"
LINKED = {"CUDA": 13, "TensorRT": 10}
DEAD = {"backends": ["tensorrt"], "imports": False, "import_error": "no libcuda"}
OF_ANOTHER_TORCH = library(
    "torchvision", "0.28.0+cu130", imports=False, import_error="operator torchvision::nms does not exist"
)
NEEDS_TENSORRT = {
    "tensorrt": Library(name="tensorrt", version="10.13.2.6"),
    "torch-tensorrt": Library(
        name="torch-tensorrt", version="2.13.0", requires=["tensorrt<11.1,>=11.0"], backends=["torch-tensorrt"]
    ),
}
NEEDS_TORCH = {
    "torch": Library(name="torch", version="2.13.0"),
    "torchvision": Library(name="torchvision", version="0.28.0", imports=True),
    "torchaudio": Library(name="torchaudio", version="2.12.0", requires=["torch==2.12.0"]),
}


@pytest.mark.parametrize(
    "facts",
    [
        machine(RUNTIME),
        machine(ON_GPU, gpu=H200),
        machine(gpu=H200, driver_cuda="13.0"),
        machine(gpu=H200, driver_cuda="13.2"),
        machine(gpu=H200, driver_cuda=None),
        machine("torch==2.13.1", "torch-tensorrt==2.13.0", gpu=H200),
        machine("torch==2.8.0a0+34c6371d24.nv25.8", "torch-tensorrt==2.8.0a0", gpu=H200),
        machine("torch==2.14.1"),
        machine(**library("tensorrt", "10.13.2", **DEAD)),  # which need not import where there is no GPU
        machine(**library("onnx", "2.8.0a0+34c6371d24.nv25.8", needed=">=2.8,<2.14")),  # taken for 2.8
        machine(**library("onnx", "a build of our own", needed=">=2.8,<2.14")),
        machine(ON_GPU, "tensorrt==10.13.2.6", gpu=H200, linked=LINKED),
    ],
)
def test_a_sound_machine_is_in_none(facts: Facts) -> None:
    assert traps.find_all(facts) == []


def test_what_is_beside_onnxruntime_is_no_second_one() -> None:
    plugins = ("onnxruntime-genai==0.18.0", "onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0")
    found = traps.find_all(machine(ON_GPU, *plugins, gpu=H200))
    assert "several-onnxruntimes" not in [finding.trap for finding in found]


PROBLEM, WARNING, NOTE = Weight.PROBLEM, Weight.WARNING, Weight.NOTE


@pytest.mark.parametrize(
    ("trap", "facts", "weight", "about", "said"),
    [
        ("no-cxx-compiler", Facts(python="3.12.3"), None, None, ""),
        ("no-cxx-compiler", machine(cxx=None), None, "inductor aotinductor hotpath", ""),
        ("several-onnxruntimes", machine(RUNTIME, "onnxruntime-openvino==1.24.1"), PROBLEM, "onnx",
         "pip uninstall -y onnxruntime onnxruntime-openvino && pip install onnxruntime"),
        ("several-onnxruntimes", machine(RUNTIME, ON_GPU, gpu=H200), None, None, "pip install onnxruntime-gpu"),
        ("onnxruntime-without-cuda", machine(RUNTIME, gpu=H200), None, "onnx cuda", ""),
        ("torch-without-cuda", machine("torch==2.13.0+cpu", gpu=H200, torch_cuda=None), None, "cuda", "2.13.0+cpu"),
        ("no-driver", machine(nvidia_cards=2, torch_cuda="13.0"), PROBLEM, None, "2 NVIDIA card"),
        ("no-driver", machine(nvidia_cards=2, torch_cuda="13.0"), PROBLEM, None, "nvidia-smi"),
        ("no-driver", machine(nvidia_cards=1, torch_cuda="13.0", container="docker"), NOTE, None, "in a container"),
        ("nvml-not-installed", machine(nvidia_cards=1, has_nvml=False, cuda_devices=1, torch_cuda="13.0"), None, None,
         ""),
        ("driver-too-old", machine(gpu=H200, driver_cuda="12.8"), None, None, ""),
        ("torch-tensorrt-of-another-minor", machine("torch==2.11.0+cu130", "torch-tensorrt==2.13.0", gpu=H200), None,
         None, "torch-tensorrt==2.11.*"),
        ("torch-not-tested", machine("torch==2.15.0a0+nv26.9"), None, None, "torch==2.14.*"),
        ("torch-not-tested", machine("torch==3.0.0"), None, None, "torchvision==0.29.*"),
        ("torchvision-of-another-torch", machine(torch_cuda=None, **OF_ANOTHER_TORCH), None, None, "/whl/cpu"),
        ("torchvision-of-another-torch", machine(torch_cuda="13.0", **OF_ANOTHER_TORCH), None, None, "/whl/cu130"),
        ("torchvision-of-another-torch", machine(**OF_ANOTHER_TORCH), None, None, "--no-deps 'torchvision==0.28.*'"),
        ("torchvision-of-another-torch", machine(**OF_ANOTHER_TORCH), None, None, "torchvision::nms does not exist"),
        ("library-does-not-import", machine(**library("openvino", "2026.4.1", backends=["openvino"], imports=False,
         import_error="no libtbb.so.12")), None, "openvino", "libtbb"),
        ("library-does-not-import", machine(gpu=H200, **library("tensorrt", "10.13.2", **DEAD)), None, "tensorrt cuda",
         "no libcuda"),
        ("requirement-not-met", machine(gpu=H200, libraries=NEEDS_TENSORRT), PROBLEM, "torch-tensorrt",
         "torch-tensorrt 2.13.0 needs tensorrt <11.1,>=11.0, and 10.13.2.6 is installed"),
        ("requirement-not-met", machine(libraries=NEEDS_TORCH), None, None, "pip install 'torch==2.12.0' torchvision"),
        ("requirement-not-met", machine(**library("openvino", "2024.6.0", needed=">=2025.4")), WARNING, None,
         "pip install 'openvino>=2025.4'"),
        ("onnxruntime-of-another-cuda", machine(ON_GPU, gpu=H200, torch_cuda="12.8", linked={"CUDA": 13}), None,
         "onnx cuda", "onnxruntime-gpu 1.31.1 wants CUDA 13, found 12.8"),
        ("onnxruntime-of-another-tensorrt", machine(ON_GPU, "tensorrt==11.0.0.114", gpu=H200, linked=LINKED), WARNING,
         None, "libnvinfer.so.10"),
        ("little-shared-memory", machine(shared_memory_bytes=2**26), None, None, "64 MiB"),
        ("tf32-overridden", machine(variables={"NVIDIA_TF32_OVERRIDE": "1"}), None, None, "NVIDIA_TF32_OVERRIDE=1"),
        ("tf32-overridden", machine(variables={"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}), None, None,
         "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"),
        ("persistence-off", machine(gpu=H200.model_copy(update={"persistence_mode": False})), None, None, "GPU 0"),
        ("clock-held-down", machine(gpu=H200.model_copy(update={"held_down_by": ["software power cap"]})), None, None,
         "software power cap"),
        ("clock-held-down", machine(gpu=H200.model_copy(update={"application_sm_clock_mhz": 1200})), None, None,
         "application clock 1200 MHz, by default 1980"),
        ("gpu-in-use", machine(gpu=H200.model_copy(update={"processes": 3})), None, None, "3 other process"),
        ("governor-saves-power", machine(governor="schedutil"), None, None, "schedutil"),
        ("fewer-cores-than-the-machine", machine(quota_cores=2.5), WARNING, None, "OMP_NUM_THREADS=2"),
        ("fewer-cores-than-the-machine", machine(affinity_cores=2), NOTE, None, "2 of the machine's 8 cores"),
    ],
)  # fmt: skip
def test_a_machine_in_a_trap_is_reported_with_a_remedy(
    trap: str, facts: Facts, weight: Weight | None, about: str | None, said: str
) -> None:
    (found,) = traps.find_all(facts)
    assert found.trap == trap and found.text and found.remedy
    assert weight in (None, found.weight)
    assert about in (None, " ".join([*found.backends, *found.devices]))
    assert said in f"{found.text}: {found.remedy}"


def test_every_trap_has_its_section_in_the_manual() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### `([a-z0-9-]+)`$", page, re.MULTILINE)
    assert sorted(sections) == sorted(traps.name_of(trap) for trap in traps.all_traps())
