from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class CompilationSettings:
    """The settings of 2.8 that the backend uses. Blocks are smaller than the real default of 5, for small models."""

    device: torch.device | None = None
    disable_tf32: bool = False
    min_block_size: int = 1
    pass_through_build_failures: bool = False
    timing_cache_path: str = ""
    use_explicit_typing: bool = False
    use_fp32_acc: bool = False
