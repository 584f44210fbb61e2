"""Is it right? Every cell's outputs against the golden: the same model and inputs, computed in float64.

A cell passes when every output is close to the golden by torch.testing's tolerances for its precision, or when its RMSE
to the golden is at most twice (float32) or three times (16-bit) that of eager in the same precision on the same device:
a compiler may round differently, it may not be much worse than what it compiles.

For int8 and fp8 the yardstick is eager with what its layers multiply rounded to that type
(`harness.worker.simulation`). Every device can compute that, and it owes nothing to any library that is measured. Three
times its RMSE is allowed, because backends choose ranges in their own ways, but never more than the precision's
`max_relative_rmse`: however badly a model takes to quantisation, the rule can still fail.

Outputs of a training task are a loss and gradients, or changes of parameters (`backends.training`). They are of any
size: gradients of a millionth are common, which an absolute tolerance of 1e-5 would pass whatever they were. There the
absolute tolerance is a share of the output's own root mean square. And some times eager's error is never as much as
zeros are off by: a gradient that was not made, a parameter that was left alone. Changes that eager gets wrong by as
much as that are counted, and left out of the error that is told (`HELD`).
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from records.precision import ABSOLUTE_TOLERANCE, Precision
from records.schema import Accuracy

if TYPE_CHECKING:
    import torch

TRAINING_SHARE = 1e-4
"""The absolute tolerance of a training task, relative to the root mean square of the golden's output."""

SMALLEST_SHARE = 1e-2
"""Of the root mean square of all a training task's outputs of one kind; a smaller one counts as this large. Where a
gradient is zero but for rounding (a bias that a normalisation cancels), there is nothing else to measure it by."""

HELD = 0.9
"""Where eager is off by less than this share of a parameter's change, the type holds the change. Leaving the parameter
alone is off by all of it, 1, and rounding to the nearest is never off by more. A weight near 1 stays where it is in
bfloat16 whoever steps, and in float16 the squares of small gradients are zero: there eager is no witness, and what is
right cannot be told from doing nothing. In bfloat16 eager's errors are below 0.8 or above 0.95 in all our models, and
Inductor's are within 2 % of them where they are over a third."""

MOST = 0.95
"""The largest error that any training output may have, relative to its size, where eager's is below `HELD`."""

PIECE = 2**18
"""So many values are compared at once: what that takes beside them stays in a CPU's cache (four times as fast)."""

Outputs = tuple["torch.Tensor", ...]


@dataclass(frozen=True)
class Golden:
    """Per input set the outputs in float64, and per output eager's RMSE to them in each cell's own precision."""

    outputs: tuple[Outputs, ...]
    eager_rmse: tuple[float, ...]
    computed_in: str = "float64"  # less, where there was no memory for that

    def save(self, path: Path) -> None:
        """Write it as safetensors, appearing at `path` whole or not at all."""
        from safetensors.torch import save_file

        tensors = {
            f"{index}.{number}": tensor.to(
                "cpu", copy=True
            ).contiguous()  # two outputs may be one tensor, which safetensors refuses
            for index, outputs in enumerate(self.outputs)
            for number, tensor in enumerate(outputs)
        }
        partial = path.with_suffix(".partial")
        known = {"eager_rmse": json.dumps(self.eager_rmse), "computed_in": self.computed_in}
        save_file(tensors, partial, metadata=known)
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Golden:
        from safetensors import safe_open

        sets: dict[int, dict[int, torch.Tensor]] = {}
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                index, number = map(int, key.split("."))
                sets.setdefault(index, {})[number] = file.get_tensor(key)
            known = file.metadata()
        outputs = tuple(tuple(sets[index][number] for number in sorted(sets[index])) for index in sorted(sets))
        return cls(outputs, tuple(json.loads(known["eager_rmse"])), known.get("computed_in", "float64"))


