"""Calls whose inputs come from host memory, and whose outputs go back there."""

import torch

from bakeoff.backends.base import Compiled, Settings, Wrapped
from bakeoff.backends.calling import is_sparse
from bakeoff.models.base import Inputs
from bakeoff.models.input_sets import without_repeats
from bakeoff.records.errors import Unsupported


class FromHost(Wrapped):
    """Copies inputs to the device before each call, and outputs to host memory after it. With `is_pinned`, host memory
    is page-locked and copies are queued on the stream. Otherwise each copy has ended before the next step."""

    def __init__(self, inner: Compiled, is_pinned: bool) -> None:
        super().__init__(inner)
        self._is_pinned = is_pinned
        self.inputs: list[tuple[torch.Tensor, torch.Tensor]] = []  # each on the device and on the host
        self.answers: list[torch.Tensor] = []  # outputs of the last call, on the host

    def bind(self, inputs: Inputs) -> None:
        """Bind `inputs`, and put their values into host memory for the next calls, which is not timed. Raises
        Unsupported for sparse and nested tensors."""
        self._inner.bind(inputs)
        self.inputs = []
        for tensor in self._inner.own_inputs() or inputs.tensors():
            host = self._like_on_host(tensor)
            once = without_repeats(tensor)
            self.inputs.append((tensor.detach()[once], host[once].copy_(tensor.detach()[once])))

    def run(self) -> None:
        queued = self._is_pinned
        for tensor, value in self.inputs:
            tensor.copy_(value, non_blocking=queued)
        self._inner.refresh()
        self._inner.run()
        results = self._inner.results()
        if [result.shape for result in results] != [answer.shape for answer in self.answers]:
            self.answers = [self._like_on_host(result) for result in results]
        for answer, result in zip(self.answers, results, strict=True):
            answer.copy_(result.detach(), non_blocking=queued)

    def settings(self) -> Settings:
        to_device = sum(value.nbytes for _, value in self.inputs)
        from_device = sum(answer.nbytes for answer in self.answers)
        copied = {"bytes copied to the device": to_device, "bytes copied from the device": from_device}
        return {**super().settings(), **copied}

    def _like_on_host(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_nested or is_sparse(tensor):
            raise Unsupported("only dense tensors are copied from and to host memory, and this model has others")
        host = torch.empty_like(tensor, device="cpu", requires_grad=False)
        return host.pin_memory() if self._is_pinned else host
