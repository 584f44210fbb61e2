"""Counting what one call of a model takes, for the roofline."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from backends.calling import flatten_outputs
from models.base import Inputs
from records.precision import Precision
from records.schema import Work

if TYPE_CHECKING:
    from backends.training import Training

ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
"""Torch's counter does not know the first and the last one, and refuses heads that share keys in the others."""

LOOKUPS = ("embedding", "index_select", "index", "gather")
"""Operators whose output is what they read of their table."""


def count(module: nn.Module, inputs: Inputs, precision: Precision, training: Training | None = None) -> Work:
    """What one eager call takes, which is made here. Raises whatever that call raises.

    Operations: those of matrix products, convolutions and attention, where a multiplication and an addition are two and
    a mask saves nothing. What else a model does (activations, norms, sums) does not count.

    Bytes: the weights (parameters and buffers) that the call uses, its inputs and its outputs, each once. Of a table
    only what is looked up counts. In int8 and fp8 a floating-point weight has one byte per element, whatever it has
    here.

    Of a training task forward and backward are called. They write each gradient once; with an optimiser's step, which
    is not called, each parameter and both its moments are read and written instead: gradients need not leave the chip.
    """
    aten = torch.ops.aten
    attention = {getattr(aten, name): _attention_flops for name in ATTENTION if hasattr(aten, name)}
    backward = [f"{name}_backward" for name in ATTENTION if hasattr(aten, f"{name}_backward")]
    attention |= {getattr(aten, name): _attention_backward_flops for name in backward}
    reads = _Reads(module, weight_bytes=1 if precision.is_quantised else None)
    # the counter is the inner one: it takes composite operators apart before `reads` sees them
    with (
        _one_operator_at_a_time(module),
        reads,
        FlopCounterMode(display=False, custom_mapping=attention) as counter,
    ):
        outputs = _train(training, inputs) if training else flatten_outputs(module(*inputs.args, **inputs.kwargs))
    moved = reads.bytes_read + sum(_bytes(tensor) for tensor in (*inputs.tensors(), *outputs))
    return Work(flops=counter.get_total_flops(), bytes_moved=moved)


def total(parts: Iterable[Work]) -> Work:
    """What several calls take, one after the other: weights are read in each of them."""
    known = list(parts)
    return Work(flops=sum(one.flops for one in known), bytes_moved=sum(one.bytes_moved for one in known))


def _train(training: Training, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    """Forward and backward. Returns tensors as large as what a step writes."""
    training.forget_gradients(inputs)
    loss = training.forward(*inputs.args, **inputs.kwargs)
    training.backward(loss)
    asking = [tensor for tensor in inputs.tensors() if tensor.requires_grad]
    if training.optimiser is None:
        written = [*training.module.parameters(), *asking]
    else:
        states = [tensor for state in training.optimiser.state.values() for tensor in state.values()]
        written = [*training.module.parameters(), *states, *states, *asking]
    training.forget_gradients(inputs)
    return (loss.detach(), *written)


class _Reads(TorchDispatchMode):
    """Watches which weights the operators within it read, and how much of each."""

    def __init__(self, module: nn.Module, weight_bytes: int | None) -> None:
        super().__init__()
        self._weight_bytes = weight_bytes
        self._left: dict[int, int] = {}  # address of a weight's storage -> elements that no operator has read yet
        self._seen: set[tuple[int, int, int]] = set()  # parts of weights that some operator has read
        self.bytes_read = 0
        for weight in (*module.parameters(), *module.buffers()):
            self._left[_address(weight)] = weight.untyped_storage().nbytes() // weight.element_size()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        made = {_address(tensor) for tensor in results}
        for tensor in pytree.tree_leaves((args, kwargs)):
            if not isinstance(tensor, torch.Tensor) or _address(tensor) not in self._left:
                continue
            if _address(tensor) in made:
                continue  # a view: whoever reads it will come by
            part = (_address(tensor), int(tensor.storage_offset()), tensor.numel())
            if func.overloadpacket.__name__ in LOOKUPS and tensor is args[0]:
                self._read(tensor, results[0].numel())
            elif part not in self._seen:
                self._seen.add(part)
                self._read(tensor, tensor.numel())
        return result

    def _read(self, weight: torch.Tensor, elements: int) -> None:
        """Note that `elements` of the weight were read; what was read before does not have to move again."""
        new = min(elements, self._left[_address(weight)])
        self._left[_address(weight)] -= new
        width = self._weight_bytes if weight.is_floating_point() else None
        self.bytes_read += new * (width or weight.element_size())


@contextlib.contextmanager
def _one_operator_at_a_time(module: nn.Module) -> Iterator[None]:
    """No operator stands for a whole layer: neither transformer layers' fast path nor fused recurrent layers, which
    torch's counter knows nothing of."""
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with contextlib.ExitStack() as stack:
            if any(isinstance(part, nn.RNNBase) for part in module.modules()):
                stack.enter_context(warnings.catch_warnings())
                warnings.simplefilter("ignore")  # switching oneDNN off says that its TF32 is for other devices
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Of the two matrix products of attention. Shapes: (batch, heads, queries, width), (batch, heads, keys, width);
    several heads of the query may share one of the keys'."""
    batch, heads, queries, width = query
    *_rest, keys, value_width = value
    return int(2 * batch * heads * queries * keys * (width + value_width))


def _attention_backward_flops(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    """Five products where the forward has two: the scores again, and the gradients of value, scores, query and key."""
    batch, heads, queries, width = query
    *_rest, keys, value_width = value
    return int(2 * batch * heads * queries * keys * (3 * width + 2 * value_width))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
