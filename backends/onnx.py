"""ONNX Runtime, with device-resident bindings: nothing is copied, and numpy is never in the timed path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from backends import cuda_graph
from backends.base import YES, Availability, Backend, BuildContext, Compiled, Settings
from backends.eager import torch_available
from backends.exporting import OnnxModel, export_onnx
from reports.errors import BakeoffError
from reports.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    import torch

    from models.base import Inputs

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}

CAPTURING_CALLS = 3
"""ONNX Runtime runs twice to allocate what the graph will need, then captures."""


class Onnx(Backend):
    name = "onnx"
    description = "ONNX Runtime from the torch.export-based ONNX exporter"
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "default": {},
        cuda_graph.MODE: {"enable_cuda_graph": "1"},
    }
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnx", "onnxscript", "onnxruntime", "onnxruntime-gpu")

    def available(self, device: str) -> Availability:
        for library in ("onnx", "onnxscript", "onnxruntime"):
            try:
                __import__(library)
            except ImportError as error:
                return Availability(f"{library} is not installed ({error}): pip install {library}")
        import onnxruntime

        provider = _provider(device)
        if provider not in onnxruntime.get_available_providers():
            return Availability(
                f"this build of onnxruntime {onnxruntime.__version__} has no {provider}: pip install onnxruntime-gpu"
            )
        return torch_available(device)  # the model, its inputs and the buffers bound to the session are torch's

    def supports(self, cell: Cell) -> Availability:
        if not (supported := super().supports(cell)):
            return supported
        if not (capturable := cuda_graph.supports_capture(cell)):
            return capturable
        if cell.precision == "bf16" and not cell.device.startswith("cuda"):
            return Availability("ONNX Runtime's CPU provider has no bfloat16 kernels for most operators")
        return YES

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        if context.cell.device.startswith("cuda"):
            _load_cuda_libraries()
        with context.phase("export"):
            exported = export_onnx(module, inputs, context.workspace)
        with context.phase("compile"):
            session = _session(exported, context)
            graph = context.cell.mode == cuda_graph.MODE
            bound = Bound(session, exported, inputs, context.cell.device, static_inputs=graph)
            bound.bind(inputs)
            for _ in range(CAPTURING_CALLS if graph else 1):
                bound.run()
        return bound


def _provider(device: str) -> str:
    return PROVIDERS[device.partition(":")[0]]


def _load_cuda_libraries() -> None:
    """cuDNN and cuBLAS lie in torch's wheels: ONNX Runtime finds them there once torch has them loaded."""
    import onnxruntime

    onnxruntime.preload_dlls()


def _session(exported: OnnxModel, context: BuildContext) -> Any:
    """A session whose every option is what the cell says.

    Raises BakeoffError where the asked provider did not come up: ONNX Runtime would go on silently on the CPU.
    """
    import onnxruntime
    import torch

    cell = context.cell
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.intra_op_num_threads = context.threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    provider = _provider(cell.device)
    provider_options: dict[str, str] = {}
    if provider == "CUDAExecutionProvider":
        provider_options = {
            "device_id": str(torch.device(cell.device).index or 0),
            "user_compute_stream": str(torch.cuda.current_stream().cuda_stream),
            "use_tf32": "1" if cell.precision == "tf32" else "0",
            "cudnn_conv_algo_search": "EXHAUSTIVE",
            **{key: str(value) for key, value in Onnx.modes[cell.mode].items()},
        }
    fallback = [] if provider == "CPUExecutionProvider" else ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(
        str(exported.path), options, providers=[(provider, provider_options), *fallback]
    )
    if provider not in session.get_providers():
        raise BakeoffError(f"ONNX Runtime could not start {provider} (its log says why)")
    return session


