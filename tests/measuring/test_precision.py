"""Each precision means the same for every backend."""

import json
from pathlib import Path

import pytest
import torch

from bakeoff.measuring.worker import precision
from bakeoff.planning.plan import unsupported_precision
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Status
from tests.support.measuring import by_label, measure


@pytest.fixture(autouse=True)
def switches(monkeypatch: pytest.MonkeyPatch, restored_switches: None) -> None:
    """Torch's own switches, set back afterwards, and no variable that overrules them."""
    for name in precision.OVERRIDES:
        monkeypatch.delenv(name, raising=False)


def switch_all(on: bool) -> None:
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


@pytest.mark.parametrize("name", Precision)
def test_tf32_is_on_for_itself_and_off_for_all_others(name: Precision) -> None:
    is_on = name is Precision.TF32
    switch_all(not is_on)
    precision.apply(name)
    found = precision.in_force()
    assert found["float32_matmul_precision"] == ("high" if is_on else "highest")
    assert (found["matmul_allow_tf32"], found["cudnn_allow_tf32"]) == (is_on, is_on)
    assert is_on or found.get("mkldnn_matmul_fp32_precision", "ieee") == "ieee"


def test_how_16_bits_are_summed_up_is_reported_and_follows_the_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    names = ("allow_bf16_reduced_precision_reduction", "allow_fp16_reduced_precision_reduction")
    before = {name: getattr(matmul, name) for name in (*names, "allow_fp16_accumulation")}
    try:
        for name in before:
            for value in (True, False):
                setattr(matmul, name, value)
                assert precision.in_force()[f"matmul_{name}"] is value
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)


def test_what_is_in_force_fits_into_a_record() -> None:
    assert json.loads(json.dumps(precision.in_force())) == precision.in_force()


@pytest.mark.parametrize("variable", precision.OVERRIDES)
@pytest.mark.parametrize(("name", "value"), [("fp32", "1"), ("tf32", "0")])
def test_a_variable_that_overrules_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, name: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Unsupported, match=f"{variable}={value} overrules precision {name}: unset it"):
        precision.apply(Precision(name))


@pytest.mark.parametrize(("name", "value"), [("fp32", "0"), ("fp32", ""), ("tf32", "1")])
def test_a_variable_that_agrees_is_accepted(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", value)
    precision.apply(Precision(name))


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("fp32", "cpu", ""),
        ("fp16", "cpu", ""),
        ("tf32", "cuda:1", ""),
        ("tf32", "cpu", "this is the CPU"),
        ("int8", "cpu", ""),
        ("int8", "cuda", ""),
        ("fp8", "cuda", ""),
        ("fp8", "cpu", "float8 products are done by NVIDIA's matrix units, and this is the CPU"),
    ],
)
def test_what_no_backend_can_do_is_refused_with_the_reason(name: str, device: str, said: str) -> None:
    reason = unsupported_precision(Cell(model="mlp", backend="eager", device=device, precision=name))
    assert (said in reason) if said else reason == ""


@pytest.mark.parametrize("name", Precision)
def test_every_precision_has_a_type(name: Precision) -> None:
    expected = torch.float16 if name == "fp16" else torch.float32
    if name in ("bf16", "fp8", "w8a16", "w4a16"):
        expected = torch.bfloat16
    assert precision.dtype_of(name) == expected


@pytest.mark.slow
def test_int8_is_recorded_as_asked_and_as_in_force(tmp_path: Path) -> None:
    """Through a whole run: the record says what was quantised; a mode that would be the same as another is refused."""
    report = measure(tmp_path / "run", "eager", "inductor/freezing", "torchscript", "null", precision=["int8"])
    records = by_label(report)
    eager = records["eager"]
    assert (eager.cell.precision, eager.status) == ("int8", Status.OK), eager.reason
    assert eager.precision_in_force["int8 linear layers"] == 3
    assert eager.precision_in_force["float32_matmul_precision"] == "highest"
    assert eager.accuracy is not None and 1e-3 < eager.accuracy.relative_rmse < 4e-2
    assert eager.accuracy.eager_rmse is not None and eager.accuracy.eager_rmse > 0
    assert records["inductor/freezing"].status is Status.UNSUPPORTED
    assert "int8 is always frozen" in records["inductor/freezing"].reason
    assert records["torchscript"].status is Status.UNSUPPORTED
