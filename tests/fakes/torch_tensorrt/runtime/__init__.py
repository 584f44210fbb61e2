from __future__ import annotations

from ._cudagraphs import enable_cudagraphs

__all__ = ["enable_cudagraphs"]
