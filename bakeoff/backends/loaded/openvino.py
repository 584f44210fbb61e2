"""OpenVINO over arrays of NumPy, without torch. Each thread has an inference request of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from bakeoff.backends.loaded.contract import Artifact, Loaded


def load(artifact: Artifact) -> Loaded:
    return Requests(artifact)


class Requests(Loaded):
    """A compiled model, with a request for each thread that calls it."""

    takes_arrays = True

    def __init__(self, artifact: Artifact) -> None:
        import numpy
        import openvino

        settings = artifact.settings
        properties = {
            "INFERENCE_PRECISION_HINT": settings["hint"],
            "INFERENCE_NUM_THREADS": settings["threads"],
            **settings["options"],
        }
        core = openvino.Core()
        self._compiled = core.compile_model(core.read_model(artifact.path), "CPU", properties)
        self._is_open = any(port.partial_shape.is_dynamic for port in self._compiled.outputs)
        self._outputs = [(spec.shape, _numpy_type(spec.type), spec.type == "bfloat16") for spec in artifact.outputs]
        self._words = [spec.type == "bfloat16" for spec in artifact.inputs]
        self._has_words = any(self._words)
        self._empty, self._contiguous = numpy.empty, numpy.ascontiguousarray
        self._tensor, self._shape, self._bf16 = openvino.Tensor, openvino.Shape, openvino.Type.bf16
        self._local = threading.local()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        try:
            request = self._local.request
        except AttributeError:
            request = self._local.request = self._compiled.create_infer_request()
        for position, array in enumerate(inputs):
            if not array.flags.c_contiguous:
                array = self._contiguous(array)
            request.set_input_tensor(position, self._shared(array, self._has_words and self._words[position]))
        if self._is_open:
            request.infer(share_outputs=True)
            return [request.get_output_tensor(number).data.copy() for number in range(len(self._outputs))]
        outputs = []
        for number, (shape, kind, is_words) in enumerate(self._outputs):
            output = self._empty(shape, kind)
            request.set_output_tensor(number, self._shared(output, is_words))
            outputs.append(output)
        request.infer(share_outputs=True)
        return outputs

    def _shared(self, array: Any, is_words: bool) -> Any:
        """Return OpenVINO's view of an array's memory. NumPy has no bfloat16, so words of it are passed."""
        if is_words:
            return self._tensor(array.view("int16"), self._shape(array.shape), self._bf16)
        return self._tensor(array, shared_memory=True)


def _numpy_type(name: str) -> str:
    return "uint16" if name == "bfloat16" else name
