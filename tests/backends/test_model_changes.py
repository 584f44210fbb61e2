"""Modes that change the model or its memory layout compute the same, and PyTorch's fused layers are found."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import profile

from bakeoff.backends import fast_path
from bakeoff.backends.attention_products import attention_as_products, products, products_in_blocks
from bakeoff.backends.base import ANYWHERE, Mode, Suits
from bakeoff.backends.memory_format import converted_inputs, converted_module
from bakeoff.backends.model_changes import attention_of, fold_norms, pad_layers, unaligned_layers, use_sdpa
from bakeoff.models.base import Inputs, LoadedModel
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Cell
from tests.backends.building import Built, built, loaded
from tests.support.measuring import by_label, measure


class Block(nn.Module):
    """Two convolutions with norms, a norm that stands alone, and a convolution that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.second, self.norm = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.alone = nn.BatchNorm2d(4)
        self.twice, self.after = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(self.first(x)))
        return self.after(self.twice(self.twice(self.alone(x))))


def test_norms_behind_convolutions_are_folded_and_no_others() -> None:
    torch.manual_seed(0)
    block, x = Block().eval(), torch.randn(2, 3, 12, 12)
    for norm in (part for part in block.modules() if isinstance(part, nn.BatchNorm2d)):
        nn.init.normal_(norm.weight)
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    with torch.inference_mode():
        before = block(x)
        assert fold_norms(block, Inputs((x,))) == 2
        torch.testing.assert_close(block(x), before)
    kinds = [type(block.get_submodule(name)).__name__ for name in ("first.1", "norm", "alone", "after")]
    assert kinds == ["Identity", "Identity", "BatchNorm2d", "BatchNorm2d"]


def test_a_norm_in_training_stays() -> None:
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    assert fold_norms(layers, Inputs((torch.randn(2, 3, 8, 8),))) == 0


class Tied(nn.Module):
    """A vocabulary of 100 words whose embedding and last layer share a weight, and layers that need no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.up, self.small = nn.Linear(32, 128), nn.Linear(128, 32, bias=False)
        self.odd = nn.Linear(32, 90)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        x = self.small(self.up(self.embedding(words)).relu())
        return self.head(x), self.odd(x) + self.odd.bias


def test_padded_layers_return_the_same_and_only_what_is_unaligned_is_padded() -> None:
    torch.manual_seed(0)
    model, words = Tied().eval(), torch.arange(12).reshape(3, 4)
    assert list(unaligned_layers(model)) == ["odd", "head"]
    with torch.inference_mode():
        before = model(words)
        weight = model.odd.weight.clone()
        assert pad_layers(model, Inputs((words,))) == 2
        torch.testing.assert_close(model(words), before)
    assert torch.equal(model.odd.weight, weight) and model.odd.padded.shape == (128, 32)
    assert model.embedding.weight.shape == (100, 32) and not unaligned_layers(model)


class OfTransformers(nn.Module):
    """Stands in for a model of transformers: it names its attention in a configuration, and can switch it."""

    def __init__(self, implementation: str, *parts: nn.Module, refuses: bool = False) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation=implementation)
        self.parts, self.refuses = nn.ModuleList(parts), refuses

    def set_attn_implementation(self, name: str) -> None:
        if self.refuses:
            raise ValueError("it does not support sdpa")
        self.config._attn_implementation = name


def test_models_of_transformers_are_switched_and_what_is_inside_of_them_is_left_to_them() -> None:
    inner, other = OfTransformers("eager"), OfTransformers("eager")
    wrapped = nn.ModuleList([OfTransformers("eager", inner), other, OfTransformers("flash_attention_2"), nn.ReLU()])
    assert attention_of(wrapped) == "eager"
    assert use_sdpa(wrapped, Inputs()) == 2
    names = [part.config._attn_implementation for part in wrapped[:3]]
    assert names == ["sdpa", "sdpa", "flash_attention_2"] and inner.config._attn_implementation == "eager"
    assert use_sdpa(wrapped, Inputs()) == 0 and attention_of(nn.ReLU()) == ""
    with pytest.raises(Unsupported, match="does not switch its attention: it does not support sdpa"):
        use_sdpa(OfTransformers("eager", refuses=True), Inputs())


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


FUSED = "aten::_transformer_encoder_layer_fwd"


def encoder() -> LoadedModel:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, nhead=4, dim_feedforward=48, batch_first=True)
    module = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False).eval()
    return LoadedModel(module, (Inputs((torch.randn(2, 8, 32),)), Inputs((torch.randn(2, 8, 32),))))


def cell_of(backend: str, mode: str = "default") -> Cell:
    return Cell(model="mine.py:factory", backend=backend, mode=mode)


def operators_of(one: Built) -> set[str]:
    with profile() as found:
        one.call(one.sets[0])
    return {event.key for event in found.key_averages()}


@pytest.mark.parametrize(
    ("backend", "mode", "is_fused"),
    [
        ("eager", "default", True),
        ("eager", "no-fast-path", False),
        ("torchscript", "default", True),
        pytest.param("inductor", "default", False, marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_eager_and_a_trace_call_the_fused_operator(backend: str, mode: str, is_fused: bool, tmp_path: Path) -> None:
    with built(cell_of(backend, mode), tmp_path, encoder()) as one:
        assert (FUSED in operators_of(one)) == is_fused
        assert fast_path.in_force(one.module) == {"mha_fastpath": is_fused}


@pytest.mark.parametrize(
    ("mode", "shape", "reason"),
    [("no-fast-path", (1, 3), r"^the model has no nn\.Transformer"),
     ("channels-last", (1, 2, 2, 3), r"^the model has no 2-D convolution")],
)  # fmt: skip
def test_a_model_without_such_layers_is_refused_with_the_reason(
    mode: str, shape: tuple[int, ...], reason: str, tmp_path: Path
) -> None:
    """A user's own model is only known once it is loaded."""
    plain = loaded(nn.Linear(3, 2), *shape, sets=1)
    assert fast_path.in_force(plain.module) == {}
    with pytest.raises(Unsupported, match=reason), built(cell_of("eager", mode), tmp_path, plain):
        pass


