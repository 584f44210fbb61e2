"""A diagnosis on a terminal."""

from collections.abc import Sequence
from io import StringIO

from rich.console import Console

from bakeoff.backends.traps import Facts, Finding, GpuState, Library, Weight
from bakeoff.doctor.diagnosis import BackendTrial, Diagnosis, OtherEnvironment, Outcome
from bakeoff.doctor.terminal import print_diagnosis
from bakeoff.records.schema import Status
from tests.support.golden import same_as_golden

FACTS = Facts(
    python="3.12.3",
    torch="2.8.0",
    torch_cuda="12.8",
    driver_cuda="13.0",
    container="docker",
    gpus=[GpuState(index=0, name="NVIDIA H200")],
    libraries={
        "torch": Library(name="torch", version="2.8.0", needed=">=2.8.0a0", backends=["eager", "onnx"]),
        "onnxruntime-gpu": Library(
            name="onnxruntime-gpu", version="1.31.1", needed=">=1.24", requires=["onnx>=1.17"], backends=["onnx"]
        ),
        "onnxruntime": Library(name="onnxruntime", backends=["onnx"]),
        "openvino": Library(name="openvino", version="2026.4.1", backends=["openvino"]),
    },
)
TRIALS = [
    BackendTrial(backend="eager", device="cuda", outcome=Outcome.PASS, status=Status.OK, seconds=0.42),
    BackendTrial(
        backend="onnx",
        mode="tensorrt-ep",
        device="cuda",
        outcome=Outcome.FAIL,
        status=Status.ERROR,
        reason="libcudart.so.13: [red]no such file[/red]\x1b[2J",
        remedy="pip install torch",
    ),
]
FINDING = Finding(trap="driver-too-old", weight=Weight.WARNING, text="the driver is [old]", remedy="renew it")


def shown(
    trials: list[BackendTrial],
    findings: list[Finding],
    broken: list[str],
    environments: Sequence[OtherEnvironment] = (),
) -> str:
    file = StringIO()
    found = Diagnosis(
        created_at="now", facts=FACTS, trials=trials, findings=findings, environments=list(environments), broken=broken
    )
    print_diagnosis(found, Console(file=file, width=160))
    return file.getvalue()


OTHER = OtherEnvironment(
    name="old",
    python="/envs/old/bin/python",
    differs={"onnxruntime": ("1.30.0", "1.31.1"), "extra": ("1.0", None)},
    libraries=[
        Library(name="torch", version="2.13.0", imports=True),
        Library(name="onnxruntime", version="1.30.0", imports=False, import_error="no libfoo\nat all"),
    ],
)


def test_a_diagnosis_reads_as_before_and_text_from_outside_is_not_obeyed() -> None:
    text = shown(TRIALS, [FINDING], ["onnx on cuda"], [OTHER])
    assert "\x1b" not in text
    same_as_golden("doctor.txt", "\n".join(line.rstrip() for line in text.splitlines()))
    assert shown(TRIALS, [], []).splitlines()[-1] == "1 passed, 1 failed, 0 absent"
