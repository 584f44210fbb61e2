"""Is it right? Every cell's outputs against the golden: the same model and inputs, computed in float64.

A cell passes when every output is close to the golden by torch.testing's tolerances for its precision, or when its RMSE
to the golden is at most twice (float32) or three times (16-bit) that of eager in the same precision on the same device:
a compiler may round differently, it may not be much worse than what it compiles.

For int8 and fp8 the yardstick is eager with what its layers multiply rounded to that type (`harness.simulation`), which
every device can compute and which owes nothing to any library that is measured. Three times its RMSE is allowed,
because backends choose ranges in their own ways, but never more than NOISIEST of the output: however badly a model
takes to quantisation, the rule can still fail.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from reports.schema import Accuracy

if TYPE_CHECKING:
    import torch

TOLERANCES = {
    "fp32": (1.3e-6, 1e-5),
    "tf32": (1e-3, 1e-5),
    "fp16": (1e-3, 1e-5),
    "bf16": (1.6e-2, 1e-5),
    "int8": (1.6e-2, 1e-5),
    "fp8": (1.25e-1, 1e-5),
}
"""(rtol, atol) of torch.testing.assert_close. TF32 has the mantissa of fp16; int8 is given what bf16 has, whose 8 bits
of significand it shares, and fp8 one unit in the last place of e4m3 (2**-3)."""

TIMES_EAGER = {"fp32": 2.0, "tf32": 2.0, "fp16": 3.0, "bf16": 3.0, "int8": 3.0, "fp8": 3.0}

NOISIEST = {"int8": 10**-0.5, "fp8": 10**-0.5}
"""The largest RMSE relative to the golden's root mean square: noise of a tenth of the signal's power (10 dB). All zeros
would be at 1, unrelated values at 1.4; torchao's own tests ask 20 dB of one or two layers."""

Outputs = tuple["torch.Tensor", ...]


@dataclass(frozen=True)
class Golden:
    """Per input set the outputs in float64, and per output eager's RMSE to them in each cell's own precision."""

    outputs: tuple[Outputs, ...]
    eager_rmse: tuple[float, ...]

    def save(self, path: Path) -> None:
        """Write it as safetensors, appearing at `path` whole or not at all."""
        from safetensors.torch import save_file

        tensors = {
            f"{index}.{number}": tensor.contiguous().clone()  # two outputs may be one tensor, which safetensors refuses
            for index, outputs in enumerate(self.outputs)
            for number, tensor in enumerate(outputs)
        }
        partial = path.with_suffix(".partial")
        save_file(tensors, partial, metadata={"eager_rmse": json.dumps(self.eager_rmse)})
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> Golden:
        from safetensors import safe_open

        sets: dict[int, dict[int, torch.Tensor]] = {}
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                index, number = map(int, key.split("."))
                sets.setdefault(index, {})[number] = file.get_tensor(key)
            eager_rmse = json.loads(file.metadata()["eager_rmse"])
        outputs = tuple(tuple(sets[index][number] for number in sorted(sets[index])) for index in sorted(sets))
        return cls(outputs, tuple(eager_rmse))


def check(outputs: Sequence[Outputs], golden: Golden, precision: str) -> Accuracy:
    """Compare the outputs of every input set with the golden's."""
    rtol, atol = TOLERANCES[precision]
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
    columns = [_Column.of(number, outputs, golden) for number in range(len(golden.outputs[0]))]
    factor = TIMES_EAGER[precision]
    # an eager that overflows excuses nothing
    limits = [factor * eager if math.isfinite(eager) else 0.0 for eager in golden.eager_rmse]
    noisiest = NOISIEST.get(precision, math.inf)
    # a column of zeros has no signal to compare noise with
    limits = [min(limit, noisiest * c.scale) if c.scale else limit for limit, c in zip(limits, columns, strict=True)]
    close = [column.is_close(rtol, atol) for column in columns]
    near_eager = [column.rmse <= limit for column, limit in zip(columns, limits, strict=True)]
    wrong = [number for number in range(len(columns)) if not (close[number] or near_eager[number])]
    broken = sum(column.not_finite for column in columns)
    if broken:
        rule = f"{broken} value(s) not finite where the golden's are"
    elif wrong:
        worst = max(wrong, key=lambda number: _excess(columns[number].rmse, limits[number]))
        rule = (
            f"output {worst}: rmse {columns[worst].rmse:.2g}, eager's {golden.eager_rmse[worst]:.2g}; "
            f"neither allclose nor within {factor:g}x"
        )
        if limits[worst] < factor * golden.eager_rmse[worst] < math.inf:
            rule += f" and {noisiest:.2g} of the output"
    else:
        rule = "allclose" if all(close) else f"rmse <= {factor:g}x eager"
    return Accuracy(
        rmse=_pool([column.rmse for column in columns]),
        relative_rmse=max(column.rmse / column.scale if column.scale else column.rmse for column in columns),
        max_abs_error=max(column.max_abs_error for column in columns),
        eager_rmse=_pool(golden.eager_rmse),
        allclose=all(close),
        rtol=rtol,
        atol=atol,
        passed=not broken and not wrong,
        rule=rule,
    )


def rmse_per_output(outputs: Sequence[Outputs], golden: Sequence[Outputs]) -> tuple[float, ...]:
    """RMSE of each output over all input sets."""
    reference = Golden(tuple(golden), ())
    return tuple(_Column.of(number, outputs, reference).rmse for number in range(len(golden[0])))


@dataclass(frozen=True)
class _Column:
    """One output over all input sets, flat, in float64 on the CPU."""

    ours: torch.Tensor
    golden: torch.Tensor

    @classmethod
    def of(cls, number: int, outputs: Sequence[Outputs], golden: Golden) -> _Column:
        return cls(
            _flat(one[number] for one in outputs),
            _flat(one[number] for one in golden.outputs),
        )

    @property
    def _errors(self) -> torch.Tensor:
        import torch

        finite = torch.isfinite(self.golden) & torch.isfinite(self.ours)
        return (self.ours - self.golden)[finite]

    @property
    def rmse(self) -> float:
        if self.not_finite:
            return math.inf
        return float(self._errors.square().mean().sqrt()) if self._errors.numel() else 0.0

    @property
    def scale(self) -> float:
        import torch

        finite = self.golden[torch.isfinite(self.golden)]
        return float(finite.square().mean().sqrt()) if finite.numel() else 0.0

    @property
    def max_abs_error(self) -> float:
        if self.not_finite:
            return math.inf
        return float(self._errors.abs().max()) if self._errors.numel() else 0.0

    @property
    def not_finite(self) -> int:
        """Values that are NaN or infinite where the golden's are not, or another kind of it."""
        import torch

        same = (self.ours == self.golden) | (torch.isnan(self.ours) & torch.isnan(self.golden))
        strange = ~torch.isfinite(self.ours) | ~torch.isfinite(self.golden)
        return int((strange & ~same).sum())

    def is_close(self, rtol: float, atol: float) -> bool:
        import torch

        return torch.allclose(self.ours, self.golden, rtol=rtol, atol=atol, equal_nan=True)


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    import torch

    return torch.cat([tensor.detach().to("cpu", torch.float64).reshape(-1) for tensor in tensors])


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
