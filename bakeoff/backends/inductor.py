"""torch.compile with Inductor."""

from __future__ import annotations

import contextlib
import logging
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from bakeoff.backends import base, cuda_graph, inductor_profiling, memory_format, quantising, surgical, torch_kernels
from bakeoff.backends.base import CUDA_GRAPH, SURGICAL, Availability, BuildContext, Compiled, Mode, Suits
from bakeoff.backends.buckets import Buckets
from bakeoff.backends.eager import Callables, Steps, torch_available
from bakeoff.backends.profiling import Profiler
from bakeoff.backends.ranges import mark, refuse_a_script, refusing_guards
from bakeoff.backends.runtime.contract import WITH_CUDA_GRAPHS
from bakeoff.backends.standalone import Runtime, ScriptPart, Threads, spelled
from bakeoff.backends.torch_profiling import TorchProfiler
from bakeoff.models.base import Inputs, of_each_shape
from bakeoff.models.lazily import dynamo_utils, inductor_config, torch
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, INFERENCE, TASKS, TRAIN_STEP, Cell, Extent, Placement
from bakeoff.records.text import counted

if TYPE_CHECKING:
    from bakeoff.backends.training import Training

TRIGGERING_CALLS = 3
"""The first call compiles. With CUDA graphs the second warms up on the graph's pool, and the third is recorded."""

FREEZING = "freezing"
"""The mode in which weights are constants, and those of convolutions are packed for oneDNN. As an option of one call of
torch.compile it does nothing: Dynamo only reads the setting of the process, and makes the weights inputs without it."""

AUTOTUNED = "max-autotune-freezing"
"""The mode that also tries products of Inductor's own. On a CPU, `max-autotune` alone has none: they take constants."""

FROZEN: Mapping[str, str] = {FREEZING: "inductor", AUTOTUNED: "inductor/max-autotune"}
"""The modes in which weights are constants, and which configuration is the same without."""

OPTIMIZER_INSIDE = "optimizer-inside"
"""The mode that compiles the optimiser of a training step, too."""

COORDINATE_DESCENT = "coordinate-descent"
"""The mode for decode steps. With one sequence, its options turn products into reductions that Inductor generates and
tunes, and attention is generated, too. Source: gpt-fast (https://github.com/pytorch-labs/gpt-fast)."""

OVERLAPPED = "coordinate-descent-overlapped"
"""`coordinate-descent` with independent kernels in one, and with kernels that start while the one ahead still ends. The
second is Hopper's programmatic dependent launch. It helps small models most, and others not always."""

DESCENTS = frozenset({COORDINATE_DESCENT, OVERLAPPED})

BUCKETS = "buckets"
"""The mode that pads inputs to the next power of two, so that a stream of sizes has only a few shapes."""

ATTENTION = "aten._scaled_dot_product"
"""Inductor leaves fused attention to PyTorch by design. It is counted, and is not a fallback."""


COMPILES_AT_START = (
    "It is compiled at its first start, unless `compiled/` fits: the same torch in the same place, and the same "
    "kind of processor or GPU."
)

REGIONAL = "regional"
"""The mode that compiles one of the layers that repeat, and calls its code for all of them."""

EMULATED = "emulate-precision-casts"
"""The mode in which fused operators round to 16 bits between them, as eager does."""

OF_PARTS = (
    "what is exported is one program of the whole model with its own sizes, and this mode compiles parts of it, or "
    "pads its inputs: export another mode of inductor"
)

PLAIN = Mode(worth_trying=base.ANYWHERE)
REDUCE_OVERHEAD = Mode("reduce-overhead", {"mode": "reduce-overhead"}, Suits("cuda"), replays=base.DEFAULT)
GRAPH = Mode(CUDA_GRAPH, worth_trying=Suits("cuda"), captures=True, built_as=base.DEFAULT)

SIZES_OF_PARTS = "parts that are compiled alone have no inputs of the model, which a range is of"
CONSTANTS_OF_ONE_SIZE = "a size that torch.compile compiles again would get no constants"


