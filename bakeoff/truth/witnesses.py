"""Witnesses beside eager as it is: what a model answers in float64, with noise in each operator, or from other weights.

- `KeepFloat64` widens the casts of a model's code, as in Llama's normalisation, which `module.double()` leaves alone.
- `RoundingNoise` moves each operator's result by up to one rounding, at random: Monte Carlo arithmetic (Parker, 1997).
  It shows how far rounding can move an answer for which eager may be right by luck. Stronger noise finds choices that
  are close to another one.
- `jolt` moves weights and inputs by up to one rounding.
"""

import contextlib
import functools
import math
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from bakeoff.backends.plain_dispatch import OperatorWatch, Uncompiled, keep_compiler_out
from bakeoff.backends.reasons import is_out_of_memory
from bakeoff.models.base import Inputs
from bakeoff.truth.choices import CHOOSING, COPYING, ONLY_INDICES, POOLING
from bakeoff.truth.module_state import is_equal
from bakeoff.truth.rounding_limits import UNITS_OF_SUM

aten = torch.ops.aten

CASTS = frozenset({aten._to_copy, aten.to, aten.sum, aten.mean, aten.prod, aten.cumsum, aten.softmax, aten.log_softmax})
"""Operators that take the type of their result as an argument. Views of the same bits as another type are not here."""


SIXTEEN_BITS = (torch.bfloat16, torch.float16)


class KeepFloat64(Uncompiled, TorchDispatchMode):
    """Inside this block, casts to float32 are casts to float64, and operators that lack float64, which `in_float32`
    names, run in float32. With `widens_16_bits`, casts to bfloat16 and float16 are casts to float64, too."""

    supports_higher_order_operators = True

    def __init__(self, widens_16_bits: bool = False) -> None:
        super().__init__()
        self._wider = WIDER | (dict.fromkeys(SIXTEEN_BITS, torch.float64) if widens_16_bits else {})
        keep_compiler_out(KeepFloat64)
        self.in_float32: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator):
            return func(*args, **kwargs)
        if func.overloadpacket in CASTS:
            args, kwargs = pytree.tree_map_only(torch.dtype, lambda each: self._wider.get(each, each), (args, kwargs))
        try:
            return func(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            if func._schema.is_mutable or is_out_of_memory(error):
                raise
            found = self._call_in_float32(func, args, kwargs, error)
        name = str(func.overloadpacket)
        if name not in self.in_float32:
            self.in_float32.append(name)
        return found

    def _call_in_float32(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], first: Exception
    ) -> Any:
        narrow_args, narrow_kwargs = _with_types((args, kwargs), NARROWER)
        try:
            found = func(*narrow_args, **narrow_kwargs)
        except (RuntimeError, NotImplementedError):
            raise first from None
        return _with_types(found, WIDER)


UNWRITTEN = frozenset({aten.empty, aten.empty_like, aten.empty_strided, aten.empty_permuted, aten.new_empty})
UNWRITTEN |= {aten.new_empty_strided}
"""Operators that give memory with whatever values it had."""


