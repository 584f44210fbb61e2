"""Counting what one call of a model takes, for the roofline."""

import contextlib
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils import flop_counter
from torch.utils.flop_counter import FlopCounterMode

from bakeoff.backends import fast_path
from bakeoff.backends.calling import returned_by_call
from bakeoff.backends.plain_dispatch import OperatorWatch, keep_compiler_out
from bakeoff.backends.torch_profiling import around_modules
from bakeoff.backends.training import Training
from bakeoff.models.base import Inputs
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Work
from bakeoff.truth.witnesses import jumps, narrows, writes_in_any_order

aten = torch.ops.aten

ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
"""Torch's counter does not know the first and the last one, and the others only where no heads share keys."""

CONVOLUTIONS = ("convolution", "_convolution", "cudnn_convolution", "_slow_conv2d_forward", "convolution_overrideable")

LOOKUPS = ("embedding", "index_select", "index", "gather")
"""Operators that read as much of their table as they return."""


def count(module: nn.Module, inputs: Inputs, precision: Precision, training: Training | None = None) -> Work:
    """Make one eager call and return its work: operations of products, convolutions and attention, and bytes of used
    weights, inputs and outputs, each counted once. Raises what the call raises."""
    with _counting(module, precision) as so_far:
        outputs = _train(training, inputs) if training else returned_by_call(inputs.call(module))
    return _work(so_far() + _Counts(moved=sum(_bytes(tensor) for tensor in (*inputs.tensors(), *outputs))))


def count_modules(module: nn.Module, inputs: Inputs, precision: Precision) -> dict[str, Work]:
    """Make one eager call and return the work of each module that is called, with all inside it, by its path. It is
    counted as by `count`, except that a weight counts only where it is read first."""
    counts: defaultdict[str, _Counts] = defaultdict(_Counts)
    entered: list[tuple[str, _Counts]] = []

    def leave(path: str, given_and_returned: object) -> None:
        _, before = entered.pop()
        if all(path != outer for outer, _ in entered):  # of a module that calls itself, the outermost call has all
            tensors = {
                _address(leaf): _bytes(leaf)
                for leaf in pytree.tree_leaves(given_and_returned)
                if isinstance(leaf, torch.Tensor)
            }
            counts[path] += so_far() - before + _Counts(moved=sum(tensors.values()))

    with (
        _counting(module, precision) as so_far,
        around_modules(module, lambda path: entered.append((path, so_far())), leave),
    ):
        inputs.call(module)
    return {path: _work(each) for path, each in counts.items()}


_Counts = Counter[str]
"""Operations (`flops`), those of them that no algorithm for convolutions needs (`saved`), and bytes (`moved`)."""


def _work(counts: _Counts) -> Work:
    least_flops = counts["flops"] - counts["saved"] if counts["saved"] else None
    return Work(flops=counts["flops"], bytes_moved=counts["moved"], least_flops=least_flops)


@contextlib.contextmanager
def _counting(module: nn.Module, precision: Precision) -> Iterator[Callable[[], _Counts]]:
    """Count what runs in the block. The yielded function returns what was counted so far, of bytes only weights'."""
    keep_compiler_out(getattr(flop_counter, "_FlopCounterMode", object))
    attention = {getattr(aten, name): _attention_flops for name in ATTENTION if hasattr(aten, name)}
    backward = [f"{name}_backward" for name in ATTENTION if hasattr(aten, f"{name}_backward")]
    attention |= {getattr(aten, name): _attention_backward_flops for name in backward}
    saved = _SavedByConvolutions()
    reads = _Reads(module, weight_bytes=precision.weight_bytes)
    # the counter is inside, because it takes composite operators apart before `reads` sees them
    with (
        _one_operator_at_a_time(module),
        reads,
        FlopCounterMode(display=False, custom_mapping=attention | saved.counters) as counter,
    ):
        yield lambda: _Counts(flops=counter.get_total_flops(), saved=saved.flops, moved=reads.bytes_read)


def total(parts: Iterable[Work]) -> Work:
    works = list(parts)
    flops = sum(work.flops for work in works)
    least_flops = sum(work.flops if work.least_flops is None else work.least_flops for work in works)
    return Work(
        flops=flops,
        bytes_moved=sum(work.bytes_moved for work in works),
        least_flops=least_flops if least_flops < flops else None,
    )


