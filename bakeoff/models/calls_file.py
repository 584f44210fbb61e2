"""Calls of a module: their sizes with how often each came, values of a few of them, and the file that keeps them.

The file is what `torch.save` writes of plain data, so that `torch.load(path, weights_only=True)` reads it. Its table of
sizes stands beside the data as JSON, because runs are planned without torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from bakeoff.models.base import Call, Inputs, call_of
from bakeoff.models.lazily import torch
from bakeoff.records.errors import UsageError, os_reason
from bakeoff.records.text import counted

LIMIT_BYTES = 512 * 2**20
"""All values that are kept take at most so many bytes."""

CALLS_PER_SHAPE = 8
"""Values of so many calls are kept for each size."""

TABLE = "archive/table.json"
"""Where the table of sizes is in the file. It is a zip archive, whose entries torch wants in one folder."""

VERSION = 1

TAKEN = "tensors, tuples, lists, dicts, numbers, strings and None"


class Leaf(NamedTuple):
    """One argument, or one part of an argument, as two calls of the same size have it."""

    path: str  # "args[0]", "kwargs['mask']"
    text: str  # "8x128" for a tensor, or the value of a constant
    kind: str  # the type of a tensor's numbers, "constant", or the type of a container


@dataclass
class CallSize:
    """Calls that differ in nothing but the values of their tensors."""

    leaves: tuple[Leaf, ...]
    count: int = 0
    kept: list[Call] = field(default_factory=list)
    bytes_of_call: int = 0
    reason: str = ""  # why no values are kept


@dataclass(frozen=True)
class SizeInFile:
    label: str
    count: int
    kept: int
    reason: str


class Calls:
    """Calls of one module. Iterating gives those with values, as `bakeoff.Call`, and `len` is their number.

    Values are a random sample of the calls of each size: `calls_per_shape` of them, within `limit_bytes` altogether.
    """

    def __init__(
        self, module: str = "", *, limit_bytes: int = LIMIT_BYTES, calls_per_shape: int = CALLS_PER_SHAPE
    ) -> None:
        if limit_bytes < 1 or calls_per_shape < 1:
            raise UsageError("limit_bytes and calls_per_shape are at least 1")
        self.module = module
        self.under_autocast = 0  # calls that came while autocast was on
        self._limit_bytes = limit_bytes
        self._calls_per_shape = calls_per_shape
        self._sizes: dict[tuple[Leaf, ...], CallSize] = {}
        self._random = random.Random(0)

    @classmethod
    def of(cls, example: object) -> Calls:
        """Return `example` as calls: a `Call`, a list of them, a tensor, a tuple of positional arguments, or a dict of
        keyword arguments. Raises UsageError for what a file of calls cannot hold, with its path."""
        if isinstance(example, Calls):
            return example
        several = isinstance(example, list | tuple) and example and all(isinstance(call, Call) for call in example)
        calls = cls(limit_bytes=2**62, calls_per_shape=2**31)
        for call in map(call_of, example if several else [example]):  # type: ignore[call-overload]
            calls.add(call.args, call.kwargs)
        if reason := next((size.reason for size in calls._sizes.values() if size.reason), ""):
            raise UsageError(reason)
        return calls

    def add(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Count one call. Its values are copied to host memory now, if they are among those that are kept."""
        pairs = [pair for path, value in _arguments_by_path(args, kwargs) for pair in _leaves(value, path)]
        leaves = tuple(leaf for leaf, _ in pairs)
        size = self._sizes.setdefault(leaves, CallSize(leaves))
        size.count += 1
        size.reason = size.reason or next(filter(None, (reason for _, reason in pairs)), "")
        if size.reason:
            return
        place = len(size.kept)
        if place >= self._calls_per_shape:
            place = self._random.randrange(size.count)  # a uniform sample (Vitter's algorithm R)
            if place >= self._calls_per_shape:
                return
        size.bytes_of_call = sum(tensor.nbytes for tensor in _tensors(args, kwargs))
        if place == len(size.kept) and not self._has_room(size):
            if not size.kept:
                size.reason = f"the values of a call take {size.bytes_of_call} bytes, and limit_bytes leaves no room"
            return
        size.kept[place : place + 1] = [_copied(args, kwargs)]

    @property
    def count(self) -> int:
        """The number of all calls, with those that have no values."""
        return sum(size.count for size in self._sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        return {label: size.count for label, size in self._by_label()}

    @property
    def reasons(self) -> list[str]:
        return sorted({size.reason for size in self._sizes.values() if not size.kept} - {""})

    def of_size(self, label: str) -> list[Call]:
        return list(dict(self._by_label())[label].kept)

    def save(self, path: str | Path) -> Path:
        """Write the calls to a file for `bakeoff.load_calls` and `--inputs`. Raises UsageError if none has values."""
        if not len(self):
            raise UsageError(f"no call with values to save: {'; '.join(self.reasons) or 'the module was not called'}")
        path = Path(path)
        kept = {
            label: [{"args": call.args, "kwargs": dict(call.kwargs)} for call in size.kept]
            for label, size in self._by_label()
        }
        leaves = {label: [list(leaf) for leaf in size.leaves] for label, size in self._by_label()}
        partial = path.with_name(f"{path.name}.partial")
        with partial.open("wb") as file:
            torch.save({"version": VERSION, "leaves": leaves, "calls": kept}, file)
        with zipfile.ZipFile(partial, "a") as archive:
            rows = [SizeInFile(label, size.count, len(size.kept), size.reason) for label, size in self._by_label()]
            table = {
                "version": VERSION,
                "module": self.module,
                "under_autocast": self.under_autocast,
                "sizes": [dataclasses.asdict(row) for row in rows],
            }
            archive.writestr(TABLE, json.dumps(table))
        partial.replace(path)
        return path

    def __iter__(self) -> Iterator[Call]:
        return (call for _, size in self._by_label() for call in size.kept)

    def __len__(self) -> int:
        return sum(len(size.kept) for size in self._sizes.values())

    def __repr__(self) -> str:
        name = f" of {self.module}" if self.module else ""
        if not self._sizes:
            return f"no calls{name}: it was not called by `module(...)` in the block"
        held_bytes = sum(len(size.kept) * size.bytes_of_call for size in self._sizes.values())
        lines = [f"{counted(self.count, 'call')}{name}, {len(self)} of them with values ({held_bytes / 2**20:.1f} MiB)"]
        lines.append("  calls  share  values  size")
        for label, size in self._by_label():
            share = f"{size.count / self.count:.0%}"
            reason = f" (no values: {size.reason})" if not size.kept else ""
            lines.append(f"{size.count:7}  {share:>5}  {len(size.kept):6}  {label}{reason}")
        if self.under_autocast:
            calls = counted(self.under_autocast, "call")
            lines.append(f"{calls} came under autocast; inputs are as they were given, before it")
        return "\n".join(lines)

    def _by_label(self) -> list[tuple[str, CallSize]]:
        ordered = sorted(self._sizes.values(), key=lambda size: -size.count)
        return list(zip(labels_of([size.leaves for size in ordered]), ordered, strict=True))

    def _has_room(self, size: CallSize) -> bool:
        """Return True if one more call of this size may be kept. A new size takes the room of others' second calls."""
        used = sum(len(one.kept) * one.bytes_of_call for one in self._sizes.values())
        needed = used + size.bytes_of_call - self._limit_bytes
        spare = [other for other in self._sizes.values() for _ in other.kept[1:]] if not size.kept else []
        spare.sort(key=lambda other: other.bytes_of_call, reverse=True)
        if needed > sum(one.bytes_of_call for one in spare):
            return False
        for size_to_cut in spare:
            if needed <= 0:
                break
            size_to_cut.kept.pop()
            needed -= size_to_cut.bytes_of_call
        return True


def load_calls(path: str | Path) -> Calls:
    """Return the calls in a file that `Calls.save` has written. Raises UsageError for any other file."""
    table = _table_in(Path(path))
    kept = torch.load(path, weights_only=True)
    calls = Calls(table["module"])
    calls.under_autocast = table["under_autocast"]
    for row in table["sizes"]:
        values = [Call(call["args"], call["kwargs"]) for call in kept["calls"][row["label"]]]
        leaves = tuple(Leaf(*leaf) for leaf in kept["leaves"][row["label"]])
        held = sum(tensor.nbytes for tensor in _tensors(values[0].args, values[0].kwargs)) if values else 0
        calls._sizes[leaves] = CallSize(leaves, row["count"], values, held, row["reason"])
    return calls


def sizes_in(path: Path) -> list[SizeInFile]:
    """Return the table of a file of calls, the most frequent size first. This needs no torch."""
    return [SizeInFile(**row) for row in _table_in(path)["sizes"]]


def _table_in(path: Path) -> dict[str, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            table: dict[str, Any] = json.loads(archive.read(TABLE))
    except FileNotFoundError:
        raise UsageError(
            f"no file {path}: bakeoff.record(module) records calls, and their save(path) writes it"
        ) from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {os_reason(error)}") from None
    except (KeyError, zipfile.BadZipFile, json.JSONDecodeError):
        raise UsageError(
            f"{path} is no file of calls: bakeoff.Calls.of(inputs).save('calls.pt') writes one of a tensor, a tuple, "
            "a dict or a list of bakeoff.Call"
        ) from None
    if table["version"] > VERSION:
        raise UsageError(f"{path} was written by a newer Bakeoff: install that one, or record again")
    return table


def labels_of(sizes: list[tuple[Leaf, ...]]) -> list[str]:
    """Return a short name for each size: what it has that the others have not, or the shapes of a single one."""
    kinds: dict[str, set[str]] = {}
    texts: dict[str, set[str | None]] = {}
    for leaf in (leaf for leaves in sizes for leaf in leaves):
        kinds.setdefault(leaf.path, set()).add(leaf.kind)
    for path in kinds:
        texts[path] = {next((leaf[1:] for leaf in leaves if leaf.path == path), None) for leaves in sizes}  # type: ignore[misc]
    labels: list[str] = []
    for number, leaves in enumerate(sizes, 1):
        parts = dict.fromkeys(
            _part(leaf, len(kinds[leaf.path]) > 1)
            for leaf in leaves
            if leaf.text and (len(texts[leaf.path]) > 1 or (len(sizes) == 1 and leaf.kind != "constant"))
        )
        label = "+".join(parts) or "no tensor"
        labels.append(f"{label}#{number}" if label in labels else label)
    return labels


def _part(leaf: Leaf, kinds_differ: bool) -> str:
    if leaf.kind in ("constant", "refused"):
        text = leaf.text.replace(",", ";")  # the command line takes several sizes with commas between them
        return f"{leaf.path}={text if len(text) <= 30 else text[:29] + '…'}"
    return f"{leaf.text}.{leaf.kind}" if kinds_differ else leaf.text


def _arguments_by_path(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from ((f"args[{place}]", value) for place, value in enumerate(args))
    yield from ((f"kwargs['{name}']", kwargs[name]) for name in sorted(kwargs))


def _leaves(value: Any, path: str) -> Iterator[tuple[Leaf, str]]:
    """Yield each part of a value, with why a file of calls cannot hold it, or an empty text."""
    kind = type(value).__name__
    if isinstance(value, torch.Tensor):
        layout = "" if value.layout is torch.strided else f".{str(value.layout).removeprefix('torch.')}"
        text = "x".join(map(str, value.shape)) or "scalar"
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter) or isinstance(value, torch.nn.Buffer)
        reason = "" if is_plain else f"{path} is a tensor of type {kind}: calls hold plain tensors"
        yield Leaf(path, text, str(value.dtype).removeprefix("torch.") + layout), reason
    elif (parts := _parts(value, path)) is not None:
        yield Leaf(path, "", kind), ""
        for inner_path, inner in parts:
            yield from _leaves(inner, inner_path)
    elif _is_constant(value):
        yield Leaf(path, repr(value), "constant"), ""
    elif isinstance(value, Iterator):
        reason = f"{path} is a {kind}, which can be read only once: calls hold {TAKEN}"
        yield Leaf(path, kind, "refused"), reason
    else:
        what = "dataclass" if dataclasses.is_dataclass(value) else "value of type"
        yield Leaf(path, kind, "refused"), f"{path} is a {what} {kind}: calls hold {TAKEN}"


def _parts(value: Any, path: str) -> list[tuple[str, Any]] | None:
    """Return what a container holds, or None for what is none that a file of calls can hold."""
    if type(value) in (tuple, list, torch.Size):
        return [(f"{path}[{place}]", inner) for place, inner in enumerate(value)]
    if type(value) in (dict, OrderedDict) and all(_is_constant(key) for key in value):
        return [(f"{path}[{key!r}]", inner) for key, inner in value.items()]
    return None


def _is_constant(value: Any) -> bool:
    return value is None or (isinstance(value, bool | int | float | complex | str) and not isinstance(value, Enum))


def _tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in Inputs(args, kwargs).tensors()}.values())


def _copied(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
    from bakeoff.models import input_sets

    tensors = _tensors(args, kwargs)
    # a tensor that is made in inference mode could not be used outside of it, and a device's mode moves what is made
    with torch.inference_mode(False), torch.no_grad(), contextlib.ExitStack() as held:
        held.enter_context(torch.device("cpu"))
        copies = input_sets.copied(tensors, "cpu")
    by_id = {id(tensor): copy.detach() for tensor, copy in zip(tensors, copies, strict=True)}

    def copy_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return by_id[id(value)]
        if isinstance(value, dict):
            return {key: copy_of(inner) for key, inner in value.items()}
        if isinstance(value, tuple | list):
            return (list if isinstance(value, list) else tuple)(map(copy_of, value))
        # A NumPy number is a float or a complex number, too: the build gets Python's own type.
        kinds: tuple[type[Any], ...] = (bool, int, float, complex, str)
        return value if value is None else next(kind(value) for kind in kinds if isinstance(value, kind))

    return Call(copy_of(tuple(args)), copy_of(dict(kwargs)))
