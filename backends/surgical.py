"""Inductor's mode `surgical`: only the named modules of a model are compiled, and the rest stays eager.

It is for models whose other layers a compiler cannot look into (float8 layers of a foreign library), or where compiling
the whole takes longer than it will ever save.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from backends.base import Compiled, Settings, Wrapped
from reports.errors import Unsupported, unknown
from reports.schema import Extent, Placement

if TYPE_CHECKING:
    import torch
    from torch import nn

    from models.base import Inputs


def find_targets(module: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """The modules whose names match one of `patterns`, outermost ones only: what they hold is compiled with them.

    A `*` matches dots, too. Raises Unsupported without a pattern, UsageError for one that no module matches, naming the
    nearest that there is.
    """
    if not patterns:
        raise Unsupported(
            "the model names no targets of surgical compilation: name them with --surgical 'layers.*.rope'"
        )
    named = {name: part for name, part in module.named_modules() if name}
    found: dict[str, nn.Module] = {}
    for pattern in patterns:
        matching = fnmatch.filter(named, pattern)
        if not matching:
            raise unknown("module in --surgical", pattern, named)
        found |= {name: named[name] for name in matching}
    return {name: part for name, part in found.items() if not any(name.startswith(f"{outer}.") for outer in found)}


@contextlib.contextmanager
def counted_outside(targets: Mapping[str, nn.Module]) -> Iterator[Counter[str]]:
    """Inside, eager calls count the operators that run in none of `targets`. Operators that only make a view are left
    out: they launch nothing."""
    from torch.utils import _python_dispatch

    counted: Counter[str] = Counter()
    depth = 0

    class Outside(_python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not depth and not func.is_view:
                counted[str(func.overloadpacket)] += 1
            return func(*args, **(kwargs or {}))

    def enter(*_: object) -> None:
        nonlocal depth
        depth += 1

    def leave(*_: object) -> None:
        nonlocal depth
        depth -= 1

    with contextlib.ExitStack() as stack:
        for target in targets.values():
            stack.callback(target.register_forward_pre_hook(enter).remove)
            stack.callback(target.register_forward_hook(leave).remove)
        stack.enter_context(Outside())
        yield counted


class Operated(Wrapped):
    """A module with compiled parts. Closing it gives the parts their own `forward` back."""

    def __init__(self, inner: Compiled, targets: Mapping[str, nn.Module], eager: Counter[str]) -> None:
        super().__init__(inner)
        self._targets = targets
        self._eager = eager

    def placement(self) -> Placement:
        """The compiled parts' as Inductor tells it, and what ran beside them, which was counted in an eager call."""
        inner = self._inner.placement()
        assert inner is not None
        outside = [f"{name} stayed eager ({count})" for name, count in self._eager.most_common()]
        return inner.model_copy(
            update={
                "extent": Extent.FALLBACK if inner.extent is Extent.FALLBACK else Extent.PARTIAL,
                "engines": {
                    "modules compiled": len(self._targets),
                    **inner.engines,
                    "eager operators": self._eager.total(),
                },
                "fallbacks": [*inner.fallbacks, *outside],
                "evidence": [*inner.evidence, "an eager call's operators outside of the compiled modules"],
            }
        )

    def settings(self) -> Settings:
        return {**super().settings(), "compiled_modules": ", ".join(self._targets)}

    def close(self) -> None:
        super().close()
        for target in self._targets.values():
            target.__dict__.pop("forward", None)


def compile_parts(targets: Mapping[str, torch.nn.Module]) -> None:
    """Replace the `forward` of each by what torch.compile makes of it in its next call."""
    import torch

    for target in targets.values():
        target.forward = torch.compile(target.forward, backend="inductor")


def operators_outside(module: nn.Module, targets: Mapping[str, nn.Module], inputs: Inputs) -> Counter[str]:
    """Which operators one eager call of `module` runs outside of `targets`, and how often."""
    with counted_outside(targets) as counted:
        module(*inputs.args, **inputs.kwargs)
    return counted
