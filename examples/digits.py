"""A classifier of handwritten digits, trained in a second on data that scikit-learn ships, with its own metric."""

from collections.abc import Callable

import torch
from sklearn.datasets import load_digits
from torch import nn

TRAINED_WITH = 897
"""The first digits train it. The other 900 evaluate it."""

STEPS = 100


def classifier(batch: int = 50, hidden: int = 256) -> tuple[nn.Module, torch.Tensor]:
    """Two layers that know 94 % of the digits"""
    images, labels = digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10)).double()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with float64, so that every process trains the same weights, bit for bit
    with torch.enable_grad():
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(STEPS):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(images[:TRAINED_WITH].double()), labels[:TRAINED_WITH]).backward()
            optimiser.step()
    torch.set_num_threads(threads)
    return model.float(), images[:batch]


def calibrate(batch: int = 50) -> list[torch.Tensor]:
    """Images that it was trained with, for the ranges of int8"""
    images, _ = digits()
    return [images[begin : begin + batch] for begin in range(batch, TRAINED_WITH - batch, batch)]


def evaluate(predict: Callable[..., torch.Tensor], batch: int = 50) -> dict[str, list[bool]]:
    """Whether each digit of the others is known. The last batch is padded, because most builds serve one size."""
    images, labels = (each[TRAINED_WITH:] for each in digits())
    top1: list[bool] = []
    for begin in range(0, len(images), batch):
        part = images[begin : begin + batch]
        padded = torch.cat([part, part[:1].expand(batch - len(part), -1)])
        top1 += (predict(padded)[: len(part)].argmax(-1) == labels[begin : begin + batch]).tolist()
    return {"top1": top1}


evaluate.higher_is_better = {"top1": True}


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """All images and what they show"""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