class Inductor(base.Backend):
    name = "inductor"
    description = "torch.compile(backend='inductor')"
    usual_build_s = 16.0
    colour = "#e69f00"
    writes_cxx = True
    quantises = True
    writes_caches = True
    modes = (
        PLAIN,
        REDUCE_OVERHEAD,
        Mode("max-autotune", {"mode": "max-autotune"}),
        Mode("max-autotune-no-cudagraphs", {"mode": "max-autotune-no-cudagraphs"}),
        Mode(FREEZING, worth_trying=Suits("cpu", convolutions=True), one_size=CONSTANTS_OF_ONE_SIZE),
        Mode(AUTOTUNED, {"mode": "max-autotune"}, Suits("cpu"), one_size=CONSTANTS_OF_ONE_SIZE),
        GRAPH,
        Mode(COORDINATE_DESCENT, {"options": {"coordinate_descent_tuning": True}}, captures=True),
        Mode(
            OVERLAPPED,
            {
                "options": {
                    "coordinate_descent_tuning": True,
                    "combo_kernels": True,
                    "combo_kernel_allow_mixed_sizes": 2,  # of reductions, too
                    "triton.enable_pdl": True,
                }
            },
            captures=True,
        ),
        Mode(OPTIMIZER_INSIDE),
        Mode(SURGICAL, one_size=SIZES_OF_PARTS, no_script=OF_PARTS),
        Mode(REGIONAL, one_size=SIZES_OF_PARTS, no_script=OF_PARTS),
        Mode(EMULATED, {"options": {"emulate_precision_casts": True}}),
        torch_kernels.BENCHMARK,
        torch_kernels.BENCHMARK.in_channels_last(),
        *torch_kernels.ATTENTION.values(),
        Mode("static", {"dynamic": False}, one_size="this mode builds for one size", redundant=True),
        Mode("dynamic", {"dynamic": True}, redundant=True),
        Mode(
            BUCKETS,
            {"dynamic": False},
            one_size="this mode builds for each power of two",
            redundant=True,
            no_script=OF_PARTS,
        ),
        PLAIN.in_channels_last(Suits("cpu", convolutions=True)),
        REDUCE_OVERHEAD.in_channels_last(),
        GRAPH.in_channels_last(),
    )
    serving: ClassVar[base.ServingKnobs] = base.ServingKnobs(instance="calling thread")
    takes_sparse = True
    takes_streams = True
    takes_ranges = True
    shared_phases = ("export", "compile")
    precompiles = ("cpu",)
    imports: ClassVar[tuple[str, ...]] = ("torch._dynamo", "torch._inductor.compile_fx")
    tasks = TASKS
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torchao")

    def available(self, device: Device) -> Availability:
        if not (available := torch_available(device)):
            return available
        if not device.is_cuda:
            return compiler_available()
        try:
            import triton  # noqa: F401
        except ImportError as error:
            return Availability(f"Inductor needs Triton on CUDA: {error}")
        return base.AVAILABLE

    def precompile(self, device: Device) -> None:
        torch.compile(lambda x: x + 1)(torch.ones(8, device=device))

    def keeps_choices(self, cell: Cell, workspace: Path) -> bool:
        return not torch_kernels.tries_out(self.mode(cell.mode))  # cuDNN keeps nothing on disk

    def times_kernels(self, cell: Cell) -> bool:
        mode = self.mode(cell.mode)
        return cell.mode in DESCENTS or "max-autotune" in str(mode.options.get("mode")) or torch_kernels.tries_out(mode)

    def reason_against(self, cell: Cell) -> str:
        mode = self.mode(cell.mode).plain_name
        if not cell.device.is_cuda and mode == "reduce-overhead":
            return f"mode {cell.mode} is CUDA graphs, and {cell.device} has none: use inductor"
        if not cell.device.is_cuda and cell.mode == "max-autotune-no-cudagraphs":
            return f"on {cell.device} this mode is max-autotune itself: use inductor/max-autotune"
        if mode in FROZEN and cell.precision.is_quantised:
            return f"{against_freezing(cell)}: use {FROZEN[mode]}"
        if cell.mode in DESCENTS and cell.is_trained:
            return f"mode {cell.mode} is for inference: use inductor/{CUDA_GRAPH}"
        if cell.mode == OPTIMIZER_INSIDE and cell.task != TRAIN_STEP:
            return f"task {cell.task} has no optimiser to compile: use inductor"
        if mode in FROZEN and cell.is_trained:
            return f"{mode} makes constants of the weights, and training changes them: use {FROZEN[mode]}"
        if cell.mode == EMULATED and not cell.precision.is_16_bit:
            return f"only precisions of 16 bits are rounded between operators, and not {cell.precision}: use inductor"
        in_parts = (SURGICAL, REGIONAL, *torch_kernels.ATTENTION)
        if cell.mode in in_parts and (cell.task != INFERENCE or cell.precision.is_quantised):
            return f"mode {cell.mode} is for inference, in a precision that casting gives: use inductor"
        return ""

    def script(self, cell: Cell, settings: Mapping[str, object]) -> ScriptPart:
        mode = self.mode(cell.mode)
        compiling = f'call = partial(torch.compile(model, backend="inductor"{spelled(mode.options)}), *inputs)'
        return ScriptPart(
            "\n".join([*torch_kernels.statements(mode), compiling]),
            captures=mode.captures,
            variables=self._variables(cell),
        )

    def loading(self, cell: Cell, settings: Mapping[str, object]) -> Mapping[str, object]:
        return {
            "options": self.mode(cell.mode).options,
            "switches": self.mode(cell.mode).switches,
            "variables": self._variables(cell),
        }

    def _variables(self, cell: Cell) -> Mapping[str, str]:
        return {"TORCHINDUCTOR_FREEZING": "1"} if cell.mode in FROZEN else {}

    def runtime(self, device: Device) -> Runtime:
        # CUDA graphs of torch.compile belong to the thread that made them
        ours = [mode for mode in self.modes if mode.options.get("mode") in WITH_CUDA_GRAPHS and device.is_cuda]
        return Runtime(
            ("model.pt2",),
            ("torch", "numpy"),
            ("torch",),
            loader="torch_programs:load_inductor",
            threads_of_modes={mode.name: Threads.ONE for mode in ours},
            note=COMPILES_AT_START,
            exports_anew=True,
            compiles_at_load=True,
        )

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        import torch._dynamo
        import torch._inductor.config

        refuse_a_script(module)
        if self.mode(context.cell.mode).channels_last_of:
            return memory_format.build(self, module, inputs, context)
        torch_kernels.require(self.mode(context.cell.mode), module, lambda: inputs.call(module))
        if context.training is not None:
            return self._build_training(context.training, inputs, context)
        if context.cell.mode in (SURGICAL, REGIONAL):
            return self._build_parts(module, inputs, context)
        prepared = quantising.prepare(module, inputs, context, lower=False)
        for inputs_of_step in context.calibration if context.cell.task == DECODE else ():
            for cache in inputs_of_step.args[2:]:
                # a CUDA graph may write into an input only if that stays where it is
                torch._dynamo.mark_static_address(cache, guard=False)
        # torch.compile is lazy and compiles in the first call, so the call belongs to this phase
        mark(inputs, context.open_axes)
        options = known_options(self.mode(context.cell.mode).options)
        compiling = prepared.compiling(freezes=context.cell.mode in FROZEN)
        with (
            compiling,
            refusing_guards(context.open_axes),
            inductor_profiling.naming_kernels(context.for_profile) as named,
            InductorLog() as log,
            self._attention(context.cell, inputs),
        ):
            with context.phase("compile"):
                # any `dynamic` but the default is entered and left as a context in every call (5 µs)
                compiled = torch.compile(prepared.module, backend="inductor", **options)
                if context.cell.mode == BUCKETS:
                    compiled = Buckets(prepared.module, [inputs, *context.calibration]).around(compiled)
                others = of_each_shape([inputs, *context.calibration])[1:]
                if others and prepared.layers:
                    raise Unsupported("what is quantised here has one shape, and these inputs have several")
                for example in [prepared.example(), *others]:
                    for _ in range(TRIGGERING_CALLS):
                        example.call(compiled)
                raw = Optimised(prepared.sparing(compiled), context.cell.device, log, named)
                raw.note_built()
                optimised = prepared.adapt(raw)
            captures = self.mode(context.cell.mode).captures
            return cuda_graph.capture(optimised, inputs, context) if captures else optimised

    def _attention(self, cell: Cell, inputs: Inputs) -> AbstractContextManager[object]:
        from bakeoff.backends.attention_products import attention_as_products

        is_one_sequence = cell.task == DECODE and inputs.args[0].shape[0] == 1
        applies = is_one_sequence and cell.mode in DESCENTS
        return attention_as_products(cell.mode == OVERLAPPED) if applies else contextlib.nullcontext()

    def _build_parts(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        """Compile only the targets, each alone, or one for those that are alike. The module's own `forward` calls
        them."""
        alike: dict[str, Any] = {}
        if context.cell.mode == REGIONAL:
            targets = surgical.find_repeated(module)
            # a number in which layers differ, such as their place, becomes an input
            alike = {"allow_unspec_int_on_nn_module": True}
        else:
            targets = surgical.find_targets(module, context.targets)
        outside = surgical.stays_outside(module, targets, inputs)
        with (
            context.phase("compile"),
            torch._dynamo.config.patch(alike),
            inductor_profiling.naming_kernels(context.for_profile) as named,
            InductorLog() as log,
        ):
            for target in targets.values():
                target.forward = torch.compile(target.forward, backend="inductor")
            for _ in range(TRIGGERING_CALLS):
                inputs.call(module)
            optimised = Optimised(module, context.cell.device, log, named)
            optimised.note_built()
        return surgical.SurgicalModule(optimised, targets, outside)

    def _build_training(self, training: Training, inputs: Inputs, context: BuildContext) -> Compiled:
        """Compile the forward pass, its loss and the backward pass together. The optimiser's step is a graph of its
        own, or stays PyTorch's."""
        mode = context.cell.mode
        with context.phase("compile"), InductorLog() as log:
            forward = torch.compile(training.forward, backend="inductor", **self.mode(mode).options)  # type: ignore[call-overload]
            optimise = None
            if mode == OPTIMIZER_INSIDE:
                assert training.optimiser is not None
                optimise = torch.compile(training.optimiser.step, backend="inductor")
            if context.cell.device.is_cuda and mode in (CUDA_GRAPH, OPTIMIZER_INSIDE):
                # a step count on the host would be compiled into one host kernel per parameter
                training.make_capturable()
            steps = OptimisedSteps(Steps(training, forward, optimise), context.cell.device, log)
            steps.bind(inputs)
            steps.compile()
            for _ in range(TRIGGERING_CALLS - 1):
                steps.run()
        return cuda_graph.capture(steps, inputs, context) if mode == CUDA_GRAPH else steps


class FromCounters(Compiled):
    """Reads the placement from what Dynamo and Inductor count and log in the cell's process."""

    _device: Device
    _log: InductorLog
    _breaks_by_design: Counter[str]  # graph breaks that leave no work outside
    _compiled_before: int | None = None  # when the placement was first read, after the warm-up
    _built: tuple[int, int] = (0, 0)  # compilations, and guards that failed, when the build was done

    def note_built(self) -> None:
        """Remember what was compiled so far. What is compiled from now on was compiled again."""
        self._built = self.compilations(), len(inductor_profiling.failed_guards())

    def recompiled(self) -> tuple[str, ...]:
        compilations, guards = self._built
        reasons = list(dict.fromkeys(inductor_profiling.failed_guards()[guards:])) or ["Dynamo names no guard"]
        return tuple(reasons[place % len(reasons)] for place in range(self.compilations() - compilations))

    def placement(self) -> Placement:
        """Read Dynamo's and Inductor's counters, which start at zero in the cell's process, and their logs."""
        counters = dynamo_utils.counters
        graphs = counters["stats"]["unique_graphs"]
        broken = [
            f"graph break: {inductor_profiling.first_sentence(str(reason))}"
            for reason in counters["graph_break"] - self._breaks_by_design
        ]
        broken += self._log.kept_by_pytorch
        skipped = counters["inductor"]["cudagraph_skips"]
        # max-autotune asks for CUDA graphs on every device, and counts a skip on the CPU
        if skipped and self._device.is_cuda:
            reasons = self._log.cuda_graph_skips or ["no reason logged"]
            broken += [f"CUDA graph skipped: {reason}" for reason in dict.fromkeys(reasons)]
        if self._compiled_before is None:
            self._compiled_before = self.compilations()
        if again := self.compilations() - self._compiled_before:
            broken.append(f"compiled {counted(again, 'more time')} after the warm-up")
        if not graphs and not broken:
            broken.append("nothing was compiled, and eager did the work")
        extent = Extent.FALLBACK if graphs == 0 else Extent.PARTIAL if broken else Extent.FULL
        engines = {"inductor graphs": graphs, **generated_and_called()}
        return Placement(
            extent=extent,
            engines=engines,
            fallbacks=broken,
            evidence=[
                "Dynamo's and Inductor's counters (kernels count with those that autotuning tried)",
                "Inductor's logs of kept operators and skipped CUDA graphs",
                *self._log.attention,
            ],
        )

    def compilations(self) -> int:
        counters = dynamo_utils.counters
        return int(counters["stats"]["unique_graphs"]) + int(
            counters["inductor"]["cudagraph_recorded_non_static_inputs"]
        )


class Optimised(FromCounters, Callables):
    """Runs what torch.compile made. In CUDA-graph modes the next call overwrites its results, so `outputs` clones."""

    def __init__(
        self, function: Callable[..., object], device: Device, log: InductorLog, named: inductor_profiling.NamedKernels
    ) -> None:
        super().__init__(function)
        self._device = device
        self._log = log
        self._breaks_by_design = Counter()
        self._named = named

    def profiler(self, module: torch.nn.Module) -> Profiler:
        named, work = self._named, inductor_profiling.compiler_work(self._named)
        # hooks take 12 µs of a call: only where Python calls modules, and not one graph of the whole model
        is_one_graph = len(named.graphs) == 1 and not work.breaks and self._function is not module
        hooked = None if is_one_graph else module
        return TorchProfiler(self.run, self._device.is_cuda, named.graphs, hooked, work, named.compile_ids)


class OptimisedSteps(FromCounters, base.Wrapped):
    def __init__(self, steps: Compiled, device: Device, log: InductorLog) -> None:
        super().__init__(steps)
        self._device = device
        self._log = log
        self._breaks_by_design = Counter()

    def compile(self) -> None:
        """Make the first call, which compiles. Torch's optimisers break the graph around their own step on purpose. No
        work is left outside, so that is not a fallback."""
        counters = dynamo_utils.counters
        for name, part in self.stages():
            before = Counter(counters["graph_break"])
            part()
            if name == "optimizer":
                asked_for = {reason for reason in counters["graph_break"] if "torch._dynamo.graph_break()" in reason}
                breaks = counters["graph_break"] - before
                self._breaks_by_design = Counter({reason: breaks[reason] for reason in asked_for})


def against_freezing(cell: Cell) -> str:
    """Return why no mode freezes the weights of a cell whose precision rounds them."""
    if cell.precision is Precision.INT8 and not cell.device.is_cuda:
        return f"on {cell.device}, int8 is always frozen"
    return f"as constants, weights of {cell.precision} would be floating-point numbers of full size"


def known_options(mode: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments of a mode. Raises Unsupported where this version of Inductor lacks one of its options."""
    for name in mode.get("options", {}):
        try:
            operator.attrgetter(name)(inductor_config)
        except AttributeError:
            raise Unsupported(f"Inductor of torch {torch.__version__} has no option {name}") from None
    return mode


def generated_and_called() -> dict[str, int]:
    from torch._inductor import metrics

    calls = dynamo_utils.counters["inductor"]["extern_calls"]
    return {"generated kernels": metrics.generated_kernel_count, "library calls": calls}


SKIPPING = "skipping cudagraphs due to "


class InductorLog(logging.Handler):
    """Collects, inside a `with` block, what Inductor logs about work that it does not compile."""

    # this one says which operators stay PyTorch's kernels; its hints are off by default
    FALLBACKS = "torch._inductor.graph.__perf_hints"
    # one of these says why a CUDA graph was skipped, which the counter does not: in torch 2.8 that of the hints
    SKIPS = tuple(f"torch._inductor.cudagraph_utils.__{name}" for name in ("cudagraphs", "perf_hints"))

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._kept: Counter[str] = Counter()
        self.cuda_graph_skips: list[str] = []
        self._level = logging.NOTSET

    @property
    def attention(self) -> list[str]:
        """The kernels of torch's attention that the code calls, in a sentence. How often it does so is not logged."""
        kernels = dict.fromkeys(filter(None, map(torch_kernels.kernel_of, self._kept)))
        return [f"Inductor's log of attention that stays torch's: {', '.join(kernels)}"] if kernels else []

    @property
    def kept_by_pytorch(self) -> list[str]:
        """The operators, except fused attention, that no kernel was generated for, and how often."""
        return [
            f"{name} stayed PyTorch's kernel ({count})"
            for name, count in self._kept.items()
            if not name.startswith(ATTENTION)
        ]

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.name in self.SKIPS:
            if message.strip().startswith(SKIPPING):
                first_line = message.strip().partition("\n")[0]
                self.cuda_graph_skips.append(first_line.removeprefix(SKIPPING)[:300])
        elif match := re.fullmatch(r"Using FallbackKernel: (?:torch\.ops\.)?(\S+)", message):
            self._kept[match[1].removesuffix(".default")] += 1

    def __enter__(self) -> Self:
        hints = logging.getLogger(self.FALLBACKS)
        self._level = hints.level
        hints.setLevel(logging.INFO)
        for name in (self.FALLBACKS, *self.SKIPS):
            logging.getLogger(name).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(self.FALLBACKS).setLevel(self._level)
        for name in (self.FALLBACKS, *self.SKIPS):
            logging.getLogger(name).removeHandler(self)


def compiler_available() -> Availability:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return Availability("Inductor needs a C++ compiler on the CPU, and none was found: install g++ or set CXX")
    return base.AVAILABLE
