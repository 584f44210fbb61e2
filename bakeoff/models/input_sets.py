"""Makes further sets of inputs from one example, in the same memory layout. docs/adding-a-model.md has the rules.

Usual sets keep order, signs, zeros, ties, masks and sorted whole numbers. Bolder sets change what stayed, if the model
takes that; milder ones (`MILDER_SETS`) are for a model that raises for the usual ones.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bakeoff.records.traits import MILDER_SETS

EXAMINED = 4096
"""So many values of a tensor tell of which kind they are."""

DRAWN_IN = 1 / 16
"""Values of the first further set are drawn in by this share of their range, of the next one by twice as much."""


MASKS, WHOLES, SCALES, ZEROS, PAIRS, NOISE = "masks", "whole numbers", "scales", "zeros", "pairs", "noise"
ROWS_OF_WHOLES, ROWS, COPIES = MILDER_SETS


def input_sets_of(arguments: Any, count: int, bolder: tuple[str, ...] = ()) -> list[Any]:
    """Return `count` sets of arguments, each in its own memory, of which the first has the example's own values. Of
    what would stay, the kinds in `bolder` change. One of `MILDER_SETS` there says what stays."""
    given = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    rows = next((tensor.shape[0] for tensor in given if not tensor.is_nested and tensor.dim()), 1)
    input_sets = []
    for by in range(count):
        copies = copied(given)
        with torch.no_grad():
            change(copies, rows, by, bolder)
        by_id = {id(tensor): copy for tensor, copy in zip(given, copies, strict=True)}
        leaves, structure = pytree.tree_flatten(arguments)
        input_sets.append(pytree.tree_unflatten([by_id.get(id(leaf), leaf) for leaf in leaves], structure))
    return input_sets


def copied(tensors: list[torch.Tensor], device: Any = None, dtype: torch.dtype | None = None) -> list[torch.Tensor]:
    """Return copies with the same strides, on `device` and of this type if given. Tensors that share memory share it
    again, and one stays one."""

    def copy_of(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(device or tensor.device, dtype or tensor.dtype, copy=True)

    buffers: dict[Any, tuple[int, torch.Tensor]] = {}
    for key, group in by_memory(tensors).items():
        begin = min(int(tensor.storage_offset()) for tensor in group)
        length = max(tensor.storage_offset() + extent(tensor) for tensor in group) - begin
        buffers[key] = begin, copy_of(group[0].detach().as_strided((length,), (1,), begin))
    copies: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        if id(tensor) in copies:
            continue
        if is_strided(tensor) and tensor.numel():
            begin, buffer = buffers[memory_of(tensor)]
            copy = buffer.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() - begin)
        else:
            copy = copy_of(tensor.detach())
        copies[id(tensor)] = copy.requires_grad_(tensor.requires_grad)
    return [copies[id(tensor)] for tensor in tensors]


def without_repeats(tensor: torch.Tensor) -> tuple[slice, ...]:
    """Return the index of a view of `tensor` that holds each value once. An expanded tensor repeats values."""
    return tuple(slice(None if stride else 1) for stride in tensor.stride())


def change(tensors: list[torch.Tensor], rows: int, by: int, bolder: tuple[str, ...] = ()) -> None:
    """Change the values of the tensors in place. `by` is the number of the set, and 0 changes nothing."""
    if not by or COPIES in bolder:
        return
    are_milder = any(kind in MILDER_SETS for kind in bolder)
    done: list[tuple[Any, int, int]] = []
    stayed: list[torch.Tensor] = []
    for tensor in sorted({id(tensor): tensor for tensor in tensors}.values(), key=torch.numel, reverse=True):
        values = own_values(tensor)
        if not values.numel() or extent(values) < values.numel():
            continue
        memory, begin = memory_of(values), int(values.storage_offset())
        end = begin + extent(values)
        if any(memory == other and begin < other_end and other_begin < end for other, other_begin, other_end in done):
            continue  # it has changed with the tensor that it shares memory with
        done.append((memory, begin, end))
        changed = with_other_values(values, rows, by, bolder)
        if bolder and not are_milder and torch.equal(changed, values):
            changed = with_bolder_values(values, by, bolder)
        if torch.equal(changed, values):
            stayed.append(values)
        else:
            values.copy_(changed)
    if len(stayed) == len(done) and not are_milder:
        for values in [values for values in stayed if is_real(values)] or stayed:
            values.copy_(with_any_other_values(values, by))


def with_other_values(values: torch.Tensor, rows: int, by: int, kinds: tuple[str, ...] = ()) -> torch.Tensor:
    """Return other values of the same kind, if that is possible without knowing what they mean."""
    has_rows = values.dim() > 0 and values.shape[0] == rows
    may_shrink = is_tokens(values) and ROWS_OF_WHOLES not in kinds and ROWS not in kinds
    if is_continuous(values) and ROWS not in kinds:
        dimension = 0 if rows > 1 or not values.dim() else values.shape.index(max(values.shape))
        keeps_order = dimension == values.dim() - 1 and is_sorted(values)
        return drawn_in(values.roll(by, dimension) if has_rows and not keeps_order else values, by)
    if has_rows and rows > 1:
        if values.dim() == 1 and is_sorted(values):
            return values
        rolled = values.roll(by, 0)
        return with_smaller_tokens(rolled, by) if by >= rows and may_shrink else rolled
    return with_smaller_tokens(values, by) if may_shrink and not is_sorted(values) else values


def with_any_other_values(values: torch.Tensor, by: int) -> torch.Tensor:
    flat = values.flatten()
    if bool((flat != flat[0]).any()):
        rolled = flat.roll(by).view(values.shape)
        return rolled if values.is_complex() or values.dtype is torch.bool else torch.minimum(values, rolled)
    if is_real(values):
        return torch.where(values == 0, DRAWN_IN * by, values * (1 - DRAWN_IN * by)).to(values.dtype)
    if values.dtype is torch.bool or not flat[0]:
        return values
    place = torch.arange(values.numel(), device=values.device).view(values.shape)
    return torch.where((place + by) % 2 == 0, values - values.sign(), values)


def with_bolder_values(values: torch.Tensor, by: int, kinds: tuple[str, ...]) -> torch.Tensor:
    """Return other values of a mask, of whole numbers, or of a constant, if they are of one of these kinds."""
    if NOISE in kinds and values.is_floating_point() and values.element_size() > 1 and is_constant(values):
        return with_noise(values, by)
    is_whole = not is_real(values) or (not values.is_complex() and bool((values == values.round()).all()))
    may_be_scales = is_real(values) and is_whole and bool((values == 1).all())
    is_scales = may_be_scales and (values.numel() == 1 or SCALES in kinds or MASKS not in kinds)
    if is_mask(values) and not is_scales:
        return with_moved_mask(values, by) if MASKS in kinds else values
    if ZEROS in kinds and not is_real(values) and not bool(values.any()):
        return with_moved_mask(values, by)
    if PAIRS in kinds and is_whole and values.dim() and values.shape[-1] == 2 and not values.is_complex():
        return with_other_pairs(values, by)
    if is_whole and bool((values != 0).any()):
        lower = with_lower_numbers(values, by) if WHOLES in kinds else values
        if WHOLES not in kinds or not torch.equal(lower, values):
            return lower
    if is_real(values) and values.element_size() > 1 and bool((values == values.flatten()[0]).all()):
        return torch.where(values == 0, DRAWN_IN * by, values * (1 - DRAWN_IN * by)).to(values.dtype)
    return values


def is_mask(values: torch.Tensor) -> bool:
    """Return True for booleans, zeros and ones that are not all zero, and zeros beside very negative numbers."""
    if values.dtype is torch.bool:
        return True
    if values.is_complex() or (is_real(values) and values.element_size() == 1):
        return False
    other = values[values != 0]
    if not other.numel() or not bool((other == other[0]).all()):
        return False
    return bool(other[0] == 1) or (is_real(values) and bool(other[0] < -1000))


def with_moved_mask(mask: torch.Tensor, by: int) -> torch.Tensor:
    """Return the mask moved by some places along a dimension in which it changes, with its first values repeated: no
    row of a causal mask then loses its last visible place. In a mask of one kind, the last places get the other."""
    for dimension in reversed(range(mask.dim())):
        place = torch.arange(mask.shape[dimension], device=mask.device)
        moved = mask.index_select(dimension, (place - by).clamp_min(0))
        if not torch.equal(moved, mask):
            return moved
    other = mask.logical_not().to(mask.dtype)
    if mask.numel() == 1:
        return other if by % 2 else mask
    longest = max(range(mask.dim()), key=lambda dimension: mask.shape[dimension])
    length = mask.shape[longest]
    shape = [length if dimension == longest else 1 for dimension in range(mask.dim())]
    is_last = (torch.arange(length, device=mask.device) >= length - min(by, length - 1)).view(shape)
    return torch.where(is_last, other, mask)


def with_lower_numbers(numbers: torch.Tensor, by: int) -> torch.Tensor:
    """Return whole numbers that are smaller by up to `by`. Sorted ones keep their ends, and others stay above zero."""
    wide = numbers if is_real(numbers) else numbers.long()
    if numbers.dim() and numbers.shape[-1] > 2 and is_sorted(numbers) and bool((numbers != numbers.flatten()[0]).any()):
        lowest = torch.minimum(wide[..., :1], wide[..., -1:])
        lower = torch.maximum(wide - by, lowest)
        lower[..., 0], lower[..., -1] = wide[..., 0], wide[..., -1]
        return lower.to(numbers.dtype)
    if bool((numbers == numbers.flatten()[0]).all()) and bool(numbers.flatten()[0] > 1):
        return (wide - by).clamp_min(1).to(numbers.dtype)
    return numbers


def is_constant(values: torch.Tensor) -> bool:
    first = values.flatten()[0]
    is_kind = bool(first == 0) or bool(torch.isfinite(first) and first != first.round())
    return values.numel() > 1 and is_kind and bool((values == first).all())


def with_noise(constants: torch.Tensor, by: int) -> torch.Tensor:
    """Return normal noise in place of zeros, and else values between a half of the constant and itself."""
    generator = torch.Generator().manual_seed(by)
    if bool(constants.any()):
        return constants * (1 - torch.rand(constants.shape, generator=generator) / 2).to(constants)
    return torch.randn(constants.shape, generator=generator).to(constants)


def with_other_pairs(pairs: torch.Tensor, by: int) -> torch.Tensor:
    """Return pairs of whole numbers whose smaller one is lower by up to `by`, but above zero, or else the larger one.
    Different ones stay so, and in their order."""
    wide = pairs if is_real(pairs) else pairs.long()
    low, high = wide.amin(-1, keepdim=True), wide.amax(-1, keepdim=True)
    lower = torch.where(wide == low, torch.minimum(low, (low - by).clamp_min(1)), wide)
    if torch.equal(lower, wide):
        lower = torch.where(wide == high, torch.maximum(high - by, torch.minimum(low + 1, high)), wide)
    return lower.to(pairs.dtype)


def is_real(values: torch.Tensor) -> bool:
    return values.is_floating_point() or values.is_complex()


def is_continuous(values: torch.Tensor) -> bool:
    """Return True for real or complex numbers that are different, and not all whole."""
    if not is_real(values):
        return False
    some = sample(torch.view_as_real(values.resolve_conj()) if values.is_complex() else values)
    return bool(torch.isfinite(some).all() and (some != some.round()).any() and (some != some[0]).any())


def is_tokens(values: torch.Tensor) -> bool:
    if values.dtype is torch.bool or values.is_complex():
        return False
    some = sample(values)
    is_whole = not is_real(values) or bool(torch.isfinite(some).all() and (some == some.round()).all())
    return is_whole and values.dim() > 0 and len(torch.unique(some)) > 2


def is_sorted(values: torch.Tensor) -> bool:
    """Return True for values that only rise or only fall along the last dimension, such as positions and offsets."""
    if values.is_complex() or values.dtype is torch.bool or not values.dim() or values.shape[-1] < 2:
        return False
    for part in (values[..., :64], values):  # most tensors are known after a few values
        steps = part[..., 1:] >= part[..., :-1], part[..., 1:] <= part[..., :-1]
        if not (bool(steps[0].all()) or bool(steps[1].all())):
            return False
    return True


def drawn_in(values: torch.Tensor, by: int) -> torch.Tensor:
    """Return values nearer to the one of their range that is nearest to zero."""
    if values.is_complex():
        return values * (1 - DRAWN_IN * by)
    low, high = values.min(), values.max()
    nearest = torch.zeros_like(low).clamp(low, high)
    return torch.lerp(values, nearest.expand_as(values), DRAWN_IN * by)


def with_smaller_tokens(tokens: torch.Tensor, by: int) -> torch.Tensor:
    """Return tokens of which each may have given way to a smaller one of its row."""
    length = tokens.shape[-1]
    if length < 2:
        return tokens
    stays = torch.zeros_like(tokens, dtype=torch.bool)
    if length > 3:
        stays[..., 0] = stays[..., -1] = True
    repeats = tokens[..., 1:] == tokens[..., :-1]
    stays[..., 1:] |= repeats
    stays[..., :-1] |= repeats
    return torch.where(stays, tokens, torch.minimum(tokens, tokens.roll(1 + (by - 1) % (length - 1), -1)))


def own_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense view of the memory that holds the values of a tensor, each of them once, with floating-point
    numbers of 8 bits as bytes. Of other kinds of tensors this is a copy."""
    if tensor.layout is torch.sparse_coo:
        return tensor._values()
    if tensor.is_nested or tensor.layout in COMPRESSED:
        return tensor.values()
    if not is_strided(tensor):
        return torch.zeros(1)
    once = [1 if stride == 0 else size for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    values = tensor.detach().as_strided(once, tensor.stride())
    return values.view(torch.uint8) if is_real(values) and values.element_size() == 1 else values


COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def sample(values: torch.Tensor) -> torch.Tensor:
    flat = values.reshape(-1)
    return flat[:: max(1, flat.numel() // EXAMINED)]


def is_strided(tensor: torch.Tensor) -> bool:
    """Return True for a tensor that is no more than memory with strides."""
    is_plain = not (tensor.is_nested or tensor.is_quantized or hasattr(tensor, "__tensor_flatten__"))
    return is_plain and tensor.layout is torch.strided


def by_memory(tensors: Iterable[torch.Tensor]) -> dict[Any, list[torch.Tensor]]:
    """Return the tensors that share memory, for each memory. Those without values, and of other kinds, are left out."""
    groups: dict[Any, list[torch.Tensor]] = {}
    for tensor in tensors:
        if is_strided(tensor) and tensor.numel():
            groups.setdefault(memory_of(tensor), []).append(tensor)
    return groups


def memory_of(tensor: torch.Tensor) -> tuple[int, torch.dtype]:
    return tensor.untyped_storage().data_ptr(), tensor.dtype


def extent(tensor: torch.Tensor) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
