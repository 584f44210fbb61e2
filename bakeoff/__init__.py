"""Which inference compiler should I ship this PyTorch model with, on this machine, and can I trust the answer?"""

__version__ = "0.2.0"
