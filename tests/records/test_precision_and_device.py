"""Precision and Device: values that JSON keeps as the strings they are."""

import copy
import pickle
from pathlib import Path

import pytest

from bakeoff.records.device import CPU, Device
from bakeoff.records.errors import UsageError
from bakeoff.records.precision import Precision
from bakeoff.records.report_file import read
from bakeoff.records.schema import Cell
from tests.reports.samples import conv_on_cpu, report


def test_a_cell_keeps_both_as_strings_in_json() -> None:
    cell = Cell(model="mlp", backend="eager", device="cuda:1", precision="bf16")
    assert (cell.device, cell.precision) == (Device("cuda:1"), Precision.BF16)
    assert '"device":"cuda:1","precision":"bf16"' in cell.model_dump_json()
    assert Cell.model_validate_json(cell.model_dump_json()) == cell


@pytest.mark.parametrize(
    ("name", "kind", "index", "slug"),
    [("cpu", "cpu", None, "cpu"), ("cuda", "cuda", 0, "cuda"), ("cuda:12", "cuda", 12, "cuda12")],
)
def test_a_device_knows_its_parts(name: str, kind: str, index: int | None, slug: str) -> None:
    device = Device(name)
    assert (str(device), device.kind, device.cuda_index, device.slug) == (name, kind, index, slug)
    assert device.is_cuda == (kind == "cuda")
    assert isinstance(pickle.loads(pickle.dumps(device)), Device) and isinstance(copy.deepcopy(device), Device)


@pytest.mark.parametrize("name", ["", "gpu", "cuda:", "cuda:x", "cpu:0", "cuda:1\n", " cuda", "cuda:\u0661"])
def test_any_other_name_is_no_device(name: str) -> None:
    with pytest.raises(UsageError, match="write cpu, cuda or cuda:N"):
        Device(name)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [("precision", "fp4", "Input should be 'fp32', 'tf32'"), ("device", "tpu", "unknown device 'tpu'")],
)
def test_a_report_with_a_name_nobody_knows_is_refused_in_one_line(
    field: str, value: str, said: str, tmp_path: Path
) -> None:
    """No version of schema 1 could write one: the plan has always refused these names."""
    text = report(conv_on_cpu()).model_dump_json()
    (tmp_path / "report.json").write_text(
        text.replace(f'"{field}":"{conv_on_cpu()[0].cell.model_dump()[field]}"', f'"{field}":"{value}"')
    )
    with pytest.raises(UsageError, match=f"cell.{field}: .*{said}"):
        read(tmp_path)


def test_what_follows_from_a_precision() -> None:
    weight_only = ["w8a16", "w4a16", "w8a32", "w4a32"]
    assert [one.value for one in Precision if one.is_quantised] == ["int8", "fp8", *weight_only]
    assert [one.value for one in Precision if one.is_weight_only] == weight_only
    assert [Precision(one).products.value for one in (*weight_only, "int8")] == ["bf16", "bf16", "fp32", "fp32", "int8"]
    assert [Precision(one).weight_bytes for one in ("fp32", "int8", "w8a16", "w4a16")] == [None, 1, 1, 0.5625]
    assert [one.value for one in Precision if one.is_16_bit] == ["bf16", "fp16"]
    assert [one.value for one in Precision if one.allows_tf32] == ["tf32"]
    assert [one.value for one in Precision if one.reason_against_cpu] == ["tf32", "fp8"]
    assert CPU.cuda_index is None
