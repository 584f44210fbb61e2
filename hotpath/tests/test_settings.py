"""Torch's switches, read in one process and set in another."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from hotpath import settings

ROOT = Path(__file__).parents[2]
T = TypeVar("T")


def other(now: T, first: T, second: T) -> T:
    return second if now == first else first


def toggle(owner: object, name: str) -> None:
    setattr(owner, name, not getattr(owner, name))


# Each change gives a setting another value than it has: an earlier test of the process may have left any.
CHANGES: dict[str, Callable[[], object]] = {
    "threads": lambda: torch.set_num_threads(1 if torch.get_num_threads() > 1 else 2),
    "dtype": lambda: torch.set_default_dtype(other(torch.get_default_dtype(), torch.float32, torch.float64)),
    "device": lambda: torch.set_default_device(other(str(torch.get_default_device()), "cpu", "meta")),
    "deterministic": lambda: torch.use_deterministic_algorithms(
        not torch.are_deterministic_algorithms_enabled(), warn_only=True
    ),
    "matmul_precision": lambda: torch.set_float32_matmul_precision(
        other(torch.get_float32_matmul_precision(), "highest", "high")
    ),
    "cudnn.allow_tf32": lambda: toggle(torch.backends.cudnn, "allow_tf32"),
    "cudnn.benchmark": lambda: toggle(torch.backends.cudnn, "benchmark"),
    "flash_attention": lambda: torch.backends.cuda.enable_flash_sdp(not torch.backends.cuda.flash_sdp_enabled()),
}
NEWER = """
import pickle, sys, torch
from hotpath import settings
torch.backends.cuda.matmul.fp32_precision = "tf32"
try:
    torch.get_float32_matmul_precision()
except RuntimeError:
    sys.stdout.buffer.write(pickle.dumps(settings.read()))
"""
SET = """
import pickle, sys
from hotpath import settings
given = pickle.loads(sys.stdin.buffer.read())
settings.apply(given)
assert settings.read() == given, (given, settings.read())
"""


def in_a_process(program: str, given: bytes = b"") -> bytes:
    done = subprocess.run([sys.executable, "-c", program], input=given, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_read_and_can_be_set_again(name: str) -> None:
    before = settings.read()
    try:
        CHANGES[name]()
        changed = dict(settings.read())
        assert [key for key, value in before if changed[key] != value] == [name]
    finally:
        settings.apply(before)
    assert settings.read() == before


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch before 2.9 has no others")
def test_torchs_newer_switches_are_carried_over() -> None:
    told = in_a_process(NEWER)
    if not told:
        pytest.skip("this torch reads the older switches all the same")
    in_a_process(SET, told)


def test_a_processor_has_one_name() -> None:
    assert settings.processor() == settings.processor() != ""
