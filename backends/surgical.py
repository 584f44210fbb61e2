"""Inductor's mode `surgical`: only the named modules of a model are compiled, and the rest stays eager.

It is for models whose other layers a compiler cannot look into (float8 layers of a foreign library), or where compiling
the whole takes longer than it will ever save.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from backends.base import Compiled, Settings, Wrapped
from records.errors import Unsupported, unknown
from records.schema import Extent, Placement

if TYPE_CHECKING:
    import torch
    from torch import nn

    from models.base import Inputs

CLASSES_SHOWN = 6
"""More classes of modules that stayed eager than these are only counted."""

IMPORTED_AS = {"transformer_engine": "te"}
"""What a library's users call it, where that is not its name."""


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


@dataclass
class Outside:
    """What a call ran in none of the targets: operators by name, and how often; modules by class, and how many.

    Libraries that call their own kernels (TransformerEngine) pass the dispatcher by, so that their operators are not
    seen; their modules are.
    """

    operators: Counter[str] = field(default_factory=Counter)
    modules: Counter[str] = field(default_factory=Counter)


@contextlib.contextmanager
def counted_outside(targets: Mapping[str, nn.Module]) -> Iterator[Outside]:
    """Inside, eager calls are counted: operators but those that only make a view, which launch nothing, and modules as
    `_Call.working` has them. What they come to is there when the context is left."""
    from torch.nn.modules import module as hooks
    from torch.utils import _python_dispatch

    found = Outside()
    everything = _Call(None)
    calls = [everything]
    compiled = {id(target) for target in targets.values()}

    class Watching(_python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if not any(id(call.module) in compiled for call in calls) and not func.is_view:
                found.operators[str(func.overloadpacket)] += 1
            return func(*args, **(kwargs or {}))

    def enter(module: nn.Module, *_: object) -> None:
        calls.append(_Call(module))

    def leave(module: nn.Module, *_: object) -> None:
        call = calls.pop()
        if id(module) not in compiled:
            calls[-1].inner |= call.working()
        calls[-1].is_leaf = False

    with contextlib.ExitStack() as stack:
        stack.callback(hooks.register_module_forward_pre_hook(enter).remove)
        stack.callback(hooks.register_module_forward_hook(leave, always_call=True).remove)
        stack.enter_context(Watching())
        yield found
    found.modules.update(_class_of(module) for module in everything.inner)


@dataclass
class _Call:
    """One call of a module."""

    module: nn.Module | None
    inner: set[nn.Module] = field(default_factory=set)  # that work in it, in none of the targets
    is_leaf: bool = True  # it has called no other module

    def working(self) -> set[nn.Module]:
        """The module itself if it calls no other, or has weights of its own and calls none that has; otherwise those
        that it calls. So a float8 layer is one, with what it rounds by, and a wrapper around one is none."""
        assert self.module is not None
        has_weights = _has_weights(self.module) and not any(map(_has_weights, self.inner))
        return {self.module} if self.is_leaf or has_weights else self.inner


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _class_of(module: nn.Module) -> str:
    """`Linear` for torch's, `te.Linear` for TransformerEngine's; with the package's name for any other's."""
    kind = type(module)
    package = kind.__module__.partition(".")[0]
    if kind.__module__.startswith("torch.nn."):
        return kind.__name__
    return f"{IMPORTED_AS.get(package, package)}.{kind.__name__}"


class Operated(Wrapped):
    """A module with compiled parts. Closing it gives the parts their own `forward` back."""

    def __init__(self, inner: Compiled, targets: Mapping[str, nn.Module], eager: Outside) -> None:
        super().__init__(inner)
        self._targets = targets
        self._eager = eager

    def placement(self) -> Placement:
        """The compiled parts' as Inductor tells it, and what ran beside them, which was counted in an eager call."""
        inner = self._inner.placement()
        assert inner is not None
        outside = [f"{name} stayed eager ({count})" for name, count in self._eager.operators.most_common()]
        if self._eager.modules:
            outside.insert(0, f"modules that stayed eager: {self._modules()}")
        return inner.model_copy(
            update={
                "extent": Extent.FALLBACK if inner.extent is Extent.FALLBACK else Extent.PARTIAL,
                "engines": {
                    "modules compiled": len(self._targets),
                    **inner.engines,
                    "eager modules": self._eager.modules.total(),
                    "eager operators": self._eager.operators.total(),
                },
                "fallbacks": [*inner.fallbacks, *outside],
                "evidence": [*inner.evidence, "an eager call's modules and operators outside of the compiled ones"],
            }
        )

    def _modules(self) -> str:
        """`te.Linear (16), Dropout (4)`, with the number of classes that there is no room for."""
        by_class = [f"{name} ({count})" for name, count in self._eager.modules.most_common()]
        more = len(by_class) - CLASSES_SHOWN
        return ", ".join(by_class[:CLASSES_SHOWN]) + (f" and {more} more classes" if more > 0 else "")

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


def stays_outside(module: nn.Module, targets: Mapping[str, nn.Module], inputs: Inputs) -> Outside:
    """What one eager call of `module` runs outside of `targets`."""
    with counted_outside(targets) as found:
        module(*inputs.args, **inputs.kwargs)
    return found
