"""A diagnosis on a terminal."""

from collections.abc import Sequence
from io import StringIO

from rich.console import Console

from bakeoff.backends.traps import Facts, Finding, GpuState, Library, Weight
from bakeoff.doctor.diagnosis import Diagnosis, OtherEnvironment, Outcome, Trial
from bakeoff.doctor.terminal import print_diagnosis
from bakeoff.records.schema import Status

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
    Trial(backend="eager", device="cuda", outcome=Outcome.PASS, status=Status.OK, seconds=0.42),
    Trial(
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
    trials: list[Trial], findings: list[Finding], broken: list[str], environments: Sequence[OtherEnvironment] = ()
) -> str:
    file = StringIO()
    found = Diagnosis(
        created_at="now", facts=FACTS, trials=trials, findings=findings, environments=list(environments), broken=broken
    )
    print_diagnosis(found, Console(file=file, width=160))
    return file.getvalue()


def test_the_machine_the_trials_the_traps_and_what_it_comes_to() -> None:
    text = shown(TRIALS, [FINDING], ["onnx on cuda"])
    machine, *rest = text.splitlines()
    assert machine == (
        "Python 3.12.3, torch 2.8.0 (CUDA 12.8), NVIDIA H200, driver for CUDA 13.0, in a container (docker)"
    )
    (passed,) = [line for line in rest if line.strip().startswith("PASS")]
    assert passed.split()[:5] == ["PASS", "eager", "cuda", "0.4", "torch"] and "torch 2.8.0 (>=2.8.0a0)" in passed
    (failed,) = [line for line in rest if line.strip().startswith("FAIL")]
    assert "onnx/tensorrt-ep" in failed and "onnxruntime-gpu 1.31.1 (>=1.24; wants onnx>=1.17)" in failed
    assert "onnxruntime not installed" in text and "openvino" not in text
    assert "do: pip install torch" in text
    assert "WARNING the driver is [old]" in text and "docs/troubleshooting.md#driver-too-old" in text
    assert rest[-1] == "1 passed, 1 failed, 0 absent. You asked for these, and they do not work: onnx on cuda"


def test_what_came_from_outside_is_shown_and_not_obeyed() -> None:
    text = shown(TRIALS, [], [])
    assert "[red]no such file[/red]" in text and "\x1b" not in text
    assert text.splitlines()[-1] == "1 passed, 1 failed, 0 absent"


def test_environments_with_what_differs_and_what_imports_there() -> None:
    made = OtherEnvironment(
        name="old",
        python="/envs/old/bin/python",
        differs={"onnxruntime": ("1.30.0", "1.31.1"), "extra": ("1.0", None)},
        libraries=[
            Library(name="torch", version="2.13.0", imports=True),
            Library(name="onnxruntime", version="1.30.0", imports=False, import_error="no libfoo\nat all"),
        ],
    )
    assert [line.strip() for line in shown([], [], [], [made]).splitlines()[-5:-1]] == [
        "ENVIRONMENT old: onnxruntime 1.30.0 (here 1.31.1), extra 1.0 (here none)",
        "/envs/old/bin/python",
        "torch 2.13.0 can be imported",
        "onnxruntime 1.30.0 cannot be imported: no libfoo at all",
    ]
