"""ONNX Runtime's plug-ins, fake ones and OpenVINO's: each reason why one cannot run, and that none falls back."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bakeoff import backends
from bakeoff.backends import onnx_plugins as plugins
from bakeoff.backends.base import BuildContext
from bakeoff.backends.exporting import export_onnx
from bakeoff.backends.onnx import PROVIDERS, Sessions
from bakeoff.backends.onnx import _plugin as plugin_of
from bakeoff.backends.onnx_plugins import OPENVINO, RTX, WEBGPU, Plugin
from bakeoff.backends.ranges import OpenAxis
from bakeoff.measuring.worker.loading import load
from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import Unavailable, Unsupported
from bakeoff.records.schema import Cell, Extent
from tests.backends.building import RecordingPhases, built
from tests.support.cells import cell_of

onnxruntime = pytest.importorskip("onnxruntime")
Install = Callable[[str, object], None]
CUDA = Device("cuda")
SIZES = {"batch": 2, "features": 8, "hidden": 8}
PROVIDER, ON_CPU = "FakeExecutionProvider", "CPUExecutionProvider"


def offer(address: str = "0000:01:00.0", name: str = PROVIDER, kind: str = "GPU") -> Any:
    hardware = SimpleNamespace(metadata={"pci_bus_id": address}, type=SimpleNamespace(name=kind))
    return SimpleNamespace(ep_name=name, device=hardware)


class Machine:
    """A machine with one GPU of compute capability 8.6, fake plug-ins, and what they offer."""

    def __init__(self, patch: pytest.MonkeyPatch, install: Install, system: Path) -> None:
        self.registered: list[tuple[str, str]] = []
        self.offered: list[Any] = [offer()]
        self.capability = (8, 6)
        self.cards = [SimpleNamespace(pci_domain_id=0, pci_bus_id=1, pci_device_id=0)]
        self.system = system
        self.refusal = ""
        for plugin in (RTX, OPENVINO, WEBGPU):
            library = SimpleNamespace(get_library_path=lambda: "plugin.so", get_ep_name=lambda: PROVIDER, __spec__=True)
            install(plugin.module, library)
        system.mkdir()
        patch.setattr(plugins, "SYSTEM", system)
        patch.setattr(onnxruntime, "register_execution_provider_library", self.register)
        patch.setattr(onnxruntime, "get_ep_devices", lambda: [offer(name=ON_CPU), *self.offered])
        patch.setattr(torch.cuda, "device_count", lambda: len(self.cards))
        patch.setattr(torch.cuda, "get_device_properties", lambda index: self.cards[index])
        patch.setattr(torch.cuda, "get_device_capability", lambda index: self.capability)
        patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=1234))

    def register(self, name: str, library: str) -> None:
        if self.refusal:
            raise RuntimeError(self.refusal)
        self.registered.append((name, library))

    def show(self, where: str, vendor: str = "0x10de", pci_class: str = "0x030000") -> None:
        folder = self.system / where
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{pci_class}\n")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, install: Install, tmp_path: Path) -> Iterator[Machine]:
    plugins._register.cache_clear()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "")  # a session sets it, and it is undone after the test
    yield Machine(monkeypatch, install, tmp_path / "sys")
    plugins._register.cache_clear()


def reason(plugin: Plugin = RTX, device: Device = CUDA) -> str:
    with pytest.raises(Unavailable) as caught:
        plugin.find(device)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


@pytest.mark.parametrize("plugin", plugins.KNOWN)
def test_where_it_is_not_installed_the_reason_says_how_to_get_it(
    machine: Machine, plugin: Plugin, install: Install
) -> None:
    install(plugin.module, None)
    assert reason(plugin).endswith(f"pip install {plugin.package}") and not machine.registered


def test_a_plugin_that_does_not_load_says_why(machine: Machine) -> None:
    machine.refusal = "libcuda.so.1: cannot open shared object file"
    assert reason() == f"{RTX.package} does not load: {machine.refusal}"


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)])
def test_a_gpu_that_rtx_does_not_serve_is_named_with_its_capability(machine: Machine, capability: Any) -> None:
    machine.offered, machine.capability = [], capability
    is_served = capability in ((8, 6), (8, 9), (12, 0), (12, 1))
    assert reason().endswith(f"cuda has {capability[0]}.{capability[1]}") is not is_served


DRIVER = "a driver that is too old"
CARD, BUS = "class/drm/card1/device", "bus/pci/devices/0000:01:00.0"


@pytest.mark.parametrize(
    ("plugin", "device", "shown", "said"),
    [
        (RTX, CUDA, (), plugins.NO_GPU),
        (RTX, CUDA, (CARD, "0x1a03"), plugins.NO_GPU),  # a server's own display
        (RTX, CUDA, (BUS, "0x10de", "0x040300"), plugins.NO_GPU),  # the sound of a card
        (RTX, CUDA, (CARD,), DRIVER),
        (RTX, CUDA, (BUS,), DRIVER),
        (WEBGPU, CPU, (), plugins.NO_GPU),
        (WEBGPU, CPU, (BUS, "0x8086", "0x020000"), plugins.NO_GPU),
        (WEBGPU, CPU, (CARD, "0x8086"), DRIVER),
    ],
)
def test_whether_onnxruntime_sees_a_gpu_is_part_of_the_reason(
    machine: Machine, plugin: Plugin, device: Device, shown: tuple[str, ...], said: str
) -> None:
    machine.offered = []
    if shown:
        machine.show(*shown)
    assert said in reason(plugin, device)


def test_the_plugin_is_loaded_once_for_all_sessions(machine: Machine) -> None:
    assert RTX.find(CUDA) is RTX.find(CUDA) is machine.offered[0]
    assert machine.registered == [(PROVIDER, "plugin.so")]


def test_of_several_gpus_it_takes_the_one_with_the_same_address(machine: Machine) -> None:
    machine.cards = [SimpleNamespace(pci_domain_id=0, pci_bus_id=bus, pci_device_id=0) for bus in (0x65, 0xCA)]
    machine.offered = [offer("0000:CA:00.0"), offer("0000:17:00.0")]
    assert RTX.find(Device("cuda:1")) is machine.offered[0]
    assert f"{RTX.package} offers nothing for cuda:0" in reason(RTX, Device("cuda:0"))


def test_for_inputs_in_host_memory_it_takes_the_cpu_and_otherwise_what_there_is(machine: Machine) -> None:
    machine.offered = [offer(), offer(kind="CPU")]
    assert OPENVINO.find(CPU) is machine.offered[1]
    assert RTX.find(CUDA) is machine.offered[0]
    machine.offered = [offer(name=f"{PROVIDER}.AUTO", kind="CPU"), offer()]
    assert WEBGPU.find(CPU) is machine.offered[1]


def test_what_a_build_of_onnxruntime_has_itself_stands_in_for_a_missing_plugin(
    machine: Machine, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_in = [PROVIDERS[OPENVINO.mode], ON_CPU]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: built_in)
    assert plugin_of(OPENVINO.mode) is OPENVINO and plugin_of("cpu") is None
    install(OPENVINO.module, None)
    assert plugin_of(OPENVINO.mode) is None
    built_in.remove(PROVIDERS[OPENVINO.mode])
    assert plugin_of(OPENVINO.mode) is OPENVINO  # whose reason says what to install


def test_an_installed_plugin_without_a_row_gets_a_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "onnxruntime_ep_some_thing.py").touch()
    (tmp_path / f"{WEBGPU.module}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    (other,) = (plugin for plugin in plugins._others() if "some" in plugin.mode)
    assert (other.mode, other.package, other.device) == ("ep-some-thing", "onnxruntime-ep-some-thing", "")
    assert other.caveat


class Options(onnxruntime.SessionOptions):  # type: ignore[misc,name-defined]
    """Session options that take a fake device, and so leave every node to the CPU."""

    given: Any = None

    def add_provider_for_devices(self, devices: list[Any], options: dict[str, str]) -> None:
        type(self).given = (devices, options)


def context_in(folder: Path, precision: str = "fp32", axes: tuple[OpenAxis, ...] = ()) -> BuildContext:
    cell = cell_of("mlp", "onnx", SIZES, mode=RTX.mode, device=CUDA, precision=precision)
    return BuildContext(cell, RecordingPhases(), folder, threads=1, open_axes=axes)


@pytest.mark.parametrize(("precision", "override"), [("fp32", "0"), ("tf32", "1")])
def test_a_session_runs_on_the_plugins_device_and_on_the_current_stream_and_nowhere_else(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, override: str
) -> None:
    """The session is real. Only the plug-in is missing from it."""
    monkeypatch.setattr(onnxruntime, "SessionOptions", Options)
    model = load(cell_of("mlp", "onnx", SIZES))
    exported = export_onnx(model.module, model.inputs[0], tmp_path)
    axes = (OpenAxis(tensor=0, axis=0, dimensions=("batch",), low=1, high=4),)
    with pytest.raises(Exception, match="fallback to CPU EP has been explicitly disabled"):
        Sessions(exported, context_in(tmp_path, precision, axes), RTX.mode, model.inputs[0]).open()
    name = exported.input_names[0]
    assert Options.given == (
        machine.offered,
        {
            "has_user_compute_stream": "1",
            "user_compute_stream": "1234",
            "nv_runtime_cache_path": str(tmp_path),
            "nv_profile_min_shapes": f"{name}:1x8",
            "nv_profile_opt_shapes": f"{name}:2x8",
            "nv_profile_max_shapes": f"{name}:4x8",
        },
    )
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == override


def test_a_build_where_it_is_missing_ends_as_unavailable_before_anything_is_exported(
    machine: Machine, tmp_path: Path
) -> None:
    machine.offered, machine.capability = [], (9, 0)
    model, context = load(cell_of("mlp", "onnx", SIZES)), context_in(tmp_path)
    with pytest.raises(Unavailable, match=r"cuda has 9\.0"):
        backends.create("onnx").build(model.module, model.inputs[0], context)
    assert isinstance(context.phase, RecordingPhases) and not context.phase.names


def test_onnxruntime_has_what_plugins_are_loaded_with() -> None:
    """The CPU is a device that ONNX Runtime itself offers, in the form of a plug-in's."""
    (cpu,) = (offer for offer in onnxruntime.get_ep_devices() if offer.ep_name == ON_CPU)
    assert cpu.device.type.name == "CPU" and dict(cpu.device.metadata) is not None
    options = onnxruntime.SessionOptions()
    options.add_provider_for_devices([cpu], {})
    with pytest.raises(Exception, match="no-such-plugin"):
        onnxruntime.register_execution_provider_library("none", "/no-such-plugin.so")


