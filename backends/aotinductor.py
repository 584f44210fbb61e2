"""AOTInductor: torch.export, compiled ahead of time into a package, loaded in a process that never saw the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from backends import cuda_graph, quantising
from backends.base import AheadOfTime, Availability, BuildContext, Compiled, Settings
from backends.inductor import Inductor, InductorLog, compiler_available, generated_and_called
from models.base import Inputs
from reports.schema import Cell, Extent, Placement

if TYPE_CHECKING:
    import torch

Function = Callable[[list["torch.Tensor"]], list["torch.Tensor"]]

PACKAGE = "model.pt2"
ACCOUNT = "placement.json"
"""Only the process that compiles knows where the work goes; the one that loads reads it here."""

SHARED_LIBSTDCXX = "libstdc++.so.6"


LINKED = "aot_inductor.custom_op_libs"
"""Inductor's option for further libraries of a package. In a record's settings where it was needed."""


class AOTInductor(AheadOfTime):
    name = "aotinductor"
    description = "torch.export, compiled ahead of time by Inductor into a package, loaded in a fresh process"
    quantises = True
    libraries: ClassVar[tuple[str, ...]] = ("torch", "torchao")
    modes: ClassVar[Mapping[str, Mapping[str, object]]] = {"default": {}, cuda_graph.MODE: {}}

    def available(self, device: str) -> Availability:
        return Inductor().available(device) and compiler_available()  # its wrapper is C++ on CUDA too

    def supports(self, cell: Cell) -> Availability:
        return super().supports(cell) and cuda_graph.supports_capture(cell)

    def package(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> None:
        import torch
        import torch._inductor

        from backends.calling import FlatModule

        prepared = quantising.prepare(module, inputs, context, lower=False)
        flat = prepared.module if prepared.layers else FlatModule(module, inputs)
        # functionalisation does not take inference tensors: export in no_grad, as a user's own script would
        with torch.inference_mode(False), torch.no_grad():
            example = tuple(tensor.clone() for tensor in inputs.tensors())
            with context.phase("export"):
                program = torch.export.export(flat, example)
            with context.phase("compile"), prepared.compiling(), InductorLog() as log:
                torch._inductor.aoti_compile_and_package(
                    program, package_path=str(context.workspace / PACKAGE), inductor_configs=linker_options()
                )
        account = {
            "engines": generated_and_called(),
            "fallbacks": log.kept_by_pytorch,
            "layers": prepared.layers,
            "linked": ", ".join(linker_options().get(LINKED, [])),
        }
        (context.workspace / ACCOUNT).write_text(json.dumps(account))

    def load(self, inputs: Inputs, context: BuildContext) -> Compiled:
        import torch

        graph = context.cell.mode == cuda_graph.MODE
        device = torch.device(context.cell.device)
        with context.phase("load"):
            # aoti_load_package compiles test programs with the host's compiler here, for the sake of a warning: 17 s
            # on our H200 machine, where this takes milliseconds (https://github.com/pytorch/pytorch/issues/191715)
            loader = torch._C._aoti.AOTIModelPackageLoader(
                str(context.workspace / PACKAGE),
                "model",
                graph,  # single-threaded: its locks and events have no place in a captured graph
                1,  # runner
                (device.index or 0) if device.type == "cuda" else -1,
            )
            account = json.loads((context.workspace / ACCOUNT).read_text())
            run: Function = loader.run
            if account["layers"]:
                run = _sparing_inputs(run, inputs, account["layers"])
            loaded: Compiled = Loaded(run, account)
            return cuda_graph.capture(loaded, inputs) if graph else loaded


class Loaded(Compiled):
    """A package's model, called as a C++ deployment calls it: flat tensors in, flat tensors out.

    `AOTICompiledModel.__call__`, the Python convenience, parses the calling convention from JSON in every call.
    """

    def __init__(self, function: Function, account: Mapping[str, Any]) -> None:
        self._function: Function | None = function
        self._account = account
        self._tensors: list[torch.Tensor] = []
        self._outputs: list[torch.Tensor] = []

    def bind(self, inputs: Inputs) -> None:
        self._tensors = list(inputs.tensors())

    def run(self) -> None:
        self._outputs = self._function(self._tensors)  # type: ignore[misc]  # None only once it is closed

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in self._outputs)

    def placement(self) -> Placement:
        fallbacks = list(self._account["fallbacks"])
        return Placement(
            extent=Extent.PARTIAL if fallbacks else Extent.FULL,
            engines=dict(self._account["engines"]),
            fallbacks=fallbacks,
            evidence=["torch.export, which takes the whole graph or none", "Inductor's counters and log of the build"],
        )

    def precision(self) -> Settings:
        return dict(self._account["layers"])

    def settings(self) -> Settings:
        linked = self._account["linked"]
        return {"loaded_and_called_through": "AOTIModelPackageLoader", **({LINKED: linked} if linked else {})}

    def close(self) -> None:
        self._tensors, self._outputs = [], []
        self._function = None


def _sparing_inputs(run: Function, inputs: Inputs, layers: Settings) -> Function:
    """`run`, made to leave alone the inputs that a quantised package would overwrite (`Prepared.sparing`)."""
    import torch

    prepared = quantising.Prepared(torch.nn.Identity(), Inputs(inputs.tensors()), layers)
    spared = prepared.sparing(lambda *tensors: run(list(tensors)))
    return lambda tensors: spared(*tensors)


def linker_options() -> dict[str, Any]:
    """What Inductor needs to be told so that the package can be loaded on this machine.

    Where the compiler finds no shared libstdc++ to link (a dangling symlink is enough, as on the H200 machine that we
    use), the linker silently takes the static one. The package then holds a second C++ runtime whose unique symbols are
    merged with those of the running one, and loading dies with signal 11 in std::regex, which parses the device's name.
    Naming the shared library by its file avoids that.
    """
    if sys.platform != "linux" or _finds_shared_libstdcxx():
        return {}
    return {LINKED: [f":{SHARED_LIBSTDCXX}"]}


def _finds_shared_libstdcxx() -> bool:
    """Whether the C++ compiler would link the shared libstdc++; yes for one that cannot be asked, or has another."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    asked = subprocess.run(
        [get_cpp_compiler(), "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=False
    )
    found = asked.stdout.strip()
    # a compiler that does not find it prints the bare name
    return asked.returncode != 0 or (os.sep in found and Path(found).exists())