class Bound(Compiled):
    """A session with its inputs and outputs bound to memory of torch tensors.

    With `static_inputs` (a CUDA graph replays over fixed addresses) binding copies into buffers of its own; without, it
    binds the given tensors themselves.
    """

    def __init__(self, session: Any, exported: OnnxModel, example: Inputs, device: str, static_inputs: bool) -> None:
        import onnxruntime
        import torch

        self._session = session
        self._exported = exported
        self._device = torch.device(device)
        self._static = tuple(tensor.clone() for tensor in example.tensors()) if static_inputs else None
        self._run_options = onnxruntime.RunOptions()
        # the harness synchronises the stream: ONNX Runtime must only enqueue
        self._run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        self._buffers = [
            torch.empty(_static_shape(value), dtype=_torch_type(value.type), device=self._device)
            for value in session.get_outputs()
        ]
        self._bindings: dict[int, tuple[Any, Inputs, tuple[torch.Tensor, ...]]] = {}
        self._current: Any = None
        if self._static is not None:
            self._current = self._binding(self._static)

    def bind(self, inputs: Inputs) -> None:
        if self._static is not None:
            for buffer, tensor in zip(self._static, inputs.tensors(), strict=True):
                buffer.copy_(tensor)
            return
        key = id(inputs)
        if key not in self._bindings:
            tensors = tuple(tensor.contiguous() for tensor in inputs.tensors())
            # `inputs` is kept with its binding, so that its id stays its own
            self._bindings[key] = (self._binding(tensors), inputs, tensors)
        self._current = self._bindings[key][0]

    def run(self) -> None:
        self._session.run_with_iobinding(self._current, self._run_options)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(buffer.clone() for buffer in self._buffers)

    def placement(self) -> Placement | None:
        return assignment(self._session, _provider(str(self._device)))

    def settings(self) -> Settings:
        provider = self._session.get_providers()[0]
        options = self._session.get_provider_options().get(provider, {})
        told = ("use_tf32", "enable_cuda_graph", "cudnn_conv_algo_search")
        kept = {key: options[key] for key in told if key in options}
        return {"provider": provider, **kept}

    def close(self) -> None:
        self._bindings.clear()
        self._current = None
        self._session = None

    def _binding(self, tensors: tuple[torch.Tensor, ...]) -> Any:
        binding = self._session.io_binding()
        index = self._device.index or 0
        for name, tensor in zip(self._exported.input_names, tensors, strict=True):
            binding.bind_input(
                name, self._device.type, index, _onnx_type(tensor.dtype), tuple(tensor.shape), tensor.data_ptr()
            )
        for name, buffer in zip(self._exported.output_names, self._buffers, strict=True):
            binding.bind_output(
                name, self._device.type, index, _onnx_type(buffer.dtype), tuple(buffer.shape), buffer.data_ptr()
            )
        return binding


def assignment(session: Any, provider: str) -> Placement | None:
    """ONNX Runtime's own account of which provider got which node of the graph, before fusion; None before 1.24.

    Nodes that went elsewhere than `provider` are the fallbacks. Shape arithmetic that ONNX Runtime itself prefers on
    the CPU counts too: it costs a synchronisation, and a reader should know.
    """
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    engines: dict[str, int] = {}
    elsewhere: list[str] = []
    for part in session.get_provider_graph_assignment_info():
        nodes = part.get_nodes()
        engines[part.ep_name] = engines.get(part.ep_name, 0) + len(nodes)
        if part.ep_name != provider:
            elsewhere += [f"{node.op_type} on {part.ep_name}" for node in nodes]
    counted = [f"{name} ({elsewhere.count(name)})" for name in dict.fromkeys(elsewhere)]
    extent = Extent.FALLBACK if not engines.get(provider) else Extent.PARTIAL if counted else Extent.FULL
    return Placement(extent=extent, engines=engines, fallbacks=counted)


def _static_shape(value: Any) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in value.shape):
        raise BakeoffError(
            f"output '{value.name}' has no static shape ({value.shape}), so no buffer can be bound to it"
        )
    return tuple(value.shape)


def _onnx_type(dtype: torch.dtype) -> int:
    """The element type's number in ONNX."""
    import onnx
    import torch

    names = {
        torch.float32: "FLOAT",
        torch.float64: "DOUBLE",
        torch.float16: "FLOAT16",
        torch.bfloat16: "BFLOAT16",
        torch.int8: "INT8",
        torch.uint8: "UINT8",
        torch.int16: "INT16",
        torch.int32: "INT32",
        torch.int64: "INT64",
        torch.bool: "BOOL",
    }
    return int(onnx.TensorProto.DataType.Value(names[dtype]))


def _torch_type(name: str) -> torch.dtype:
    """The torch type of what ONNX Runtime calls `tensor(float)`."""
    import torch

    types = {"float": torch.float32, "double": torch.float64}
    inner = name.removeprefix("tensor(").removesuffix(")")
    dtype = types.get(inner) or getattr(torch, inner)
    assert isinstance(dtype, torch.dtype)
    return dtype
