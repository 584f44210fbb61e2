"""An interatomic potential: forces are the gradient of the energy, computed by autograd in forward."""

import torch
from torch import nn


class Potential(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, positions):
        with torch.enable_grad():
            p = positions.detach().clone().requires_grad_(True)
            d = (p[:, None] - p[None]).pow(2).sum(-1)
            energy = self.net((d + torch.eye(len(p), dtype=p.dtype)).sqrt()[..., None]).sum()
            (gradient,) = torch.autograd.grad(energy, p)
        return energy.detach(), -gradient


def factory(atoms: int = 12):
    return Potential(), torch.randn(atoms, 3)


def mixed(atoms: int = 12):
    """One weight is in float64. Right: it is no reason to refuse gradients in forward."""
    potential = Potential()
    potential.cutoff = nn.Parameter(torch.tensor(5.0, dtype=torch.float64))
    return potential, torch.randn(atoms, 3)


class Jagged(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, values, offsets):
        rows = self.linear(torch.nested.nested_tensor_from_jagged(values, offsets))
        return torch.nested.to_padded_tensor(rows, 0.0)


def jagged():
    """Nested tensors cannot be made in inference mode of tensors from outside of it."""
    return Jagged(), (torch.randn(10, 6), torch.tensor([0, 3, 4, 10]))


class Jacobian(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        return torch.autograd.functional.jacobian(lambda rows: self.net(rows).sum(0), x)


def jacobian(batch: int = 4):
    """Torch gives zeros in inference mode, without an error. Right: it is called in torch.no_grad."""
    return Jacobian(), torch.randn(batch, 8)
