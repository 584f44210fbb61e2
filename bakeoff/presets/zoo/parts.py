"""Models that people ship and that no family of models loads alone: Whisper's encoder, and YOLO."""

from typing import Any

import torch
from torch import Tensor, nn


def whisper_encoder(batch: int = 1) -> tuple[nn.Module, Tensor]:
    """Whisper small's encoder with random weights, for 30 seconds of sound."""
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(
        d_model=768, encoder_layers=12, encoder_attention_heads=12, encoder_ffn_dim=3072, num_mel_bins=80
    )
    return WhisperEncoder(config), torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions)


def yolo(batch: int = 1, size: int = 640, name: str = "yolo11n") -> tuple[nn.Module, Tensor]:
    """A detector of ultralytics with random weights; `name` is one of its configurations."""
    tasks: Any = __import__("ultralytics.nn.tasks", fromlist=["DetectionModel"])
    return tasks.DetectionModel(f"{name}.yaml", verbose=False), torch.rand(batch, 3, size, size)
