"""OpenVINO on the CPU, from torch.export, over memory shared with torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from backends.base import YES, Availability, Backend, BuildContext, Compiled, Settings
from reports.errors import BakeoffError
from reports.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    import torch

    from models.base import Inputs

PRECISION_HINTS = {"fp32": "f32"}
"""Left to itself OpenVINO computes in bfloat16 on CPUs that have it and calls the model float32."""


class OpenVINO(Backend):
    name = "openvino"
    description = "OpenVINO on the CPU, converted from torch.export, latency hint"
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {"default": {"PERFORMANCE_HINT": "LATENCY"}}
    libraries: ClassVar[tuple[str, ...]] = ("torch", "openvino")

    def available(self, device: str) -> Availability:
        if device != "cpu":
            return Availability(f"OpenVINO runs on the CPU here, not on {device}")
        try:
            import openvino
        except ImportError as error:
            return Availability(f"openvino is not installed ({error}): pip install openvino")
        if "CPU" not in openvino.Core().available_devices:
            return Availability(f"openvino {openvino.__version__} finds no CPU plugin")
        return YES

    def supports(self, cell: Cell) -> Availability:
        if not (supported := super().supports(cell)):
            return supported
        if cell.precision not in PRECISION_HINTS:
            return Availability(f"precision {cell.precision} is not built yet for OpenVINO")
        return YES

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        import openvino
        import torch

        from backends.calling import FlatModule

        tensors = inputs.tensors()
        with context.phase("export"):
            # functionalisation does not take inference tensors: export in no_grad, as a user's own script would
            with torch.inference_mode(False), torch.no_grad():
                example = tuple(tensor.clone() for tensor in tensors)
                program = torch.export.export(FlatModule(module, inputs), example)
                model = openvino.convert_model(program)
            model.reshape({index: list(tensor.shape) for index, tensor in enumerate(tensors)})
            openvino.save_model(model, context.workspace / "model.xml", compress_to_fp16=False)
        with context.phase("compile"):
            compiled = openvino.Core().compile_model(
                model,
                "CPU",
                {
                    "INFERENCE_PRECISION_HINT": PRECISION_HINTS[context.cell.precision],
                    "INFERENCE_NUM_THREADS": context.threads,
                    **self.modes[context.cell.mode],
                },
            )
            return Request(compiled)


class Request(Compiled):
    """An inference request whose inputs and outputs are memory of torch tensors."""

    def __init__(self, compiled: Any) -> None:
        import numpy
        import openvino
        import torch

        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._buffers: list[torch.Tensor] = []
        for index, port in enumerate(compiled.outputs):
            if port.partial_shape.is_dynamic:
                raise BakeoffError(f"output {index} has no static shape, so no buffer can be bound to it")
            buffer = torch.from_numpy(numpy.empty(tuple(port.shape), port.element_type.to_dtype()))
            self._buffers.append(buffer)
            self._request.set_output_tensor(index, openvino.Tensor(buffer.numpy(), shared_memory=True))
        self._bound: tuple[torch.Tensor, ...] = ()

    def bind(self, inputs: Inputs) -> None:
        import openvino

        # kept alive here: OpenVINO holds their memory, not them
        self._bound = tuple(tensor.contiguous() for tensor in inputs.tensors())
        for index, tensor in enumerate(self._bound):
            self._request.set_input_tensor(index, openvino.Tensor(tensor.numpy(), shared_memory=True))

    def run(self) -> None:
        self._request.infer(share_outputs=True)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(buffer.clone() for buffer in self._buffers)

    def placement(self) -> Placement:
        """OpenVINO's account of the model it runs: layers by the precision they compute in."""
        precisions = Counter(
            str(node.get_rt_info()["runtimePrecision"]) for node in self._compiled.get_runtime_model().get_ops()
        )
        return Placement(extent=Extent.FULL, engines={f"CPU {name}": count for name, count in precisions.items()})

    def settings(self) -> Settings:
        names = ("EXECUTION_DEVICES", "INFERENCE_PRECISION_HINT", "INFERENCE_NUM_THREADS", "PERFORMANCE_HINT")
        return {name.lower(): _plain(self._compiled.get_property(name)) for name in names}

    def close(self) -> None:
        self._bound = ()
        self._request = None
        self._compiled = None


def _plain(value: Any) -> str | int:
    """A property's value as it fits into a record."""
    if isinstance(value, list):
        return ", ".join(str(one) for one in value)
    if isinstance(value, int):
        return value
    return value.get_type_name() if hasattr(value, "get_type_name") else str(getattr(value, "name", value))
