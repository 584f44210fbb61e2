"""Each trap is found in the facts of a machine that is in it, and not in those of one that is not."""

from __future__ import annotations

import re

import pytest

from bakeoff.backends.traps import Facts, Finding, GpuState, Library, Weight
from bakeoff.doctor import traps
from tests.support.checkout import ROOT

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


def findings(facts: Facts) -> list[Finding]:
    return traps.find_all(facts)


def only(facts: Facts, trap: str) -> Finding:
    """The one finding of a machine that is in one trap."""
    (found,) = findings(facts)
    assert found.trap == trap
    assert found.text and found.remedy
    return found


@pytest.mark.parametrize("facts", [machine("onnxruntime==1.31.1"), machine("onnxruntime-gpu==1.31.1", gpu=H200)])
def test_a_sound_machine_is_in_none(facts: Facts) -> None:
    assert findings(facts) == []


def test_a_machine_that_tells_nothing_is_told_nothing_but_the_compiler() -> None:
    assert [found.trap for found in findings(Facts(python="3.12.3"))] == ["no-cxx-compiler"]


def test_several_onnxruntimes_lie_over_one_another() -> None:
    found = only(machine("onnxruntime==1.31.1", "onnxruntime-openvino==1.24.1"), "several-onnxruntimes")
    assert found.weight is Weight.PROBLEM and found.backends == ["onnx"]
    assert found.remedy == "pip uninstall -y onnxruntime onnxruntime-openvino && pip install onnxruntime"


def test_what_is_beside_onnxruntime_is_no_second_one() -> None:
    plugins = ("onnxruntime-genai==0.18.0", "onnxruntime-ep-nv-tensorrt-rtx-cu13==0.5.0")
    found = findings(machine("onnxruntime-gpu==1.31.1", *plugins, gpu=H200))
    assert "several-onnxruntimes" not in [each.trap for each in found]


def test_of_several_onnxruntimes_a_gpu_wants_its_own() -> None:
    found = only(machine("onnxruntime==1.31.1", "onnxruntime-gpu==1.31.1", gpu=H200), "several-onnxruntimes")
    assert found.remedy.endswith("pip install onnxruntime-gpu")


def test_the_cpu_wheel_of_onnxruntime_on_a_gpu_machine() -> None:
    found = only(machine("onnxruntime==1.31.1", gpu=H200), "onnxruntime-without-cuda")
    assert found.backends == ["onnx"] and found.devices == ["cuda"]


def test_the_cpu_wheel_of_torch_on_a_gpu_machine() -> None:
    found = only(machine("torch==2.13.0+cpu", gpu=H200, torch_cuda=None), "torch-without-cuda")
    assert "2.13.0+cpu" in found.text and found.devices == ["cuda"]


def test_a_card_without_a_driver() -> None:
    found = only(machine(nvidia_cards=2, torch_cuda="13.0"), "no-driver")
    assert found.weight is Weight.PROBLEM and "2 NVIDIA card" in found.text and "nvidia-smi" in found.remedy


def test_a_card_without_a_driver_in_a_container_was_not_handed_in() -> None:
    found = only(machine(nvidia_cards=1, torch_cuda="13.0", container="docker"), "no-driver")
    assert found.weight is Weight.NOTE and found.remedy.startswith("in a container")


def test_a_card_without_nvml() -> None:
    assert only(machine(nvidia_cards=1, has_nvml=False, cuda_devices=1, torch_cuda="13.0"), "nvml-not-installed")


@pytest.mark.parametrize(("driver", "is_old"), [("12.8", True), ("13.0", False), ("13.2", False), (None, False)])
def test_a_driver_of_an_older_major_version(driver: str | None, is_old: bool) -> None:
    found = findings(machine(gpu=H200, driver_cuda=driver))
    assert [one.trap for one in found] == (["driver-too-old"] if is_old else [])


@pytest.mark.parametrize(
    ("torch", "torch_tensorrt", "differ"),
    [
        ("2.11.0+cu130", "2.13.0", True),
        ("2.13.1", "2.13.0", False),
        ("2.8.0a0+34c6371d24.nv25.8", "2.8.0a0", False),
    ],
)
def test_torch_tensorrt_is_of_torchs_minor_version(torch: str, torch_tensorrt: str, differ: bool) -> None:
    found = findings(machine(f"torch=={torch}", f"torch-tensorrt=={torch_tensorrt}", gpu=H200))
    assert [one.trap for one in found] == (["torch-tensorrt-of-another-minor"] if differ else [])
    assert not differ or "torch-tensorrt==2.11.*" in found[0].remedy


@pytest.mark.parametrize(("torch", "is_tested"), [("2.14.1", True), ("2.15.0a0+nv26.9", False), ("3.0.0", False)])
def test_a_torch_newer_than_those_tested_is_noted(torch: str, is_tested: bool) -> None:
    found = findings(machine(f"torch=={torch}", torch=torch))
    assert [one.trap for one in found] == ([] if is_tested else ["torch-not-tested"])
    assert is_tested or ("torch==2.14.*" in found[0].remedy and "torchvision==0.29.*" in found[0].remedy)


@pytest.mark.parametrize(("cuda", "build"), [(None, "cpu"), ("13.0", "cu130")])
def test_torchvision_of_another_torch(cuda: str | None, build: str) -> None:
    """The torch that is there stays."""
    reason = "operator torchvision::nms does not exist"
    library = Library(name="torchvision", version="0.28.0+cu130", imports=False, import_error=reason)
    found = only(machine(torch_cuda=cuda, libraries={"torchvision": library}), "torchvision-of-another-torch")
    assert reason in found.text and found.remedy.endswith(f"/whl/{build}")
    assert "--no-deps 'torchvision==0.28.*'" in found.remedy


