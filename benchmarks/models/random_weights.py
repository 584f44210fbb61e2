"""Models of transformers with random weights, for `targets.py`. They import transformers as users' files do."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM


def bert_small(batch: int = 2, seq: int = 128) -> tuple[Any, Any]:
    return _bert(batch, seq, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024)


def bert(batch: int = 8, seq: int = 128) -> tuple[Any, Any]:
    return _bert(batch, seq)


def _bert(batch: int, seq: int, **sizes: Any) -> tuple[Any, Any]:
    tokens = torch.randint(0, 30000, (batch, seq))
    return BertModel(BertConfig(**sizes)), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


def llama(batch: int = 1, seq: int = 128) -> tuple[Any, Any]:
    """Llama 3.2 with a billion random weights."""
    sizes: dict[str, Any] = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "vocab_size": 128256,
    }
    config = LlamaConfig(**sizes, num_attention_heads=32, num_key_value_heads=8, use_cache=False)
    return LlamaForCausalLM(config), {"input_ids": torch.randint(0, 128000, (batch, seq))}
