"""A model that hangs or eats the memory costs its own rows, and the rest of a suite is measured."""

from pathlib import Path

import pytest

from bakeoff.records.schema import Status
from tests.support.measuring import measure

BAD_MODELS = """
import sys
import time
from pathlib import Path

import torch

SCORE = Path("/proc/self/oom_score_adj")


def hangs(batch=1):
    time.sleep(3600)


def hungry(batch=1):
    return torch.nn.Linear(4, 4), torch.ones(2**50)


class Hungry(torch.nn.Module):
    def forward(self, values):
        return values * torch.ones(2**50)


def hungry_when_called(batch=1):
    return Hungry(), torch.randn(batch, 4)


def asks(batch=1):
    return input("Trust this model's code? [y/N]"), torch.randn(batch, 4)


def writes_to_nobody(batch=1):
    raise BrokenPipeError("the loader is gone")


def good(batch=1):
    if sys.platform == "linux" and SCORE.read_text().strip() != "1000":
        raise RuntimeError("the kernel would end another process first")
    return torch.nn.Linear(4, 4), torch.randn(batch, 4)
"""

OUTCOMES = {
    "hangs": (Status.TIMEOUT, "the reference was not computed within 6 s"),
    "hungry": (Status.OOM, "your model failed to load: RuntimeError: "),
    "hungry_when_called": (Status.OOM, "your model failed when it was called"),
    "asks": (Status.ERROR, "your model failed to load: EOFError: EOF when reading a line"),
    "writes_to_nobody": (Status.ERROR, "your model failed to load: BrokenPipeError: the loader is gone"),
    "good": (Status.OK, ""),
}


@pytest.mark.parametrize(
    ("names", "limits"),
    [
        (("hungry", "hungry_when_called", "asks", "writes_to_nobody", "good"), {}),
        # a busy machine may not measure the good one in this time
        pytest.param(("hangs", "good"), {"time_limit_s": 6.0}, marks=pytest.mark.slow),
    ],
)
def test_each_model_costs_its_own_rows(names: tuple[str, ...], limits: dict[str, float], tmp_path: Path) -> None:
    (tmp_path / "models.py").write_text(BAD_MODELS)
    models = [f"{tmp_path}/models.py:{name}" for name in names]
    report = measure(tmp_path / "run", "null", "null/again", models=models, **limits)
    assert report.complete
    for name, model in zip(names, models, strict=True):
        records = [record for record in report.records if record.cell.model == model]
        status, said = OUTCOMES[name]
        assert [record.status for record in records] == [status] * 2, [record.reason for record in records]
        assert said in records[0].reason
