"""Text generation as two graphs with the cache as explicit tensors: prefill of a prompt, and one decode step.

Each graph is a model of its own for the harness. `prefill` takes tokens (batch, prompt) and returns the last position's
logits and the caches. `decode` takes a token (batch, 1), its position (1) and the caches, and returns the same two.
A cache holds `prompt` + `new_tokens` rows from the start, so shapes never change. Only workers import torch.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from bakeoff.models.base import INPUT_SETS, Decoder, Dimension, Family, Inputs, LoadedModel, Sizes, ends_of_stream
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.schema import DECODE, PREFILL

DIMENSIONS: Mapping[str, Dimension] = {
    "batch": Dimension(1, "sequences that are generated together"),
    "prompt": Dimension(128, "tokens of the prompt"),
    "new_tokens": Dimension(128, "tokens that are generated", minimum=2),
}


class Generating(Family):
    """A family whose model generates text, with the dimensions of that task."""

    def __init__(self, family: Family) -> None:
        """Raises UsageError for a family that has no decoder."""
        own = family.decoder_dimensions()
        if own is None:
            raise UsageError(
                f"{family.name} generates no text: --task generate takes transformer_lm, and hf: with a decoder"
            )
        self.name, self.description, self.imports = family.name, family.description, family.imports
        self.products = family.products
        self.dimensions = {**DIMENSIONS, **own}
        self._family = family

    def precision_reason(self, precision: Precision) -> str:
        return self._family.precision_reason(precision)

    def resolve(self, given: Mapping[str, str | int]) -> dict[str, int | str]:
        values = super().resolve(given)
        if streams := [f"{name}={value}" for name, value in values.items() if ends_of_stream(value)]:
            raise UsageError(f"{self.name}: --task generate has one size for each graph, and {streams[0]} is several")
        return values

    def check(self, dimensions: Sizes) -> None:
        limit, length = self._family.max_positions(), context_of(dimensions)
        if limit is not None and length > limit:
            raise UsageError(f"{self.name}: prompt and new_tokens are {length} tokens, and its positions are {limit}")

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        return self.load_graph(DECODE, dimensions, seed, Device("cpu"), torch.float32)

    def load_graph(self, task: str, dimensions: Sizes, seed: int, device: Device, dtype: torch.dtype) -> LoadedModel:
        decoder = self._family.load_decoder(dimensions, seed, device, dtype)
        batch, prompt, context = int(dimensions["batch"]), int(dimensions["prompt"]), context_of(dimensions)
        generator = torch.Generator().manual_seed(seed)

        def drawn(length: int) -> torch.Tensor:
            places = torch.randint(len(decoder.tokens), (batch, length), generator=generator)
            return decoder.tokens[places].to(device)

        if task == PREFILL:
            sets = tuple(Inputs((drawn(prompt),)) for _ in range(INPUT_SETS))
            with torch.no_grad():
                caches = [] if decoder.is_recurrent else decoder.prefill(*sets[0].args)[1:]
            return LoadedModel(decoder.prefill, sets, spared_bytes=_bytes(caches) * (context - prompt) // context)
        tokens, positions = drawn(context), positions_of(dimensions)
        step: Any = decoder.step
        step.sequence = tokens[0].tolist()  # an engine that takes no caches makes its own of these
        sets = _sets_of_steps(decoder, tokens, positions)
        if decoder.is_recurrent:
            return LoadedModel(decoder.step, sets)
        # the least that a step moves is its weights, the rows before it, and nothing that it only hands on
        cache_bytes, rows = _bytes(sets[0].args[2:]), 1 + sum(positions) / len(positions)
        return LoadedModel(decoder.step, sets, spared_bytes=round(cache_bytes * (2 - rows / context)))


def context_of(dimensions: Sizes) -> int:
    return int(dimensions["prompt"]) + int(dimensions["new_tokens"])


def positions_of(dimensions: Sizes) -> list[int]:
    """Return where a step is measured: from the last position of the context down to the first after the prompt."""
    prompt, new = int(dimensions["prompt"]), int(dimensions["new_tokens"])
    return [prompt + (new - 1) * place // (INPUT_SETS - 1) for place in reversed(range(INPUT_SETS))]


def writes_in_place(module: Any) -> Any:
    """Return a copy of a decode step that shares its weights and writes into the caches that it is given. It returns
    the logits alone. Return None for a module that cannot."""
    if not hasattr(module, "in_place"):
        return None
    in_place = copy.copy(module)
    in_place.in_place = True
    return in_place


def caches_in_place(module: Any, inputs: Inputs) -> int:
    """Return how many of the last inputs are caches that may be overwritten with the last outputs."""
    return len(inputs.args[2:]) if hasattr(module, "in_place") else 0


def _sets_of_steps(decoder: Decoder, tokens: torch.Tensor, positions: Sequence[int]) -> tuple[Inputs, ...]:
    """Return the inputs of a step at each of `positions`, the highest first. All sets share the caches up to that
    position; the states of a recurrent model are those before each position."""

    def before(position: int) -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return tuple(cache.contiguous() for cache in decoder.prefill(tokens[:, :position])[1:])

    # a lower step writes again what is there, so one that writes nothing, or elsewhere, is found
    shared = None if decoder.is_recurrent else before(positions[0])
    return tuple(
        Inputs(
            (
                tokens[:, position : position + 1].clone(),
                torch.tensor([position], device=tokens.device),
                *(shared or before(position)),
            )
        )
        for position in positions
    )


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
