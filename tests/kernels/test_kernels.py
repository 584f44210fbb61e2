"""The hand-written kernels, on a machine without a GPU: in Triton's interpreter."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

from bakeoff.backends import kernels

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "interpreted.py"

ROUNDING = {"fp32": 2e-6, "fp16": 6e-4, "bf16": 5e-3}
"""What rounding inputs' tables and outputs to a type costs, relative; a wrong element in a hundred costs more."""

ASIDE = Path(sys.prefix) / "triton"
"""Where `make test-all` puts Triton if torch has come without: in the environment, torch would take it for its own."""


def paths_of_interpreter() -> list[str]:
    """What to put before a process' path so that it finds Triton. Skips, with the reason, where it cannot interpret."""
    for beside in ([], [str(ASIDE)]):
        found = [*metadata.distributions(name="triton", path=beside or sys.path)]
        if found:
            break
    else:
        pytest.skip("Triton is not installed: `make test-all` puts it beside the environment where pip finds one")
    triton, numpy = Version(found[0].version), Version(metadata.version("numpy"))
    if triton < Version("3.7") and numpy >= Version("2.4"):
        pytest.skip(f"Triton {triton} does not interpret with numpy {numpy}: it needs 3.7, or numpy before 2.4")
    return beside


@pytest.fixture(scope="module")
def errors() -> dict[str, float]:
    paths = [*paths_of_interpreter(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT)],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_variant_of_every_kernel_is_right_in_every_type(errors: dict[str, float]) -> None:
    wrong = {label: error for label, error in errors.items() if not error <= ROUNDING[label.split()[1]]}
    assert not wrong
    assert {label.split()[0] for label in errors} == set(kernels.TABLE)


def test_what_is_compared_is_not_what_was_computed_twice(errors: dict[str, float]) -> None:
    """16 bits round: an error of nothing would mean that kernel and reference are one computation."""
    assert all(error > 0 for label, error in errors.items() if label.split()[1] != "fp32" and "tma_copy" not in label)
