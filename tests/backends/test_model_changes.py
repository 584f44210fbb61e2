"""Modes of eager that change the model compute the same."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from bakeoff.backends.model_changes import attention_of, fold_norms, pad_layers, unaligned_layers, use_sdpa
from bakeoff.models.base import Inputs
from bakeoff.records.errors import Unsupported


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
        assert norm.running_mean is not None and norm.running_var is not None
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
