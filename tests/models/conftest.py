"""What the tests of models share."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

_LIBRARIES: list[torch.library.Library] = []
"""Operators live as long as the library that they were declared in."""


@pytest.fixture(scope="session")
def vision() -> None:
    """Let torchvision and timm import, or skip the test without them.

    PyPI's torchvision is compiled against torch with CUDA. Beside the CPU's torch two operators are missing, and no
    model here calls them.
    """
    if find_spec("timm") is None or find_spec("torchvision") is None:
        pytest.skip("timm and torchvision are not installed")
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
