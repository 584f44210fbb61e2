"""One meaning of each precision."""

from collections.abc import Iterator

import pytest
import torch

from harness import precision
from harness.plan import PRECISIONS
from reports.errors import Unsupported
from reports.schema import Cell


@pytest.fixture(autouse=True)
def switches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Torch's own switches, set back afterwards, and no variable that overrules them."""
    for name in precision.OVERRIDES:
        monkeypatch.delenv(name, raising=False)
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32 = cudnn


def switch_all(on: bool) -> None:
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_tf32_is_off_for_all_but_itself(name: str) -> None:
    switch_all(True)
    precision.apply(name)
    assert precision.in_force() == {
        "float32_matmul_precision": "highest",
        "matmul_allow_tf32": False,
        "cudnn_allow_tf32": False,
    }


def test_tf32_is_on_for_itself() -> None:
    switch_all(False)
    precision.apply("tf32")
    assert precision.in_force() == {
        "float32_matmul_precision": "high",
        "matmul_allow_tf32": True,
        "cudnn_allow_tf32": True,
    }


@pytest.mark.parametrize("variable", precision.OVERRIDES)
@pytest.mark.parametrize(("name", "value"), [("fp32", "1"), ("tf32", "0")])
def test_a_variable_that_overrules_it_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, name: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(Unsupported, match=f"{variable}={value} overrules precision {name}: unset it"):
        precision.apply(name)


@pytest.mark.parametrize(("name", "value"), [("fp32", "0"), ("fp32", ""), ("tf32", "1")])
def test_a_variable_that_agrees_is_no_matter(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", value)
    precision.apply(name)


@pytest.mark.parametrize(
    ("name", "device", "said"),
    [
        ("fp32", "cpu", ""),
        ("fp16", "cpu", ""),
        ("tf32", "cuda:1", ""),
        ("tf32", "cpu", "this is the CPU"),
        ("int8", "cuda", "precision int8 is not built yet"),
        ("fp8", "cuda", "precision fp8 is not built yet"),
    ],
)
def test_what_no_backend_can_do_is_refused_with_the_reason(name: str, device: str, said: str) -> None:
    reason = precision.unsupported_reason(Cell(model="mlp", backend="eager", device=device, precision=name))
    assert (said in reason) if said else reason == ""


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_has_a_type_or_is_refused(name: str) -> None:
    if precision.unsupported_reason(Cell(model="mlp", backend="eager", device="cuda", precision=name)):
        with pytest.raises(Unsupported):
            precision.dtype_of(name)
    else:
        expected = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(name, torch.float32)
        assert precision.dtype_of(name) == expected