def _train(training: Training, inputs: Inputs) -> tuple[torch.Tensor, ...]:
    training.forget_gradients(inputs)
    loss = training.forward(*inputs.args, **inputs.kwargs)
    training.backward(loss)
    asking = [tensor for tensor in inputs.tensors() if tensor.requires_grad]
    if training.optimiser is None:
        written = [*training.module.parameters(), *asking]
    else:
        # A step moves each parameter and its two moments, and then gradients need not leave the chip.
        states = [tensor for state in training.optimiser.state.values() for tensor in state.values()]
        written = [*training.module.parameters(), *states, *states, *asking]
    training.forget_gradients(inputs)
    return (loss.detach(), *written)


class _SavedByConvolutions:
    """Adds up the operations that no algorithm for convolutions needs, while torch's counter counts them.

    Winograd's minimal filtering takes m + r - 1 multiplications for m outputs of r taps instead of m times r, and a
    Fourier transform about as many. So large tiles need one for each output and each step of a stride (Winograd,
    Arithmetic Complexity of Computations, 1980; Lavin and Gray, CVPR 2016). Transforms count as free.
    """

    def __init__(self) -> None:
        self.flops = 0
        aten, known = torch.ops.aten, flop_counter.flop_registry
        forward = {getattr(aten, name): (1, 3) for name in CONVOLUTIONS if hasattr(aten, name)}
        places = forward | {aten.convolution_backward: (2, 4)}  # of the weight and of the stride
        self.counters = {
            operator: self._counter(known[operator], *at) for operator, at in places.items() if operator in known
        }

    def _counter(self, count: Callable[..., int], weight: int, stride: int) -> Callable[..., int]:
        def counted(*shapes: Any, out_shape: Any = None, **more: Any) -> int:
            flops = count(*shapes, out_val=out_shape, **more)
            taps = shapes[weight][2:]
            steps = [*shapes[stride], *([1] * len(taps))][: len(taps)]
            needed = math.prod(min(step, tap) / tap for step, tap in zip(steps, taps, strict=True))
            self.flops += math.floor(flops * (1 - needed))
            return flops

        return counted


class _Reads(OperatorWatch):
    """Watches which weights the operators inside it read, and how much of each."""

    def __init__(self, module: nn.Module, weight_bytes: float | None) -> None:
        super().__init__()
        self._weight_bytes = weight_bytes
        self._left: dict[int, int] = {}  # elements that no operator has read yet, by address of the weight's storage
        self._seen: set[tuple[int, int, int]] = set()  # parts of weights that some operator has read
        self.bytes_read = 0
        for weight in (*module.parameters(), *module.buffers()):
            self._left[_address(weight)] = weight.untyped_storage().nbytes() // weight.element_size()

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
        results = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        made = {_address(tensor) for tensor in results}
        for tensor in pytree.tree_leaves((args, kwargs)):
            if not isinstance(tensor, torch.Tensor) or _address(tensor) not in self._left:
                continue
            if _address(tensor) in made:
                continue  # a view, which another operator reads
            part = (_address(tensor), int(tensor.storage_offset()), tensor.numel())
            if func.overloadpacket.__name__ in LOOKUPS and tensor is args[0]:
                self._read(tensor, results[0].numel())
            elif part not in self._seen:
                self._seen.add(part)
                self._read(tensor, tensor.numel())
        return found

    def _read(self, weight: torch.Tensor, elements: int) -> None:
        """Count `elements` of the weight as read. Elements that were read before do not move again."""
        new = min(elements, self._left[_address(weight)])
        self._left[_address(weight)] -= new
        width = self._weight_bytes if weight.is_floating_point() else None
        self.bytes_read += round(new * (width or weight.element_size()))


@contextlib.contextmanager
def _one_operator_at_a_time(module: nn.Module) -> Iterator[None]:
    """Switch off the fused kernels of transformer and recurrent layers, which torch's counter does not know."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(fast_path.switched_off())
        if any(isinstance(part, nn.RNNBase) for part in module.modules()):
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # oneDNN warns when it is switched off that its TF32 is for other devices
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


def _attention_flops(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    """Count both products of attention over (batch, heads, queries, width) and (batch, heads, keys, width)."""
    batch, heads, queries, width = query
    # Several heads of the query may share one head of the keys. A mask saves nothing.
    *_rest, keys, value_width = value
    return int(2 * batch * heads * queries * keys * (width + value_width))


def _attention_backward_flops(_: Any, query: Any, key: Any, value: Any, *__: Any, **___: Any) -> int:
    """Count five products: the scores once more, and the gradients of value, scores, query and key."""
    batch, heads, queries, width = query
    *_rest, keys, value_width = value
    return int(2 * batch * heads * queries * keys * (3 * width + 2 * value_width))


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _address_if_any(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory, or 0 for one that has none of its own, such as a sparse one."""
    try:
        return _address(tensor)
    except (NotImplementedError, RuntimeError):
        return 0