with_openvino = pytest.mark.skipif(not OPENVINO.is_installed, reason=f"pip install {OPENVINO.package}")


@with_openvino
@pytest.mark.parametrize("model", ["mlp", "conv", "transformer"])
def test_openvinos_plugin_runs_whole_models_in_float32(model: str, tmp_path: Path) -> None:
    """Without its hint for the precision, errors are above 1e-3 on a CPU that multiplies bf16."""
    with built(cell_of(model, "onnx", mode=OPENVINO.mode), tmp_path) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]), rtol=1e-4, atol=1e-5)
        placement = one.compiled.placement()
        assert placement and placement.extent is Extent.FULL
        assert list(placement.engines) == [OPENVINO.provider()]


DETERMINANTS = """
import torch

class Determinants(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.det(torch.tanh(x))

def factory():
    return Determinants(), torch.randn(2, 8, 8)
"""


@with_openvino
def test_what_openvinos_plugin_leaves_to_the_cpu_is_named(tmp_path: Path) -> None:
    (tmp_path / "determinants.py").write_text(DETERMINANTS)
    cell = Cell(model=f"{tmp_path / 'determinants.py'}:factory", backend="onnx", mode=OPENVINO.mode)
    with built(cell, tmp_path) as one:
        torch.testing.assert_close(one.call(one.sets[1]), one.eager(one.sets[1]))
        placement = one.compiled.placement()
        assert placement and (placement.extent, placement.time_share) == (Extent.PARTIAL, {})
        assert placement.fallbacks == [f"Det on {ON_CPU} (1)"]
        with pytest.raises(Unsupported, match=OPENVINO.provider()):
            one.compiled.profiler(one.module)
