"""ONNX Runtime: on the CPU over arrays of NumPy without torch, and on CUDA over the memory of torch tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .contract import Artifact, Execution, Loaded, Shape
from .errors import BakeoffError
from .lazily import numpy, onnxruntime, torch

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"

ELEMENTS = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "bfloat16": 16,
}
"""The numbers of ONNX's element types, by torch's names."""

CAPTURING_CALLS = 3
"""ONNX Runtime runs twice to allocate memory for a graph, then captures it."""


def session_options(threads: int) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    return options


def cuda_options(device: torch.device, stream_handle: int, tf32: bool, more: Mapping[str, str]) -> dict[str, str]:
    return {
        "device_id": str(device.index or 0),
        "user_compute_stream": str(stream_handle),
        "use_tf32": "1" if tf32 else "0",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        **more,
    }


def run_options() -> Any:
    options = onnxruntime.RunOptions()
    # the caller synchronises the stream, so ONNX Runtime must only enqueue
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    # the default, given explicitly: otherwise 1.31 raises an exception to look it up, 34 µs in every call
    options.add_run_config_entry("gpu_graph_id", "0")
    return options


def open_session(path: object, options: Any, providers: Sequence[Any], wanted: str) -> Any:
    """Return a session. Raise BakeoffError if the `wanted` provider did not start, since ONNX Runtime would silently
    go on without it."""
    # without `enable_fallback=0` its Python side tries other providers when a session fails
    session = onnxruntime.InferenceSession(str(path), options, providers=providers, enable_fallback=0)
    if wanted not in session.get_providers():
        raise BakeoffError(f"ONNX Runtime could not start {wanted} (its log says why)")
    return session


def bind(bind_one: Callable[..., None], names: Sequence[str], tensors: Sequence[Any], spare: int = 0) -> None:
    """Bind tensors of torch or arrays of NumPy, by `bind_input` or `bind_output`. What has no elements has no address:
    `spare` stands for it."""
    for name, tensor in zip(names, tensors, strict=True):
        element, shape = ELEMENTS[str(tensor.dtype).removeprefix("torch.")], tuple(tensor.shape)
        if hasattr(tensor, "data_ptr"):
            index = tensor.device.index or 0
            bind_one(name, tensor.device.type, index, element, shape, tensor.data_ptr() or spare)
        else:
            bind_one(name, "cpu", 0, element, shape, tensor.ctypes.data)


def shapes_by_call(session: Any, inputs: Sequence[Any], device: str, index: int) -> list[Shape]:
    binding = session.io_binding()
    bind(binding.bind_input, [value.name for value in session.get_inputs()], inputs)
    for value in session.get_outputs():
        binding.bind_output(value.name, device, index)
    session.run_with_iobinding(binding)
    return [tuple(value.shape()) for value in binding.get_outputs()]


def are_other_sizes(inferred: Sequence[int | str | None], exported: Sequence[int | None]) -> bool:
    """Return True if a session infers other sizes than the exporter gives, as far as both know them."""
    pairs = zip(inferred, exported, strict=False)
    return any(isinstance(one, int) and other is not None and one != other for one, other in pairs)


def load(artifact: Artifact) -> Loaded:
    if unknown := {spec.type for spec in (*artifact.inputs, *artifact.outputs)} - ELEMENTS.keys():
        raise BakeoffError(f"an exported folder passes no {', '.join(sorted(unknown))} to ONNX Runtime")
    return OnCuda(artifact) if artifact.device.startswith("cuda") else OnCpu(artifact)


class BoundCalls(Execution):
    def __init__(self, session: Any, new_outputs: Callable[[Sequence[Any]], list[Any]], stream: Any = None) -> None:
        self._session, self._new_outputs, self.stream = session, new_outputs, stream
        self._run_options = run_options()
        self._inputs: Sequence[Any] = ()
        self._outputs: list[Any] = []
        self._refused: list[int] = []  # the places of arrays that the session takes for wrong, as their size is
        self._binding: Any = None

    def bind(self, inputs: Sequence[Any]) -> None:
        self._inputs, self._outputs = inputs, self._new_outputs(inputs)  # the binding has only their addresses
        self._binding = self._session.io_binding()
        bind(self._binding.bind_input, [value.name for value in self._session.get_inputs()], inputs)
        values = self._session.get_outputs()
        bind(self._binding.bind_output, [value.name for value in values], self._outputs)
        self._refused = [
            place
            for place, (value, output) in enumerate(zip(values, self._outputs, strict=True))
            if are_other_sizes(value.shape, output.shape) and not hasattr(output, "data_ptr")
        ]

    def run(self) -> None:
        for place in self._refused:
            self._binding.bind_output(self._session.get_outputs()[place].name)
        self._session.run_with_iobinding(self._binding, self._run_options)
        for place in self._refused:
            self._outputs[place][...] = self._binding.get_outputs()[place].numpy()

    def results(self) -> Sequence[Any]:
        return self._outputs


class OnCpu(Loaded):
    takes_arrays = True

    def __init__(self, artifact: Artifact) -> None:
        self._session = open_session(artifact.path, session_options(artifact.settings["threads"]), [CPU], CPU)
        self._session_run = self._session.run
        self._outputs = artifact.outputs
        self._input_names = [value.name for value in self._session.get_inputs()]
        self._output_names = [value.name for value in self._session.get_outputs()]
        self._run_options = run_options()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        fed = dict(zip(self._input_names, inputs, strict=True))
        outputs: Sequence[Any] = self._session_run(self._output_names, fed, self._run_options)
        return outputs

    def execution(self) -> Execution:
        return BoundCalls(self._session, lambda _: [numpy.empty(spec.shape, spec.type) for spec in self._outputs])


class OnCuda(Loaded):
    """A session with a CUDA stream of its own. With a CUDA graph, each call copies its inputs into fixed buffers, and
    its outputs from them."""

    takes_arrays = False

    def __init__(self, artifact: Artifact) -> None:
        from .torch_streams import OwnStream, Replayed, sample_tensors

        settings, self._device = artifact.settings, torch.device(artifact.device)
        self._own = OwnStream(self._device)
        onnxruntime.preload_dlls()  # cuDNN and cuBLAS, from torch's wheels
        options = cuda_options(self._device, self._own.stream.cuda_stream, settings["tf32"], settings["options"])
        self._session = open_session(
            artifact.path, session_options(settings["threads"]), [(CUDA, options), CPU], wanted=CUDA
        )
        self._outputs, self._is_open = artifact.outputs, artifact.is_open
        self._shapes: dict[tuple[Shape, ...], list[Shape]] = {}
        self._calls: Execution = BoundCalls(self._session, self._new_outputs, self._own.stream)
        example = sample_tensors(artifact, self._device)
        if settings["graph"]:
            self._calls.bind(example)
            self._calls = Replayed(example, self._calls.results(), self._calls.run, self._own.stream)
        self._is_graph = settings["graph"]
        for _ in range(CAPTURING_CALLS):
            self.run(example)
        self._own.stream.synchronize()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if self._is_graph:
            from .torch_streams import copy

            outputs = self._new_outputs(inputs)
            with self._own.ordered():
                self._calls.bind(inputs)
                self._calls.run()
                copy(self._calls.results(), outputs)
            return outputs
        self._calls.bind([tensor.contiguous() for tensor in inputs])
        with self._own.ordered():
            self._calls.run()
        return self._calls.results()

    def execution(self) -> Execution:
        return self._calls

    def _new_outputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        shapes = self._open_shapes(inputs) if self._is_open else [spec.shape for spec in self._outputs]
        return [
            torch.empty(shape, dtype=getattr(torch, spec.type), device=self._device)
            for spec, shape in zip(self._outputs, shapes, strict=True)
        ]

    def _open_shapes(self, inputs: Sequence[torch.Tensor]) -> list[Shape]:
        key = tuple(tuple(tensor.shape) for tensor in inputs)
        if key not in self._shapes:
            with self._own.ordered():
                self._shapes[key] = shapes_by_call(self._session, inputs, "cuda", self._device.index or 0)
        return self._shapes[key]
