from __future__ import annotations

from .backends import torch_tensorrt_backend

__all__ = ["torch_tensorrt_backend"]
