"""The doctor on a machine with a GPU: what it reads, and that it leaves no process there."""

from importlib import metadata

import pytest

from bakeoff.doctor import examine, facts
from bakeoff.doctor.diagnosis import Outcome

pytestmark = pytest.mark.gpu


def has(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def test_the_gpu_is_seen_and_backends_pass_on_it() -> None:
    said: list[str] = []
    found = examine.examine(["eager", "eager/cuda-graph", "torchscript"], ["cuda"], said.append)
    assert {trial.label: trial.outcome for trial in found.trials} == dict.fromkeys(
        ("eager", "eager/cuda-graph", "torchscript"), Outcome.PASS
    ), [trial.reason for trial in found.trials]
    read = found.facts
    assert read.cuda_devices >= 1 and read.torch_cuda is not None and read.driver_cuda is not None
    assert read.gpus and all(gpu.name for gpu in read.gpus)
    assert not {"no-driver", "torch-without-cuda", "nvml-not-installed", "driver-too-old"} & {
        finding.trap for finding in found.findings
    }
    assert (found.broken, found.exit_status) == ([], 0)


@pytest.mark.skipif(not (has("onnxruntime-gpu") and has("pyelftools")), reason="needs onnxruntime-gpu and pyelftools")
def test_what_onnxruntimes_providers_were_linked_against_is_read() -> None:
    linked = facts.linked_by_onnxruntime()
    assert linked["CUDA"] >= 12
    assert linked["TensorRT"] >= 10
