from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass
class CompilationSettings:
    """Those of 2.8 that are used. Smaller blocks than the real default (5), because the tests' models are small."""

    device: torch.device | None = None
    disable_tf32: bool = False
    min_block_size: int = 1
    pass_through_build_failures: bool = False
    timing_cache_path: str = ""
    use_explicit_typing: bool = False
    use_fp32_acc: bool = False
