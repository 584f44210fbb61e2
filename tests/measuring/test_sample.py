"""A sample keeps one input and the outputs that it must give, for what is exported."""

from pathlib import Path

import numpy as np
import pytest
import torch

from bakeoff.backends.calling import sampled
from bakeoff.measuring.worker.sample import Sample, allowed_rmse, require_outputs, sizes_depend_on_values
from bakeoff.models.base import Inputs
from bakeoff.records.errors import BakeoffError
from bakeoff.records.precision import Precision
from bakeoff.shipping.sample_facts import Sample as Read


def test_a_sample_is_read_without_torch_and_bfloat16_is_kept_as_words(tmp_path: Path) -> None:
    given = torch.tensor([[1.0, -2.5]], dtype=torch.bfloat16)
    Sample.of(torch.nn.Identity(), Inputs((given,)), (2 * given,)).save(
        tmp_path / "s.npz", [2 * given.double()], [0.01], Precision.BF16
    )
    facts = Read.read(tmp_path / "s.npz")
    assert (facts.inputs, facts.outputs[0].shape, facts.outputs[0].type) == (("bfloat16",), (1, 2), "bfloat16")
    with np.load(tmp_path / "s.npz") as arrays:
        words = torch.from_numpy(arrays["input_0"]).view(torch.bfloat16)
        assert torch.equal(words, given)
        assert arrays["output_0"].tolist() == [[2.0, -5.0]]
    assert [path.name for path in tmp_path.iterdir()] == ["s.npz"]


def test_the_places_of_a_large_output_are_kept(tmp_path: Path) -> None:
    given = torch.arange(100, dtype=torch.float32)
    exact = sampled(2 * given, 10).double()
    Sample.of(torch.nn.Identity(), Inputs((given,)), (2 * given,)).save(
        tmp_path / "s.npz", [exact], [0.0], Precision.FP32
    )
    with np.load(tmp_path / "s.npz") as arrays:
        assert arrays["output_0"].tolist() == (2 * arrays["input_0"])[arrays["places_0"]].tolist()


@pytest.mark.parametrize(
    ("eager_rmse", "precision", "allowed"),
    [
        (0.0, Precision.FP32, 16 * 2**-23 * 2),  # rounding
        (0.0, Precision.INT8, 1e-5 + 2 * 1.6e-2),  # allclose passes it
        (0.1, Precision.FP32, 0.4),  # four times eager's
        (10.0, Precision.INT8, 2 * 10**-0.5),  # never more than a share of the output
        (float("nan"), Precision.FP32, 16 * 2**-23 * 2),
    ],
)
def test_what_is_allowed_is_what_passed_the_run(eager_rmse: float, precision: Precision, allowed: float) -> None:
    exact = torch.tensor([2.0, -2.0, float("inf")])
    assert allowed_rmse(exact, eager_rmse, precision) == pytest.approx(allowed)


def test_a_program_must_give_the_outputs_of_the_sample(tmp_path: Path) -> None:
    given = torch.arange(100, dtype=torch.bfloat16)
    exact = sampled(torch.complex(2 * given.float(), given.float()), 10)
    Sample.of(torch.nn.Identity(), Inputs((given,)), (torch.complex(2 * given.float(), given.float()),)).save(
        path := tmp_path / "s.npz", [exact.to(torch.complex128)], [0.0], Precision.FP32
    )
    require_outputs(path, lambda x: [torch.complex(2 * x.float(), x.float())], "cpu")
    with pytest.raises(BakeoffError, match="does not compute what was measured: the RMSE of output 0 is"):
        require_outputs(path, lambda x: [torch.complex(2 * x.float(), 1.01 * x.float())], "cpu")
    with pytest.raises(BakeoffError, match="the RMSE of output 0 is inf"):
        require_outputs(path, lambda x: [x], "cpu")


def test_sizes_depend_on_values_if_equal_shapes_have_answers_of_several() -> None:
    short, long = (Inputs((torch.zeros(size),)) for size in (2, 3))
    assert not sizes_depend_on_values([short, short, long], [(torch.zeros(2),), (torch.zeros(2),), (torch.zeros(3),)])
    assert sizes_depend_on_values([long, long], [(torch.zeros(1, 2),), (torch.zeros(2, 2),)])
