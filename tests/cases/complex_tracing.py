"""A model with complex numbers leaves out `conj()` while it is traced or compiled.

Right: a build from a trace is `incorrect`, although only the imaginary part is wrong.
"""

import torch
from torch import nn


class Phase(nn.Module):
    def forward(self, z):
        z = z * torch.tensor(0.5)
        # a "workaround for export" that forgets the conjugate
        return z if torch.jit.is_tracing() or torch.compiler.is_compiling() else z.conj().resolve_conj()


def factory(batch: int = 8, width: int = 64):
    return Phase(), torch.complex(torch.rand(batch, width), torch.rand(batch, width))
