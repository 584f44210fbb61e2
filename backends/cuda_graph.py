"""The mode `cuda-graph`: any compiled model whose call can be captured, replayed as one launch.

It tells the quality of the kernels from the cost of launching them: what is left of a backend's lead over eager when
both are captured is its kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from backends.base import YES, Availability, Compiled, Settings, Wrapped
from models.base import of_each_shape
from records.errors import Unsupported
from records.schema import Cell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from models.base import Inputs

MODE = "cuda-graph"

WARMING_CALLS = 3
"""Before capture: libraries make their handles and workspaces in the first calls, which a capture does not allow."""


def supports_capture(cell: Cell) -> Availability:
    """Whether `cell` could be captured at all: a reason where its mode is `cuda-graph` and its device is not CUDA."""
    if cell.mode == MODE and not cell.device.is_cuda:
        return Availability(f"CUDA graphs need a CUDA device, not {cell.device}")
    return YES


def capture(compiled: Compiled, example: Inputs, sets: Sequence[Inputs] = ()) -> Compiled:
    """`compiled`, captured on the current stream, which must not be the default one, over buffers of its own.

    Raises Unsupported, with the library's reason, where its call cannot be captured, and where `sets`, all of which it
    is to be called with, have several shapes.
    """
    import torch

    if len(of_each_shape(sets)) > 1:
        raise Unsupported("a CUDA graph has one shape, and these inputs have several")
    # ordinary tensors, as the harness's are: for inference tensors Inductor would compile once more
    with torch.inference_mode(False):
        static = example.map(lambda tensor: tensor.detach().clone().requires_grad_(tensor.requires_grad))
    compiled.bind(static)
    for _ in range(WARMING_CALLS):
        compiled.run()
    torch.cuda.current_stream().synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            compiled.run()
    except RuntimeError as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise Unsupported(f"its call cannot be captured in a CUDA graph: {reason}") from error
    return Captured(compiled, graph, static)


class Captured(Wrapped):
    """A graph that replays over fixed addresses: binding copies into them, outside of the timed interval."""

    def __init__(self, compiled: Compiled, graph: Any, static: Inputs) -> None:
        super().__init__(compiled)
        self._graph = graph
        self._buffers = static.tensors()

    def bind(self, inputs: Inputs) -> None:
        for buffer, tensor in zip(self._buffers, inputs.tensors(), strict=True):
            buffer.detach().copy_(tensor.detach())

    def run(self) -> None:
        self._graph.replay()

    def stages(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return ()

    def settings(self) -> Settings:
        return {**super().settings(), "cuda_graph": True}

    def close(self) -> None:
        self._graph.reset()
        super().close()
