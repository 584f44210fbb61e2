"""What torch itself loads: TorchScript, AOTInductor's packages, programs for torch.compile, and models themselves."""

import contextlib
import copyreg
import functools
import math
import os
import pkgutil
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch.utils import _pytree as pytree

from .contract import WARMING_CALLS, WITH_CUDA_GRAPHS, Artifact, Execution, Loaded, Shape
from .torch_streams import OwnStream, Replayed, copy, sample_tensors

COMPILED, MADE_BY = "compiled", "made_by.txt"
"""The folder beside a program with what was compiled when it was exported, and the file there that says where."""

Tensors = Sequence[torch.Tensor]
Function = Callable[[list[torch.Tensor]], Tensors]
Prepare = Callable[[Tensors], list[torch.Tensor]]
CallWith = Callable[[list[torch.Tensor]], Callable[[], object]]


def open_torchscript(path: object, device: object) -> Any:
    return torch.jit.load(str(path), map_location=str(device))  # type: ignore[no-untyped-call]


def load_torchscript(artifact: Artifact) -> Loaded:
    module = open_torchscript(artifact.path, artifact.device)
    return called(artifact, lambda tensors: module(*tensors))


def open_package(path: object, options: Mapping[str, object], device: torch.device, runners: int = 1) -> Any:
    """Return the loader of AOTInductor's package, whose `run` takes and returns a list of tensors, as C++ calls it."""
    index = -1 if device.type == "cpu" else device.index or 0
    is_single_threaded = bool(options.get("run_single_threaded", False))
    # `aoti_load_package` compiles test programs for a warning, 17 s on an H200 machine (pytorch issue 191715).
    return torch._C._aoti.AOTIModelPackageLoader(str(path), "model", is_single_threaded, runners, index)


def load_aotinductor(artifact: Artifact) -> Loaded:
    package = open_package(artifact.path, artifact.settings["options"], torch.device(artifact.device))
    strides: dict[int, Shape] = {number: tuple(compiled) for number, compiled in artifact.settings["strides"]}

    def laid_out(tensors: Tensors) -> list[torch.Tensor]:
        outcome = list(tensors)
        for number, compiled in strides.items():
            tensor, example = tensors[number], artifact.inputs[number].shape
            outcome[number] = _laid_out(tensor, strides_at(tuple(tensor.shape), compiled, example))
        return outcome

    return called(artifact, package.run, laid_out if strides else list, needs_no_grad=False)


def strides_at(shape: Shape, strides: Shape, of_shape: Shape) -> Shape:
    """Return the strides of a tensor of this shape in the layout that has these strides at another shape. A stride
    grows with the sizes of the dimensions within it."""
    dimensions = range(len(shape))
    within = [[inner for inner in dimensions if 0 < strides[inner] < strides[outer]] for outer in dimensions]
    return tuple(
        strides[outer] * math.prod(shape[inner] for inner in inners) // math.prod(of_shape[inner] for inner in inners)
        for outer, inners in enumerate(within)
    )


def _laid_out(tensor: torch.Tensor, strides: Shape) -> torch.Tensor:
    if tensor.stride() == strides:
        return tensor
    length = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    result = tensor.new_empty(length).as_strided(tensor.shape, strides)
    once = tuple(slice(None if stride else 1) for stride in strides)  # an expanded tensor holds each value once
    result[once].copy_(tensor[once])
    return result


def load_inductor(artifact: Artifact) -> Loaded:
    """Compile the program, unless what was compiled when it was exported fits, or Inductor's cache here has it."""
    import torch._inductor.config

    brought = bring_compiled(artifact.path.parent / COMPILED)
    before = Compiled.now()
    settings = artifact.settings
    with warnings.catch_warnings():  # torch.export reads weights into memory that it does not write to
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        module: Any = torch.export.load(artifact.path).module()
    if settings["channels_last"]:
        module = module.to(memory_format=torch.channels_last)
    compiled: Any = torch.compile(module.forward, backend="inductor", **settings["options"])
    example = _prepare(artifact)(sample_tensors(artifact, torch.device(artifact.device)))
    options = {"freezing": "TORCHINDUCTOR_FREEZING" in settings["variables"]}
    if hasattr(torch._inductor.config, "cpp_cache_precompile_headers"):
        options["cpp_cache_precompile_headers"] = False  # this takes seconds, also where nothing is compiled
    buffers = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    # calls in the other mode would be compiled again
    with getattr(torch, settings["calling"])(), torch._inductor.config.patch(options), alike_in_all_programs():
        for _ in range(WARMING_CALLS):
            compiled(*example)
        if brought and Compiled.now().is_more_than(before):
            text = f"{artifact.path.name} was compiled anew: what came with it, of {brought}, does not fit {maker()}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        for buffer, value in buffers:  # what the model keeps from call to call begins anew
            buffer.copy_(value)
    if artifact.device.startswith("cuda") and settings["options"].get("mode") in WITH_CUDA_GRAPHS:
        return called(artifact, lambda tensors: [output.clone() for output in compiled(*tensors)])
    return called(artifact, lambda tensors: compiled(*tensors))


