"""PyTorch without a compiler: the baseline, and the pieces that other backends build on."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from bakeoff.backends import base, cuda_graph, fast_path, memory_format, quantising, torch_kernels
from bakeoff.backends.base import Availability, Compiled, Mode
from bakeoff.backends.model_changes import CHANGES
from bakeoff.backends.profiling import Profiler
from bakeoff.backends.standalone import Runtime, ScriptPart
from bakeoff.backends.torch_profiling import ModuleProfiler, TorchProfiler, graph_kernels, is_on_cuda
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import pytree, torch
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import INFERENCE, TASKS, Cell, Extent, Placement
from bakeoff.records.text import counted

if TYPE_CHECKING:
    from bakeoff.backends.training import Training


PLAIN = Mode(worth_trying=base.ANYWHERE, any_size=True, fast_path=True)
GRAPH = Mode(base.CUDA_GRAPH, worth_trying=base.Suits("cuda"), captures=True, fast_path=True)
BENCHMARK = replace(torch_kernels.BENCHMARK, any_size=True, fast_path=True)


class Eager(base.Backend):
    name = "eager"
    description = "PyTorch eager, torch.inference_mode"
    usual_build_s = 1.5
    colour = "#4d4d4d"
    tasks = TASKS
    takes_sparse = True
    takes_streams = True
    quantises = True
    writes_caches = True
    modes: ClassVar[tuple[Mode, ...]] = (
        PLAIN,
        GRAPH,
        PLAIN.in_channels_last(),
        GRAPH.in_channels_last(),
        BENCHMARK,
        BENCHMARK.in_channels_last(),
        Mode(base.NO_FAST_PATH, any_size=True),
        *torch_kernels.ATTENTION.values(),
        *(Mode(name, fast_path=True, no_script=change.no_script) for name, change in CHANGES.items()),
    )
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torchao")
    serving: ClassVar[base.ServingKnobs] = base.ServingKnobs(instance="calling thread")

    def available(self, device: Device) -> Availability:
        return torch_available(device)

    def times_kernels(self, cell: Cell) -> bool:
        return torch_kernels.tries_out(self.mode(cell.mode))

    def script(self, cell: Cell, settings: Mapping[str, object]) -> ScriptPart:
        mode = self.mode(cell.mode)
        lines = [*torch_kernels.statements(mode), "call = partial(model, *inputs)"]
        return ScriptPart("\n".join(lines), captures=mode.captures)

    def loading(self, cell: Cell, settings: Mapping[str, object]) -> Mapping[str, object]:
        return {"switches": self.mode(cell.mode).switches}

    def runtime(self, device: Device) -> Runtime:
        return Runtime(
            ("model.pt",),
            ("torch", "numpy", "cloudpickle"),
            ("torch",),
            loader="torch_programs:load_model",
            note="It is the model itself, pickled: it loads where the libraries of its code are.",
            exports_anew=True,
            pickles=True,
        )

    def reason_against(self, cell: Cell) -> str:
        is_plain = cell.task == INFERENCE and not cell.precision.is_quantised
        if cell.mode in (*CHANGES, *torch_kernels.ATTENTION) and not is_plain:
            return f"{cell.mode} is for inference in a precision that casting gives: use eager"
        return ""

    def build(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> Compiled:
        if self.mode(context.cell.mode).channels_last_of:
            return memory_format.build(self, module, inputs, context)
        if context.cell.mode == base.NO_FAST_PATH and not fast_path.can_take(module):
            raise Unsupported("the model has no nn.TransformerEncoderLayer or nn.MultiheadAttention: use eager")
        if change := CHANGES.get(context.cell.mode):
            with context.phase("compile"):
                if not change.make(module, inputs):
                    raise Unsupported(f"{change.lacking}: use eager")
        torch_kernels.require(self.mode(context.cell.mode), module, lambda: inputs.call(module))
        captures = self.mode(context.cell.mode).captures
        if context.training is not None:
            compiled: Compiled = Steps(context.training)
            if captures:
                context.training.make_capturable()
        else:
            prepared = quantising.prepare(module, inputs, context, lower=True)
            called = prepared.module if prepared.layers else None
            compiled = prepared.adapt(Callables(prepared.sparing(prepared.module), called))
        return cuda_graph.capture(compiled, inputs, context) if captures else compiled


class EagerAgain(Eager):
    """Eager under another name. `bakeoff selfcheck` enters it beside eager: two equal copies must tie."""

    name = "eager-again"
    description = "eager under another name, for selfcheck"


class Callables(Compiled):
    """Runs a callable that takes the model's own arguments: the module itself, or what torch.compile made of it.
    `quantised` is the copy of the module that it calls instead, if there is one."""

    def __init__(self, function: Callable[..., object], quantised: torch.nn.Module | None = None) -> None:
        self._function = function
        self._quantised = quantised
        self._call: Callable[[], object] = function
        self._outputs: object = None
        self._changes_containers: bool | None = None

    def bind(self, inputs: Inputs) -> None:
        own = inputs.in_own_containers()
        self._call = functools.partial(self._function, *own.args, **own.kwargs)
        if own is not inputs and self._changes_containers is not False:
            leaves, form = pytree.tree_flatten((inputs.args, dict(inputs.kwargs)))
            self._call = functools.partial(self._call_with_own, leaves, form)

    def _call_with_own(self, leaves: list[object], form: pytree.TreeSpec) -> object:
        """Call with new lists and dicts, and note in the first call whether it changes them, as `batch.pop()` does."""
        args, kwargs = pytree.tree_unflatten(leaves, form)
        outputs = self._function(*args, **kwargs)
        if self._changes_containers is None:
            after, form_after = pytree.tree_flatten((args, kwargs))
            self._changes_containers = form_after != form or any(map(operator.is_not, after, leaves))
            if not self._changes_containers:
                self._call = functools.partial(self._function, *args, **kwargs)
        return outputs

    def run(self) -> None:
        self._outputs = self._call()

    def outputs(self) -> tuple[torch.Tensor, ...]:
        from bakeoff.backends.calling import returned_by_call

        return returned_by_call(self._outputs).map(lambda tensor: tensor.detach().clone())

    def results(self) -> tuple[torch.Tensor, ...]:
        from bakeoff.backends.calling import flatten_outputs

        return flatten_outputs(self._outputs)

    def instance(self) -> Compiled:
        return Callables(self._function, self._quantised)

    def placement(self) -> Placement:
        return torch_kernels.placement(self._call)

    def profiler(self, module: torch.nn.Module) -> Profiler:
        from bakeoff.backends.calling import FlatModule

        if isinstance(self._quantised, torch.fx.GraphModule):
            return TorchProfiler(self.run, is_on_cuda(module), [graph_kernels(self._quantised.graph)])
        called = self._quantised or module
        if isinstance(called, FlatModule):
            called = called.module
        return TorchProfiler(self.run, True, module=called) if is_on_cuda(module) else ModuleProfiler(self.run, called)

    def close(self) -> None:
        self._outputs = None


class Steps(Compiled):
    """Runs a training step part by part. `forward` and `optimise` may be given in compiled form."""

    def __init__(
        self,
        training: Training,
        forward: Callable[..., torch.Tensor] | None = None,
        optimise: Callable[[], None] | None = None,
    ) -> None:
        self._training = training
        self._forward = forward or training.forward
        self._optimise = optimise or training.optimise
        self._bound: Inputs | None = None
        self._called_with: Inputs | None = None
        self._loss: torch.Tensor | None = None

    def bind(self, inputs: Inputs) -> None:
        self._bound = inputs

    def run(self) -> None:
        self._run_forward()
        self._run_backward()
        self._optimise()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        parts = (("forward", self._run_forward), ("backward", self._run_backward))
        return (*parts, ("optimizer", self._optimise)) if self._training.optimiser is not None else parts

    def outputs(self) -> tuple[torch.Tensor, ...]:
        assert self._loss is not None and self._called_with is not None
        return self._training.results(self._loss.detach(), self._called_with)

    def restore(self) -> None:
        self._training.restore()

    def placement(self) -> Placement | None:
        return Placement(extent=Extent.FULL)

    def settings(self) -> base.Settings:
        return dict(self._training.settings())

    def close(self) -> None:
        self._training.forget_gradients(self._called_with)
        self._loss = None

    def _run_forward(self) -> None:
        assert self._bound is not None
        # input sets take turns, and the last set's inputs must not keep their gradients
        self._training.forget_gradients(self._called_with)
        self._called_with = self._bound
        self._loss = self._forward(*self._bound.args, **self._bound.kwargs)

    def _run_backward(self) -> None:
        assert self._loss is not None
        self._training.backward(self._loss)


def torch_available(device: Device) -> Availability:
    if not device.is_cuda:
        return base.AVAILABLE
    if torch.version.cuda is None:
        return Availability(f"torch {torch.__version__} is a build without CUDA")
    if not torch.cuda.is_available():
        return Availability("torch sees no CUDA device")
    if (device.cuda_index or 0) >= torch.cuda.device_count():
        devices = counted(torch.cuda.device_count(), "CUDA device")
        return Availability(f"there is no {device}: this machine has {devices}")
    return base.AVAILABLE
