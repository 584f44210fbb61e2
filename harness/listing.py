"""The tables of `runner.py list` and `runner.py selfcheck`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

import backends
import models
from harness.selfcheck import Summary


def backends_table(availability: Mapping[tuple[str, str], str]) -> Table:
    """Return a table of backends and devices. `availability` has the reason of an absence, or an empty string."""
    devices = list(dict.fromkeys(device for _, device in availability))
    table = Table("backend", "modes", *devices, title="Backends", box=box.SIMPLE_HEAD, title_justify="left")
    for name in dict.fromkeys(name for name, _ in availability):
        try:
            backend = backends.create(name)
            modes, described = ", ".join(backend.modes), [backend.description, backend.caveat]
        except Exception as error:
            modes, described = "", [str(error)]
        table.add_row(
            "\n".join([escape(name), *(f"[dim]{escape(text)}[/dim]" for text in described if text)]),
            escape(modes),
            *(f"no: {escape(reason)}" if (reason := availability[name, device]) else "yes" for device in devices),
        )
    aliases = ", ".join(f"{alias} = {name}" for alias, name in backends.ALIASES.items())
    table.caption = f"aliases: {aliases}"
    return table


def models_table() -> Table:
    """Return a table of models, dimensions and defaults."""
    table = Table("model", "dimensions (default)", title="Models", box=box.SIMPLE_HEAD, title_justify="left")
    for name in models.TABLE:
        family = models.find(name)
        sizes = ", ".join(f"{key} ({dimension.default})" for key, dimension in family.dimensions.items())
        table.add_row(f"{name}\n[dim]{family.description}[/dim]", sizes)
    table.add_row("FILE.py:FACTORY\n[dim]your own model[/dim]", "the factory's keyword parameters")
    table.add_row("hf:FOLDER\n[dim]a local Hugging Face model[/dim]", "batch, seq")
    return table


def selfcheck_table(rows: Sequence[Summary]) -> Table:
    """Return a table of trials of eager against itself, with a row for each planted slowdown."""
    table = Table(
        "model",
        "the copy is",
        "trials",
        "right",
        "undecided",
        "winner called",
        "at most",
        "half-width",
        "processes",
        "s per trial",
    )
    for row in rows:
        table.add_row(
            escape(row.model),
            "equal" if row.planted == 1.0 else f"{row.planted - 1:.0%} slower",
            str(row.trials),
            f"{row.right / row.trials:.1%}",
            f"{row.unstable / row.trials:.1%}",
            f"{row.winners / row.trials:.1%}",
            f"{row.upper:.1%}",
            f"±{row.half_width:.2%}",
            f"{row.processes:.1f}",
            f"{row.seconds:.1f}",
        )
    return table
