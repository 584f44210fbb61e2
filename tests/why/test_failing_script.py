"""The script of what a library does not build is Python for every mode, and no text of a report becomes code."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bakeoff import backends
from bakeoff.records.errors import UsageError
from bakeoff.why import failing_script
from tests.shipping.conftest import cell_of, record_of, report_on

PART = "model, inputs = torch.nn.Linear(2, 2), (torch.ones(1, 2),)"
LABELS = [f"{name}/{mode}" for name in backends.TABLE for mode in backends.create(name).mode_names()]


def script_of(label: str, text: str = "", **fields: object) -> str:
    record = record_of(label, cell=fields, command=text)
    report = report_on(record, hostname=text, variables={f"OMP_{text}": text})
    return failing_script.script_of_part(report, record, PART, f"it fails {text}")


@pytest.mark.parametrize("device", ["cpu", "cuda:1"])
def test_every_script_is_python_and_no_text_is_code(device: str) -> None:
    hostile = "x\nraise SystemExit(1)\r\u2028\"\"\"'''\\"
    written = 0
    for label in LABELS:
        for precision in ("fp32", "bf16"):
            if backends.create(label.partition("/")[0]).script(cell_of(label), {}) is None:
                with pytest.raises(UsageError, match=r"no script does what .* does, only what eager, "):
                    script_of(label)
                continue
            script = script_of(label, device=device, precision=precision)
            attacked = script_of(label, hostile, device=device, precision=precision)
            assert [type(node) for node in ast.parse(attacked).body] == [type(node) for node in ast.parse(script).body]
            written += 1
    assert written >= 60


def test_a_file_name_that_hides_the_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the script would import itself as 'onnxruntime': give the file another name"):
        failing_script.write_script(script_of("onnx"), tmp_path / "onnxruntime.py")
    assert not list(tmp_path.iterdir())
