"""The model of a contest, loaded anew for each witness, and what it answers in other types and with noise."""

import gc
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from bakeoff.backends.reasons import is_out_of_memory
from bakeoff.measuring.messages import PhaseBegun, send
from bakeoff.measuring.worker import cell_model, precision
from bakeoff.measuring.worker.cell_model import move_to_device, training_of
from bakeoff.measuring.worker.fingerprint import digest_of_weights, own_files
from bakeoff.measuring.worker.worker_context import explain
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.schema import INFERENCE, TRAIN_STEP, Cell
from bakeoff.records.traits import NO_TRAITS, ModelTraits, Setting
from bakeoff.truth import global_settings
from bakeoff.truth.calls import Outputs, are_alike, may_fail, run_eager
from bakeoff.truth.user_code import noting_reads, users_data, weights_beside, weights_named_in
from bakeoff.truth.witnesses import (
    RUNS_WITH_NOISE,
    KeepFloat64,
    RoundingNoise,
    jolt,
    layer_by_layer,
    type_in,
    use_plain_experts,
)


def outputs_in(model: LoadedModel, cell: Cell, dtype: torch.dtype) -> tuple[Outputs, ...]:
    """Return the outputs of every input set in `dtype`. The model's module must not be used afterwards."""
    if not (model.is_layerwise and cell.task == INFERENCE):
        return run_eager(*move_to_device(model, cell, dtype), training_of(model, cell), model.traits)
    module, sets = move_to_device(model, cell, cell_model.drawn_type(cell))
    with layer_by_layer(module, dtype):
        cast = tuple(inputs.map(lambda tensor: tensor.to(type_in(tensor, dtype))) for inputs in sets)
        return run_eager(module, cast, traits=model.traits)


class Exact(NamedTuple):
    outputs: tuple[Outputs, ...] | None
    computed_in: str
    in_float32: tuple[str, ...] = ()  # operators that lack float64
    why_narrower: str = ""  # how float64 failed
    kept_at: str = ""  # when an earlier run kept them, if it did


WeightsAt = Mapping[str, int] | None
"""The sizes whose weights the model has, if that is said."""


OutputsIn = Callable[[LoadedModel, Cell, "torch.dtype"], tuple[Outputs, ...]]