def check(outputs: Sequence[Outputs], golden: Golden, precision: Precision, names: Sequence[str] = ()) -> Accuracy:
    """Compare the outputs of every input set with the golden's; `names` are those of a training task's outputs."""
    rtol, atol = precision.rtol, ABSOLUTE_TOLERANCE
    problem = _shape_problem(outputs, golden)
    if problem:
        return Accuracy(
            rmse=math.nan,
            relative_rmse=math.nan,
            max_abs_error=math.nan,
            eager_rmse=_pool(golden.eager_rmse),
            allclose=False,
            rtol=rtol,
            atol=atol,
            passed=False,
            rule=problem,
        )
    columns = _columns(outputs, golden.outputs, rtol)
    factor = precision.max_times_eager_rmse
    scales = _yardsticks(columns, names) if names else [column.scale for column in columns]
    limits = [_limit(column, eager, precision) for column, eager in zip(columns, golden.eager_rmse, strict=True)]
    sizes = _sizes(columns, scales)
    if names:
        limits = list(map(_below_nothing, limits, golden.eager_rmse, sizes))
    tolerances = [TRAINING_SHARE * scale if names else atol for scale in scales]
    close = [column.is_close(tolerance) for column, tolerance in zip(columns, tolerances, strict=True)]
    near_eager = [column.rmse <= limit for column, limit in zip(columns, limits, strict=True)]
    wrong = [number for number in range(len(columns)) if not (close[number] or near_eager[number])]
    changes = [number for number, name in enumerate(names) if _kind(name) == "change"]
    unheld = [number for number in changes if 0 < HELD * sizes[number] <= golden.eager_rmse[number] < math.inf]
    broken = sum(column.not_finite for column in columns)
    if broken:
        rule = f"{broken} value(s) not finite where the golden's are"
    elif wrong:
        worst = max(wrong, key=lambda number: _excess(columns[number].rmse, limits[number]))
        name = names[worst] if names else f"output {worst}"
        rule = (
            f"{name}: rmse {columns[worst].rmse:.2g}, eager's {golden.eager_rmse[worst]:.2g}; "
            f"neither allclose nor within {factor:g}x"
        )
        if limits[worst] < factor * golden.eager_rmse[worst] < math.inf:
            rule += f" and {limits[worst] / sizes[worst]:.2g} of the output"
    else:
        rule = "allclose" if all(close) else f"rmse <= {factor:g}x eager"
    return Accuracy(
        rmse=_pool([column.rmse for column in columns]),
        relative_rmse=max(
            column.rmse / scale if scale else column.rmse
            for number, (column, scale) in enumerate(zip(columns, scales, strict=True))
            if number not in unheld or number in wrong
        ),
        max_abs_error=max(column.max_abs_error for column in columns),
        eager_rmse=_pool(golden.eager_rmse),
        allclose=all(close),
        rtol=rtol,
        atol=max(tolerances),
        passed=not broken and not wrong,
        rule=rule,
        changes=len(changes),
        changes_unheld=len(unheld),
    )


def rmse_per_output(outputs: Sequence[Outputs], golden: Sequence[Outputs]) -> tuple[float, ...]:
    """RMSE of each output over all input sets."""
    return tuple(column.rmse for column in _columns(outputs, golden))


def _columns(outputs: Sequence[Outputs], golden: Sequence[Outputs], rtol: float = 0.0) -> list[_Column]:
    columns = [_Column(rtol) for _ in golden[0]]
    for ours, theirs in zip(outputs, golden, strict=True):
        for column, one, other in zip(columns, ours, theirs, strict=True):
            column.add(one, other)
    return columns


