"""LiteRT (TensorFlow Lite) on the CPU, converted from torch.export. What it loads needs no torch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from bakeoff.backends import base
from bakeoff.backends.base import Settings
from bakeoff.backends.weight_only import litert_weights
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Placement

MODEL = "model.tflite"
XNNPACK, OWN_KERNELS = "XNNPACK graphs", "LiteRT's own kernels"
DELEGATE = "DELEGATE"
"""What LiteRT names an operator that hands a part of the graph on."""

ACCOUNT = "account.json"
"""What the process that converts writes here: the types of the module's outputs, since LiteRT makes int32 of int64, and
which layers were rounded."""


class LiteRT(base.AheadOfTime):
    name = "litert"
    takes_complex = False
    description = "LiteRT from torch.export, with its XNNPACK delegate, loaded in a fresh process"
    devices = ("cpu",)
    modes = (base.Mode(worth_trying=base.ANYWHERE), base.int8_products())
    quantises = True
    libraries: ClassVar[tuple[str, ...]] = ("torch", "litert-torch", "ai-edge-litert", "ai-edge-quantizer")
    module: ClassVar[str] = "ai_edge_litert"

    def available(self, device: Device) -> base.Availability:
        if device.is_cuda:
            return base.Availability(f"LiteRT runs on the CPU here, not on {device}")
        remedy = (
            "bakeoff env add litert litert-torch ai-edge-litert, which brings jax and other versions of our packages"
        )
        # the process that is measured loads without the converter, which imports jax
        return base.installed("litert", remedy, "ai_edge_litert.interpreter", beside="litert_torch")

    def reason_against(self, cell: Cell) -> str:
        if cell.device.is_cuda or cell.precision not in (Precision.FP32, Precision.W8A32):
            return (
                f"LiteRT's converter takes float32 modules on the CPU, and can round weights to 8 bits, "
                f"not {cell.precision}"
            )
        return ""

    def package(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> None:
        import litert_torch

        from bakeoff.backends.calling import FlatModule, as_called, plain_tensors

        cell, path = context.cell, context.workspace / MODEL
        with context.phase("export"), plain_tensors():
            flat = FlatModule(module, inputs).eval()
            example = as_called(inputs)
            litert_torch.convert(flat, example).export(str(path))
            types = [str(output.dtype).removeprefix("torch.") for output in flat(*example)]
        layers: Settings = {}
        if cell.precision.is_weight_only:
            with context.phase("compile"):
                layers = litert_weights(path, cell.precision, rounds_inputs=cell.mode == base.INT8_PRODUCTS)
        (context.workspace / ACCOUNT).write_text(json.dumps({"types": types, "layers": layers}))

    def load(self, inputs: Inputs, context: base.BuildContext) -> base.Compiled:
        from ai_edge_litert.interpreter import Interpreter

        account = json.loads((context.workspace / ACCOUNT).read_text())
        with context.phase("load"):
            interpreter = Interpreter(str(context.workspace / MODEL), num_threads=context.threads)
            interpreter.allocate_tensors()
            loaded = LoadedFlatbuffer(interpreter, account["types"], account["layers"])
            loaded.bind(inputs)
            loaded.run()
        return loaded


class LoadedFlatbuffer(base.Compiled):
    """An interpreter of LiteRT. Inputs are copied into its tensors when they are bound."""

    def __init__(self, interpreter: Any, types: Sequence[str], layers: Settings) -> None:
        self._interpreter = interpreter
        self._types = types
        self._layers = layers
        (signature,) = interpreter.get_signature_list()
        # the runner must be gone before a call: LiteRT then refuses to run
        runner = interpreter.get_signature_runner(signature)
        self._inputs, self._outputs = _in_order(runner.get_input_details()), _in_order(runner.get_output_details())

    def bind(self, inputs: Inputs) -> None:
        wanted = {detail["index"]: detail["dtype"] for detail in self._interpreter.get_input_details()}
        for index, tensor in zip(self._inputs, inputs.tensors(), strict=True):
            self._interpreter.set_tensor(index, tensor.contiguous().numpy().astype(wanted[index], copy=False))

    def run(self) -> None:
        self._interpreter.invoke()

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(
            torch.from_numpy(self._interpreter.get_tensor(index)).to(getattr(torch, name))
            for index, name in zip(self._outputs, self._types, strict=True)
        )

    def precision(self) -> Settings:
        details = self._interpreter.get_tensor_details()
        counted = Counter(str(getattr(detail["dtype"], "__name__", detail["dtype"])) for detail in details)
        return {**self._layers, **{f"tensors in {name}": count for name, count in sorted(counted.items())}}

    def placement(self) -> Placement | None:
        read = getattr(self._interpreter, "_get_ops_details", None)  # there is no public way
        return placement_of(read(), self._outputs) if read is not None else None

    def settings(self) -> Settings:
        return {"delegate": "XNNPACK, LiteRT's default"}

    def close(self) -> None:
        self._interpreter = None


def placement_of(operators: Iterable[Mapping[str, Any]], outputs: Iterable[int]) -> Placement:
    """Return where operators run, from LiteRT's list of them and the numbers of the tensors that are wanted."""
    makers: dict[int, Mapping[str, Any]] = {}
    for operator in sorted(operators, key=lambda each: each["op_name"] == DELEGATE):
        makers.update(dict.fromkeys(map(int, operator["outputs"]), operator))
    ran: dict[int, str] = {}
    # the list also holds what a delegate has replaced, so each tensor is followed back to what makes it
    wanted = list(map(int, outputs))
    while wanted:
        maker = makers.get(wanted.pop())
        if maker is not None and maker["index"] not in ran:
            ran[maker["index"]] = maker["op_name"]
            wanted += map(int, maker["inputs"])
    left = Counter(name for name in sorted(ran.values()) if name != DELEGATE)
    delegated = len(ran) - left.total()
    return Placement.delegated(XNNPACK, delegated, OWN_KERNELS, left, "LiteRT's list of operators after delegation")


def _in_order(details: Mapping[str, Mapping[str, Any]]) -> list[int]:
    """Return the tensors of a signature in the module's order: it names them args_0, args_1 and output_0, output_1."""
    return [details[name]["index"] for name in sorted(details, key=lambda name: int(name.rpartition("_")[2]))]
