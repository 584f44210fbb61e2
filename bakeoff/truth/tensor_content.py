"""Digests of tensors by their content, and not by where they lie."""

import hashlib
from typing import Any

import torch

PIECE_ELEMENTS = 2**24


def content(value: Any) -> bytes:
    """Return a digest of a tensor's type, shape, strides and values. Other values are told by their `repr`."""
    if not isinstance(value, torch.Tensor):
        return repr(value).encode()
    layout = (value.dtype, tuple(value.shape), value.stride() if value.layout is torch.strided else value.layout)
    digest = hashlib.sha256(repr(layout).encode())
    dense = value.detach() if value.layout is torch.strided else value.detach().to_dense()
    if dense.is_quantized:
        dense = dense.int_repr()
    words = _words(dense)
    for start in range(0, words.numel(), PIECE_ELEMENTS):
        piece = words[start : start + PIECE_ELEMENTS]
        digest.update(_sums(piece) if piece.is_cuda else piece.cpu().numpy().data)
    return digest.digest()


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor as a flat tensor of whole numbers, as wide as its elements but for 16 bytes."""
    flat = tensor.contiguous().reshape(-1)
    if flat.dtype is torch.bool:
        return flat.to(torch.uint8)
    flat = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])


def _sums(words: torch.Tensor) -> bytes:
    """Return two sums over a piece on a GPU, weighted by place, modulo 2**64. Copying it to the host takes longer."""
    places = torch.arange(1, words.numel() + 1, device=words.device, dtype=torch.int64)
    values = words.to(torch.int64)
    odd = places * 0x9E3779B97F4A7C1 | 1
    return repr([int((values * odd).sum()), int((values * places).sum())]).encode()
