"""The scripts that start a cluster: Slurm's against bash and its linter, KubeRay's against what the run expects."""

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bakeoff.planning.config import OPTIONS, read_preset
from tests.support.checkout import ROOT

SLURM = ROOT / "docker" / "slurm.sh"
SHELLCHECK = shutil.which("shellcheck", path=str(Path(sys.executable).parent)) or shutil.which("shellcheck")


def test_slurms_script_is_valid_bash() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)


@pytest.mark.skipif(SHELLCHECK is None, reason="shellcheck is not installed")
def test_slurms_script_has_nothing_that_its_linter_finds() -> None:
    assert SHELLCHECK
    done = subprocess.run([SHELLCHECK, str(SLURM)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_kuberay_job_measures_on_workers_with_whole_cores() -> None:
    yaml = pytest.importorskip("yaml")
    job: dict[str, Any] = yaml.safe_load((ROOT / "docker" / "ray-cluster.yaml").read_text(encoding="utf-8"))
    spec = job["spec"]["rayClusterSpec"]
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for group in spec["workerGroupSpecs"]:
        for container in group["template"]["spec"]["containers"]:
            # the kubelet gives whole cores only where requests and limits are equal
            assert container["resources"]["requests"] == container["resources"]["limits"]
            assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    words = shlex.split(job["spec"]["entrypoint"])
    flags = {flag for option in OPTIONS.values() for flag in option.flags}
    assert {word for word in words if word.startswith("--")} <= flags | {"--preset", "--out"}
    assert read_preset(words[words.index("--preset") + 1]).request["runs"]
