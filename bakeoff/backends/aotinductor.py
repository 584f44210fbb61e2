"""AOTInductor: an exported graph, compiled ahead of time and loaded in a process that never saw the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from bakeoff.backends import base, cuda_graph, inductor, quantising
from bakeoff.backends.base import Compiled, Mode, Settings, Suits
from bakeoff.backends.eager import torch_available
from bakeoff.backends.exporting import use_exportable_experts
from bakeoff.backends.inductor_profiling import OPTIONS_FOR_NAMES, naming_kernels
from bakeoff.backends.profiling import CompilerWork, Kernel, Profiler, within_flat
from bakeoff.backends.ranges import exported
from bakeoff.backends.standalone import COMPILED_HERE, CppRuntime, Runtime, ScriptPart, Threads, TritonBackend, spelled
from bakeoff.backends.torch_profiling import TorchProfiler, is_on_cuda
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.schema import Cell, Extent, Placement

Function = Callable[[Sequence["torch.Tensor"]], Sequence["torch.Tensor"]]

PACKAGE = "model.pt2"
ACCOUNT = "placement.json"
"""The process that compiles writes here where the work goes, for the process that loads."""

LINES = """\
with torch.no_grad(), TemporaryDirectory() as folder:
    program = torch.export.export(model, inputs)
    package = torch._inductor.aoti_compile_and_package(program, package_path=f"{{folder}}/model.pt2"{configs})
    call = partial(torch._inductor.aoti_load_package(package{loading}), *inputs)"""

LOADING = ("run_single_threaded",)
"""The options of modes that loading takes."""

SINGLE_THREADED = "single-threaded"
"""The mode without locks and events around the package's only runner. With them, a call waits until the GPU has
finished the one before, so the calls of one thread do not queue."""


class AOTInductor(base.AheadOfTime):
    name = "aotinductor"
    description = "torch.export, compiled ahead of time by Inductor into a package, loaded in a fresh process"
    usual_build_s = 24.0
    colour = "#d55e00"
    writes_cxx = True
    quantises = True
    writes_caches = True
    takes_ranges = True
    shared_phases = ("export", "compile")
    precompiles = ("cpu", "cuda")  # the wrapper is C++ on both
    imports: ClassVar[tuple[str, ...]] = ("torch._inductor.compile_fx",)
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torchao")
    serving: ClassVar[base.ServingKnobs] = base.ServingKnobs(instance="runner")
    modes = (
        Mode(worth_trying=Suits("cpu")),
        Mode(SINGLE_THREADED, {"run_single_threaded": True}, Suits("cuda"), built_as=base.DEFAULT),
        # a captured graph takes no locks and events
        Mode(base.CUDA_GRAPH, {"run_single_threaded": True}, Suits("cuda"), captures=True, built_as=base.DEFAULT),
        Mode(inductor.FREEZING, {"freezing": True}, Suits("cpu")),
        Mode(inductor.AUTOTUNED, {"freezing": True, "max_autotune": True}, Suits("cpu")),
    )

    def reason_against(self, cell: Cell) -> str:
        if cell.mode in inductor.FROZEN and cell.device.is_cuda:
            return f"mode {cell.mode} is for CPUs: use {self.name}/{SINGLE_THREADED}"
        if cell.mode in inductor.FROZEN and cell.precision.is_quantised:
            return f"{inductor.against_freezing(cell)}: use {self.name}"
        return ""

    def available(self, device: Device) -> base.Availability:
        return inductor.Inductor().available(device) and inductor.compiler_available()

    def available_to_load(self, device: Device) -> base.Availability:
        return torch_available(device)  # compilers have done their work

    def times_kernels(self, cell: Cell) -> bool:
        return cell.mode == inductor.AUTOTUNED

    def precompile(self, device: Device) -> None:
        if not device.is_cuda:
            return
        import torch._inductor

        class AddOne(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x + 1

        with torch.no_grad(), TemporaryDirectory() as folder:
            program = torch.export.export(AddOne(), (torch.ones(8, device=device),))
            torch._inductor.aoti_compile_and_package(
                program, package_path=f"{folder}/{PACKAGE}", inductor_configs=linker_options()
            )

    def script(self, cell: Cell, settings: Mapping[str, object]) -> ScriptPart:
        mode = self.mode(cell.mode)
        linked = settings.get(LINKED)  # by the process that compiled
        configs = {**inductor_configs(mode.options), **({LINKED: [linked]} if linked else {})}
        return ScriptPart(
            LINES.format(
                configs=spelled({"inductor_configs": configs}) if configs else "",
                loading=spelled(self.loading(cell, settings)["options"]),
            ),
            ("from tempfile import TemporaryDirectory", "import torch._inductor"),
            captures=mode.captures,
        )

    def loading(self, cell: Cell, settings: Mapping[str, object]) -> dict[str, Any]:
        options = self.mode(cell.mode).options
        return {
            "options": {name: options[name] for name in LOADING if name in options},
            "strides": strides_in(str(settings.get(STRIDES, ""))),
        }

    def runtime(self, device: Device) -> Runtime:
        return Runtime(
            (PACKAGE,),
            ("torch", "numpy"),
            ("torch",),
            loader="torch_programs:load_aotinductor",
            triton=TritonBackend("python", is_script=True),
            cpp=CppRuntime(
                "aotinductor",
                "CMAKE_PREFIX_PATH",
                "import torch; print(torch.utils.cmake_prefix_path)",
                needs_torch=True,
            ),
            threads_of_modes={SINGLE_THREADED: Threads.TURNS},
            note=COMPILED_HERE,
        )

    def package(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> None:
        import torch._inductor.config

        from bakeoff.backends.calling import as_called, plain_tensors

        # on CUDA, transformers calls an operator of torch, and elsewhere a Python function that no package holds
        experts: Settings = {} if context.cell.device.is_cuda else use_exportable_experts(module)
        prepared = quantising.prepare(module, inputs, context, lower=False)
        with plain_tensors():
            with context.phase("export"):
                if prepared.layers:  # its arguments are flat already
                    program = torch.export.export(prepared.module, as_called(inputs))
                else:
                    program = exported(module, inputs, context.open_axes)
            configs = {**inductor_configs(self.mode(context.cell.mode).options), **linker_options()}
            # for a CPU two files are compiled: precompiling headers takes 13 s of a core, and saves 2 s a build
            if not context.cell.device.is_cuda and hasattr(torch._inductor.config.aot_inductor, "precompile_headers"):
                configs["aot_inductor.precompile_headers"] = False
            naming = naming_kernels(context.for_profile, within_flat)
            if context.for_profile:
                configs |= OPTIONS_FOR_NAMES
            with context.phase("compile"), prepared.compiling(), naming as named, inductor.InductorLog() as log:
                torch._inductor.aoti_compile_and_package(
                    program, package_path=str(context.workspace / PACKAGE), inductor_configs=configs
                )
        account = {
            "engines": inductor.generated_and_called(),
            "attention": log.attention,
            "fallbacks": log.kept_by_pytorch,
            "layers": prepared.layers,
            "experts": experts,
            "linked": ", ".join(linker_options().get(LINKED, [])),
            "kernels": [[[kernel.name, *kernel.modules] for kernel in graph] for graph in named.graphs],
            "facts": named.facts,
        }
        (context.workspace / ACCOUNT).write_text(json.dumps(account))

    def load(self, inputs: Inputs, context: base.BuildContext) -> Compiled:
        from bakeoff.backends.runtime.torch_programs import open_package

        options = self.mode(context.cell.mode).options
        with context.phase("load"):
            runners = context.serving.instances if context.serving else 1
            loader = open_package(context.workspace / PACKAGE, options, torch.device(context.cell.device), runners)
            account = json.loads((context.workspace / ACCOUNT).read_text())
            run: Function = loader.run
            # rounding weights alone leaves inputs alone, and a decode step is meant to write into its caches
            if account["layers"] and not context.cell.precision.is_weight_only:
                spared = quantising.sparing_inputs(lambda *tensors: loader.run(list(tensors)), inputs)
                run = lambda tensors: spared(*tensors)  # noqa: E731
            account["strides"] = spelled_strides(inputs.tensors())
            loaded: Compiled = LoadedPackage(run, account, options)
        return cuda_graph.capture(loaded, inputs, context) if context.cell.mode == base.CUDA_GRAPH else loaded


STRIDES = "input_strides"
"""The setting with the strides of inputs that are not contiguous. For others, a package computes something else."""


def spelled_strides(tensors: Sequence[torch.Tensor]) -> str:
    """Return such as `0: 16 2, 3: 256 1 32 4`, or nothing if all tensors are contiguous."""
    strides = {number: tensor.stride() for number, tensor in enumerate(tensors) if not tensor.is_contiguous()}
    return ", ".join(f"{number}: {' '.join(map(str, each))}" for number, each in strides.items())


def strides_in(spelled: str) -> list[tuple[int, list[int]]]:
    pairs = (each.split(": ") for each in spelled.split(", ") if each)
    return [(int(number), [int(stride) for stride in strides.split()]) for number, strides in pairs]


def inductor_configs(mode: Mapping[str, object]) -> dict[str, object]:
    """Return the options of a mode that compiling takes. Loading takes the other ones."""
    return {name: value for name, value in mode.items() if name not in LOADING}


class LoadedPackage(base.FlatCalls):
    """Calls a package's model as a C++ deployment does, with flat tensors in and out. `AOTICompiledModel.__call__`
    would parse the calling convention from JSON in every call."""

    def __init__(self, function: Function, account: Mapping[str, Any], options: Mapping[str, object]) -> None:
        super().__init__(function)
        self._account = account
        self._options = options

    def bind(self, inputs: Inputs) -> None:
        self._tensors = list(inputs.tensors())  # the only sequence that the binding takes

    def instance(self) -> Compiled:
        """Return a caller of the same package, which gives each call a runner of its own."""
        return LoadedPackage(self._function, self._account, self._options)

    def profiler(self, module: torch.nn.Module) -> Profiler:
        kernels = [[Kernel(name, tuple(modules)) for name, *modules in graph] for graph in self._account["kernels"]]
        work = CompilerWork(facts=self._account["facts"])
        return TorchProfiler(self.run, is_on_cuda(module), kernels, work=work)

    def placement(self) -> Placement:
        fallbacks = list(self._account["fallbacks"])
        return Placement(
            extent=Extent.PARTIAL if fallbacks else Extent.FULL,
            engines=dict(self._account["engines"]),
            fallbacks=fallbacks,
            evidence=[
                "torch.export, which takes the whole graph or none",
                "Inductor's counters and log of the build",
                *self._account["attention"],
            ],
        )

    def precision(self) -> Settings:
        return dict(self._account["layers"])

    def settings(self) -> Settings:
        linked = self._account["linked"]
        called = {"loaded_and_called_through": "AOTIModelPackageLoader", **self._options}
        named = {LINKED: linked, STRIDES: self._account["strides"]}
        return {**called, **self._account["experts"], **{name: value for name, value in named.items() if value}}


LINKED = "aot_inductor.custom_op_libs"
"""Inductor's option that names further libraries of a package."""


def linker_options() -> dict[str, Any]:
    if sys.platform != "linux" or _finds_shared_libstdcxx():
        return {}
    # Linked with the static libstdc++, a package holds a second C++ runtime, and loading it ends with signal 11.
    return {LINKED: [":libstdc++.so.6"]}


def _finds_shared_libstdcxx() -> bool:
    from torch._inductor.cpp_builder import get_cpp_compiler

    asked = subprocess.run(
        [get_cpp_compiler(), "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=False
    )
    path = asked.stdout.strip()
    # a compiler that does not find the library prints its bare name
    return asked.returncode != 0 or (os.sep in path and Path(path).exists())