@contextlib.contextmanager
def alike_in_all_programs() -> Iterator[None]:
    """Have Inductor's cache find a graph in each program. Its key is pickled, and pickle names a memory format by the
    first imported module that has torch in a variable. It also has the precision of products, which computes alike
    where nobody has set it and where it is IEEE float32."""
    before, matmul = copyreg.dispatch_table.get(torch.memory_format), torch.backends.cuda.matmul
    is_unset = getattr(matmul, "fp32_precision", "") == "none"  # torch before 2.9 has no such attribute
    copyreg.pickle(torch.memory_format, _by_name)
    if is_unset:
        matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        if is_unset:
            matmul.fp32_precision = "none"
        del copyreg.dispatch_table[torch.memory_format]
        if before is not None:
            copyreg.pickle(torch.memory_format, before)


def _by_name(memory_format: torch.memory_format) -> tuple[Callable[[str], torch.memory_format], tuple[str]]:
    return pkgutil.resolve_name, (str(memory_format).replace(".", ":", 1),)


def bring_compiled(folder: Path) -> str:
    """Put what was compiled elsewhere into Inductor's cache on this machine. Return who compiled it, or nothing.
    `torch.compiler.save_cache_artifacts` leaves out the libraries of C++, which take longest on a CPU."""
    from torch._inductor.codecache import cache_dir  # type: ignore[attr-defined]  # it is imported there

    if not folder.is_dir():
        return ""
    shutil.copytree(folder, cache_dir(), dirs_exist_ok=True, copy_function=_copy_new)
    return (folder / MADE_BY).read_text(encoding="utf-8")


def _copy_new(source: str, target: str) -> None:
    """Copy a file that is not there. It appears whole, since other processes may load it."""
    if not os.path.exists(target):
        partial = f"{target}.{os.getpid()}"
        shutil.copyfile(source, partial)
        os.replace(partial, target)


class Compiled(NamedTuple):
    """What this process has compiled: other processes, which compile meanwhile, share Inductor's cache with it."""

    graphs: int
    """How many graphs Inductor's cache did not have."""
    loaded: frozenset[str]
    """Keys of the libraries of C++ that are loaded."""
    kept: frozenset[str]
    """Keys of the libraries of C++ that Inductor's cache has."""

    @classmethod
    def now(cls) -> Self:
        from torch._dynamo.utils import counters
        from torch._inductor import codecache

        caches = {one for one in vars(codecache).values() if isinstance(one, type) and hasattr(one, "load_async")}
        loaded = frozenset(str(key) for one in caches for key in getattr(one, "cache", ()))
        files = Path(codecache.cache_dir()).glob("*/*.so")  # type: ignore[attr-defined]  # it is imported there
        return cls(
            counters["inductor"]["fxgraph_cache_miss"], loaded, frozenset(file.name.partition(".")[0] for file in files)
        )

    def is_more_than(self, before: Self) -> bool:
        return self.graphs != before.graphs or bool(self.loaded - before.loaded - before.kept)


