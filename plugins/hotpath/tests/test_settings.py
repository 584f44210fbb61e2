"""Torch's switches, read in one process and set in another."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bakeoff_hotpath import settings

SOURCES = Path(__file__).parents[1] / "src"
CHANGES = {
    "threads": "torch.set_num_threads(torch.get_num_threads() + 1)",
    "dtype": "torch.set_default_dtype(torch.float64)",
    "device": "torch.set_default_device('meta')",
    "deterministic": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "matmul_precision": "torch.set_float32_matmul_precision('high')",
    "cudnn.allow_tf32": "torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32",
    "cudnn.benchmark": "torch.backends.cudnn.benchmark = True",
    "flash_attention": "torch.backends.cuda.enable_flash_sdp(False)",
}
EACH = """
import json, sys, torch
from bakeoff_hotpath import settings
found = {}
for name, change in json.load(sys.stdin).items():
    before = settings.read()
    exec(change)
    changed = dict(settings.read())
    settings.apply(before)
    found[name] = [key for key, value in before if changed[key] != value], settings.read() == before
print(json.dumps(found))
"""
NEWER = """
import pickle, sys, torch
from bakeoff_hotpath import settings
torch.backends.cuda.matmul.fp32_precision = "tf32"
try:
    torch.get_float32_matmul_precision()
except RuntimeError:
    sys.stdout.buffer.write(pickle.dumps(settings.read()))
"""
SET = """
import pickle, sys
from bakeoff_hotpath import settings
given = pickle.loads(sys.stdin.buffer.read())
settings.apply(given)
assert settings.read() == given, (given, settings.read())
"""


def in_a_process(program: str, given: bytes = b"") -> bytes:
    done = subprocess.run([sys.executable, "-c", program], input=given, cwd=SOURCES, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def changes() -> dict[str, tuple[list[str], bool]]:
    """Return what each change changed, and whether it was undone, in a process that no other test has changed."""
    found: dict[str, tuple[list[str], bool]] = json.loads(in_a_process(EACH, json.dumps(CHANGES).encode()))
    return found


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_read_and_can_be_set_again(changes: dict[str, tuple[list[str], bool]], name: str) -> None:
    assert changes[name] == [[name], True]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9 has no others")
def test_torchs_newer_switches_are_carried_over() -> None:
    told = in_a_process(NEWER)
    if not told:
        pytest.skip("this torch reads the older switches all the same")
    in_a_process(SET, told)


def test_a_processor_has_one_name() -> None:
    assert settings.processor() == settings.processor() != ""