FACTORY = """
import torch

def factory():
    return torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True).eval(), torch.randn(1, 4, 16)
"""


@pytest.mark.slow
def test_the_records_say_what_was_in_force(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FACTORY)
    report = measure(tmp_path / "run", "eager", "onnx", models=[f"{path}:factory"])
    found = {label: record.settings["mha_fastpath"] for label, record in by_label(report).items()}
    assert found == {"eager": True, "onnx": False}


LAST = torch.channels_last


def in_order(tensor: torch.Tensor) -> bool:
    return tensor.is_contiguous(memory_format=LAST)


def test_a_copy_has_its_convolutions_in_order_and_the_callers_module_stays_as_it_was() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))
    with torch.inference_mode():
        copy = converted_module(module)
    assert in_order(copy[0].weight) and not in_order(module[0].weight)
    assert torch.equal(copy[0].weight, module[0].weight)
    assert not copy[0].weight.is_inference()
    assert copy[3].weight is module[3].weight, "only what changes its place takes memory twice"
    assert copy[1].running_mean is module[1].running_mean


def test_only_tensors_of_four_dimensions_are_put_in_order() -> None:
    given = Inputs((torch.randn(2, 3, 4, 4), torch.randn(2, 3)), {"mask": torch.ones(2, 3, 4, dtype=torch.long)})
    images, *others = converted_inputs(given).tensors()
    assert in_order(images) and torch.equal(images, given.args[0]) and not in_order(given.args[0])
    assert all(found is tensor for found, tensor in zip(others, given.tensors()[1:], strict=True))


def test_the_record_says_which_order_was_in_force(tmp_path: Path) -> None:
    model = loaded(nn.Conv2d(3, 4, 3), 1, 3, 8, 8, sets=1)
    cell = Cell(model="mine.py:factory", backend="torchscript", mode="channels-last")
    with built(cell, tmp_path, model) as one:
        assert one.compiled.settings()["memory_format"] == "channels_last"
        assert in_order(one.call(one.sets[0])[0])


def test_a_variant_carries_the_name_of_its_mode_and_is_worth_trying_for_convolutions() -> None:
    plain = Mode(worth_trying=ANYWHERE, any_size=True).in_channels_last()
    assert plain == Mode(
        "channels-last", worth_trying=Suits(convolutions=True), channels_last_of="default", any_size=True
    )
    graph = Mode("cuda-graph", worth_trying=Suits("cuda"), captures=True).in_channels_last()
    assert (graph.name, graph.plain_name, graph.captures) == ("cuda-graph-channels-last", "cuda-graph", True)
    assert graph.worth_trying == Suits("cuda", convolutions=True)
    assert Mode("other").in_channels_last().worth_trying is None
