"""A graph convolution has a sparse adjacency matrix, as a buffer (`factory`) or as an input (`given`).

Right: eager is measured, and a backend without sparse tensors is refused with a reason that names them.
"""

import torch
from torch import nn


def adjacency(nodes):
    edges = torch.randint(0, nodes, (2, 4 * nodes))
    return torch.sparse_coo_tensor(edges, torch.rand(4 * nodes), (nodes, nodes)).coalesce()


class GCN(nn.Module):
    def __init__(self, nodes):
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("adjacency", adjacency(nodes))

    def forward(self, x):
        return torch.sparse.mm(self.adjacency, self.linear(x))


def factory(nodes: int = 200):
    return GCN(nodes), torch.randn(nodes, 16)


class Given(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x, a):
        return torch.sparse.mm(a, self.linear(x))


def given(nodes: int = 200):
    return Given(), (torch.randn(nodes, 16), adjacency(nodes))
