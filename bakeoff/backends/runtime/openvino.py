"""OpenVINO over arrays of NumPy, without torch. Each thread has an inference request of its own."""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from .contract import Artifact, Execution, Loaded, TensorSpec
from .lazily import numpy, openvino

MAX_COPIED_ELEMENTS = 16_384
"""A tensor of more elements is bound in each call instead of copied."""


def properties(hint: str, threads: int, more: Mapping[str, Any]) -> dict[str, Any]:
    return {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads, **more}


def load(artifact: Artifact) -> Loaded:
    return Requests(artifact)


class BoundRequest(Execution):
    """A request that reads and writes arrays where they are. Outputs without an array are in memory of OpenVINO's own,
    which is as large as each call needs."""

    def __init__(self, compiled: Any, outputs: Mapping[int, Any]) -> None:
        self.request = compiled.create_infer_request()
        self._outputs = outputs
        self._bound: Sequence[Any] = ()
        for number, array in outputs.items():
            self.request.set_output_tensor(number, shared(array))

    def bind(self, inputs: Sequence[Any]) -> None:
        self._bound = inputs  # OpenVINO holds their memory and not the arrays
        bind(self.request, inputs)

    def run(self) -> None:
        self.request.infer(share_outputs=True)

    def results(self) -> Sequence[Any]:
        return [
            self._outputs[number] if number in self._outputs else tensor.data  # noqa: SIM401 - of bf16 there is none
            for number, tensor in enumerate(self.request.output_tensors)
        ]


class Requests(Loaded):
    """A compiled model, with a request for each thread that calls it."""

    takes_arrays = True

    def __init__(self, artifact: Artifact) -> None:
        settings, core = artifact.settings, openvino.Core()
        asked = properties(settings["hint"], settings["threads"], settings["options"])
        self._compiled = core.compile_model(core.read_model(artifact.path), "CPU", asked)
        self._artifact = artifact
        self._local = threading.local()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            request = self._local.request
        except AttributeError:
            request = self._local.request = InferRequest(self._compiled, self._artifact)
        return request.infer(inputs)  # type: ignore[no-any-return]

    def execution(self) -> Execution:
        specs = () if _is_open(self._compiled) else self._artifact.outputs
        outputs = {number: numpy.empty(spec.shape, spec.numpy_type) for number, spec in enumerate(specs)}
        return BoundRequest(self._compiled, outputs)


class InferRequest:
    """An inference request. Small tensors are copied into and out of memory that is bound once, because binding takes
    longer. Large ones are bound in each call."""

    def __init__(self, compiled: Any, artifact: Artifact) -> None:
        import numpy

        self._request = compiled.create_infer_request()
        self._numpy = numpy
        self._is_open = _is_open(compiled)
        specs = () if self._is_open else artifact.outputs
        self._inputs = [
            self._bound(number, spec, self._request.set_input_tensor) for number, spec in enumerate(artifact.inputs)
        ]
        self._outputs = [
            (number, spec, self._bound(number, spec, self._request.set_output_tensor))
            for number, spec in enumerate(specs)
        ]
        self._output_count = len(compiled.outputs)

    def _bound(self, number: int, spec: TensorSpec, bind: Any) -> Any:
        if spec.ranges or math.prod(spec.shape) > MAX_COPIED_ELEMENTS:
            return None
        array = self._numpy.zeros(spec.shape, spec.numpy_type)
        bind(number, shared(array))
        return array

    def infer(self, inputs: Sequence[Any]) -> Sequence[Any]:
        request = self._request
        for number, (buffer, array) in enumerate(zip(self._inputs, inputs, strict=True)):
            if buffer is not None:
                buffer[...] = array
            else:
                request.set_input_tensor(number, shared(self._numpy.ascontiguousarray(array)))
        outputs = []
        for number, spec, buffer in self._outputs:
            output = buffer
            if buffer is None:
                output = self._numpy.empty(spec.shape, spec.numpy_type)
                request.set_output_tensor(number, shared(output))
            outputs.append(output)
        request.infer(share_outputs=True)
        if self._is_open:
            return [request.get_output_tensor(number).data.copy() for number in range(self._output_count)]
        return [
            output if buffer is None else output.copy()
            for output, (_, _, buffer) in zip(outputs, self._outputs, strict=True)
        ]


def bind(request: Any, inputs: Sequence[Any]) -> None:
    for number, array in enumerate(inputs):
        request.set_input_tensor(number, shared(array))


def shared(array: Any) -> Any:
    """Return OpenVINO's view of an array's memory. NumPy has no bfloat16, so words of it are passed."""
    import openvino

    if array.dtype == "uint16":
        return openvino.Tensor(array.view("int16"), openvino.Shape(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)


def _is_open(compiled: Any) -> bool:
    return any(port.partial_shape.is_dynamic for port in compiled.outputs)
