"""Keeps a computation in float64 that a model or an operator would leave.

`module.double()` casts weights, not code. Llama's normalisation and rotary embedding cast to float32 by themselves, and
some operators have no float64, such as the grouped products of a mixture of experts.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff.measuring.worker.plain_dispatch import keep_compiler_out
from bakeoff.measuring.worker.worker_context import explain
from bakeoff.records.schema import Status

aten = torch.ops.aten

CASTS = frozenset({aten._to_copy, aten.to, aten.sum, aten.mean, aten.prod, aten.cumsum, aten.softmax, aten.log_softmax})
"""Operators that take the type of their result as an argument. Views of the same bits as another type are not here."""


class KeepFloat64(TorchDispatchMode):
    """Inside this block, casts to float32 are casts to float64, and operators that lack float64 run in float32.

    `in_float32` names the latter. An operator that fails in float32, too, raises its first error. With
    `widens_16_bits`, casts to bfloat16 and float16 are casts to float64, too.
    """

    def __init__(self, widens_16_bits: bool = False) -> None:
        super().__init__()
        self._wider = {
            **WIDER,
            **(dict.fromkeys((torch.bfloat16, torch.float16), torch.float64) if widens_16_bits else {}),
        }
        keep_compiler_out(KeepFloat64)
        self.in_float32: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in CASTS:
            args, kwargs = pytree.tree_map_only(torch.dtype, lambda each: self._wider.get(each, each), (args, kwargs))
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if func._schema.is_mutable or explain(error)[0] is Status.OOM:
                raise
            found = self._call_in_float32(func, args, kwargs, error)
        name = str(func.overloadpacket)
        if name not in self.in_float32:
            self.in_float32.append(name)
        return found

    def _call_in_float32(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], first: Exception
    ) -> Any:
        narrow_args, narrow_kwargs = _cast((args, kwargs), NARROWER)
        try:
            found = func(*narrow_args, **narrow_kwargs)
        except (RuntimeError, NotImplementedError):
            raise first from None
        return _cast(found, WIDER)


WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
NARROWER = {wide: narrow for narrow, wide in WIDER.items()}


def _cast(values: Any, types: Mapping[torch.dtype, torch.dtype]) -> Any:
    """Return `values` with tensors of a type among `types` in the other type."""
    return pytree.tree_map_only(torch.Tensor, lambda each: each.to(types.get(each.dtype, each.dtype)), values)
