"""TensorRT engines over the memory of torch tensors. Runs measure them through the same classes as `bakeoff.load`.

The API is that of TensorRT 8.6, which 10 and 11 have, too.
"""
# If TensorRT is not installed, mypy takes its ILogger for Any.
# mypy: disallow-subclassing-any=False

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import contract
from .contract import Artifact, Loaded, Shape
from .errors import BakeoffError, Unsupported, first_line
from .lazily import torch, trt

ENGINE, MANIFEST = "model.engine", "engine.json"
"""Files of an artefact: the engine, and the facts about it that it does not report itself."""

ALIGNMENT = 256
"""TensorRT wants tensors at addresses that are multiples of so many bytes."""


@dataclass(frozen=True)
class Manifest:
    """Facts that an engine does not report: its tensors lack the ONNX graph's order (pytorch/TensorRT, pull 1646), and
    before TensorRT 10 an engine has no int64."""

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    output_types: tuple[str, ...]  # those of the graph, by torch's names
    narrowed: tuple[str, ...]  # the names of inputs that are int64 in the graph, and int32 in the engine
    tf32: bool
    builder_optimization_level: int

    def write(self, folder: Path) -> None:
        (folder / MANIFEST).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        facts = json.loads((folder / MANIFEST).read_text())
        read: dict[str, Any] = {name: tuple(fact) if isinstance(fact, list) else fact for name, fact in facts.items()}
        return cls(**read)


class Complaints:
    """The last errors that TensorRT logged. Its functions return None or False, and only its log says why."""

    def __init__(self) -> None:
        self.errors: deque[str] = deque(maxlen=8)

    def failure(self, what: str, *reasons: str) -> Exception:
        """Return an error of one line that says what failed, and why: from `reasons`, or else from the log."""
        why = "; ".join(reasons or self.errors) or "TensorRT logged no error"
        message = " ".join(f"{what}: {why}".split())
        # by the error's type the harness sees that a cell ran out of memory
        return MemoryError(message) if re.search("out ?of ?memory", message, re.IGNORECASE) else BakeoffError(message)

    @contextmanager
    def explain(self, what: str) -> Iterator[None]:
        """Say why a constructor failed. The bindings raise only TypeError if the library returned nothing."""
        try:
            yield
        except TypeError as error:
            raise self.failure(what, *self.errors, first_line(error)) from error


