"""Attention as products and sums is what PyTorch computes."""

import pytest
import torch
from torch.nn import functional

from bakeoff.backends.attention_products import attention_as_products, products, products_in_blocks

QUERIES, KEYS, VALUES = torch.randn(2, 3, 4, 8), torch.randn(2, 3, 5, 8), torch.randn(2, 3, 5, 6)
SEEN = torch.tensor([True, True, False, True, False])
MASKS = {"none": None, "bool": SEEN.expand(1, 1, 1, 5), "added": torch.randn(2, 1, 4, 5)}


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("scale", [None, 0.3])
def test_it_is_what_pytorch_computes(kind: str, scale: float | None) -> None:
    wanted = functional.scaled_dot_product_attention(QUERIES, KEYS, VALUES, MASKS[kind], scale=scale)
    torch.testing.assert_close(products(QUERIES, KEYS, VALUES, MASKS[kind], scale), wanted)


@pytest.mark.parametrize("rows", [128, 48, 5, 66])
@pytest.mark.parametrize("kind", ["bool", "lowest", "infinite"])
def test_rows_in_blocks_are_what_pytorch_computes_with_whole_blocks_unseen(rows: int, kind: str) -> None:
    queries, keys, values = torch.randn(1, 2, 4, 8), torch.randn(1, 2, rows, 8), torch.randn(1, 2, rows, 8)
    is_seen = (torch.arange(rows) < 3).expand(1, 1, 1, rows)
    lowest = {"lowest": torch.finfo(torch.float32).min, "infinite": float("-inf")}
    mask = is_seen if kind == "bool" else torch.zeros(is_seen.shape).masked_fill(~is_seen, lowest[kind])
    wanted = functional.scaled_dot_product_attention(queries, keys, values, mask)
    for compute in (products, products_in_blocks):
        torch.testing.assert_close(compute(queries, keys, values, mask, None), wanted)


def test_sixteen_bits_are_computed_in_float32_and_float64_stays() -> None:
    narrow, wide = ([one.to(dtype) for one in (QUERIES, KEYS, VALUES)] for dtype in (torch.bfloat16, torch.float64))
    found = products(*narrow, None, None)
    exact = functional.scaled_dot_product_attention(*(one.double() for one in narrow))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, exact.to(torch.bfloat16))
    torch.testing.assert_close(products(*wide, None, None), functional.scaled_dot_product_attention(*wide))


def test_what_it_does_not_compute_stays_pytorchs_and_the_function_comes_back() -> None:
    before = functional.scaled_dot_product_attention
    wanted = before(QUERIES, KEYS, VALUES, is_causal=True)
    with attention_as_products():
        assert functional.scaled_dot_product_attention is not before
        torch.testing.assert_close(
            functional.scaled_dot_product_attention(QUERIES, KEYS, VALUES, is_causal=True), wanted
        )
    assert functional.scaled_dot_product_attention is before
