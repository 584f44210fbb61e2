"""A model that hangs or eats the memory costs its own rows, and the rest of a suite is measured."""

import pytest

from bakeoff.records.schema import Report, Status
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


def good(batch=1):
    if sys.platform == "linux" and SCORE.read_text().strip() != "1000":
        raise RuntimeError("the kernel would end another process first")
    return torch.nn.Linear(4, 4), torch.randn(batch, 4)
"""

TIME_LIMIT_S = 6.0


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A run of four models, of which only the last one can be measured."""
    folder = tmp_path_factory.mktemp("suite")
    (folder / "models.py").write_text(BAD_MODELS)
    names = [f"{folder}/models.py:{name}" for name in ("hangs", "hungry", "hungry_when_called", "good")]
    return measure(folder / "run", "null", "null/again", models=names, time_limit_s=TIME_LIMIT_S)


@pytest.mark.parametrize(
    ("model", "status", "said"),
    [
        ("hangs", Status.TIMEOUT, "the reference was not computed within 6 s"),
        ("hungry", Status.OOM, "your model failed to load: RuntimeError: "),
        ("hungry_when_called", Status.OOM, "your model failed when it was called"),
        ("good", Status.OK, ""),
    ],
)
def test_each_model_costs_its_own_rows(suite: Report, model: str, status: Status, said: str) -> None:
    records = [record for record in suite.records if record.cell.model.endswith(f":{model}")]
    assert suite.complete and len(records) == 2
    assert {record.status for record in records} == {status}, [record.reason for record in records]
    assert said in records[0].reason
