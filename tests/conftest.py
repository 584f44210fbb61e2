"""What the tests of more than one folder share."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """`runner.main` takes SIGTERM for itself; afterwards it is as it was."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped, with the reason, where torch sees no CUDA device."""
    needing = [item for item in items if item.get_closest_marker("gpu")]
    if not needing:
        return
    import torch

    if not torch.cuda.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs an NVIDIA GPU, and torch sees none"))
