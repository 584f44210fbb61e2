"""A fake of Torch-TensorRT: it partitions a graph as the real library does, and runs every part in torch.

tests/backends/test_torch_tensorrt_api.py compares every public name and signature with the real sources. The fake has
no `**kwargs`, so a keyword that the real library would ignore is an error. What it does is changed in behaviour.py.
"""

from __future__ import annotations

from . import dynamo, runtime

__all__ = ["dynamo", "runtime"]

__version__ = "2.8.0"
