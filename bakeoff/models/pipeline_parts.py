"""The parts of a pipeline of several models: which are called, how often, with which sizes, and for how long.

A pipeline is any object that calls modules, such as one of diffusers. An example call is what it is called with, as the
example inputs of a model are, or a function that takes the pipeline and calls it.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bakeoff.models.base import call_of
from bakeoff.models.calls_file import Calls
from bakeoff.models.lazily import nn, torch
from bakeoff.models.recording import record
from bakeoff.records.errors import UsageError
from bakeoff.records.frozen import Frozen
from bakeoff.records.text import first, listed


class PipelineModule(Frozen):
    name: str  # its path, such as `vae.decoder`
    kind: str  # its class
    calls: int
    sizes: dict[str, int]  # how often each size of its inputs came, the most frequent first
    seconds: float  # in all its calls, with those of the parts within it; the median over calls of the pipeline
    share: float  # of the whole call
    parameters: int


class Parts(Frozen):
    """What a call of a pipeline consists of, as `bakeoff inspect --json` prints it. The longest part comes first."""

    seconds: float  # of a call: the sum of the medians of its parts and of all else
    parts: tuple[PipelineModule, ...]
    timed_calls: int
    rest: float
    """The share of a call that no part takes: Python between the parts, schedulers, other modules."""

    def __str__(self) -> str:
        rows = [
            (
                part.name,
                part.kind,
                str(part.calls),
                f"{1e3 * part.seconds:.2f}",
                f"{100 * part.share:.0f} %",
                f"{part.parameters:,}",
                listed(first([f"{count} x {label}" for label, count in part.sizes.items()], 2)),
            )
            for part in self.parts
        ]
        headings = ("part", "class", "calls", "ms", "share", "parameters", "sizes")
        table = [
            headings,
            *rows,
            ("all else", "", "", f"{1e3 * self.rest * self.seconds:.2f}", f"{100 * self.rest:.0f} %", "", ""),
        ]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in table
        ]
        timed = f"{self.timed_calls} calls were timed" if self.timed_calls > 1 else "one call was timed"
        lines.append(f"a call of the pipeline: {1e3 * self.seconds:.2f} ms; {timed}, and medians are shown")
        if uncalled := [part.name for part in self.parts if not part.calls]:
            lines.append(f"the example call does not call {', '.join(uncalled)}: nothing can be compared there")
        return "\n".join(lines)


MOST_TIMED_CALLS = 9
FEWEST_TIMED_CALLS = 3
TIMED_S = 10.0
"""`inspect_parts` times so many calls: fewer of a pipeline that takes longer altogether."""


def inspect_parts(pipeline: object, example: object, parts: Sequence[str] = ()) -> Parts:
    """Call a pipeline several times, and return what its parts are asked for and how long they take.

    Without `parts`, these are the modules that the pipeline holds and calls. Of one whose own `forward` is never
    called, such as an autoencoder that only decodes, they are the modules within it that are called.

    The first call counts calls and sizes, and warms up. Then at least three calls are timed, and up to nine within ten
    seconds. The time of each part is the median over these, so that one call which the machine disturbed changes
    nothing, and shares are of the sum of all medians. On a GPU it waits for the device before and after each call of a
    part, so that the whole call takes longer than usual.
    """
    candidates = {name: part_of(pipeline, name) for name in parts} if parts else _candidates(pipeline)
    calls = recorded(pipeline, example, candidates)
    called = {name for name in candidates if calls[name].count}
    outermost = {name for name in called if name.rpartition(".")[0] not in called}
    chosen = {name: module for name, module in candidates.items() if parts or name in outermost}
    if not chosen:
        kind = type(pipeline).__name__
        if not candidates:
            raise UsageError(f"a {kind} holds no modules, so it has no parts: bakeoff --model compares it as a whole")
        raise UsageError(f"the call of {kind} calls none of {', '.join(candidates)}")
    of_parts: dict[str, list[float]] = {name: [] for name in chosen}
    seconds: list[float] = []
    begun_s = time.perf_counter()
    while len(seconds) < FEWEST_TIMED_CALLS or (
        len(seconds) < MOST_TIMED_CALLS and time.perf_counter() - begun_s < TIMED_S
    ):
        with contextlib.ExitStack() as held:
            timed = {name: held.enter_context(_timed(module)) for name, module in chosen.items()}
            begun_call_s = time.perf_counter()
            run_once(pipeline, example)
            synchronise()
            seconds.append(time.perf_counter() - begun_call_s)
        for name, in_calls in timed.items():
            of_parts[name].append(sum(in_calls))
    medians = {name: statistics.median(in_calls) for name, in_calls in of_parts.items()}
    outer = [name for name in chosen if not any(name.startswith(f"{other}.") for other in chosen)]
    in_parts = [sum(of_parts[name][number] for name in outer) for number in range(len(seconds))]
    rest_s = statistics.median(max(0.0, whole - inside) for whole, inside in zip(seconds, in_parts, strict=True))
    call_s = sum(medians[name] for name in outer) + rest_s
    listed = [
        PipelineModule(
            name=name,
            kind=type(module).__name__,
            calls=calls[name].count,
            sizes=calls[name].sizes,
            seconds=medians[name],
            share=medians[name] / call_s,
            parameters=sum(weight.numel() for weight in module.parameters()),
        )
        for name, module in chosen.items()
    ]
    return Parts(
        seconds=call_s,
        parts=tuple(sorted(listed, key=lambda part: -part.seconds)),
        timed_calls=len(seconds),
        rest=rest_s / call_s,
    )


def recorded(pipeline: object, example: object, modules: Mapping[str, nn.Module]) -> dict[str, Calls]:
    with contextlib.ExitStack() as held:
        calls = {name: held.enter_context(record(module)) for name, module in modules.items()}
        run_once(pipeline, example)
    return calls


def run_once(pipeline: Any, example: Any) -> Any:
    with torch.no_grad():
        if callable(example):
            return example(pipeline)
        call = call_of(example)
        return pipeline(*call.args, **call.kwargs)


def part_of(pipeline: object, name: str) -> nn.Module:
    try:
        part = functools.reduce(getattr, name.split("."), pipeline)
    except AttributeError as error:
        names = ", ".join(_modules_of(pipeline))
        raise UsageError(
            f"no part '{name}' in {type(pipeline).__name__}: {error}; it holds {names or 'none'}"
        ) from None
    if not isinstance(part, nn.Module):
        raise UsageError(f"'{name}' of {type(pipeline).__name__} is a {type(part).__name__}, and no torch.nn.Module")
    return part


def _modules_of(pipeline: object) -> dict[str, nn.Module]:
    if isinstance(pipeline, nn.Module):
        return dict(pipeline.named_children())
    components = getattr(pipeline, "components", None)  # of diffusers
    held = components if isinstance(components, Mapping) else getattr(pipeline, "__dict__", {})
    return {name: module for name, module in held.items() if isinstance(module, nn.Module) and hasattr(pipeline, name)}


def _candidates(pipeline: object) -> dict[str, nn.Module]:
    outer = _modules_of(pipeline)
    inner = {f"{name}.{child}": part for name, module in outer.items() for child, part in module.named_children()}
    by_module = {part: name for name, part in reversed((outer | inner).items())}  # one of two names is enough
    return {name: part for name, part in (outer | inner).items() if by_module[part] == name}


@contextlib.contextmanager
def _timed(module: nn.Module) -> Iterator[list[float]]:
    """Yield how long each call of a module takes. A call within another one of the module is not counted twice."""
    seconds: list[float] = []
    begun_s: list[float] = []

    def begin(*_: object) -> None:
        synchronise()
        begun_s.append(time.perf_counter())

    def end(*_: object) -> None:
        synchronise()
        taken_s = time.perf_counter() - begun_s.pop()
        if not begun_s:
            seconds.append(taken_s)

    before = nn.Module.register_forward_pre_hook(module, begin)
    after = nn.Module.register_forward_hook(module, end, always_call=True)
    try:
        yield seconds
    finally:
        before.remove()
        after.remove()


def synchronise() -> None:
    import torch  # compilers trace it

    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()


@contextlib.contextmanager
def replaced(parts: Mapping[str, Callable[..., Any]], pipeline: object) -> Iterator[None]:
    """Have these functions answer in place of the parts inside the block. Then what answered before does so again."""
    before = [(part, part.__dict__.get("forward")) for part in (part_of(pipeline, name) for name in parts)]
    try:
        replace_parts(parts, pipeline)
        yield
    finally:
        for part, forward in before:
            if forward is None:
                part.__dict__.pop("forward", None)
            else:
                part.__dict__["forward"] = forward


def replace_parts(parts: Mapping[str, Callable[..., Any]], pipeline: object) -> None:
    """Have these functions answer in place of the parts' own code. All else of a part stays, such as its weights."""
    for name, function in parts.items():
        part_of(pipeline, name).__dict__["forward"] = function
