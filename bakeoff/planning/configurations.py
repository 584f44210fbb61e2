"""Expands `--backends` into the modes of backends that it stands for."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from bakeoff import backends, models
from bakeoff.backends.base import DEFAULT
from bakeoff.records.errors import UsageError, unknown
from bakeoff.records.schema import Cell

ALL, BEST = "all", "best"


class Configuration(NamedTuple):
    backend: str
    mode: str
    asked_by_name: bool
    of_best: bool  # only entries with `best` stand for it


def expand_backends(
    asked: Sequence[str], best_modes: Callable[[str], Sequence[str]] = lambda _: [DEFAULT]
) -> list[Configuration]:
    """Return each configuration once that entries stand for: `NAME[/MODE]`, `NAME/all`, `NAME/best`, `all` and `best`.
    `best_modes` are the modes that are worth trying. Raise UsageError for unknown names and modes."""
    configurations: dict[tuple[str, str], Configuration] = {}
    for entry in asked:
        name, _, mode = entry.partition("/") if entry != BEST else (ALL, "", BEST)
        by_name = name != ALL
        for backend in [backends.canonical(name)] if by_name else backends.in_all():
            modes = _modes_of(backend, by_name)
            if mode == ALL:  # a redundant mode would be measured twice
                own = [one for one in modes if one == DEFAULT or not backends.create(backend).mode(one).redundant]
                chosen: Sequence[str] = own
            elif mode == BEST:
                chosen = best_modes(backend) or (modes[:1] if by_name else [])
            elif mode in ("", *modes):
                chosen = [mode or modes[0]]
            elif by_name:
                raise unknown(f"mode of {backend}", mode, modes, "bakeoff list")
            else:
                raise UsageError(f"backend '{entry}': write 'all/all' for every mode of every backend")
            for one in chosen:
                # `NAME/all` asks for the backend, not for those of its modes that make no sense here
                named = by_name and (mode not in (ALL, BEST) or one == modes[0])
                before = configurations.get((backend, one), Configuration(backend, one, False, True))
                configurations[backend, one] = Configuration(
                    backend, one, before.asked_by_name or named, before.of_best and mode == BEST
                )
    return list(configurations.values())


def best_modes(example: Cell, backend: str) -> list[str]:
    instance = backends.if_it_loads(backend)
    if instance is None:
        return [DEFAULT]
    may_convolve, kind = models.find(example.model).may_convolve, example.device.kind
    return [
        mode.name
        for mode in instance.modes
        if (suits := mode.worth_trying) and suits.device in ("", kind) and (may_convolve or not suits.convolutions)
        if instance.supports(example.but(backend=backend, mode=mode.name))
    ]


def _modes_of(name: str, by_name: bool) -> list[str]:
    """Return the modes of a backend. One of a third party that does not load costs one row of an `all`, not the run."""
    backend = backends.create(name) if by_name else backends.if_it_loads(name)
    return backend.mode_names() if backend else [DEFAULT]
