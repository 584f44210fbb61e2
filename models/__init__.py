"""The models that Bakeoff knows, by name. A model's file is imported when its name is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from records.errors import UsageError, unknown
from records.schema import GENERATE, GENERATION

if TYPE_CHECKING:
    from models.base import Family

TABLE: dict[str, str] = {
    "mlp": "models.mlp:MLP",
    "conv": "models.conv:Conv",
    "transformer": "models.transformer:Transformer",
    "attention": "models.attention:Attention",
    "transformer_lm": "models.transformer_lm:TransformerLM",
    "matmul_chain": "models.matmul_chain:MatmulChain",
    "attention_block": "models.attention_block:AttentionBlock",
    "mixed_ops": "models.mixed_ops:MixedOps",
    "rope": "models.rope:Rope",
    "fp8_transformer": "models.fp8_transformer:Fp8Transformer",
    "fused_add_relu_mul": "models.kernel_workloads:FusedAddReluMul",
    "tma_copy": "models.kernel_workloads:TmaCopy",
    "matmul_fp16": "models.kernel_workloads:MatmulFp16",
    "matmul_fp8": "models.kernel_workloads:MatmulFp8",
}
DEFAULT = ("mlp", "conv", "transformer")

CLASSES = {
    "diffusers": "models.diffusers:Diffusers",
    "hf": "models.huggingface:HuggingFace",
    "onnx": "models.onnx_file:OnnxFile",
    "pt2": "models.exported_program:ExportedFile",
    "timm": "models.timm:Timm",
    "torchvision": "models.torchvision:Torchvision",
}
"""Where other models come from: the family for each prefix of a name."""

SOURCES = {
    "diffusers": (
        "diffusers:FOLDER",
        "a model of diffusers, such as a pipeline's unet; its dimensions are batch, size, seq",
    ),
    "hf": ("hf:FOLDER or hf:ORG/NAME", "a Hugging Face model; its dimensions are batch, seq, size or samples"),
    "onnx": ("onnx:FILE", "a model for the backends that take ONNX; its dimensions are the axes that it leaves open"),
    "pt2": ("pt2:FILE", "a program that torch.export.save wrote; its dimensions are the axes that it leaves open"),
    "timm": ("timm:NAME", "an image model of timm, with random weights; its dimensions are batch and size"),
    "torchvision": ("torchvision:NAME", "a model of torchvision, with random weights; batch, size, for videos frames"),
}
"""How the name of such a model is written, and what it stands for."""


def find(name: str) -> Family:
    """Return the family for a row of the table, for `path/to/file.py:factory`, or for a source such as `hf:FOLDER`.

    Raise UsageError for an unknown name, or a missing file, factory or folder.
    """
    if name in TABLE:
        return _class(TABLE[name])()
    prefix, colon, source = name.partition(":")
    if colon and prefix in CLASSES:
        return _class(CLASSES[prefix])(source)
    path, colon, factory = name.rpartition(":")
    if colon and path.endswith(".py"):
        from models.user import UserModel

        return UserModel(path, factory)
    if name.endswith(".py"):
        raise UsageError(f"model '{name}' names a file but no factory: write {option_for(name)}")
    raise unknown(
        "model", name, TABLE, f"or path/to/file.py:factory, {', '.join(form for form, _ in SOURCES.values())}"
    )


def find_for(name: str, task: str) -> Family:
    """Return the family with the dimensions that it has for `task`. Raise UsageError where it cannot do it."""
    family = find(name)
    if task not in (GENERATE, *GENERATION):
        return family
    from models.generation import Generating

    return Generating(family)


def option_for(text: str) -> str:
    """Return the option that names `text` as a model. Return an empty string where it looks like no model."""
    if text.endswith(".py"):
        from models.user import likely_factory

        return f"--model {text}:{likely_factory(Path(text))}"
    return f"--model {text}" if text in TABLE or ":" in text else ""


def _class(path: str) -> Callable[..., Family]:
    module, _, attribute = path.partition(":")
    found: Callable[..., Family] = getattr(importlib.import_module(module), attribute)
    return found
