"""IREE on the CPU, from our export to ONNX. It takes the whole graph or none."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from backends.base import YES, Availability, Backend, BuildContext, Compiled, Settings
from backends.exporting import export_onnx, use_exportable_experts
from records.device import Device
from records.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    import torch

    from models.base import Inputs

ARTIFACT = "model.vmfb"

STACK_BYTES = 262_144
"""Stack that one compiled function may take. With IREE's default, a layer normalisation does not compile."""

PLACED_BY = "iree-compile, which takes the whole graph or none"


class IREE(Backend):
    name = "iree"
    description = "IREE from our export to ONNX: code for this CPU (llvm-cpu), run by its threads (local-task)"
    takes_onnx = True
    modes: ClassVar[Mapping[str, Mapping[str, str]]] = {"default": {"iree-opt-level": "O3"}}
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "iree-base-compiler", "iree-base-runtime")

    def available(self, device: Device) -> Availability:
        if device.is_cuda:
            return Availability(f"IREE runs on the CPU here, not on {device}")
        try:
            import iree.compiler
            import iree.runtime
        except ImportError as error:
            return Availability(
                f"iree is not installed ({error}): pip install iree-base-compiler iree-base-runtime, "
                "or runner.py env add iree iree-base-compiler iree-base-runtime"
            )
        if "llvm-cpu" not in iree.compiler.query_available_targets():
            return Availability("this build of iree-base-compiler has no target llvm-cpu")
        if "local-task" not in iree.runtime.query_available_drivers():
            return Availability("this build of iree-base-runtime has no driver local-task")
        return YES

    def supports(self, cell: Cell) -> Availability:
        if not (supported := super().supports(cell)):
            return supported
        if cell.device.is_cuda:
            return Availability("Bakeoff builds IREE's programs for the CPU only")
        if cell.precision.input_type == "bfloat16" or cell.precision.allows_tf32:
            return Availability(f"IREE's buffers in Python have no {cell.precision}")
        return YES

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        artifact = context.workspace / ARTIFACT
        limits: Settings = {"iree-llvmcpu-stack-allocation-limit": STACK_BYTES}
        options = {"iree-llvmcpu-target-cpu": "host", **limits, **self.modes[context.cell.mode]}
        experts: Settings = {}
        if not artifact.exists():  # a process that starts warm finds it
            experts = use_exportable_experts(module)
            _compile(module, inputs, context, options, artifact)
        with context.phase("load"):
            program = Program(artifact, context.threads, {**options, **experts})
            program.bind(inputs)
            program.run()
        return program


def _compile(
    module: torch.nn.Module, inputs: Inputs, context: BuildContext, options: Mapping[str, object], artifact: Path
) -> None:
    import iree.compiler
    from iree.compiler.tools.import_onnx import __main__ as onnx_importer

    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "model.mlir"
        with context.phase("export"):
            exported = export_onnx(module, inputs, Path(folder))
            onnx_importer.main(onnx_importer.parse_arguments([str(exported.path), "-o", str(graph)]))
        with context.phase("compile"):
            iree.compiler.compile_file(
                str(graph),
                input_type="onnx",
                target_backends=["llvm-cpu"],
                extra_args=[f"--{name}={value}" for name, value in options.items()],
                output_file=str(artifact),
            )


class Program(Compiled):
    """A function in IREE's virtual machine. Each call returns its outputs in buffers of their own."""

    def __init__(self, artifact: Path, threads: int, options: Settings) -> None:
        import iree.runtime

        # the device is made with as many threads as this flag of the process says
        iree.runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
        config = iree.runtime.Config("local-task")
        loaded = iree.runtime.VmModule.mmap(config.vm_instance, str(artifact))
        self._device = config.device
        self._context = iree.runtime.SystemContext(vm_modules=[loaded], config=config)
        # beside it stand `__init` and the same function with `$async` behind its name
        name = next(one for one in loaded.function_names if not one.startswith("__") and not one.endswith("$async"))
        self._function = loaded.lookup_function(name)
        self._options = options
        self._arguments: Any = None
        self._results: Any = None

    def bind(self, inputs: Inputs) -> None:
        """Copy the inputs into IREE's own buffers."""
        import iree.runtime

        tensors = inputs.tensors()
        self._arguments = iree.runtime.VmVariantList(len(tensors))
        for tensor in tensors:
            array = tensor.contiguous().numpy()
            buffer = self._device.allocator.allocate_buffer_copy(
                memory_type=iree.runtime.MemoryType.DEVICE_LOCAL,
                allowed_usage=iree.runtime.BufferUsage.DEFAULT,
                device=self._device,
                buffer=array,
                element_type=iree.runtime.array_interop.map_dtype_to_element_type(array.dtype),
            )
            self._arguments.push_ref(buffer)

    def run(self) -> None:
        import iree.runtime

        results = iree.runtime.VmVariantList(1)
        self._context.vm_context.invoke(self._function, self._arguments, results)
        self._results = results

    def outputs(self) -> tuple[torch.Tensor, ...]:
        import iree.runtime
        import torch

        views = [self._results.get_as_object(index, iree.runtime.HalBufferView) for index in range(self._results.size)]
        arrays = [iree.runtime.DeviceArray(self._device, view).to_host() for view in views]
        return tuple(torch.from_numpy(array.copy()) for array in arrays)

    def placement(self) -> Placement:
        return Placement(extent=Extent.FULL, engines={"llvm-cpu graphs": 1}, evidence=[PLACED_BY])

    def settings(self) -> Settings:
        return {**self._options, "driver": "local-task"}

    def close(self) -> None:
        self._arguments, self._results = None, None
        self._function, self._context = None, None
