"""`bakeoff doctor`: what it prints, and its exit status."""

import json
from collections.abc import Callable, Sequence

import pytest

from bakeoff import cli
from bakeoff.backends.traps import Facts
from bakeoff.doctor.diagnosis import BackendTrial, Diagnosis, Outcome
from bakeoff.records.schema import Status


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch, restored_signals: None) -> list[tuple[Sequence[str], Sequence[str]]]:
    """What the doctor is asked for; it finds ONNX Runtime broken, and says so where that was named."""
    asked: list[tuple[Sequence[str], Sequence[str]]] = []

    def examine(backends: Sequence[str], devices: Sequence[str], say: Callable[[str], None]) -> Diagnosis:
        say("trying onnx on cpu")
        asked.append((backends, devices))
        trial = BackendTrial(
            backend="onnx", device="cpu", outcome=Outcome.FAIL, status=Status.CRASH, reason="died of signal 11"
        )
        broken = ["onnx on cpu"] if "onnx" in backends else []
        return Diagnosis(created_at="now", facts=Facts(python="3.12.3"), trials=[trial], findings=[], broken=broken)

    monkeypatch.setattr("bakeoff.doctor.examine.examine", examine)
    return asked


def call(*arguments: str) -> int:
    return cli.main(["doctor", *arguments])


def test_a_table_for_people(examined: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert call() == 0
    assert examined == [((), ())]
    said, steps = capsys.readouterr()
    assert steps == "trying onnx on cpu\n", "also into a pipe"
    assert "FAIL" in said and "died of signal 11" in said
    assert said.splitlines()[-1] == "0 passed, 1 failed, 0 absent"


def test_what_was_named_and_is_broken_decides_the_exit_status(
    examined: list[object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--backends", "eager,onnx", "--devices", "cpu") == 1
    assert examined == [(("eager", "onnx"), ("cpu",))]
    assert capsys.readouterr().out.splitlines()[-1].endswith("You asked for these, and they do not work: onnx on cpu")


def test_json_and_nothing_else(examined: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--json", "--backends", "onnx") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["broken"] == ["onnx on cpu"] and found["trials"][0]["outcome"] == "fail"


def test_an_unknown_backend_is_refused_in_a_line(capsys: pytest.CaptureFixture[str], restored_signals: None) -> None:
    assert call("--backends", "onx") == 2
    assert capsys.readouterr().err.strip() == "error: unknown backend 'onx': did you mean 'onnx'? (bakeoff list)"
