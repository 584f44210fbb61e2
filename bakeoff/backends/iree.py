"""IREE on the CPU or an NVIDIA GPU, from our export to ONNX. It takes the whole graph or none.

On a GPU it has a stream of its own, which the harness cannot wait for. So a call goes through the function that waits
itself: it returns when its work has ended, and its latency includes that wait.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from bakeoff.backends import base
from bakeoff.backends.base import Availability, Settings
from bakeoff.backends.eager import torch_available
from bakeoff.backends.exporting import export_onnx, use_exportable_experts
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import iree_compiler, iree_runtime, torch
from bakeoff.records.device import Device
from bakeoff.records.errors import first_line
from bakeoff.records.schema import DEVICE, Cell, Extent, Placement

ARTIFACT = "model.vmfb"
PACKAGES = "iree-base-compiler iree-base-runtime"

STACK_BYTES = 262_144
"""Stack that one compiled function may take. With IREE's default, a layer normalisation does not compile."""

TARGETS = {"cpu": "llvm-cpu", "cuda": "cuda"}
DRIVERS = {"cpu": "local-task", "cuda": "cuda"}
"""What IREE compiles for and runs by, on each kind of device."""

OPTIMISED: Mapping[str, str] = {"iree-opt-level": "O3"}

PLACED_BY = "iree-compile, which takes the whole graph or none"

CUDA_TARGETS = {
    (12, 0): "sm_120",
    (9, 0): "sm_80",
    (8, 9): "sm_89",
    (8, 6): "sm_86",
    (8, 0): "sm_80",
    (7, 5): "sm_75",
    (7, 0): "sm_70",
    (6, 0): "sm_60",
}
"""What IREE 3.13 compiles for, by the lowest compute capability, the highest first.

It has no sm_90. GPUs translate code of older ones, and sm_80 is the one with as much shared memory."""


