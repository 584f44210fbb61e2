"""The mode onnx/tensorrt-rtx over a fake plug-in: each reason why it cannot run, and that it never falls back."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bakeoff import backends
from bakeoff.backends import onnx_tensorrt_rtx as rtx
from bakeoff.backends.base import BuildContext
from bakeoff.backends.exporting import OnnxModel, export_onnx
from bakeoff.backends.onnx import Sessions
from bakeoff.backends.ranges import OpenAxis
from bakeoff.measuring.worker.loading import load
from bakeoff.models.base import Inputs
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError, Unavailable
from bakeoff.records.schema import Cell
from tests.backends.building import RecordingPhases

onnxruntime = pytest.importorskip("onnxruntime")
CUDA = Device("cuda")
PLUGIN = "onnxruntime_ep_nv_tensorrt_rtx"
SIZES = {"batch": 2, "features": 8, "hidden": 8}
CPU = "CPUExecutionProvider"


def offer(address: str = "0000:01:00.0", name: str = rtx.PROVIDER) -> Any:
    return SimpleNamespace(ep_name=name, device=SimpleNamespace(metadata={"pci_bus_id": address}))


class Machine:
    """A machine with one GPU of compute capability 8.6, the plug-in, and what the plug-in offers."""

    def __init__(self, patch: pytest.MonkeyPatch, install: Callable[[str, object], None], system: Path) -> None:
        self.registered: list[tuple[str, str]] = []
        self.offered: list[Any] = [offer()]
        self.capability = (8, 6)
        self.cards = [SimpleNamespace(pci_domain_id=0, pci_bus_id=1, pci_device_id=0)]
        self.system = system
        self.refusal = ""
        install(PLUGIN, SimpleNamespace(get_library_path=lambda: "plugin.so"))
        patch.setattr(rtx, "SYSTEM", system)
        patch.setattr(onnxruntime, "register_execution_provider_library", self.register)
        patch.setattr(onnxruntime, "get_ep_devices", lambda: [offer(name=CPU), *self.offered])
        patch.setattr(torch.cuda, "device_count", lambda: len(self.cards))
        patch.setattr(torch.cuda, "get_device_properties", lambda index: self.cards[index])
        patch.setattr(torch.cuda, "get_device_capability", lambda index: self.capability)
        patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=1234))

    def register(self, name: str, library: str) -> None:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.registered.append((name, library))

    def show_card(self, where: str, vendor: str = "0x10de") -> None:
        folder = self.system / where
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")


@pytest.fixture
def machine(
    monkeypatch: pytest.MonkeyPatch, install: Callable[[str, object], None], tmp_path: Path
) -> Iterator[Machine]:
    rtx._register.cache_clear()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")  # a session sets it, and it is undone after the test
    yield Machine(monkeypatch, install, tmp_path / "sys")
    rtx._register.cache_clear()


def reason(device: Device = CUDA) -> str:
    with pytest.raises(Unavailable) as caught:
        rtx.find(device)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_where_it_is_not_installed_the_reason_says_how_to_get_it(
    machine: Machine, install: Callable[[str, object], None]
) -> None:
    install(PLUGIN, None)
    assert reason().startswith("TensorRT for RTX is not installed")
    assert reason().endswith(f"pip install {rtx.PACKAGE}") and not machine.registered


def test_a_plugin_that_does_not_load_says_why(machine: Machine) -> None:
    machine.refusal = "libcuda.so.1: cannot open shared object file"
    assert reason() == f"the plug-in of TensorRT for RTX does not load: {machine.refusal}"


@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (10, 3), (7, 5)])
def test_a_gpu_that_it_does_not_serve_is_named_with_its_capability(machine: Machine, capability: Any) -> None:
    machine.offered, machine.capability = [], capability
    assert reason() == (
        "TensorRT for RTX serves compute capability 8.6, 8.9, and 12.0 and newer, "
        f"and cuda has {capability[0]}.{capability[1]}"
    )


def test_where_onnxruntime_finds_no_gpu_the_reason_says_where_it_looks(machine: Machine) -> None:
    machine.offered = []
    told = reason()
    assert told.startswith("ONNX Runtime finds no GPU") and "/class/drm" in told and "virtual machines" in told
    machine.show_card("class/drm/card0/device", vendor="0x1a03")  # a server's own display
    assert reason() == told


@pytest.mark.parametrize("where", ["class/drm/card1/device", "bus/pci/devices/0000:01:00.0"])
def test_a_gpu_that_is_shown_and_not_offered_is_another_case(machine: Machine, where: str) -> None:
    machine.offered = []
    machine.show_card(where)
    assert reason().startswith("the plug-in of TensorRT for RTX offers nothing for cuda (compute capability 8.6)")


def test_the_plugin_is_loaded_once_for_all_sessions(machine: Machine) -> None:
    assert rtx.find(CUDA) is rtx.find(CUDA) is machine.offered[0]
    assert machine.registered == [(rtx.PROVIDER, "plugin.so")]


def test_of_several_gpus_it_takes_the_one_with_the_same_address(machine: Machine) -> None:
    machine.cards = [SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0) for bus in (0x65, 0xCA)]
    machine.offered = [offer("0000:CA:00.0"), offer("0000:17:00.0")]
    assert rtx.find(Device("cuda:1")) is machine.offered[0]
    machine.show_card("class/drm/card0/device")
    assert "offers nothing for cuda:0" in reason(Device("cuda:0"))


def test_served_are_the_gpus_that_nvidia_names() -> None:
    served = [one for one in ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)) if rtx.is_served(one)]
    assert served == [(8, 6), (8, 9), (12, 0), (12, 1)]


class Options(onnxruntime.SessionOptions):  # type: ignore[misc]
    """Session options that take a fake device, and so leave every node to the CPU."""

    given: Any = None

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        type(self).given = (devices, options)


class Served:
    """A session in which the plug-in has taken every node."""

    def __init__(self, path: str, options: Any, providers: Any, enable_fallback: int) -> None:
        self.entry = options.get_session_config_entry("session.disable_cpu_ep_fallback")
        self.asked = (providers, enable_fallback)

    def get_providers(self) -> list[str]:
        return [rtx.PROVIDER, CPU]


class Dropped(Served):
    """A session that has silently gone on without the plug-in."""

    def get_providers(self) -> list[str]:
        return [CPU]


def context_in(folder: Path, precision: str = "fp32", axes: tuple[OpenAxis, ...] = ()) -> BuildContext:
    cell = Cell(
        model="mlp",
        dimensions=SIZES,
        backend="onnx",
        mode=rtx.MODE,
        device=CUDA,
        precision=precision,
    )
    return BuildContext(cell, RecordingPhases(), folder, threads=1, open_axes=axes)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[OnnxModel, Inputs]:
    model = load(Cell(model="mlp", dimensions=SIZES, backend="onnx"))
    return export_onnx(model.module, model.inputs[0], tmp_path_factory.mktemp("mlp")), model.inputs[0]


@pytest.mark.parametrize(("precision", "override"), [("fp32", "0"), ("tf32", "1")])
def test_a_session_runs_on_the_plugins_device_and_on_the_current_stream(
    machine: Machine,
    exported: tuple[OnnxModel, Inputs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    override: str,
) -> None:
    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Served)
    session = Sessions(exported[0], context_in(tmp_path, precision), rtx.MODE).open()
    devices, options = Options.given
    assert devices == machine.offered
    assert (options["has_user_compute_stream"], options["user_compute_stream"]) == ("1", "1234")
    assert options["nv_runtime_cache_path"] == str(tmp_path)
    assert session.asked == ([], 0) and session.entry == "1"
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == override


def test_open_axes_are_one_profile(
    machine: Machine, exported: tuple[OnnxModel, Inputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Served)
    axes = (OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=4),)
    Sessions(exported[0], context_in(tmp_path, axes=axes), rtx.MODE, exported[1]).open()
    name = exported[0].input_names[0]
    profile = {key: value for key, value in Options.given[1].items() if key.startswith("nv_profile")}
    assert profile == {
        "nv_profile_min_shapes": f"{name}:1x8",
        "nv_profile_opt_shapes": f"{name}:2x8",
        "nv_profile_max_shapes": f"{name}:4x8",
    }


def test_a_session_without_the_plugin_is_an_error(
    machine: Machine, exported: tuple[OnnxModel, Inputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Dropped)
    with pytest.raises(BakeoffError, match=f"could not start {rtx.PROVIDER}"):
        Sessions(exported[0], context_in(tmp_path), rtx.MODE).open()


def test_onnxruntime_itself_refuses_to_leave_a_node_to_the_cpu(
    machine: Machine, exported: tuple[OnnxModel, Inputs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This session is real. Only the plug-in is missing from it."""
    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    with pytest.raises(Exception, match="fallback to CPU EP has been explicitly disabled"):
        Sessions(exported[0], context_in(tmp_path), rtx.MODE).open()


def test_a_build_where_it_is_missing_ends_as_unavailable_before_anything_is_exported(
    machine: Machine, tmp_path: Path
) -> None:
    machine.offered, machine.capability = [], (9, 0)
    model, context = load(Cell(model="mlp", dimensions=SIZES, backend="onnx")), context_in(tmp_path)
    with pytest.raises(Unavailable, match=r"cuda has 9\.0"):
        backends.create("onnx").build(model.module, model.inputs[0], context)
    assert isinstance(context.phase, RecordingPhases) and not context.phase.names
