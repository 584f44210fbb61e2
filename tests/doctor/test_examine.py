"""The doctor tries backends with scripted behaviour, looks into environments, and shows what it saw."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from bakeoff import backends
from bakeoff.backends.traps import Facts, Finding, GpuState, Library, Weight
from bakeoff.commands import environments as made
from bakeoff.doctor import examine
from bakeoff.doctor.diagnosis import BackendTrial, Diagnosis, OtherEnvironment, Outcome
from bakeoff.doctor.terminal import print_diagnosis
from bakeoff.planning.plan import PlannedCell
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import Cell, Status
from tests.support.cells import cell_of
from tests.support.golden import same_as_golden
from tests.support.wheels import wheel

MODES = ["wrong", "crash-in-load", "error", "unsupported"]
ASKED = ["eager", "null-packaged", *(f"null/{mode}" for mode in MODES)]


@pytest.fixture(scope="module")
def examined() -> tuple[Diagnosis, list[str]]:
    """Return a diagnosis of `ASKED` on the CPU and on CUDA, and what was said while it was made."""
    said: list[str] = []
    return examine.examine(ASKED, ["cpu", "cuda"], said.append), said


def outcomes(found: Diagnosis, device: str) -> dict[str, Outcome]:
    return {trial.label: trial.outcome for trial in found.trials if trial.device == device}


def test_every_way_to_end_is_told(examined: tuple[Diagnosis, list[str]]) -> None:
    found, said = examined
    assert "trying null/wrong on cpu" in said and "importing torch" in said
    assert any(text.startswith("FAIL null/wrong on cpu, after ") for text in said), "as it goes"
    assert outcomes(found, "cpu") == {
        "eager": Outcome.PASS,
        "null-packaged": Outcome.PASS,
        "null/wrong": Outcome.FAIL,
        "null/crash-in-load": Outcome.FAIL,
        "null/error": Outcome.FAIL,
        "null/unsupported": Outcome.ABSENT,
    }
    trials = {trial.label: trial for trial in found.trials if trial.device == "cpu"}
    assert trials["eager"].relative_error is not None and trials["eager"].relative_error < 1e-5
    assert trials["null/wrong"].status is Status.INCORRECT and "neither rounding" in trials["null/wrong"].reason
    assert trials["null/crash-in-load"].reason == "died of signal 11 (SIGSEGV) in load"
    assert "--backends null/error --devices cpu" in trials["null/error"].remedy
    assert trials["null/error"].log_tail
    assert trials["null/unsupported"].reason == "found out while building"
    assert [name for name in found.broken if name.endswith("cpu")] == [f"null/{mode} on cpu" for mode in MODES]
    assert found.exit_status == 1
    assert Diagnosis.model_validate_json(found.model_dump_json()) == found


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="is about a machine without a GPU")
def test_on_a_device_that_is_not_there_each_backend_says_so(examined: tuple[Diagnosis, list[str]]) -> None:
    """The null backend takes itself for available anywhere: there, not even what is right can be computed."""
    found, _ = examined
    on_cuda = outcomes(found, "cuda")
    assert on_cuda.pop("eager") is Outcome.ABSENT
    assert set(on_cuda.values()) == {Outcome.FAIL}
    trials = {trial.label: trial for trial in found.trials if trial.device == "cuda"}
    assert trials["eager"].status is Status.UNAVAILABLE and "CUDA" in trials["eager"].reason
    assert trials["null/wrong"].reason.startswith("the reference could not be computed: ")
    assert "eager on cuda" in found.broken and "every backend on cuda" in found.broken


@pytest.mark.parametrize("asked", [(["nul"], []), (["null/no-such"], []), ([], ["gpu"])])
def test_a_name_that_does_not_exist_is_found_before_anything_is_asked(asked: tuple[list[str], list[str]]) -> None:
    said: list[str] = []
    with pytest.raises(UsageError):
        examine.examine(*asked, said.append)
    assert said == []


@pytest.mark.parametrize("name", backends.TABLE)
def test_every_backend_is_tried_with_a_model_that_it_can_build(name: str) -> None:
    backend = backends.create(name)
    model, sizes = backend.trial
    answers = [backend.supports(cell_of(model, name, sizes, device=device)) for device in ("cpu", "cuda")]
    if not backend.tasks:  # its models are no family of Bakeoff's own, so it is only asked whether it is there
        assert all("nothing but the models of --task generate" in answer.reason for answer in answers)
        return
    assert any(answers)


def trial(label: str, device: str, outcome: Outcome) -> BackendTrial:
    backend, _, mode = label.partition("/")
    return BackendTrial(
        backend=backend, mode=mode or "default", device=device, outcome=outcome, status=Status.OK, remedy="ask"
    )


def planned(label: str, by_name: bool = True) -> PlannedCell:
    backend, _, mode = label.partition("/")
    return PlannedCell(Cell(model="mlp", backend=backend, mode=mode or "default"), by_name)


ON_BOTH = [
    trial("eager", "cpu", Outcome.PASS),
    trial("eager", "cuda", Outcome.PASS),
    trial("openvino", "cpu", Outcome.PASS),
    trial("openvino", "cuda", Outcome.ABSENT),
    trial("onnx", "cpu", Outcome.PASS),
    trial("onnx", "cuda", Outcome.FAIL),
]


@pytest.mark.parametrize(
    ("named", "devices", "broken"),
    [
        ([], [], []),
        (["openvino"], [], []),
        (["openvino"], ["cpu", "cuda"], ["openvino on cuda"]),
        (["onnx"], [], ["onnx on cuda"]),
        (["eager", "onnx"], ["cuda"], ["onnx on cuda"]),
        ([], ["cuda"], []),
    ],
)
def test_what_was_asked_for_and_does_not_work(named: list[str], devices: list[str], broken: list[str]) -> None:
    trials = [trial for trial in ON_BOTH if not devices or trial.device in devices]
    cells = [planned(name, by_name=name in named) for name in ("eager", "openvino", "onnx")]
    assert examine.broken(trials, cells, devices) == broken


def test_a_mode_is_not_its_backend() -> None:
    trials = [trial("onnx", "cpu", Outcome.PASS), trial("onnx/openvino-ep", "cpu", Outcome.ABSENT)]
    assert examine.broken(trials, [planned("onnx"), planned("onnx/openvino-ep")], []) == ["onnx/openvino-ep on cpu"]


CAUSE = Finding(
    trap="several-onnxruntimes",
    weight=Weight.PROBLEM,
    text="two",
    remedy="remove one",
    backends=["onnx"],
    devices=["cuda"],
)


@pytest.mark.parametrize(
    ("backend", "device", "before", "after", "remedy"),
    [
        ("onnx", "cuda:1", Outcome.ABSENT, Outcome.FAIL, "remove one"),
        ("onnx", "cuda", Outcome.FAIL, Outcome.FAIL, "remove one"),
        ("onnx", "cuda", Outcome.PASS, Outcome.PASS, "ask"),
        ("onnx", "cpu", Outcome.ABSENT, Outcome.ABSENT, "ask"),
        ("eager", "cuda", Outcome.FAIL, Outcome.FAIL, "ask"),
    ],
)
def test_a_trap_explains_what_it_keeps_from_working(
    backend: str, device: str, before: Outcome, after: Outcome, remedy: str
) -> None:
    found = examine.explained(trial(backend, device, before), [CAUSE])
    assert (found.outcome, found.remedy) == (after, remedy)


def test_a_warning_explains_nothing() -> None:
    warning = CAUSE.model_copy(update={"weight": Weight.WARNING})
    assert examine.explained(trial("onnx", "cuda", Outcome.ABSENT), [warning]).outcome is Outcome.ABSENT


def test_a_trap_of_a_device_keeps_every_backend_from_it() -> None:
    no_cuda = CAUSE.model_copy(update={"backends": []})
    assert examine.explained(trial("eager", "cuda", Outcome.ABSENT), [no_cuda]).outcome is Outcome.FAIL


KNOWN = {
    "torch": Library(name="torch", backends=["eager", "planted"]),
    "planted": Library(name="planted", backends=["planted"]),
    "numpy": Library(name="numpy", backends=["other"]),
}


@pytest.mark.slow
def test_a_library_that_does_not_import_there_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    broken = wheel(tmp_path, "planted", "0.0.1", "raise ImportError('planted')")
    made.add("old", ["--no-index", str(broken)])

    found = examine.examine_environment("old", KNOWN, [], "auto")
    assert (found.name, Path(found.python)) == ("old", made.python_of("old"))
    assert found.differs == {"planted": ("0.0.1", None)}
    assert {library.name: library.imports for library in found.libraries} == {
        "torch": True,
        "pydantic": True,
        "planted": False,
    }
    assert "planted" in found.libraries[-1].import_error
    assert examine.broken_libraries([found], ["planted"]) == ["planted in environment old"]
    assert examine.broken_libraries([found], ["eager"]) == []


def test_only_versions_that_are_not_the_same_differ() -> None:
    here = examine.differing_packages({"pytest": pytest.__version__, "numpy": "0.1"})
    assert list(here) == ["numpy"] and here["numpy"][0] == "0.1"


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
