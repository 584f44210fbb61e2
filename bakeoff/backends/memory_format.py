"""Modes that keep weights and images in channels_last memory, as PyTorch's guide advises for convolutional networks.

It advises `model.to(memory_format=torch.channels_last)`, and the same for the inputs. A service that follows it fills
its input buffers in that order from the beginning. So inputs are converted by `bind`, outside of the timed interval.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import replace

from bakeoff.backends.base import Backend, BuildContext, Compiled, Settings, Wrapped
from bakeoff.backends.profiling import Profiler
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import torch
from bakeoff.records.errors import Unsupported, first_line


def build(backend: Backend, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
    """Build the plain mode for a copy of the module and for inputs that are in channels_last memory. Raise Unsupported
    if the module has no weight with four dimensions."""
    if all(weight.dim() != 4 for weight in module.parameters()):
        raise Unsupported("the model has no 2-D convolution, so no weight would change its place in memory")
    plain = context.cell.but(mode=backend.mode(context.cell.mode).plain_name)
    sets = tuple(map(converted_inputs, context.calibration))
    context = replace(context, cell=plain, calibration=sets)
    converted = converted_module(module)
    return ChannelsLast(backend.build(converted, converted_inputs(inputs), context), converted)


def converted_module(module: torch.nn.Module) -> torch.nn.Module:
    """Return a copy with weights of four dimensions in channels_last memory. It shares all other tensors."""
    from bakeoff.backends.calling import plain_tensors

    with plain_tensors():
        tensors = itertools.chain(module.parameters(), module.buffers())
        try:
            duplicate = copy.deepcopy(module, {id(tensor): tensor for tensor in tensors if tensor.dim() != 4})
        except Exception as error:  # a module may hold anything, such as a lock
            raise Unsupported(f"Bakeoff cannot copy the model to change its memory: {first_line(error)}") from error
        for tensor in itertools.chain(duplicate.parameters(), duplicate.buffers()):
            if tensor.dim() == 4:
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    return duplicate


def converted_inputs(inputs: Inputs) -> Inputs:
    from bakeoff.backends.calling import plain_tensors

    with plain_tensors():
        return inputs.map(
            lambda tensor: tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor
        )


class ChannelsLast(Wrapped):
    def __init__(self, inner: Compiled, module: torch.nn.Module) -> None:
        super().__init__(inner)
        self._module = module
        self._converted: Sequence[torch.Tensor] = ()

    def profiler(self, module: torch.nn.Module) -> Profiler | None:
        return super().profiler(self._module)

    def bind(self, inputs: Inputs) -> None:
        converted = converted_inputs(inputs)
        self._converted = converted.tensors()
        super().bind(converted)

    def own_inputs(self) -> Sequence[torch.Tensor]:
        return super().own_inputs() or self._converted

    def settings(self) -> Settings:
        return {**super().settings(), "memory_format": "channels_last"}
