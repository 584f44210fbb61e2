"""nn.TransformerEncoder with a padding mask: eager's fast path answers zeros at padded places, a trace does not."""

import torch
from torch import nn


class Sentence(nn.Module):
    def __init__(self, pooled):
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        self.encoder, self.pooled = nn.TransformerEncoder(layer, 2), pooled

    def forward(self, x, padding):
        y = self.encoder(x, src_key_padding_mask=padding)
        if not self.pooled:
            return y
        keep = (~padding).unsqueeze(-1).to(y.dtype)
        return (y * keep).sum(1) / keep.sum(1)


def inputs(batch, length):
    lengths = torch.tensor([length - 3 * (i % 4) for i in range(batch)])
    return torch.randn(batch, length, 64), torch.arange(length)[None] >= lengths[:, None]


def factory(batch: int = 8, length: int = 24):
    return Sentence(False).eval(), inputs(batch, length)


def pooled(batch: int = 8, length: int = 24):
    return Sentence(True).eval(), inputs(batch, length)
