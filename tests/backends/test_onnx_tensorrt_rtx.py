"""The mode onnx/tensorrt-rtx over a fake plug-in: each reason why it cannot run, and that it never falls back."""

import os
from collections.abc import Callable, Iterator
from functools import partial
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
from bakeoff.records.errors import Unavailable
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
        self.install = install
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


def offers_nothing(machine: Machine, capability: tuple[int, int] = (8, 6), shown: str = "", vendor: str = "") -> None:
    machine.offered, machine.capability = [], capability
    if shown:
        machine.show_card(shown, vendor or "0x10de")


SERVES = "TensorRT for RTX serves compute capability 8.6, 8.9, and 12.0 and newer, and cuda has"
IS_SHOWN = "the plug-in of TensorRT for RTX offers nothing for cuda (compute capability 8.6)"


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda machine: machine.install(PLUGIN, None), "TensorRT for RTX is not installed"),
        (
            lambda machine: vars(machine).update(refusal="libcuda.so.1: cannot open shared object file"),
            "the plug-in of TensorRT for RTX does not load: libcuda.so.1: cannot open shared object file",
        ),
        *((partial(offers_nothing, capability=one), f"{SERVES} {one[0]}.{one[1]}") for one in ((8, 0), (9, 0), (7, 5))),
        (offers_nothing, "ONNX Runtime finds no GPU"),
        # a server's own display
        (partial(offers_nothing, shown="class/drm/card0/device", vendor="0x1a03"), "ONNX Runtime finds no GPU"),
        (partial(offers_nothing, shown="class/drm/card1/device"), IS_SHOWN),
        (partial(offers_nothing, shown="bus/pci/devices/0000:01:00.0"), IS_SHOWN),
    ],
)
def test_where_it_cannot_run_there_is_a_reason(prepare: Callable[[Machine], None], said: str, machine: Machine) -> None:
    prepare(machine)
    assert reason().startswith(said)


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


REAL = onnxruntime.InferenceSession


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


@pytest.fixture
def served(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine, with sessions in which the plug-in takes every node."""
    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Served)
    return machine


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[OnnxModel, Inputs]:
    model = load(Cell(model="mlp", dimensions=SIZES, backend="onnx"))
    return export_onnx(model.module, model.inputs[0], tmp_path_factory.mktemp("mlp")), model.inputs[0]


@pytest.mark.parametrize(("precision", "override"), [("fp32", "0"), ("tf32", "1")])
def test_a_session_runs_on_the_plugins_device_and_on_the_current_stream(
    served: Machine, exported: tuple[OnnxModel, Inputs], tmp_path: Path, precision: str, override: str
) -> None:
    session = Sessions(exported[0], context_in(tmp_path, precision), rtx.MODE).open()
    devices, options = Options.given
    assert devices == served.offered
    assert (options["has_user_compute_stream"], options["user_compute_stream"]) == ("1", "1234")
    assert options["nv_runtime_cache_path"] == str(tmp_path)
    assert session.asked == ([], 0) and session.entry == "1"
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == override


@pytest.mark.usefixtures("served")
def test_open_axes_are_one_profile(exported: tuple[OnnxModel, Inputs], tmp_path: Path) -> None:
    axes = (OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=4),)
    Sessions(exported[0], context_in(tmp_path, axes=axes), rtx.MODE, exported[1]).open()
    name = exported[0].input_names[0]
    profile = {key: value for key, value in Options.given[1].items() if key.startswith("nv_profile")}
    sizes = {"min": 1, "opt": 2, "max": 4}
    assert profile == {f"nv_profile_{which}_shapes": f"{name}:{rows}x8" for which, rows in sizes.items()}


@pytest.mark.parametrize("is_real", [False, True])
def test_a_session_without_the_plugin_is_an_error(
    served: Machine,
    exported: tuple[OnnxModel, Inputs],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_real: bool,
) -> None:
    """ONNX Runtime itself refuses to leave a node to the CPU."""
    monkeypatch.setattr(onnxruntime, "InferenceSession", REAL if is_real else Dropped)
    said = "fallback to CPU EP has been explicitly disabled" if is_real else f"could not start {rtx.PROVIDER}"
    with pytest.raises(Exception, match=said):
        Sessions(exported[0], context_in(tmp_path), rtx.MODE).open()


def test_a_build_where_it_is_missing_ends_as_unavailable_before_anything_is_exported(
    machine: Machine, tmp_path: Path
) -> None:
    machine.offered, machine.capability = [], (9, 0)
    model, context = load(Cell(model="mlp", dimensions=SIZES, backend="onnx")), context_in(tmp_path)
    with pytest.raises(Unavailable, match=r"cuda has 9\.0"):
        backends.create("onnx").build(model.module, model.inputs[0], context)
    assert isinstance(context.phase, RecordingPhases) and not context.phase.names
