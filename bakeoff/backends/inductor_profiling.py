"""Which modules of the user's model each kernel of Inductor computes for, and where Dynamo left the user's code.

Inductor says of each kernel which nodes of the graph it was made from. A node knows the modules whose forward pass it
was traced in. Inductor passes it to `set_kernel_post_grad_provenance_tracing` while it writes the code.
"""

import contextlib
import importlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bakeoff.backends.profiling import CompilerWork, GraphBreak, Kernel, Modules, in_order, module_path
from bakeoff.models.lazily import dynamo_utils, inductor_config
from bakeoff.records.text import counted

NOTED_BY = "set_kernel_post_grad_provenance_tracing"
WRITERS = ("torch._inductor.debug", "torch._inductor.codegen.cpp", "torch._inductor.codegen.triton")
"""Modules that hold the function by its name."""

OPTIONS_FOR_NAMES = {"cpp.enable_kernel_profile": True}

VIEWS = frozenset(
    re.findall(
        r"\w+",
        "view permute reshape expand squeeze unsqueeze slice select split split_with_sizes "
        "t transpose alias as_strided getitem detach unbind dropout clone contiguous",
    )
)
"""Operators that compute nothing. A kernel works for their modules only if it works for no others."""


@dataclass
class NamedKernels:
    """The kernels of each graph that Inductor writes, in the order of its code. A graph has the id that Dynamo gave the
    compilation, such as `0/1`, and Inductor's own number."""

    by_graph: dict[tuple[str, int], list[Kernel]] = field(default_factory=lambda: defaultdict(list))

    @property
    def graphs(self) -> list[list[Kernel]]:
        return list(self.by_graph.values())

    @property
    def compile_ids(self) -> list[str]:
        return [compile_id for compile_id, _ in self.by_graph]

    @property
    def facts(self) -> list[str]:
        kernels = [kernel for graph in self.graphs for kernel in graph]
        if not kernels:
            return []
        fused = sum("fused" in kernel.name for kernel in kernels)
        across = sum(len(kernel.modules) > 1 for kernel in kernels)
        return [
            f"Inductor made {counted(len(kernels), 'kernel')} in {counted(len(self.graphs), 'graph')}: {fused} "
            f"generated and {counted(len(kernels) - fused, 'library call')}. For the work of several modules: {across}."
        ]


@contextlib.contextmanager
def naming_kernels(wanted: bool, clean: Callable[[str], str] = lambda path: path) -> Iterator[NamedKernels]:
    """Collect the kernels of what is compiled in the block. `clean` makes the user's path of a traced module's."""
    named = NamedKernels()
    if not wanted:
        yield named
        return
    import torch._functorch.config as functorch
    from torch._guards import CompileContext
    from torch._inductor.virtualized import V

    def note(nodes: Any, kernel: str, is_extern: bool = False, *_: object, **__: object) -> None:
        graph = str(CompileContext.current_compile_id()), int(getattr(V.graph, "graph_id", 0) or 0)
        named.by_graph[graph].append(Kernel(kernel, tuple(map(clean, modules_of(nodes, is_extern)))))

    with contextlib.ExitStack() as stack:
        # nothing reports the kernels of a graph that is read from a cache
        stack.enter_context(inductor_config.patch({**OPTIONS_FOR_NAMES, "fx_graph_cache": False}))
        stack.enter_context(functorch.patch(enable_autograd_cache=False))
        for name in WRITERS:
            module = importlib.import_module(name)
            if hasattr(module, NOTED_BY):
                stack.callback(setattr, module, NOTED_BY, getattr(module, NOTED_BY))
                setattr(module, NOTED_BY, note)
        yield named


def modules_of(nodes: Any, is_extern: bool) -> Modules:
    if is_extern:
        origin = getattr(nodes, "origin_node", None)
        return modules_of_origins([origin] if origin is not None else nodes.origins)
    inner = [node.node for node in nodes if getattr(node, "node", None) is not None]
    return modules_of_origins(origin for node in inner for origin in node.origins)


def modules_of_origins(origins: Iterable[Any]) -> Modules:
    """Return the modules of nodes of a graph. Views count only where there is nothing else."""
    nodes = list(origins)
    working = [node for node in nodes if not computes_nothing(node)] or nodes
    return in_order(sorted(module_of_node(node) for node in working))


def module_of_node(node: Any) -> str:
    """Return the path of the innermost module that a node was traced in, or an empty text for the model itself."""
    stack = node.meta.get("nn_module_stack") or {}
    return module_path(str(list(stack.values())[-1][0])) if stack else ""


def computes_nothing(node: Any) -> bool:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0] in VIEWS


def graph_breaks() -> list[GraphBreak]:
    breaks = [
        GraphBreak(reason=first_sentence(str(graph_break.reason)), place=place_in(graph_break.user_stack))
        for graph_break in getattr(dynamo_utils, "graph_break_reasons", [])
    ]
    return list(dict.fromkeys(breaks))


def first_sentence(reason: str) -> str:
    """Return Dynamo's reason in one line: its title, and its explanation. Of an RNN, for example, it gives none."""
    if reason == "step_unsupported":
        return "Dynamo does not trace what this line calls, and gives no reason"
    lines = [line.strip() for line in reason.splitlines() if line.strip()] or ["unknown"]
    explained = [line.removeprefix("Explanation:").strip() for line in lines if line.startswith("Explanation:")]
    return ": ".join([lines[0], *explained[:1]])[:300]


def place_in(stack: Sequence[Any] | None) -> str:
    """Return the innermost frame as `mine.py, line 12, in forward`, or nothing where there is none."""
    if not stack:
        return ""
    frame = stack[-1]
    name = re.sub(r"^torch_dynamo_resume_in_(.+)_at_\d+$", r"\1", frame.name)  # what follows an earlier break
    return f"{Path(frame.filename).name}, line {frame.lineno}, in {name}"


def compiler_work(named: NamedKernels) -> CompilerWork:
    return CompilerWork(breaks=graph_breaks(), recompilations=distinct_guards(failed_guards()), facts=named.facts)


def distinct_guards(failures: Iterable[str]) -> list[str]:
    """Return each guard that failed once, without Dynamo's numbers and hints. Those of other values are the same."""
    guards: dict[str, str] = {}
    for failure in failures:
        guard = re.sub(r"^\d+/\d+: ", "", failure).partition(" (HINT:")[0]
        guards.setdefault(re.sub(r"== -?[\d.]+", "==", guard), guard)
    return list(guards.values())


def failed_guards() -> list[str]:
    """Return in one line each why Dynamo could not call what it had compiled, in this process so far."""
    reasons = [str(reason) for of_code in dynamo_utils.guard_failures.values() for reason in of_code]
    return [" ".join(reason.strip().partition("\n")[0].split())[:300] for reason in reasons]  # torch 2.8 aligns them
