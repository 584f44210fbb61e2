"""ExecuTorch on the CPU: XNNPACK runs the operators of an exported graph that it takes, portable kernels the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from bakeoff.backends import base
from bakeoff.backends.base import Availability
from bakeoff.backends.ranges import exported
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.errors import BakeoffError
from bakeoff.records.schema import Cell, Placement

PROGRAM = "model.pte"
ACCOUNT = "placement.json"
"""The process that lowers the model writes here which operators XNNPACK took, for the process that loads."""

XNNPACK = "XnnpackBackend"
DELEGATED, PORTABLE = "XNNPACK", "portable kernels"
COMPUTES_NOTHING = ("alloc", "getitem")
"""What ExecuTorch's account lists beside operators: memory, and the choice of one of several results."""


class ExecuTorch(base.AheadOfTime):
    name = "executorch"
    takes_complex = False
    description = "ExecuTorch from torch.export, delegated to XNNPACK, loaded in a fresh process"
    devices = ("cpu",)
    libraries: ClassVar[tuple[str, ...]] = ("torch", "executorch")
    module: ClassVar[str] = "executorch"

    def available(self, device: Device) -> Availability:
        if device.is_cuda:
            return Availability(f"ExecuTorch runs on the CPU here, not on {device}")
        remedy = "pip install executorch, or bakeoff env add executorch executorch"
        if not (imports := base.installed("executorch", remedy, "executorch.runtime")):
            return imports
        from executorch.runtime import Runtime

        if not Runtime.get().backend_registry.is_available(XNNPACK):
            return Availability("this build of executorch has no XNNPACK")
        return base.AVAILABLE

    def reason_against(self, cell: Cell) -> str:
        if cell.device.is_cuda or cell.precision.allows_tf32:
            return f"XNNPACK does not compute in {cell.precision} on {cell.device}"
        return ""

    def package(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> None:
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
        from executorch.devtools.backend_debug import get_delegation_info
        from executorch.exir import to_edge_transform_and_lower

        from bakeoff.backends.calling import plain_tensors

        with context.phase("export"):
            graph = exported(module, inputs)
        with context.phase("compile"), plain_tensors():
            lowered = to_edge_transform_and_lower(graph, partitioner=[XnnpackPartitioner()]).to_executorch()
            (context.workspace / PROGRAM).write_bytes(lowered.buffer)
            info = get_delegation_info(lowered.exported_program().graph_module)
        by_operator = info.delegation_by_operator.items()
        counts = {name: (counted.delegated, counted.non_delegated) for name, counted in by_operator}
        (context.workspace / ACCOUNT).write_text(json.dumps(counts))

    def load(self, inputs: Inputs, context: base.BuildContext) -> base.Compiled:
        from executorch.extension.pybindings import portable_lib
        from executorch.runtime import Runtime

        account = json.loads((context.workspace / ACCOUNT).read_text())
        with context.phase("load"):
            portable_lib._unsafe_reset_threadpool(context.threads)  # there is no other way to set it
            if (threads := portable_lib._threadpool_get_thread_count()) != context.threads:
                raise BakeoffError(f"ExecuTorch was asked for {context.threads} threads and took {threads}")
            program = Runtime.get().load_program(str(context.workspace / PROGRAM))
            method = Method(program, account)
            method.bind(inputs)
            method.run()
        return method


class Method(base.FlatCalls):
    """A method of a loaded program. Each call returns tensors of its own."""

    def __init__(self, program: Any, account: Mapping[str, tuple[int, int]]) -> None:
        self._program = program  # a method does not keep its program alive
        super().__init__(program.load_method("forward").execute)
        self._account = account

    def bind(self, inputs: Inputs) -> None:
        self._tensors = [tensor.contiguous() for tensor in inputs.tensors()]

    def placement(self) -> Placement:
        return placement_of(self._account)

    def settings(self) -> base.Settings:
        return {"delegate": XNNPACK}

    def close(self) -> None:
        super().close()
        self._program = None


def placement_of(account: Mapping[str, tuple[int, int]]) -> Placement:
    """Return where operators run, from how often XNNPACK took each of them and how often it did not."""
    counts = {name: pair for name, pair in account.items() if name not in COMPUTES_NOTHING}
    delegated = sum(number for number, _ in counts.values())
    others = {name.removesuffix("_default"): rest for name, (_, rest) in counts.items() if rest}
    evidence = "ExecuTorch's account of what was delegated, by operator"
    return Placement.delegated(DELEGATED, delegated, PORTABLE, others, evidence)
