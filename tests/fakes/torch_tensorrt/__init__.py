"""A stand-in for Torch-TensorRT: it partitions a graph as the real one does, and runs every part in torch.

tests/backends/test_torch_tensorrt_api.py holds every public name and signature here against the real sources. There are
no `**kwargs` to swallow a keyword that the real library would ignore.
"""

from __future__ import annotations

from . import dynamo, runtime

__all__ = ["dynamo", "runtime"]

__version__ = "2.8.0"