def logger_for(complaints: Complaints) -> trt.ILogger:
    """Return a logger that keeps TensorRT's errors, and sends errors and warnings to the process's log."""
    log = logging.getLogger("tensorrt")

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            super().__init__()

        def log(self, severity: trt.ILogger.Severity, msg: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                complaints.errors.append(msg)
                log.error(msg)
            elif severity == trt.ILogger.WARNING:
                log.warning(msg)

    return Logger()


class Engine:
    """An engine read from a folder, with the log and the runtime that it needs while it lives. Raise BakeoffError or
    MemoryError, with TensorRT's words, if it cannot be read."""

    def __init__(self, folder: Path, device: str) -> None:
        self.manifest = Manifest.read(folder)
        self.device = torch.device(device)
        self.complaints = Complaints()
        self._logger = logger_for(self.complaints)
        trt.init_libnvinfer_plugins(self._logger, "")
        with self.complaints.explain("TensorRT made no runtime"):
            self._runtime = trt.Runtime(self._logger)
        engine = self._runtime.deserialize_cuda_engine((folder / ENGINE).read_bytes())
        if engine is None:
            raise self.complaints.failure("TensorRT could not read its engine back")
        self.engine = engine
        self._names = {engine.get_tensor_name(index) for index in range(engine.num_io_tensors)}
        for name in self._names:
            if engine.get_tensor_location(name) != trt.TensorLocation.DEVICE:
                raise BakeoffError(f"TensorRT wants tensor '{name}' in host memory, which this backend does not bind")
        if missing := [name for name in self.manifest.output_names if name not in self._names]:
            raise BakeoffError(f"the engine has no output {', '.join(missing)}")

    def wanted(self, name: str) -> tuple[Shape, torch.dtype] | None:
        """Return the shape, with -1 for an open axis, and the type of a tensor. None: nothing in the engine reads
        it."""
        if name not in self._names:
            return None
        return tuple(self.engine.get_tensor_shape(name)), torch_type(self.engine.get_tensor_dtype(name))

    def context(self) -> trt.IExecutionContext:
        context = self.engine.create_execution_context()
        if context is None:
            raise self.complaints.failure("TensorRT made no execution context")
        return context

    def close(self) -> None:
        """Free the engine before the runtime, and the runtime before the log. A second call finds nothing to free."""
        for held in ("engine", "_runtime", "_logger"):
            vars(self).pop(held, None)


class Execution(contract.Execution):
    """An execution context of an engine, whose inputs and outputs are the memory of torch tensors. Inputs that TensorRT
    cannot read where they are get copied. Outputs are allocated once for inputs of one shape."""

    def __init__(self, engine: Engine) -> None:
        self._owner = engine
        self.context = engine.context()
        manifest = engine.manifest
        self._inputs = [(name, engine.wanted(name)) for name in manifest.input_names]
        self._outputs = []
        for name, kind in zip(manifest.output_names, manifest.output_types, strict=True):
            shape, dtype = engine.wanted(name) or ((), torch.float32)
            declared: torch.dtype = getattr(torch, kind)
            self._outputs.append((name, shape, dtype, declared))
        self._is_open = any(-1 in wanted[0] for _, wanted in self._inputs if wanted)
        # before version 10 only the first context of an engine has the profile from the start
        if self.context.active_optimization_profile < 0:
            stream = torch.cuda.current_stream(engine.device)
            if not self.context.set_optimization_profile_async(0, stream.cuda_stream):
                raise engine.complaints.failure("TensorRT gave a further context no optimisation profile")
            stream.synchronize()
        self._bound: Sequence[torch.Tensor] = ()
        self._copies: dict[tuple[str, Shape], torch.Tensor] = {}
        self._copied: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._allocated: dict[tuple[Shape, ...], list[torch.Tensor]] = {}
        self._buffers: list[torch.Tensor] = []
        if not self._is_open:
            self._bind_outputs(())

    def bind(self, tensors: Sequence[torch.Tensor]) -> None:
        """Bind inputs, on the current stream. Raise BakeoffError for a shape or a type that the engine does not
        take."""
        self._copied = []
        for (name, wanted), tensor in zip(self._inputs, tensors, strict=True):
            if wanted is None:
                continue
            shape, (axes, dtype) = tuple(tensor.shape), wanted
            fits = len(shape) == len(axes) and all(own in (size, -1) for size, own in zip(shape, axes, strict=True))
            is_narrowed = tensor.dtype is torch.int64 and dtype is torch.int32
            if not fits or not (tensor.dtype is dtype or is_narrowed):
                raise BakeoffError(f"input '{name}' is {tensor.dtype} {shape}, the engine takes {wanted}")
            if self._is_open and not self.context.set_input_shape(name, shape):
                raise self._owner.complaints.failure(f"TensorRT did not take the shape {shape} of input '{name}'")
            self._set_address(name, self._readable(name, tensor, dtype))
        if self._is_open:
            self._bind_outputs(tuple(tuple(tensor.shape) for tensor in tensors))
        self._bound = tensors  # TensorRT holds only their addresses

    def refresh(self) -> None:
        """Copy again what `bind` has copied, after the values of the bound tensors have changed."""
        for copy, tensor in self._copied:
            copy.copy_(tensor, non_blocking=True)

    def enqueue(self, stream_handle: int) -> None:
        if not self.context.execute_async_v3(stream_handle):
            raise self._owner.complaints.failure("TensorRT enqueued nothing")

    def run(self) -> None:
        self.enqueue(current_stream_handle(self._owner.device))

    def results(self) -> list[torch.Tensor]:
        """Return the outputs in the types of the graph. The next call overwrites those that the engine has in the same
        type."""
        return [buffer.to(declared) for buffer, (*_, declared) in zip(self._buffers, self._outputs, strict=True)]

    def close(self) -> None:
        vars(self).pop("context", None)
        self._bound, self._copied, self._buffers = (), [], []
        self._copies.clear()
        self._allocated.clear()

    def _readable(self, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the tensor, or a copy that TensorRT can read. A copy keeps its address in later calls."""
        is_aligned = tensor.numel() and tensor.data_ptr() % ALIGNMENT == 0
        if tensor.dtype is dtype and tensor.is_contiguous() and is_aligned:
            return tensor
        key = (name, tuple(tensor.shape))
        if key not in self._copies:
            # one element more, since an empty tensor has no address
            whole = torch.empty(tensor.numel() + 1, dtype=dtype, device=self._owner.device)
            self._copies[key] = whole[: tensor.numel()].view(tensor.shape) if tensor.numel() else whole
        copy = self._copies[key]
        if tensor.numel():
            copy.copy_(tensor, non_blocking=True)
            self._copied.append((copy, tensor))
        return copy

    def _bind_outputs(self, shapes: tuple[Shape, ...]) -> None:
        """Bind outputs, whose shapes follow from those of the inputs if the engine leaves axes open."""
        if shapes not in self._allocated:
            buffers = []
            for name, fixed, dtype, _ in self._outputs:
                shape = tuple(self.context.get_tensor_shape(name)) if self._is_open else fixed
                if any(size < 0 for size in shape):
                    raise Unsupported(
                        f"output '{name}' has no static shape ({shape}): values in the inputs decide its size, "
                        "and here TensorRT writes to memory of one size"
                    )
                buffers.append(torch.empty(shape, dtype=dtype, device=self._owner.device))
            self._allocated[shapes] = buffers
        self._buffers = self._allocated[shapes]
        for (name, *_), buffer in zip(self._outputs, self._buffers, strict=True):
            self._set_address(name, buffer if buffer.numel() else torch.empty(1, device=self._owner.device))

    def _set_address(self, name: str, tensor: torch.Tensor) -> None:
        if not self.context.set_tensor_address(name, tensor.data_ptr()):
            raise self._owner.complaints.failure(f"TensorRT did not take the address of tensor '{name}'")


def load(artifact: Artifact) -> Loaded:
    from .torch_programs import called

    if not artifact.settings["graph"]:
        return OnCuda(artifact)
    engine = Engine(artifact.path.parent, artifact.device)
    execution = Execution(engine)

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        execution.bind(tensors)
        execution.run()
        return execution.results()

    return called(artifact, call)


class OnCuda(Loaded):
    """An execution context with a CUDA stream of its own, since calls on several streams would share its memory."""

    takes_arrays = False

    def __init__(self, artifact: Artifact) -> None:
        from .torch_streams import OwnStream

        self._engine = Engine(artifact.path.parent, artifact.device)
        self._execution = Execution(self._engine)
        self._own = OwnStream(self._engine.device)
        self._execution.stream = self._own.stream

    def execution(self) -> contract.Execution:
        return self._execution

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        callers = torch.cuda.current_stream(self._engine.device)
        with self._own.ordered():
            self._execution.bind(inputs)
            self._execution.enqueue(self._own.stream.cuda_stream)
            outputs = [output.clone() for output in self._execution.results()]
        for output in outputs:
            output.record_stream(callers)  # its memory is of our stream, and is used on the caller's
        return outputs


def current_stream_handle(device: torch.device) -> int:
    import torch  # in each call that is timed

    return int(torch.cuda.current_stream(device).cuda_stream)


def torch_type(dtype: trt.DataType) -> torch.dtype:
    types = {
        "FLOAT": torch.float32,
        "HALF": torch.float16,
        "BF16": torch.bfloat16,
        "INT8": torch.int8,
        "UINT8": torch.uint8,
        "INT32": torch.int32,
        "INT64": torch.int64,
        "BOOL": torch.bool,
    }
    # TensorRT before 10 has neither BF16 nor INT64
    torch_types: dict[Any, torch.dtype] = {
        getattr(trt.DataType, name): ours for name, ours in types.items() if hasattr(trt.DataType, name)
    }
    if dtype not in torch_types:
        raise BakeoffError(f"torch has no type for TensorRT's {dtype.name}")
    return torch_types[dtype]
