"""Models of transformers with random weights, for `targets.py`. They import transformers as users' files do."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM


class RepeatedDraws(TorchFunctionMode):
    """Draws the first rows of a large weight and copies them to the others, so that it is made as quickly as loaded.

    Drawing 1.5 billion numbers takes 7 s in each process. What torch's layers draw is left out, as transformers then
    draws again.
    """

    DRAWN = 2**20

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        weight = kwargs.get("tensor", *args[:1])
        name = getattr(function, "__name__", "")
        if name == "kaiming_uniform_":
            return weight
        if name != "normal_" or weight.numel() <= self.DRAWN:
            return function(*args, **kwargs)
        rows = weight.detach().split(max(1, self.DRAWN // weight[0].numel()))
        function(*[rows[0], *args[1:]][: len(args)], **kwargs | ({} if args else {"tensor": rows[0]}))
        for part in rows[1:]:
            part.copy_(rows[0][: len(part)])
        return weight


def bert_small(batch: int = 2, seq: int = 128) -> tuple[Any, Any]:
    return _bert(batch, seq, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)


def bert(batch: int = 8, seq: int = 128) -> tuple[Any, Any]:
    return _bert(batch, seq)


def _bert(batch: int, seq: int, **sizes: Any) -> tuple[Any, Any]:
    tokens = torch.randint(0, 30000, (batch, seq))
    return BertModel(BertConfig(**sizes)), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def llama(batch: int = 1, seq: int = 128) -> tuple[Any, Any]:
    """Llama 3.2 1B with random weights, 1.5 billion as its embeddings are not tied."""
    sizes: dict[str, Any] = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "vocab_size": 128256,
    }
    config = LlamaConfig(**sizes, num_attention_heads=32, num_key_value_heads=8, use_cache=False)
    with RepeatedDraws():
        model = LlamaForCausalLM(config)
    return model, {"input_ids": torch.randint(0, 128000, (batch, seq))}
