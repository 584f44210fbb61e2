"""OpenVINO over arrays of NumPy, without torch. Each thread has an inference request of its own."""

import math
import threading
from collections.abc import Sequence
from typing import Any

from bakeoff.backends.loaded.contract import Artifact, Loaded, TensorSpec

MAX_COPIED_ELEMENTS = 16_384
"""A tensor of more elements is bound in each call instead of copied."""


def load(artifact: Artifact) -> Loaded:
    return Requests(artifact)


class Requests(Loaded):
    """A compiled model, with a request for each thread that calls it."""

    takes_arrays = True

    def __init__(self, artifact: Artifact) -> None:
        import openvino

        settings = artifact.settings
        properties = {
            "INFERENCE_PRECISION_HINT": settings["hint"],
            "INFERENCE_NUM_THREADS": settings["threads"],
            **settings["options"],
        }
        core = openvino.Core()
        self._compiled = core.compile_model(core.read_model(artifact.path), "CPU", properties)
        self._artifact = artifact
        self._local = threading.local()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            request = self._local.request
        except AttributeError:
            request = self._local.request = Request(self._compiled, self._artifact)
        return request.infer(inputs)  # type: ignore[no-any-return]


class Request:
    """An inference request. Small tensors are copied into and out of memory that is bound once, because binding takes
    longer. Large ones are bound in each call."""

    def __init__(self, compiled: Any, artifact: Artifact) -> None:
        import numpy

        self._request = compiled.create_infer_request()
        self._numpy = numpy
        # outputs whose sizes depend on the inputs, or on values, stay in memory of OpenVINO's own
        self._is_open = any(port.partial_shape.is_dynamic for port in compiled.outputs)
        specs = () if self._is_open else artifact.outputs
        self._inputs = [
            (number, spec.type == "bfloat16", self._bound(number, spec, self._request.set_input_tensor))
            for number, spec in enumerate(artifact.inputs)
        ]
        self._outputs = [
            (number, spec, self._bound(number, spec, self._request.set_output_tensor))
            for number, spec in enumerate(specs)
        ]
        self._output_count = len(compiled.outputs)

    def _bound(self, number: int, spec: TensorSpec, bind: Any) -> Any:
        """Return memory that is bound for a small tensor of one size, or None."""
        if spec.ranges or math.prod(spec.shape) > MAX_COPIED_ELEMENTS:
            return None
        array = self._numpy.zeros(spec.shape, _numpy_type(spec.type))
        bind(number, _shared(array, spec.type == "bfloat16"))
        return array

    def infer(self, inputs: Sequence[Any]) -> Sequence[Any]:
        request = self._request
        for (number, is_words, buffer), array in zip(self._inputs, inputs, strict=True):
            if buffer is not None:
                buffer[...] = array
            else:
                request.set_input_tensor(number, _shared(self._numpy.ascontiguousarray(array), is_words))
        outputs = []
        for number, spec, buffer in self._outputs:
            output = buffer
            if buffer is None:
                output = self._numpy.empty(spec.shape, _numpy_type(spec.type))
                request.set_output_tensor(number, _shared(output, spec.type == "bfloat16"))
            outputs.append(output)
        request.infer(share_outputs=True)
        if self._is_open:
            return [request.get_output_tensor(number).data.copy() for number in range(self._output_count)]
        return [
            output if buffer is None else output.copy()
            for output, (_, _, buffer) in zip(outputs, self._outputs, strict=True)
        ]


def _shared(array: Any, is_words: bool) -> Any:
    """Return OpenVINO's view of an array's memory. NumPy has no bfloat16, so words of it are passed."""
    import openvino

    if is_words:
        return openvino.Tensor(array.view("int16"), openvino.Shape(array.shape), openvino.Type.bf16)
    return openvino.Tensor(array, shared_memory=True)


def _numpy_type(name: str) -> str:
    return "uint16" if name == "bfloat16" else name