@dataclass
class Subject:
    """The model of a contest, which is loaded anew for each witness, and what the first of them finds out."""

    cell: Cell
    cwd: Path
    workspace: Path
    connection: Connection | None = None
    weights_at: WeightsAt = None
    outputs_in: OutputsIn = outputs_in
    needs_autograd: bool = False
    phase: str = ""  # the one that was announced last
    traits: ModelTraits = NO_TRAITS
    probes: tuple[Inputs, ...] = ()  # in the cell's precision, on its device
    changed_by_loading: tuple[Setting, ...] = ()  # global settings
    forms: Sequence[str] = ()  # in which the model came, such as with weights in float64
    data_files: Sequence[Path] = ()  # of the user's, which were read while the model was loaded
    runs_with_noise: dict[int, tuple[tuple[Outputs, ...], ...]] = field(default_factory=dict)  # by their roundings

    def announce(self, phase: str) -> None:
        """Report the phase that begins: `model` while the model is loaded, `call` while it is called as it is, and
        `reference` while exact outputs are computed."""
        self.phase = phase
        if self.connection is not None:
            send(self.connection, PhaseBegun(name=phase))

    def gradients(self) -> AbstractContextManager[object]:
        return cell_model.gradients(self.cell.task, self.needs_autograd)

    @property
    def files_read(self) -> list[Path]:
        """The user's files that must be as they are when the run is resumed. Those in the workspace go with it."""
        files = [path for path in self.data_files if not path.is_relative_to(self.workspace.resolve())]
        return sorted({*files, *weights_beside(files), *weights_named_in(own_files())})

    def load(self) -> LoadedModel:
        """Load the model after freeing the memory of the one before it: a large one does not fit beside another."""
        gc.collect()
        if self.cell.device.is_cuda:
            torch.cuda.empty_cache()
        self.announce("model")
        before = global_settings.read()
        with torch.inference_mode(False), noting_reads() as read:  # as the cells' own processes load it
            model = cell_model.load(self.cell, self.cwd, self.weights_at)
            turned_off = () if torch.is_grad_enabled() else (Setting(name="gradients", before="on", after="off"),)
        if not self.cell.is_live:  # which lies in a file of Bakeoff's
            self.data_files = users_data(read)
        os.chdir(self.workspace)
        self.changed_by_loading = self.changed_by_loading or (*global_settings.changed_since(before), *turned_off)
        precision.apply(self.cell.precision)  # the model's file may have changed it
        self.announce("reference")
        self.forms = model.forms
        model = model.understood(self.traits)
        return replace(model, inputs=(*model.inputs, *self.probes))

    def perturbed(self) -> tuple[Outputs, ...]:
        """Return what eager answers from weights and inputs that are moved by up to one rounding, or nothing if it then
        fails, as where it asserts that inputs are at most 1."""
        model = self.load()
        module, sets = move_to_device(model, self.cell)
        with may_fail():
            return run_eager(module, jolt(module, sets), training_of(model, self.cell), self.traits)
        return ()

    def noisy(self, roundings: int = 1) -> tuple[tuple[Outputs, ...], ...]:
        """Return eager's answers in some runs in which each operator's result is moved by up to so many roundings, or
        nothing if a run fails: a model may refuse what is just beyond its range."""
        if roundings not in self.runs_with_noise:
            module, sets = move_to_device(self.load(), self.cell)
            runs = list[tuple[Outputs, ...]]()
            with may_fail():
                for seed in range(RUNS_WITH_NOISE):
                    with RoundingNoise(seed, roundings):
                        runs.append(run_eager(module, sets, traits=self.traits))
            self.runs_with_noise[roundings] = tuple(runs) if len(runs) == RUNS_WITH_NOISE else ()
        return self.runs_with_noise[roundings]

    def repeats(self, answers: Sequence[Outputs]) -> bool:
        """Return True if eager, loaded anew, gives these answers again: then their type alone can differ."""
        module, sets = move_to_device(self.load(), self.cell)
        again = run_eager(module, sets[: len(answers)], traits=self.traits)
        return all(map(are_alike, answers, again))

    def loads_other_weights(self) -> bool:
        return digest_of_weights(self.load().module) != digest_of_weights(self.load().module)

    def exact(self) -> Exact:
        """Return the outputs in the widest type that the model can be computed in: float64, then float64 with the plain
        implementation of a mixture of experts, then float32. They are None if no type wider than the cell's will do."""
        errors: list[Exception] = []
        for name, has_plain_experts in (("float64", False), ("float64", True), ("float32", False)):
            is_pointless = has_plain_experts and is_out_of_memory(errors[-1])
            # beside 16 bits float32 is as good as exact
            if is_pointless or (name == "float32" and not self.cell.precision.is_16_bit):
                continue
            try:
                if exact := self._exact_in(name, has_plain_experts):
                    why = explain(errors[0])[1].sentence if name == "float32" else ""
                    return exact._replace(why_narrower=why)
            except Exception as error:
                traceback.print_exc()
                errors.append(error.with_traceback(None))  # its frames would keep the model, and so fill the device
        # A weight's type rounds both of two runs of a step, so their difference would say nothing.
        if self.cell.task == TRAIN_STEP:
            raise errors[0]
        return Exact(None, self.cell.precision, why_narrower=explain(errors[0])[1].sentence)

    def _exact_in(self, name: str, has_plain_experts: bool) -> Exact | None:
        model = self.load()
        if has_plain_experts and not use_plain_experts(model.module):
            return None
        with KeepFloat64(self.traits.keeps_types) if name == "float64" else nullcontext() as mode:
            outputs = self.outputs_in(model, self.cell, getattr(torch, name))
        return Exact(outputs, name, tuple(mode.in_float32) if mode else ())
