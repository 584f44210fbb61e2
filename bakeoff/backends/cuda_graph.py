"""The mode `cuda-graph`: a compiled model's call is captured once and replayed as one launch.

It separates the quality of kernels from the cost of launching them. If a backend and eager are both captured, the lead
that remains comes from the backend's kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bakeoff.backends.base import BuildContext, Compiled, Settings, Wrapped
from bakeoff.backends.profiling import Kernel, Profiler
from bakeoff.backends.runtime.contract import WARMING_CALLS
from bakeoff.backends.torch_profiling import TorchProfiler
from bakeoff.models.base import Inputs, of_each_shape
from bakeoff.models.lazily import torch
from bakeoff.records.errors import Unsupported, first_line
from bakeoff.records.schema import CAPTURE


def capture(compiled: Compiled, example: Inputs, context: BuildContext) -> Compiled:
    """Capture a call of `compiled` over buffers of its own, in the phase `capture`, outside of the default stream.
    Raise Unsupported if the call cannot be captured, or if the input sets have several shapes."""
    from bakeoff.models.input_sets import copied

    sets = context.calibration
    if len(of_each_shape(sets)) > 1:
        raise Unsupported("a CUDA graph has one shape, and these inputs have several")
    with context.phase(CAPTURE):
        # the harness's tensors are ordinary ones, and Inductor would compile again for inference tensors
        with torch.inference_mode(False):
            addresses = [{tensor.data_ptr() for tensor in inputs.tensors()} for inputs in sets]
            # what all sets share, such as a cache that a call writes into, is captured where it is
            shared = set.intersection(*addresses) if len(sets) > 1 else set()
            own = [tensor for tensor in example.tensors() if tensor.data_ptr() not in shared]
            copies = dict(zip(map(id, own), copied(own), strict=True))
            static = example.map(lambda tensor: copies.get(id(tensor), tensor))
        compiled.bind(static)
        for _ in range(WARMING_CALLS):
            compiled.run()
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                compiled.run()
        except RuntimeError as error:
            raise Unsupported(f"its call cannot be captured in a CUDA graph: {first_line(error)}") from error
    return Captured(compiled, graph, static)


class Captured(Wrapped):
    """Replays a graph over fixed addresses. Binding copies the inputs there, outside of the timed interval."""

    def __init__(self, compiled: Compiled, graph: Any, static: Inputs) -> None:
        super().__init__(compiled)
        self._graph = graph
        self._buffers = static.tensors()

    def bind(self, inputs: Inputs) -> None:
        from bakeoff.models.input_sets import without_repeats

        for buffer, tensor in zip(self._buffers, inputs.tensors(), strict=True):
            if buffer.data_ptr() != tensor.data_ptr():
                once = without_repeats(buffer)
                buffer.detach()[once].copy_(tensor.detach()[once])
        self._inner.refresh()

    def own_inputs(self) -> Sequence[torch.Tensor]:
        return self._buffers

    def run(self) -> None:
        self._graph.replay()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return ()

    def profiler(self, module: torch.nn.Module) -> Profiler | None:
        """Return a profiler of the replayed graph. Its kernels have the modules that they have without the graph, where
        they run in the same order."""
        inner = self._inner.profiler(module)
        if inner is None:
            return None
        with inner:
            inner.run()
            kernels = [Kernel(span.name, span.modules) for call in inner.calls() for span in call]
        return TorchProfiler(self.run, True, [kernels], work=inner.work())

    def settings(self) -> Settings:
        return {**super().settings(), "cuda_graph": True}

    def close(self) -> None:
        self._graph.reset()
        super().close()