@dataclass
class _Column:
    """One output over all input sets: what its errors come to, in float64. Values that are not finite count apart."""

    rtol: float
    errors: int = 0
    squares: float = 0.0
    largest: float = 0.0
    beyond_rtol: float = 0.0  # the largest excess of an error over what rtol grants: allclose is a bound to it
    golden_values: int = 0
    golden_squares: float = 0.0
    not_finite: int = 0  # NaN or infinite where the golden's are not, or another kind of it

    def add(self, ours: torch.Tensor, golden: torch.Tensor) -> None:
        """Compare where `ours` lies, a piece at a time: outputs may fill most of a device, and a host is slow."""
        ours, golden = ours.detach().reshape(-1), golden.detach().reshape(-1)
        for start in range(0, ours.numel(), PIECE):
            self._add_piece(ours[start : start + PIECE], golden[start : start + PIECE])

    def _add_piece(self, ours: torch.Tensor, golden: torch.Tensor) -> None:
        import torch

        golden = golden.to(ours.device, torch.float64)
        ours = ours.to(torch.float64)
        is_known = torch.isfinite(golden)
        is_compared = is_known & torch.isfinite(ours)
        error = torch.where(is_compared, ours - golden, 0.0).abs_()
        known = torch.where(is_known, golden, 0.0).abs_()
        is_same = is_compared | (ours == golden) | (torch.isnan(ours) & torch.isnan(golden))
        found = (
            is_compared.sum(),
            error.square().sum(),
            error.max(),
            (error - self.rtol * known).max(),
            is_known.sum(),
            known.square().sum(),
            (~is_same).sum(),
        )
        # one transfer: each is a synchronisation of the device
        errors, squares, largest, beyond, values, golden_squares, strange = torch.stack(
            [value.double() for value in found]
        ).tolist()
        self.errors += int(errors)
        self.squares += squares
        self.largest = max(self.largest, largest)
        self.beyond_rtol = max(self.beyond_rtol, beyond)
        self.golden_values += int(values)
        self.golden_squares += golden_squares
        self.not_finite += int(strange)

    @property
    def rmse(self) -> float:
        if self.not_finite:
            return math.inf
        return math.sqrt(self.squares / self.errors) if self.errors else 0.0

    @property
    def scale(self) -> float:
        """Root mean square of the golden."""
        return math.sqrt(self.golden_squares / self.golden_values) if self.golden_values else 0.0

    @property
    def max_abs_error(self) -> float:
        return math.inf if self.not_finite else self.largest

    def is_close(self, atol: float) -> bool:
        """What torch.allclose says of all values, with `rtol` as given."""
        return not self.not_finite and self.beyond_rtol <= atol


def _limit(column: _Column, eager_rmse: float, precision: Precision) -> float:
    """The largest RMSE that an output may have without being close."""
    # an overflow excuses nothing
    limit = precision.max_times_eager_rmse * eager_rmse if math.isfinite(eager_rmse) else 0.0
    # a column of zeros has no signal to compare noise with
    return min(limit, precision.max_relative_rmse * column.scale) if column.scale else limit


def _below_nothing(limit: float, eager_rmse: float, size: float) -> float:
    """A training output's limit, below what zeros would be off by wherever eager is well below that."""
    return min(limit, MOST * size) if eager_rmse < HELD * size else limit


def _sizes(columns: Sequence[_Column], yardsticks: Sequence[float]) -> list[float]:
    """What a training task's outputs would be off by if they were zeros; the yardstick of one for which zeros are
    right."""
    return [
        column.scale if column.scale > TRAINING_SHARE * yardstick else yardstick
        for column, yardstick in zip(columns, yardsticks, strict=True)
    ]


def _yardsticks(columns: Sequence[_Column], names: Sequence[str]) -> list[float]:
    """What the errors of each output are measured by: its root mean square, or a share of that of all of its kind."""
    kinds = [_kind(name) for name in names]
    pooled = {
        kind: math.sqrt(
            statistics.fmean(column.scale**2 for column, own in zip(columns, kinds, strict=True) if own == kind)
        )
        for kind in set(kinds)
    }
    return [max(column.scale, SMALLEST_SHARE * pooled[kind]) for column, kind in zip(columns, kinds, strict=True)]


def _kind(name: str) -> str:
    """The first word of a training output's name: `gradient`, `change`."""
    return name.partition(" ")[0]


def _shape_problem(outputs: Sequence[Outputs], golden: Golden) -> str:
    for index, (ours, theirs) in enumerate(zip(outputs, golden.outputs, strict=True)):
        if len(ours) != len(theirs):
            return f"{len(ours)} output(s) where the model has {len(theirs)}"
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one.shape != other.shape:
                return f"output {number} of input set {index} has shape {tuple(one.shape)}, not {tuple(other.shape)}"
    return ""


def _pool(rmses: Sequence[float]) -> float:
    """One figure for several outputs: the largest, so that a small output's error is not drowned by a large one."""
    return max(rmses, default=math.nan)


def _excess(rmse: float, limit: float) -> float:
    return rmse / limit if limit > 0 else math.inf if rmse > 0 else 0.0