def maker() -> str:
    """Return what decides whether compiled code fits: torch with its place, the GPU or the processor, and TF32."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else torch.backends.cpu.get_cpu_capability()
    tf32 = "with" if computes_in_tf32() else "without"
    return f"torch {torch.__version__} in {Path(torch.__file__).parent} for {device} {tf32} TF32"


def computes_in_tf32() -> bool:
    """Return whether products of float32 may use TF32 in this process."""
    matmul = torch.backends.cuda.matmul
    # a program that sets this one makes the older switches raise, and torch before 2.9 does not have it
    return bool(matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32)


def load_model(artifact: Artifact) -> Loaded:
    """Load a model that was pickled, with the arguments of a call. It is called as it was measured, uncompiled."""
    kept = torch.load(artifact.path, map_location=artifact.device, weights_only=False)
    model = kept["model"]
    if artifact.settings["channels_last"]:
        model = model.to(memory_format=torch.channels_last)
    leaves, structure = pytree.tree_flatten((kept["args"], kept["kwargs"]))

    def call_with(tensors: Tensors) -> Callable[[], object]:
        remaining = iter(tensors)
        given = [next(remaining) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(given, structure)
        return functools.partial(model, *args, **kwargs)

    return called(artifact, lambda tensors: list(tensors_in(call_with(tensors)())), call_with=call_with)


def tensors_in(answer: Any) -> Iterator[torch.Tensor]:
    if isinstance(answer, torch.Tensor):
        yield answer
    elif isinstance(answer, Mapping | list | tuple) or (hasattr(answer, "__dict__") and not callable(answer)):
        parts = answer if isinstance(answer, Mapping | list | tuple) else vars(answer)
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            yield from tensors_in(part)


def _prepare(artifact: Artifact) -> Prepare:
    """Return what puts inputs where the build wants them: images in channels_last memory for a mode of that name."""

    def ordered(tensors: Tensors) -> list[torch.Tensor]:
        images = torch.channels_last
        return [tensor.contiguous(memory_format=images) if tensor.dim() == 4 else tensor for tensor in tensors]

    return ordered if artifact.settings["channels_last"] else list


def called(
    artifact: Artifact,
    function: Function,
    prepare: Prepare | None = None,
    needs_no_grad: bool = True,
    call_with: CallWith | None = None,
) -> Loaded:
    """Return a function of torch with what its calls need around it. Only the call that `call_with` returns for
    prepared inputs is measured: by default, that of the function."""
    prepare = prepare or _prepare(artifact)
    if artifact.settings["graph"]:
        return Captured(artifact, function, prepare)
    return Called(function, prepare, needs_no_grad, call_with or (lambda tensors: functools.partial(function, tensors)))


class Calls(Execution):
    def __init__(self, call_with: CallWith, prepare: Prepare) -> None:
        self._call_with, self._prepare = call_with, prepare
        self._call: Callable[[], object] = tuple
        self._answer: object = ()

    def bind(self, inputs: Tensors) -> None:
        self._call = self._call_with(self._prepare(inputs))

    def run(self) -> None:
        self._answer = self._call()

    def results(self) -> Tensors:
        return list(tensors_in(self._answer))


class Called(Loaded):
    """Calls a function of torch on the caller's current stream. It must return new tensors from each call."""

    takes_arrays = False

    def __init__(self, function: Function, prepare: Prepare, needs_no_grad: bool, call_with: CallWith) -> None:
        self._function, self._prepare, self._call_with = function, prepare, call_with
        self._needs_no_grad = needs_no_grad

    def run(self, inputs: Tensors) -> Tensors:
        if not self._needs_no_grad:
            return self._function(self._prepare(inputs))
        with torch.no_grad():
            return self._function(self._prepare(inputs))

    def execution(self) -> Execution:
        return Calls(self._call_with, self._prepare)


class Captured(Loaded):
    """Replays a CUDA graph over fixed buffers, which each call copies its inputs into and its outputs from."""

    takes_arrays = False

    def __init__(self, artifact: Artifact, function: Function, prepare: Prepare) -> None:
        self._own = OwnStream(torch.device(artifact.device))
        self._function = function  # its weights and kernels are what the graph works with
        example = sample_tensors(artifact, self._own.device)
        self._graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), self._own.ordered():
            self._buffers = prepare([tensor.clone() for tensor in example])
            for _ in range(WARMING_CALLS):
                function(self._buffers)
            self._own.stream.synchronize()
            with torch.cuda.graph(self._graph, stream=self._own.stream):
                self._results = function(self._buffers)

    def run(self, inputs: Tensors) -> Tensors:
        with torch.no_grad():
            outputs = [torch.empty_like(result) for result in self._results]
            with self._own.ordered():
                copy(inputs, self._buffers)
                self._graph.replay()
                copy(self._results, outputs)
        return outputs

    def execution(self) -> Execution:
        return Replayed(self._buffers, self._results, self._graph.replay, self._own.stream)
