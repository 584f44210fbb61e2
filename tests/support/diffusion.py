"""A pipeline of diffusers with random weights: a text encoder, a UNet that is called in a loop, and an autoencoder."""

from typing import Any

import pytest
import torch

from bakeoff.api.pipelines import PipelineResult

STEPS = 4
WORDS = 16


def stable_diffusion(width: int, latents: int) -> Any:
    """Return a StableDiffusionPipeline of this width, for images of 2 x `latents` rows. Skip where it cannot import.

    It has no tokenizer: the example call gives the embeddings of its text encoder.
    """
    diffusers = pytest.importorskip("diffusers")
    transformers = pytest.importorskip("transformers")
    try:
        unet_class, vae_class = diffusers.UNet2DConditionModel, diffusers.AutoencoderKL
        pipeline_class, encoder_class = diffusers.StableDiffusionPipeline, transformers.CLIPTextModel
    except (ImportError, RuntimeError) as error:  # diffusers raises RuntimeError where torchvision is another build
        pytest.skip(f"diffusers does not import: {error}")
    torch.manual_seed(0)
    text = transformers.CLIPTextConfig(
        vocab_size=1000,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=WORDS,
        bos_token_id=0,
        eos_token_id=2 * WORDS - 1,
    )
    unet = unet_class(
        sample_size=latents,
        block_out_channels=(width, 2 * width),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        layers_per_block=1,
        norm_num_groups=8,
        attention_head_dim=8,
        cross_attention_dim=width,
    )
    vae = vae_class(
        block_out_channels=(width, width),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        sample_size=2 * latents,
    )
    pipeline = pipeline_class(
        vae=vae,
        text_encoder=encoder_class(text),
        tokenizer=None,
        unet=unet,
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def paint(pipeline: Any) -> torch.Tensor:
    """Make one image from words, as `pipeline(prompt)` does after its tokenizer. The noise is the same each time."""
    words = torch.arange(2 * WORDS, device=pipeline.device).view(2, WORDS)
    embeddings = pipeline.text_encoder(words)[0]
    image: torch.Tensor = pipeline(
        prompt_embeds=embeddings[:1],
        negative_prompt_embeds=embeddings[1:],
        num_inference_steps=STEPS,
        generator=torch.Generator().manual_seed(0),
        output_type="pt",
    ).images
    return image


def require_same_image(pipeline: Any, result: PipelineResult, wanted: torch.Tensor, most: float) -> None:
    """Put the winners in place, and require that the image changes by no more than this."""
    assert result.whole is not None
    result.apply(pipeline, anyway=True)  # chance may have called them slower on a busy machine
    with torch.no_grad():
        assert (paint(pipeline) - wanted).abs().max().item() < most