SUMS = frozenset(
    {aten.sum, aten.mean, aten.var, aten.var_mean, aten.std, aten.std_mean, aten.linalg_vector_norm, aten.logsumexp}
    | {aten.nll_loss_forward, aten.mse_loss}
)
"""Operators that add values up. Products of matrices are left out: libraries add their terms up in blocks."""

EXACT = frozenset({aten.arange, aten.add, aten.sub, aten.mul, aten._to_copy, aten.to, aten.view, aten.unsqueeze})
"""Operators that round nothing where their results are coarse. Torch's counter shows that the places are computed by
them that an image is enlarged from."""


def _is_coarse(value: object) -> bool:
    """Return True if a number, or all of a tensor, is a multiple of 2^-10, and so small that each type of 32 bits has
    it."""
    if isinstance(value, float):
        value = torch.tensor(value, dtype=torch.float64)
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return True
    steps = value.double() * 2**10
    return bool(((steps == steps.round()) & (steps.abs() < 2**22)).all())


RUNNING = frozenset({aten.cumsum, aten.cumprod, aten.logcumsumexp})


def sizes_by_values(func: Any, args: tuple[Any, ...]) -> bool:
    """Return True if the size of what an operator returns depends on values, or a number that Python gets."""
    if func.overloadpacket is torch.ops.aten.index:
        return any(leaf.dtype in (torch.bool, torch.uint8) for leaf in args[1] if leaf is not None)
    return bool({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & set(func.tags))


class LongestSum(OperatorWatch):
    """Notes how many values the longest sum inside this block adds up, and the longest sum of each tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.length = 1
        self.jumps = False  # an operator's result may jump where rounding moves its arguments
        self.narrows = False  # it casts to 16 bits
        self.writes_in_any_order = False  # it writes other values to one place, of which one stays
        self.may_size_by_values = False  # as it is in `x[x > 9]`, and where Python reads a number
        # A number that Python reads may go into all that follows.
        self._read_by_python, self._has_read = 1, False
        self._lengths: dict[int, int] = {}  # by the address of the memory
        self._exact: set[int] = set()  # the same of what no rounding moves

    def of(self, tensors: Iterable[torch.Tensor]) -> int:
        """Return the longest sum that any of these tensors was made from, or of all if that is not known."""
        addresses = map(_address_if_any, tensors)
        return max((self._lengths.get(address, 1) if address else self.length for address in addresses), default=1)

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        length = max(self.of(given), self._read_by_python)
        are_exact = not self._has_read and self._exact.issuperset(map(_address_if_any, given))
        self.jumps = self.jumps or (jumps(func, args, found) and not are_exact)
        self.narrows = self.narrows or narrows(func, args, found)
        self.writes_in_any_order = self.writes_in_any_order or writes_in_any_order(func, args, found)
        self.may_size_by_values = self.may_size_by_values or func.namespace != "aten" or sizes_by_values(func, args)
        own = 1
        if func.overloadpacket in SUMS:
            result = found[0] if isinstance(found, tuple) else found
            own = args[0].numel() // max(1, result.numel())
        elif func.overloadpacket in RUNNING and args[0].dim():
            own = args[0].shape[args[1]]
        self.length, length = max(self.length, own), max(length, own)
        changed = [leaf for leaf in pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]
        if not changed:  # it is a number
            self._read_by_python, self._has_read = length, True
        for tensor in (*changed, *(given if func._schema.is_mutable else ())):
            address = _address_if_any(tensor)
            self._lengths[address] = length
            rounds_nothing = are_exact and func.overloadpacket in EXACT and all(map(_is_coarse, (*leaves, tensor)))
            (self._exact.add if rounds_nothing and address else self._exact.discard)(address)
        return found
