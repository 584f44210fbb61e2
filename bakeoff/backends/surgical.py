"""Inductor's modes `surgical` and `regional`: parts of a model are compiled, and the rest stays eager.

`surgical` compiles the modules that are named, for models with layers that a compiler cannot read, such as float8
layers of another library. `regional` compiles the layers that repeat, one for all, because that takes a fraction of the
time.
"""

from __future__ import annotations

import contextlib
import fnmatch
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bakeoff.backends.base import Compiled, Settings, Wrapped
from bakeoff.models.base import Inputs
from bakeoff.models.lazily import nn
from bakeoff.records.errors import Unsupported, unknown
from bakeoff.records.schema import Extent, Placement
from bakeoff.records.text import first, listed

MAX_CLASSES_SHOWN = 6
"""Further classes of modules that stayed eager are only counted."""

IMPORTED_AS = {"transformer_engine": "te"}
"""The usual short name of a library in its users' code."""


def find_targets(module: nn.Module, patterns: Sequence[str]) -> dict[str, nn.Module]:
    """Return the modules with names that match one of `patterns` (`*` matches dots, too), and lie in no other match.
    Raise Unsupported without a pattern, and UsageError if a pattern matches no module."""
    if not patterns:
        raise Unsupported(
            "the model names no targets of surgical compilation: name them with --surgical 'layers.*.rope'"
        )
    named = {name: part for name, part in module.named_modules() if name}
    targets: dict[str, nn.Module] = {}
    for pattern in patterns:
        matching = fnmatch.filter(named, pattern)
        if not matching:
            raise unknown("module in --surgical", pattern, named)
        targets |= {name: named[name] for name in matching}
    return {name: part for name, part in targets.items() if not any(name.startswith(f"{outer}.") for outer in targets)}


def find_repeated(module: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost layers of which a list of the model has several alike: of one class, with equal parameters
    and buffers but for their values. Raise Unsupported if there are none."""
    repeated: dict[str, nn.Module] = {}
    for path, holder in module.named_modules():
        is_inside = any(path == outer or path.startswith(f"{outer}.") for outer in repeated)
        if is_inside or not isinstance(holder, nn.ModuleList | nn.Sequential):
            continue
        kinds: dict[object, dict[str, nn.Module]] = {}
        for name, layer in holder.named_children():
            named = (*layer.named_parameters(), *layer.named_buffers())
            tensors = tuple((key, tensor.shape, tensor.dtype) for key, tensor in named)
            if tensors:
                kinds.setdefault((type(layer), tensors), {})[f"{path}.{name}".lstrip(".")] = layer
        for alike in kinds.values():
            repeated |= alike if len(alike) > 1 else {}
    if not repeated:
        raise Unsupported("the model repeats no layer, of which one could be compiled for all: use inductor")
    return repeated


@dataclass
class Outside:
    """The work of a call outside of the targets: calls of each operator, and the number of modules of each class.
    Libraries with kernels of their own (TransformerEngine) show their modules only."""

    operators: Counter[str] = field(default_factory=Counter)
    modules: Counter[str] = field(default_factory=Counter)


def stays_outside(module: nn.Module, targets: Mapping[str, nn.Module], inputs: Inputs) -> Outside:
    """Return the operators and working modules that one eager call of `module` runs outside of `targets`. Views are not
    counted."""
    from torch.nn.modules import module as hooks

    from bakeoff.backends.plain_dispatch import OperatorWatch

    outside = Outside()
    everything = _Call(None)
    calls = [everything]
    compiled = {id(target) for target in targets.values()}

    def note(func: Any, *_: object) -> None:
        if not any(id(call.module) in compiled for call in calls) and not func.is_view:
            outside.operators[str(func.overloadpacket)] += 1

    def enter(called: nn.Module, *_: object) -> None:
        calls.append(_Call(called))

    def leave(called: nn.Module, *_: object) -> None:
        call = calls.pop()
        if id(called) not in compiled:
            calls[-1].inner |= call.working()
        calls[-1].is_leaf = False

    with contextlib.ExitStack() as stack:
        stack.callback(hooks.register_module_forward_pre_hook(enter).remove)
        stack.callback(hooks.register_module_forward_hook(leave, always_call=True).remove)
        stack.enter_context(OperatorWatch(note))
        inputs.call(module)
    outside.modules.update(_class_of(part) for part in everything.inner)
    return outside


@dataclass
class _Call:
    module: nn.Module | None
    inner: set[nn.Module] = field(default_factory=set)  # modules that work inside it, outside of the targets
    is_leaf: bool = True  # it has called no other module

    def working(self) -> set[nn.Module]:
        """Return the module itself if it calls no other, or has weights and calls none that has; otherwise those that
        it calls. So a float8 layer with helpers is one module, and a wrapper is none."""
        assert self.module is not None
        has_weights = _has_weights(self.module) and not any(map(_has_weights, self.inner))
        return {self.module} if self.is_leaf or has_weights else self.inner


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _class_of(module: nn.Module) -> str:
    """Return `Linear` for a class of torch, `te.Linear` for TransformerEngine, and the package's name for any other."""
    kind = type(module)
    package = kind.__module__.partition(".")[0]
    if kind.__module__.startswith("torch.nn."):
        return kind.__name__
    return f"{IMPORTED_AS.get(package, package)}.{kind.__name__}"


class SurgicalModule(Wrapped):
    """A module with compiled parts. Closing it gives the parts their own `forward` back."""

    def __init__(self, inner: Compiled, targets: Mapping[str, nn.Module], eager: Outside) -> None:
        super().__init__(inner)
        self._targets = targets
        self._eager = eager

    def placement(self) -> Placement:
        inner = self._inner.placement()
        assert inner is not None
        outside = [f"{name} stayed eager ({count})" for name, count in self._eager.operators.most_common()]
        if self._eager.modules:
            by_class = [f"{name} ({count})" for name, count in self._eager.modules.most_common()]
            modules = listed(first(by_class, MAX_CLASSES_SHOWN))
            outside.insert(0, f"modules that stayed eager: {modules}")
        return inner.but(
            extent=Extent.FALLBACK if inner.extent is Extent.FALLBACK else Extent.PARTIAL,
            engines={
                "modules compiled": len(self._targets),
                **inner.engines,
                "eager modules": self._eager.modules.total(),
                "eager operators": self._eager.operators.total(),
            },
            fallbacks=[*inner.fallbacks, *outside],
            evidence=[*inner.evidence, "an eager call's modules and operators outside of the compiled ones"],
        )

    def settings(self) -> Settings:
        return {**super().settings(), "compiled_modules": ", ".join(self._targets)}

    def close(self) -> None:
        super().close()
        for target in self._targets.values():
            target.__dict__.pop("forward", None)
