"""torch itself checks values here: the lengths of a packed batch, and a distribution's arguments. It decides nothing.

Right: a trace is right for other lengths, too, and no choice is said to be frozen.
"""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(16, 8, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        states, (last, _) = self.lstm(packed)
        return pad_packed_sequence(states, batch_first=True)[0], last


def factory(batch: int = 4):
    return Packed(), (torch.randn(batch, 9, 16), torch.arange(9, 9 - batch, -1))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.scale = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x):
        return torch.distributions.Normal(self.mean(x), self.scale(x).exp())


def policy(batch: int = 8):
    return Policy(), torch.randn(batch, 16)
