"""ONNX Runtime: on the CPU over arrays of NumPy without torch, and on CUDA over the memory of torch tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bakeoff.backends.loaded.contract import Artifact, Loaded, Shape
from bakeoff.records.errors import BakeoffError

if TYPE_CHECKING:
    import torch

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


def load(artifact: Artifact) -> Loaded:
    if unknown := {spec.type for spec in (*artifact.inputs, *artifact.outputs)} - ELEMENTS.keys():
        raise BakeoffError(f"bakeoff.load passes no {', '.join(sorted(unknown))} to ONNX Runtime: use load.py")
    return OnCuda(artifact) if artifact.device.startswith("cuda") else OnCpu(artifact)


def _options(artifact: Artifact) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = artifact.settings["threads"], 1
    return options


def _run_options() -> Any:
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "0")  # its default, which is slow to look up
    return options


class OnCpu(Loaded):
    """A session that any number of threads call."""

    takes_arrays = True

    def __init__(self, artifact: Artifact) -> None:
        import onnxruntime

        session = onnxruntime.InferenceSession(
            str(artifact.path), _options(artifact), providers=["CPUExecutionProvider"]
        )
        self._session_run = session.run
        self._input_names = [value.name for value in session.get_inputs()]
        self._output_names = [value.name for value in session.get_outputs()]
        self._run_options = _run_options()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        fed = dict(zip(self._input_names, inputs, strict=True))
        outputs: Sequence[Any] = self._session_run(self._output_names, fed, self._run_options)
        return outputs


class OnCuda(Loaded):
    """A session with a CUDA stream of its own.

    With a CUDA graph it replays over fixed buffers, which each call copies its inputs into and its outputs from.
    """

    takes_arrays = False

    def __init__(self, artifact: Artifact) -> None:
        import onnxruntime
        import torch

        from bakeoff.backends.loaded.torch_streams import OwnStream, sample_tensors

        settings, self._device = artifact.settings, torch.device(artifact.device)
        self._own = OwnStream(self._device)
        onnxruntime.preload_dlls()  # cuDNN and cuBLAS, from torch's wheels
        provider_options = {
            "device_id": str(self._device.index or 0),
            "user_compute_stream": str(self._own.stream.cuda_stream),
            "use_tf32": "1" if settings["tf32"] else "0",
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            **settings["options"],
        }
        providers = [("CUDAExecutionProvider", provider_options), "CPUExecutionProvider"]
        # without `enable_fallback=0` its Python side tries other providers when a session fails
        self._session = onnxruntime.InferenceSession(
            str(artifact.path), _options(artifact), providers=providers, enable_fallback=0
        )
        if "CUDAExecutionProvider" not in self._session.get_providers():
            raise BakeoffError("ONNX Runtime could not start its CUDA provider (its log says why)")
        self._run_options = _run_options()
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._inputs, self._outputs = artifact.inputs, artifact.outputs
        self._input_names = [value.name for value in self._session.get_inputs()]
        self._output_names = [value.name for value in self._session.get_outputs()]
        self._is_open = artifact.is_open
        self._shapes: dict[tuple[Shape, ...], list[Shape]] = {}
        self._static: tuple[Any, list[torch.Tensor], list[torch.Tensor]] | None = None
        example = sample_tensors(artifact, self._device)
        if settings["graph"]:
            outputs = self._new_outputs(example)
            self._static = (self._binding(example, outputs), example, outputs)
        for _ in range(CAPTURING_CALLS):
            self.run(example)
        self._own.stream.synchronize()

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        outputs = self._new_outputs(inputs)
        given = [tensor.contiguous() for tensor in inputs]
        with self._own.ordered():
            if self._static is None:
                self._session.run_with_iobinding(self._binding(given, outputs), self._run_options)
            else:
                binding, buffers, results = self._static
                self._own.copy(given, buffers)
                self._session.run_with_iobinding(binding, self._run_options)
                self._own.copy(results, outputs)
        return outputs

    def _new_outputs(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        import torch

        shapes = self._open_shapes(inputs) if self._is_open else [spec.shape for spec in self._outputs]
        return [
            torch.empty(shape, dtype=getattr(torch, spec.type), device=self._device)
            for spec, shape in zip(self._outputs, shapes, strict=True)
        ]

    def _open_shapes(self, inputs: Sequence[torch.Tensor]) -> list[Shape]:
        """Return the shapes of the outputs for inputs of these shapes, which a first call tells."""
        key = tuple(tuple(tensor.shape) for tensor in inputs)
        if key not in self._shapes:
            given = [tensor.contiguous() for tensor in inputs]
            binding = self._session.io_binding()
            self._bind(binding.bind_input, self._input_names, self._inputs, given)
            for name in self._output_names:
                binding.bind_output(name, "cuda", self._device.index or 0)
            with self._own.ordered():
                self._session.run_with_iobinding(binding)
            self._shapes[key] = [tuple(value.shape()) for value in binding.get_outputs()]
        return self._shapes[key]

    def _binding(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        binding = self._session.io_binding()
        self._bind(binding.bind_input, self._input_names, self._inputs, inputs)
        self._bind(binding.bind_output, self._output_names, self._outputs, outputs)
        return binding

    def _bind(self, bind: Any, names: Any, specs: Any, tensors: Sequence[torch.Tensor]) -> None:
        index = self._device.index or 0
        for name, spec, tensor in zip(names, specs, tensors, strict=True):
            bind(name, "cuda", index, ELEMENTS[spec.type], tuple(tensor.shape), tensor.data_ptr())
