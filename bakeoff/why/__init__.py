"""Why a cell takes as long as it does, where it loses precision, and what fails: by the modules of the user's model.

`worker_*.py` run in a worker of their own, which `controller.py` starts. Nothing else here imports torch.
"""