class FillUnwritten(OperatorWatch):
    """Inside this block, new memory that nothing has written holds `value` where it holds real numbers."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
        return found.fill_(self._value) if func.overloadpacket in UNWRITTEN and is_cast(found) else found


WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
NARROWER = {wide: narrow for narrow, wide in WIDER.items()}


def _with_types(values: Any, types: Mapping[torch.dtype, torch.dtype]) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda each: each.to(types.get(each.dtype, each.dtype)), values)


@functools.cache
def out_of_place(func: Any) -> Any:
    """Return the operator that gives new memory what this one writes into its first argument: `mul` for `mul_`."""
    name = func.overloadpacket.__name__
    if {torch.Tag.inplace_view, torch.Tag.nondeterministic_seeded} & set(func.tags) or len(func._schema.returns) != 1:
        return func
    plain = getattr(aten, name[:-1], None) if func.namespace == "aten" and name.endswith("_") else None
    overloads = [getattr(plain, overload) for overload in plain.overloads()] if plain else []
    # that of `pow_.Scalar` is `pow.Tensor_Scalar`
    return next((each for each in overloads if _parameters(each) == _parameters(func)), func)


def _parameters(func: Any) -> list[tuple[str, str]]:
    return [(argument.name, str(argument.type)) for argument in func._schema.arguments]


def is_one_of(func: Any, operators: Collection[Any]) -> bool:
    """Return True if an overload, or its operator, is among these."""
    return func in operators or func.overloadpacket in operators


DRAWN = 1_000_003
"""So many random numbers serve all results: to draw new ones for each took most of a noisy run."""


MOST_DRAWN = 16 * DRAWN
"""For large results they are repeated. So many of them are kept."""


class RoundingNoise(OperatorWatch):
    """Inside this block, floating-point results are rounded at random, but not views. With an odd seed, operators with
    several right answers (`OTHER_ANSWERS`) give the last one in place of the first."""

    def __init__(self, seed: int, roundings: float = 1) -> None:
        super().__init__()
        self._seed, self._roundings = seed, roundings
        self._starts = random.Random(seed)
        self._drawn: dict[tuple[torch.device, torch.dtype], torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain: Any = func if isinstance(func, HigherOrderOperator) else out_of_place(func)
        if plain is func or plain.overloadpacket in SELECTING:
            return super().__torch_dispatch__(func, types, args, kwargs)
        return args[0].copy_(super().__torch_dispatch__(plain, types, args, kwargs))

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
        if any(argument.alias_info is not None for argument in (*func._schema.returns, *func._schema.arguments)):
            return found
        given = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not given:  # what is made of no tensor, such as zeros, is exact, unless it is made of steps
            return self.moved(found) if func.overloadpacket in STEPS else found
        if is_one_of(func, ROUNDED_BEFORE):
            found = func(*(self.moved(each) if isinstance(each, torch.Tensor) else each for each in args), **kwargs)
        first = found[0] if isinstance(found, tuple) else found
        if (rounded := ROUNDED_INSIDE.get(func.overloadpacket)) is not None and is_rounded(first):
            others = (kwargs.get(each.name, each.default_value) for each in func._schema.arguments[len(args) :])
            return rounded(self, (*args, *others), found)
        if (other := OTHER_ANSWERS.get(func.overloadpacket)) is not None:
            found = other(self, func, args, kwargs, found)
        if func.overloadpacket in ADDING_TO_PLACES:
            return torch.where(found == given[0], found, self.moved(found))
        return found if rounds_nothing(func, given[0], found) else pytree.tree_map_only(torch.Tensor, self.moved, found)

    @property
    def takes_last(self) -> bool:
        return self._seed % 2 == 1

    def noise(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the rounding of each value of the tensor to `dtype`, at random. Small whole numbers are exact."""
        epsilon, step = torch.finfo(dtype).eps, self._step(dtype)
        by = self._directions(tensor, epsilon, _are_small(tensor, epsilon)).mul_(tensor).mul_(step)
        return by.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)  # infinities are exact, such as those of a mask

    def _step(self, dtype: torch.dtype) -> float:
        """Return the largest relative change. One rounding of 16 bits is as coarse as strong noise in float32."""
        epsilon = torch.finfo(dtype).eps
        return epsilon * (self._roundings if epsilon < SMALL_STEP else 1)

    def _directions(self, tensor: torch.Tensor, epsilon: float, are_small: bool) -> torch.Tensor:
        """Return a number in [-1, 1) for each value, and 0 for small whole ones."""
        if are_small:
            moves = tensor.frac().sign_()  # much quicker than a mask of booleans
        else:
            moves = ((tensor != tensor.round()) | (tensor.abs() >= _exact_below(epsilon))).to(tensor.dtype)
        return moves.mul_(self._uniform(tensor))

    def _uniform(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a number in [-1, 1) for each value. They are drawn once, and each call begins elsewhere among them."""
        key = tensor.device, tensor.dtype
        if key not in self._drawn:
            generator = torch.Generator().manual_seed(self._seed)
            drawn = torch.empty(DRAWN, dtype=torch.float64).uniform_(-1, 1, generator=generator)
            self._drawn[key] = drawn.to(*key)
        start, count = self._starts.randrange(DRAWN), tensor.numel()
        drawn = self._drawn[key]
        if start + count > len(drawn):
            drawn = drawn[:DRAWN].repeat((start + count) // DRAWN + 1)
            if len(drawn) <= MOST_DRAWN:
                self._drawn[key] = drawn
        return drawn[start : start + count].view(tensor.shape)

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        if not is_rounded(tensor):
            return tensor
        epsilon, step = torch.finfo(tensor.dtype).eps, self._step(tensor.dtype)
        if not _are_small(tensor, epsilon):
            return tensor + self.noise(tensor, tensor.dtype)
        # the same in fewer passes over memory, which take most of a run
        by = self._directions(tensor, epsilon, are_small=True)
        moved = torch.addcmul(tensor, by, tensor, value=step)
        # below the smallest normal number, roundings do not become smaller
        return moved.add_(by, alpha=step * torch.finfo(tensor.dtype).smallest_normal)


def is_rounded(tensor: torch.Tensor) -> bool:
    return is_cast(tensor) and tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_meta)


def _exact_below(epsilon: float) -> float:
    return 1 / (4 * epsilon)


def _are_small(tensor: torch.Tensor, epsilon: float) -> bool:
    """Return True if all values are so small that whole ones among them are exact. No infinite one is."""
    if not tensor.numel():
        return True
    least, most = torch.aminmax(tensor)
    return bool((least > -_exact_below(epsilon)) & (most < _exact_below(epsilon)))


def _with_other_ties(noise: RoundingNoise, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Any) -> Any:
    source = args[0]
    takes_indices = not isinstance(found, torch.Tensor) or func.overloadpacket in ONLY_INDICES
    if kwargs.get("stable") or not takes_indices or source.layout is not torch.strided or not source.numel():
        return found
    place = torch.arange(source.numel(), dtype=torch.float64, device=source.device).view(source.shape) / source.numel()
    place = place if noise.takes_last else 1 - place
    other = func(source.double() * (1 + 2.0**-30 * place) + 1e-290 * place, *args[1:], **kwargs)
    # as values of the source's type, they are those that they were
    return pytree.tree_map(lambda mine, theirs: theirs.to(mine.dtype), found, other)


def _with_other_signs(noise: RoundingNoise, func: Any, args: Any, kwargs: Any, found: Any) -> Any:
    """Turn the signs of eigenvectors, of singular vectors on both sides, or of Q and R."""
    turned = (0, 2) if len(found) == 3 else (0, 1) if func.overloadpacket is aten.linalg_qr else (1,)
    return tuple(-matrix if noise.takes_last and place in turned else matrix for place, matrix in enumerate(found))


def _with_other_turns(noise: RoundingNoise, func: Any, args: Any, kwargs: Any, found: torch.Tensor) -> torch.Tensor:
    """Turn the sign of angles at pi: the branch cut is there."""
    is_at_cut = (found.abs() - math.pi).abs() <= STRONG_NOISE * torch.finfo(found.dtype).eps
    return torch.where(is_at_cut, -found, found) if noise.takes_last else found


def _with_rounded_sums(noise: RoundingNoise, args: tuple[Any, ...], found: torch.Tensor) -> torch.Tensor:
    """Round each partial sum, as a sum in one order does. Eager adds up in float64, or in pairs."""
    rounding = noise.noise(found.double(), torch.float32).cumsum(args[1])
    return noise.moved((found + rounding).to(found.dtype))


def _with_rounded_squares(noise: RoundingNoise, args: tuple[Any, ...], found: torch.Tensor) -> torch.Tensor:
    """Round the squares that a distance is the difference of: that of a point to itself need not be 0."""
    first, second, *power = args
    if power[:1] not in ([], [2.0]) or not found.numel():
        return found
    squares = first.square().sum(-1)[..., :, None] + second.square().sum(-1)[..., None, :]
    return (found.square() + noise.noise(squares, squares.dtype)).clamp_min(0).sqrt()


def _below_one(noise: RoundingNoise, args: tuple[Any, ...], found: torch.Tensor) -> torch.Tensor:
    """Round a sigmoid, for example. What is 1 in one library is just below it in another one, and none is above."""
    below = noise.noise(torch.full_like(found, 0.75), found.dtype).abs()
    return torch.where(found.abs() == 1, found - found * below, found + noise.noise(found, found.dtype)).clamp(-1, 1)


def _also_if_whole(noise: RoundingNoise, args: tuple[Any, ...], found: torch.Tensor) -> torch.Tensor:
    """Round also what is whole in some libraries alone, as the logarithm of 8 to the base 2 is."""
    return noise.moved(found * (1 + noise.noise(torch.full_like(found, 0.75), found.dtype)))


def _with_rounded_means(noise: RoundingNoise, args: tuple[Any, ...], found: torch.Tensor) -> torch.Tensor:
    """Round the means of a normalisation as the sums that they come from. They decide what equal values become."""
    given, of, weight, _, epsilon, *_ = args
    if given.dtype is torch.float32 and given.numel():
        is_of_groups = isinstance(of, int)
        rows = given.reshape(given.shape[0], of, -1) if is_of_groups else given.flatten(given.dim() - len(of))
        means, variances = rows.mean(-1), rows.var(-1, correction=0)
        units = max(1.0, UNITS_OF_SUM * math.sqrt(rows.shape[-1]))
        moved = units * noise.noise(means, means.dtype) * (variances + epsilon).rsqrt()
        if is_of_groups:
            moved = moved.repeat_interleave(given.shape[1] // of, 1)
            weight = None if weight is None else weight.view(-1, *[1] * (given.dim() - 2))
        moved = moved.reshape(*moved.shape, *[1] * (given.dim() - moved.dim()))
        found = found + (moved if weight is None else moved * weight)
    return found + noise.noise(found, found.dtype)


def _with_rounded_means_of_channels(noise: RoundingNoise, args: tuple[Any, ...], found: torch.Tensor) -> torch.Tensor:
    given, weight, *_, uses_inputs, _, epsilon, _ = args
    if not uses_inputs:  # the means are those of training
        return noise.moved(found)
    return _with_rounded_means(noise, (given, given.shape[1], weight, None, epsilon), found)


def _with_rounded_means_of_rows(noise: RoundingNoise, args: tuple[Any, ...], found: Any) -> Any:
    return _with_rounded_means(noise, args, found[0]), *found[1:]


def _with_rounded_means_of_groups(noise: RoundingNoise, args: tuple[Any, ...], found: Any) -> Any:
    given, weight, _, _, _, _, groups, epsilon = args
    return _with_rounded_means_of_rows(noise, (given, groups, weight, None, epsilon), found)


ROUNDED_INSIDE: Mapping[Any, Callable[[RoundingNoise, tuple[Any, ...], Any], Any]] = {
    **dict.fromkeys((aten.cdist, aten._cdist_forward, aten._euclidean_dist), _with_rounded_squares),
    **dict.fromkeys((aten.sigmoid, aten.tanh, aten.erf), _below_one),
    **dict.fromkeys((aten.log, aten.log2, aten.log10), _also_if_whole),
    **dict.fromkeys((aten.layer_norm, aten.group_norm), _with_rounded_means),
    aten.instance_norm: _with_rounded_means_of_channels,
    aten.cumsum: _with_rounded_sums,
    aten.native_layer_norm: _with_rounded_means_of_rows,
    aten.native_group_norm: _with_rounded_means_of_groups,
}
"""Operators whose roundings are not a share of their results."""

ROUNDED_BEFORE = frozenset(
    {aten.linalg_solve, aten.linalg_inv, aten.linalg_det, aten.linalg_slogdet, aten.linalg_pinv}
) | {
    *(aten._linalg_solve_ex, aten.linalg_inv_ex, aten._linalg_det, aten._linalg_slogdet, aten.linalg_lu),
    *(aten.linalg_lu_factor, aten.linalg_cholesky, aten.linalg_cholesky_ex, aten.linalg_lstsq, aten.linalg_matrix_exp),
    *(aten.linalg_solve_triangular, aten.cholesky_solve, aten.linalg_eigh, aten._linalg_eigh, aten.linalg_eig),
    *(aten.linalg_eigvalsh, aten.linalg_eigvals, aten.linalg_qr),
    *(aten.linalg_svd, aten._linalg_svd, aten.linalg_svdvals),
    *(aten.floor_divide, aten.div.Tensor_mode, aten.div.Scalar_mode, aten.remainder, aten.fmod),
    *(aten.grid_sampler, aten.grid_sampler_2d, aten.grid_sampler_3d, aten.histc, aten.histogram),
}
"""Operators that round as if their inputs were rounded: solvers (backward error), divisions to whole numbers, and what
is read at computed places."""

RUNS_WITH_NOISE = 2
"""So many noisy runs, beside eager's own, tell how far rounding alone can move an answer that is lost to it."""

STRONG_NOISE, SMALL_STEP = 16, 1e-5
"""So many roundings show whether something is near to going another way, if they are as small as those of float32."""

SELECTING = (
    frozenset({aten.where, aten.masked_fill, aten.cat, aten.stack, aten.clone, aten.index, aten.index_select})
    | {
        *(aten.gather, aten.embedding, aten.scatter, aten.index_copy, aten.masked_scatter, aten.select_scatter),
        *(aten.slice_scatter, aten.repeat, aten.flip, aten.roll, aten.tril, aten.triu, aten.constant_pad_nd, aten.neg),
        *(aten.reflection_pad1d, aten.reflection_pad2d, aten.replication_pad1d, aten.replication_pad2d, aten.abs),
        *(aten.relu, aten.clamp, aten.clamp_min, aten.clamp_max, aten.hardtanh, aten.maximum, aten.minimum, aten.fmax),
        *(aten.fmin, aten.amax, aten.amin, aten.aminmax, aten.cummax, aten.cummin, aten.upsample_nearest2d, aten.sign),
        *(aten.round, aten.floor, aten.ceil, aten.trunc, aten.unique_consecutive, aten._unique2, aten.nan_to_num),
        *(aten.new_full, aten.full_like, aten.copy, aten.fill, aten.zero, aten.index_put, aten._index_put_impl),
        *(aten._unsafe_index_put, aten.put, aten.index_fill, aten.frac, aten.heaviside, aten.sgn, aten.hardshrink),
        aten.threshold,
    }
    | (CHOOSING - ONLY_INDICES)
)
"""Operators that return values that they were given, or exact ones, so that each library returns the same."""

STEPS = frozenset({aten.linspace, aten.logspace, aten.arange})
"""Operators that make values of no tensor, and round them."""


ADDING_TO_PLACES = frozenset({aten.index_add, aten.scatter_add, aten.scatter_reduce, aten.index_reduce})
"""Operators that round at some places, and leave the others as they are."""


def rounds_nothing(func: Any, given: torch.Tensor, found: Any) -> bool:
    return func.overloadpacket in SELECTING or (func.overloadpacket in COPYING and given.is_floating_point())


OTHER_ANSWERS: Mapping[Any, Callable[[RoundingNoise, Any, tuple[Any, ...], dict[str, Any], Any], Any]] = {
    **dict.fromkeys(CHOOSING - POOLING - {aten.mode}, _with_other_ties),
    **dict.fromkeys((aten.linalg_eigh, aten._linalg_eigh, aten.linalg_eig, aten.linalg_qr), _with_other_signs),
    **dict.fromkeys((aten.linalg_svd, aten._linalg_svd, aten.svd), _with_other_signs),
    **dict.fromkeys((aten.atan2, aten.angle), _with_other_turns),
}
"""Operators with several right answers, and how to get another one."""

STEPPING = frozenset({aten.gt, aten.ge, aten.lt, aten.le, aten.eq, aten.ne, aten.round, aten.floor, aten.ceil}) | {
    *(aten.trunc, aten.frac, aten.sign, aten.sgn, aten.signbit, aten.heaviside, aten.copysign, aten.floor_divide),
    *(aten.div.Tensor_mode, aten.div.Scalar_mode, aten.remainder, aten.fmod, aten.hardshrink, aten.threshold),
    *(aten.nonzero, aten.argwhere, aten.count_nonzero, aten.any, aten.all, aten.logical_not, aten.logical_and),
    *(aten.logical_or, aten.logical_xor, aten.isin, aten.bucketize, aten.searchsorted, aten.histc, aten.mode),
    *(aten._unique2, aten.unique_dim, aten.unique_consecutive, aten.unique_dim_consecutive),
    *(aten.quantize_per_tensor, aten.quantize_per_channel, aten.histogram, aten.equal, aten.allclose),
    *(aten.fake_quantize_per_tensor_affine_cachemask, aten.fake_quantize_per_channel_affine_cachemask),
}


def jumps(func: Any, args: tuple[Any, ...], found: Any) -> bool:
    """Return True for an operator whose result may jump where its arguments move by a rounding."""
    func, first = out_of_place(func), args[0] if args else None
    operator = func.overloadpacket
    if not isinstance(first, torch.Tensor) or not (first.is_floating_point() or first.is_complex()):
        return operator in CHOOSING - POOLING
    becomes_whole = operator in CASTS and isinstance(found, torch.Tensor) and not found.is_floating_point()
    takes_nearest = operator in (aten.grid_sampler_2d, aten.grid_sampler_3d) and args[2] == 1  # its way to interpolate
    is_stepping = operator in OTHER_ANSWERS or is_one_of(func, STEPPING) or takes_nearest
    return is_stepping or becomes_whole or func.name().endswith("::nms")


def writes_in_any_order(func: Any, args: tuple[Any, ...], found: Any) -> bool:
    """Return True for an operator that would have written other values if it had begun with the last ones: of several
    for one place, any may stay."""
    func = out_of_place(func)
    puts = func.overloadpacket in (aten.index_put, aten._unsafe_index_put, aten._index_put_impl)
    if puts and not any(each is True for each in args[3:]):
        return _puts_in_any_order(args[1], _bits(args[2]), _bits(found))
    if func in (aten.scatter.src, aten.index_copy.default):
        _, dimension, index, values = args
        values, found = _bits(values), _bits(found)
        if index.dim() == values.dim():
            values = values[tuple(map(slice, index.shape))]
        index = index.flip(dimension if index.dim() == values.dim() else 0)
        return not is_equal(func(found, dimension, index, values.flip(dimension)), found)
    return False


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return float8 as whole numbers of its bits: torch does not reverse the order of float8."""
    is_float8 = tensor.is_floating_point() and tensor.element_size() == 1
    return tensor.view(torch.uint8) if is_float8 else tensor


def _puts_in_any_order(indices: list[torch.Tensor | None], values: torch.Tensor, found: torch.Tensor) -> bool:
    given = {place: index for place, index in enumerate(indices) if index is not None}
    has_mask = any(index.dtype in (torch.bool, torch.uint8) for index in given.values())
    if has_mask or values.numel() == 1:  # a mask has each place once, and one number may lie on another device
        return False
    places = list(given)
    # the dimensions of the indices come first in the values if others lie between them
    start = places[0] if places == list(range(places[0], places[-1] + 1)) else 0
    full = dict(zip(places, torch.broadcast_tensors(*given.values()), strict=True))
    dimensions = range(full[places[0]].dim())
    values = values.expand(aten.index(found, indices).shape).flip(*(start + dimension for dimension in dimensions))
    backwards = [full[place].flip(*dimensions) if place in full else None for place in range(len(indices))]
    return not is_equal(aten.index_put(found, backwards, values), found)


def narrows(func: Any, args: tuple[Any, ...], found: Any) -> bool:
    if func.overloadpacket not in CASTS or not isinstance(found, torch.Tensor) or not args:
        return False
    is_wider = isinstance(args[0], torch.Tensor) and args[0].is_floating_point() and args[0].element_size() > 2
    return is_wider and found.is_floating_point() and found.element_size() <= 2


def jolt(module: torch.nn.Module, sets: tuple[Inputs, ...]) -> tuple[Inputs, ...]:
    """Change each weight of `module` in place, and each input, by up to one rounding of its type. Return the inputs.
    The changes are random and always the same."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return torch.view_as_complex(moved(torch.view_as_real(tensor).contiguous()))
        generator = torch.Generator(tensor.device).manual_seed(tensor.numel())
        by = torch.empty_like(tensor).uniform_(-1, 1, generator=generator)
        return tensor + tensor * by * torch.finfo(tensor.dtype).eps

    def moved_input(tensor: torch.Tensor) -> torch.Tensor:
        return moved(tensor.detach()).requires_grad_(tensor.requires_grad) if has_rounding(tensor) else tensor

    def has_rounding(tensor: torch.Tensor) -> bool:
        return is_cast(tensor) or tensor.is_complex()

    # Every operation of eager rounds once, as this does, so the outputs' change is an estimate of its error.
    with torch.no_grad():
        for weight in module.parameters():
            if has_rounding(weight):
                weight.copy_(moved(weight))
        return tuple(inputs.map(moved_input) for inputs in sets)


@contextlib.contextmanager
def layer_by_layer(module: torch.nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Compute each part of `module` in `dtype` inside the block, widening its weights only while it is called, since
    they may fill half of a device. Weights must be used by the parts that own them."""

    def widen(part: torch.nn.Module, _: Any) -> None:
        for name, tensor in _own(part).items():
            part.__dict__[name] = tensor.to(type_in(tensor, dtype))  # which is found before the weight of that name

    def put_back(part: torch.nn.Module, *_: Any) -> None:
        for name in _own(part):
            part.__dict__.pop(name, None)

    hooks = []
    for part in module.modules():
        if _own(part):
            hooks += [part.register_forward_pre_hook(widen), part.register_forward_hook(put_back, always_call=True)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _own(part: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(part.named_parameters(recurse=False)), **dict(part.named_buffers(recurse=False))}


def use_plain_experts(module: torch.nn.Module) -> bool:
    """Ask transformers for the plain implementation of a mixture of experts. Return False for any other model."""
    for part in module.modules():
        if (choose := getattr(part, "set_experts_implementation", None)) is not None:
            choose("eager")
            return True
    return False


def is_cast(tensor: Any) -> bool:
    """Return True for a tensor that is cast to the cell's precision: float8 is a model's own choice and stays."""
    return bool(tensor.is_floating_point() and tensor.element_size() > 1)


def type_in(tensor: torch.Tensor, dtype: torch.dtype) -> torch.dtype:
    """Return the type of `tensor` where floating-point ones have `dtype`."""
    # They are as wide as their parts, but torch computes with hardly any narrower ones than complex64.
    if tensor.is_complex():
        return torch.complex128 if dtype is torch.float64 else torch.complex64
    return dtype if is_cast(tensor) else tensor.dtype
