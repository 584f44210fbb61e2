"""A small detector, trained in a second on bright boxes that it draws, with its recall and average precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

SIZE, CELLS = 64, 8
"""Images have so many pixels on each side, and the detector looks for a box in each cell of a grid."""

STRIDE = SIZE // CELLS
TRAINED_WITH, JUDGED_BY = 256, 400
"""The first images train and calibrate. The others, which are drawn from another seed, evaluate."""

STEPS, TRAINED_AT_ONCE = 80, 16
LEAST_SCORE, SURE_SCORE = 0.05, 0.5
LEAST_OVERLAP = 0.5
"""A box is found by a detection that shares at least this much of the area of both."""

Detections = list[tuple[float, Tensor]]
"""Scores and boxes of one image, the best first. A box is its left, top, right and bottom edge in pixels."""


def factory(batch: int = 8, width: int = 12) -> tuple[nn.Module, Tensor]:
    """A network of strided convolutions that looks for a box in each cell of a grid"""
    images, boxes = drawn(TRAINED_WITH, seed=0)
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for before_it, after_it, stride in ((1, width, 2), (width, 2 * width, 2), (2 * width, 2 * width, 2)):
        layers += [nn.Conv2d(before_it, after_it, 3, stride, 1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(2 * width, 5, 3, 1, 1)).double()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # with float64, so that every process trains the same weights, bit for bit
    with torch.enable_grad():
        train(model, before(images).double(), targets(boxes).double())
    torch.set_num_threads(threads)
    return model.float(), images[:batch]


def before(images: Tensor) -> Tensor:
    """Return what the model takes: images of (number, 1, 64, 64) from 0 to 1, of bytes."""
    return images.float().div(255)


def after(outputs: Tensor) -> list[Detections]:
    """Return the boxes that were found with a score over a half, without those that overlap with a better one."""
    return [suppressed(each) for each in decoded(outputs, SURE_SCORE)]


def calibrate(batch: int = 8) -> list[Tensor]:
    """Images that it was trained with, for the ranges of int8"""
    images, _ = drawn(TRAINED_WITH, seed=0)
    return [before(images[begin : begin + batch]) for begin in range(batch, 128, batch)]


def evaluate(predict: Callable[..., Tensor], batch: int = 8) -> dict[str, list[bool] | float]:
    """Whether each box of 400 other images is found (recall), and the average precision of all detections."""
    images, boxes = drawn(JUDGED_BY, seed=1)
    outputs = []
    for begin in range(0, len(images), batch):
        part = images[begin : begin + batch]
        padded = torch.cat([part, part[:1].expand(batch - len(part), -1, -1, -1)])  # most builds serve one size
        outputs.append(predict(before(padded))[: len(part)].cpu())
    candidates = [suppressed(each) for each in decoded(torch.cat(outputs), LEAST_SCORE)]
    matches = [matched(detections, planted) for detections, planted in zip(candidates, boxes, strict=True)]
    return {
        "recall": [score >= SURE_SCORE for _, scores in matches for score in scores],
        "ap50": average_precision([hit for hits, _ in matches for hit in hits], sum(map(len, boxes))),
    }


evaluate.higher_is_better = {"recall": True, "ap50": True}


def drawn(number: int, seed: int) -> tuple[Tensor, list[Tensor]]:
    """Return images of bytes with noise and one to three bright boxes, and the boxes of each."""
    draw = torch.Generator().manual_seed(seed)

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=draw)

    images, boxes = whole(0, 90, number, 1, SIZE, SIZE).byte(), []
    for image in images[:, 0]:
        planted: list[list[int]] = []
        for _ in range(int(whole(1, 4))):
            sides = whole(8, 22, 2)
            left, top = (int(whole(0, SIZE - int(side))) for side in sides)
            right, bottom = left + int(sides[0]), top + int(sides[1])
            if all(right < a or left > c or bottom < b or top > d for a, b, c, d in planted):
                planted.append([left, top, right, bottom])
                image[top:bottom, left:right] += int(whole(60, 160))
        boxes.append(torch.tensor(planted).float())
    return images, boxes


def targets(boxes: list[Tensor]) -> Tensor:
    """Return (number, 5, 8, 8): whether a box's middle is in a cell, where in it, and the box's width and height."""
    wanted = torch.zeros(len(boxes), 5, CELLS, CELLS)
    for image, planted in zip(wanted, boxes, strict=True):
        for left, top, right, bottom in planted.tolist():
            x, y = (left + right) / 2 / STRIDE, (top + bottom) / 2 / STRIDE
            column, row = int(x), int(y)
            values = [1.0, x - column, y - row, (right - left) / SIZE, (bottom - top) / SIZE]
            image[:, row, column] = torch.tensor(values)
    return wanted


def train(model: nn.Module, images: Tensor, wanted: Tensor) -> None:
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    draw = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        chosen = torch.randperm(len(images), generator=draw)[:TRAINED_AT_ONCE]
        scores, places = model(images[chosen]).split((1, 4), dim=1)
        is_box, its_place = wanted[chosen].split((1, 4), dim=1)
        loss = functional.binary_cross_entropy_with_logits(scores, is_box, pos_weight=torch.tensor(4.0))
        loss = loss + 4 * ((places.sigmoid() - its_place).abs() * is_box).sum() / is_box.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def decoded(outputs: Tensor, least_score: float) -> list[Detections]:
    """Return the detections of each image in what the model returns."""
    grid = torch.arange(CELLS, dtype=outputs.dtype, device=outputs.device)
    scores, x, y, width, height = outputs.sigmoid().unbind(1)
    x, y = (x + grid) * STRIDE, (y + grid[:, None]) * STRIDE
    width, height = width * SIZE / 2, height * SIZE / 2
    corners = torch.stack([x - width, y - height, x + width, y + height], dim=-1)
    detections = []
    for its_scores, its_boxes in zip(scores, corners, strict=True):
        is_found = its_scores >= least_score
        pairs = zip(its_scores[is_found].tolist(), its_boxes[is_found], strict=True)
        detections.append(sorted(pairs, key=lambda pair: -pair[0]))
    return detections


def suppressed(detections: Detections) -> Detections:
    """Return the detections without those that overlap with a better one."""
    kept: Detections = []
    for score, box in detections:
        if all(overlap(box, better) < LEAST_OVERLAP for _, better in kept):
            kept.append((score, box))
    return kept


def matched(detections: Detections, planted: Tensor) -> tuple[list[tuple[float, bool]], list[float]]:
    """Return the score of each detection with whether it finds a box, and the score that each box is found with."""
    hits, scores = [], [0.0] * len(planted)
    for score, box in detections:
        overlaps = [0.0 if scores[place] else overlap(box, each) for place, each in enumerate(planted)]
        place = max(range(len(planted)), key=overlaps.__getitem__)
        is_hit = overlaps[place] >= LEAST_OVERLAP
        if is_hit:
            scores[place] = score
        hits.append((score, is_hit))
    return hits, scores


def overlap(box: Tensor, other: Tensor) -> float:
    """Return the area that two boxes share, over the area of both together."""
    sides = (torch.minimum(box[2:], other[2:]) - torch.maximum(box[:2], other[:2])).clamp(min=0)
    shared, areas = sides.prod(), (box[2:] - box[:2]).prod() + (other[2:] - other[:2]).prod()
    return float(shared / (areas - shared))


def average_precision(hits: list[tuple[float, bool]], boxes: int) -> float:
    """Return the area under precision over recall, with the best precision at each recall or beyond it."""
    is_hit = torch.tensor([hit for _, hit in sorted(hits, key=lambda each: -each[0])], dtype=torch.float64)
    right = is_hit.cumsum(0)
    precision: Any = right / torch.arange(1, len(right) + 1)
    best = precision.flip(0).cummax(0).values.flip(0)
    return float((best * is_hit).sum() / boxes)