class IREE(base.Backend):
    name = "iree"
    takes_complex = False
    description = "IREE from our export to ONNX: code for this CPU (llvm-cpu) or an NVIDIA GPU (cuda)"
    takes_onnx = True
    modes = (base.Mode(options=OPTIMISED, worth_trying=base.ANYWHERE),)
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "iree-base-compiler", "iree-base-runtime")
    module: ClassVar[str] = "iree"

    def available(self, device: Device) -> Availability:
        remedy = f"pip install {PACKAGES}, or bakeoff env add iree {PACKAGES}"
        if not (imports := base.installed("iree", remedy, "iree.compiler", "iree.runtime")):
            return imports
        target, driver = TARGETS[device.kind], DRIVERS[device.kind]
        if target not in iree_compiler.query_available_targets():
            return Availability(f"this build of iree-base-compiler has no target {target}")
        if driver not in iree_runtime.query_available_drivers():
            return Availability(f"this build of iree-base-runtime has no driver {driver}")
        return _gpu_available(device) if device.is_cuda else base.AVAILABLE

    def reason_against(self, cell: Cell) -> str:
        if cell.precision.allows_tf32:
            return f"IREE multiplies float32 as it is, and has no {cell.precision}"
        if cell.precision.input_type == "bfloat16":
            return f"IREE's buffers in Python have no {cell.precision}"
        if cell.inputs_from != DEVICE:
            return "IREE's buffers in Python are filled and read from host memory, so copies would count twice"
        return ""

    def build(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> base.Compiled:
        artifact = context.workspace / ARTIFACT
        options: Settings = {**_options(context.cell.device), **OPTIMISED}
        experts: Settings = {}
        if not artifact.exists():  # a process that starts warm finds it
            experts = use_exportable_experts(module)
            _compile(module, inputs, context, options, artifact)
        with context.phase("load"):
            program = Program(artifact, context.cell.device, context.threads, {**options, **experts})
            program.bind(inputs)
            program.run()
        return program


def _options(device: Device) -> Settings:
    if not device.is_cuda:
        return {"iree-llvmcpu-target-cpu": "host", "iree-llvmcpu-stack-allocation-limit": STACK_BYTES}
    return {"iree-cuda-target": cuda_target(torch.cuda.get_device_capability(device.cuda_index))}


def cuda_target(capability: tuple[int, int]) -> str:
    """Return what to compile for, for a GPU of this compute capability; "" if that is too old."""
    return next((target for lowest, target in CUDA_TARGETS.items() if capability >= lowest), "")


def _gpu_available(device: Device) -> Availability:
    if not (available := torch_available(device)):
        return available
    capability = torch.cuda.get_device_capability(device.cuda_index)
    if not cuda_target(capability):
        number = ".".join(map(str, capability))
        return Availability(f"IREE compiles for compute capability 6.0 and newer, and {device} has {number}")
    try:
        iree_runtime.get_device(_address(device))
    except Exception as error:
        return Availability(f"IREE's CUDA driver does not start: {first_line(error)}")
    return base.AVAILABLE


def _address(device: Device) -> str:
    return f"cuda://{device.cuda_index}"


def _compile(
    module: torch.nn.Module, inputs: Inputs, context: base.BuildContext, options: Mapping[str, object], artifact: Path
) -> None:
    from iree.compiler.tools.import_onnx import __main__ as onnx_importer

    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "model.mlir"
        with context.phase("export"):
            exported = export_onnx(module, inputs, Path(folder))
            onnx_importer.main(onnx_importer.parse_arguments([str(exported.path), "-o", str(graph)]))
        with context.phase("compile"):
            iree_compiler.compile_file(
                str(graph),
                input_type="onnx",
                target_backends=[TARGETS[context.cell.device.kind]],
                extra_args=[f"--{name}={value}" for name, value in options.items()],
                output_file=str(artifact),
            )


class Program(base.Compiled):
    """A function in IREE's virtual machine. Each call returns its outputs in buffers of their own."""

    def __init__(self, artifact: Path, device: Device, threads: int, options: Settings) -> None:
        self._on = device
        if device.is_cuda:
            config = iree_runtime.Config(device=iree_runtime.get_device(_address(device)))
        else:
            # the device is made with as many threads as this flag of the process says
            iree_runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
            config = iree_runtime.Config(DRIVERS[device.kind])
        loaded = iree_runtime.VmModule.mmap(config.vm_instance, str(artifact))
        self._device = config.device
        self._context = iree_runtime.SystemContext(vm_modules=[loaded], config=config)
        # beside it stand `__init` and the same function with `$async` behind its name, which does not wait
        name = next(
            function_name
            for function_name in loaded.function_names
            if not function_name.startswith("__") and not function_name.endswith("$async")
        )
        self._function = loaded.lookup_function(name)
        self._options = options
        self._arguments: Any = None
        self._results: Any = None

    def bind(self, inputs: Inputs) -> None:
        tensors = inputs.tensors()
        self._arguments = iree_runtime.VmVariantList(len(tensors))
        for tensor in tensors:
            array = tensor.contiguous().cpu().numpy()
            buffer = self._device.allocator.allocate_buffer_copy(
                memory_type=iree_runtime.MemoryType.DEVICE_LOCAL,
                allowed_usage=iree_runtime.BufferUsage.DEFAULT,
                device=self._device,
                buffer=array,
                element_type=iree_runtime.array_interop.map_dtype_to_element_type(array.dtype),
            )
            self._arguments.push_ref(buffer)

    def run(self) -> None:
        import iree.runtime  # in each call that is timed

        results = iree.runtime.VmVariantList(1)
        self._context.vm_context.invoke(self._function, self._arguments, results)
        self._results = results

    def outputs(self) -> tuple[torch.Tensor, ...]:
        views = [self._results.get_as_object(index, iree_runtime.HalBufferView) for index in range(self._results.size)]
        arrays = [iree_runtime.DeviceArray(self._device, view).to_host() for view in views]
        return tuple(torch.from_numpy(array.copy()).to(self._on) for array in arrays)

    def placement(self) -> Placement:
        engines = {f"{TARGETS[self._on.kind]} programs": 1}
        return Placement(extent=Extent.FULL, engines=engines, evidence=[PLACED_BY])

    def settings(self) -> Settings:
        stream: Settings = {"stream": "IREE's own, and each call waits for it"} if self._on.is_cuda else {}
        return {**self._options, "driver": DRIVERS[self._on.kind], **stream}

    def close(self) -> None:
        self._arguments, self._results = None, None
        self._function, self._context = None, None