def test_a_library_that_does_not_import() -> None:
    dead = Library(
        name="openvino", version="2026.4.1", backends=["openvino"], imports=False, import_error="no libtbb.so.12"
    )
    found = only(machine(libraries={"openvino": dead}), "library-does-not-import")
    assert found.backends == ["openvino"] and "libtbb" in found.text


def test_tensorrt_need_not_import_where_there_is_no_gpu() -> None:
    library = Library(
        name="tensorrt", version="10.13.2", backends=["tensorrt"], imports=False, import_error="no libcuda"
    )
    dead = {"tensorrt": library}
    assert findings(machine(libraries=dead)) == []
    assert only(machine(libraries=dead, gpu=H200), "library-does-not-import").devices == ["cuda"]


def test_what_a_library_says_that_it_needs() -> None:
    libraries = {
        "tensorrt": Library(name="tensorrt", version="10.13.2.6"),
        "torch-tensorrt": Library(
            name="torch-tensorrt", version="2.13.0", requires=["tensorrt<11.1,>=11.0"], backends=["torch-tensorrt"]
        ),
    }
    found = only(machine(gpu=H200, libraries=libraries), "requirement-not-met")
    assert found.weight is Weight.PROBLEM and found.backends == ["torch-tensorrt"]
    assert found.text == "torch-tensorrt 2.13.0 needs tensorrt <11.1,>=11.0, and 10.13.2.6 is installed"


def test_another_torch_comes_with_its_torchvision() -> None:
    own = Library(name="torchvision", version="0.28.0", imports=True)
    other = Library(name="torchaudio", version="2.12.0", requires=["torch==2.12.0"])
    torch = Library(name="torch", version="2.13.0")
    libraries = {"torch": torch, "torchvision": own, "torchaudio": other}
    assert only(machine(libraries=libraries), "requirement-not-met").remedy == "pip install 'torch==2.12.0' torchvision"


def test_what_bakeoff_needs_of_a_library() -> None:
    libraries = {"openvino": Library(name="openvino", version="2024.6.0", needed=">=2025.4")}
    found = only(machine(libraries=libraries), "requirement-not-met")
    assert found.weight is Weight.WARNING and "pip install 'openvino>=2025.4'" in found.remedy


@pytest.mark.parametrize("version", ["2.8.0a0+34c6371d24.nv25.8", "a build of our own"])
def test_a_build_that_is_no_release_is_taken_for_the_one_it_is_named_after(version: str) -> None:
    library = Library(name="onnx", version=version, needed=">=2.8,<2.14")
    assert findings(machine(libraries={"onnx": library})) == []


def test_onnxruntime_of_another_cuda() -> None:
    facts = machine("onnxruntime-gpu==1.31.1", gpu=H200, torch_cuda="12.8", linked={"CUDA": 13})
    found = only(facts, "onnxruntime-of-another-cuda")
    assert found.text.startswith("onnxruntime-gpu 1.31.1 wants CUDA 13, found 12.8")
    assert found.backends == ["onnx"] and found.devices == ["cuda"]


def test_onnxruntime_of_another_tensorrt() -> None:
    linked = {"CUDA": 13, "TensorRT": 10}
    facts = machine("onnxruntime-gpu==1.31.1", "tensorrt==11.0.0.114", gpu=H200, linked=linked)
    found = only(facts, "onnxruntime-of-another-tensorrt")
    assert "libnvinfer.so.10" in found.text
    assert found.weight is Weight.WARNING  # of a mode, not of the backend
    assert findings(machine("onnxruntime-gpu==1.31.1", "tensorrt==10.13.2.6", gpu=H200, linked=linked)) == []


def test_no_cxx_compiler() -> None:
    assert only(machine(cxx=None), "no-cxx-compiler").backends == ["inductor", "aotinductor", "hotpath"]


def test_little_shared_memory() -> None:
    assert "64 MiB" in only(machine(shared_memory_bytes=2**26), "little-shared-memory").text


@pytest.mark.parametrize("name", ["TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE"])
def test_tf32_overridden(name: str) -> None:
    assert f"{name}=1" in only(machine(variables={name: "1"}), "tf32-overridden").text


@pytest.mark.parametrize(
    ("changed", "trap", "said"),
    [
        ({"persistence_mode": False}, "persistence-off", "GPU 0"),
        ({"held_down_by": ["software power cap"]}, "clock-held-down", "software power cap"),
        ({"application_sm_clock_mhz": 1200}, "clock-held-down", "application clock 1200 MHz, by default 1980"),
        ({"processes": 3}, "gpu-in-use", "3 other process"),
    ],
)
def test_the_state_of_a_gpu(changed: dict[str, object], trap: str, said: str) -> None:
    assert said in only(machine(gpu=H200.model_copy(update=changed)), trap).text


def test_a_governor_that_saves_power() -> None:
    assert "schedutil" in only(machine(governor="schedutil"), "governor-saves-power").text


def test_a_quota_of_fewer_cores_than_are_seen() -> None:
    found = only(machine(quota_cores=2.5), "fewer-cores-than-the-machine")
    assert found.weight is Weight.WARNING and "OMP_NUM_THREADS=2" in found.remedy


def test_fewer_cores_by_affinity_is_only_worth_a_note() -> None:
    found = only(machine(affinity_cores=2), "fewer-cores-than-the-machine")
    assert found.weight is Weight.NOTE and "2 of the machine's 8 cores" in found.text


def test_every_trap_has_its_section_in_the_manual() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### `([a-z0-9-]+)`$", page, re.MULTILINE)
    assert sorted(sections) == sorted(traps.name_of(trap) for trap in traps.all_traps())
