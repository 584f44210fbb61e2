"""What a profile suggests is measured, and the table says what it brought."""

from __future__ import annotations

from bakeoff.backends.profiling import Kind, ProfiledKernel
from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.judgement import contests_of
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.records.schema import Status
from bakeoff.reports import markdown
from bakeoff.why.records import CellProfile, ThreadUse
from bakeoff.why.suggestions import Suggestion, brought, fewer_threads, request_to_try, suggestions, with_fewer_threads
from tests.reports import samples


def profile(classes: dict[str, str], *parts: tuple[str, Kind, float]) -> CellProfile:
    made = [ProfiledKernel(name=name, modules=("a",), kind=kind, ms=ms, runs=1) for name, kind, ms in parts]
    times = {"call_ms": 1.0, "median_ms": 1.0, "profiled_ms": 1.0}
    known = {"label": "x", "cell_id": "x", "source": "", **times, "calls": 1, "spans": []}
    return CellProfile.model_validate({**known, "parts": made, "classes": classes})


def test_each_suggestion_has_a_reason_in_the_profile() -> None:
    convolving = profile({"a": "Conv2d"}, ("mkldnn::_convolution", Kind.COMPUTE, 0.9), ("clone", Kind.COPY, 0.1))
    found = {each.configuration: each.why for each in suggestions(convolving, samples.cell("inductor"))}
    assert found["inductor/channels-last"] == "there are convolutions, and 10 % of the call is copies"
    assert found["inductor/freezing"].startswith("90 % of the call is products and convolutions")
    assert not any("cuda-graph" in name for name in found)  # there is no GPU
    on_gpu = profile({"a": "Linear"}, ("GPU idle", Kind.WAITING, 0.6), ("gemm", Kind.COMPUTE, 0.4))
    assert "inductor/cuda-graph" in {
        each.configuration for each in suggestions(on_gpu, samples.cell("inductor", device="cuda"))
    }


def test_cudnn_tries_out_algorithms_where_a_gpu_convolves() -> None:
    convolving = profile({"a": "Conv2d"}, ("convolution", Kind.COMPUTE, 1.0))
    for backend in ("eager", "inductor"):
        found = {one.configuration: one.why for one in suggestions(convolving, samples.cell(backend, device="cuda"))}
        assert found[f"{backend}/cudnn-benchmark"].startswith("there are convolutions, for which cuDNN")


def test_wrong_outputs_of_fused_half_precision_suggest_to_round_as_eager_does() -> None:
    idle = profile({}, ("fused", Kind.COMPUTE, 1.0))
    for precision, is_wrong, tried in (
        ("bf16", True, ["inductor/emulate-precision-casts"]),
        ("bf16", False, []),
        ("fp32", True, []),
    ):
        cell = samples.cell("inductor", precision=precision)
        assert [one.configuration for one in suggestions(idle, cell, is_wrong)] == tried
    assert suggestions(idle, samples.cell("onnx"), is_wrong=True) == []


def test_batch_norms_of_eager_are_suggested_to_be_folded() -> None:
    convolving = profile({"a": "Conv2d"}, ("aten::conv2d", Kind.COMPUTE, 0.8), ("aten::batch_norm", Kind.COMPUTE, 0.2))
    found = {each.configuration: each.why for each in suggestions(convolving, samples.cell("eager"))}
    assert found["eager/folded-norms"].startswith("20 % of the call is batch norms")


def test_unaligned_layers_and_steps_of_attention_are_suggested_where_they_take_time() -> None:
    steps = profile({}, ("aten::linear", Kind.COMPUTE, 0.8), ("aten::softmax", Kind.COMPUTE, 0.2))
    assert suggestions(steps, samples.cell("eager")) == []
    known = steps.model_copy(update={"unaligned": ["a"], "attention": "eager"})
    found = {each.configuration: each.why for each in suggestions(known, samples.cell("eager"))}
    assert found == {
        "eager/padded-linears": "100 % of the call is linear layers whose outputs are no multiple of 64",
        "eager/sdpa": "20 % of the call is steps of attention, which torch has as one operator",
    }
    elsewhere = known.model_copy(update={"unaligned": ["b"], "attention": "sdpa"})
    assert suggestions(elsewhere, samples.cell("eager")) == []


def test_fewer_threads_are_tried_where_they_work_unevenly() -> None:
    uneven = profile({}, ("relu", Kind.COMPUTE, 1.0))
    assert fewer_threads(uneven) is None  # nothing is known of threads
    for busy, threads in (([0.9, 0.2, 0.2, 0.2], 2), ([0.9, 0.85, 0.8, 0.8], None)):
        measured = uneven.model_copy(update={"threads": ThreadUse(allowed=4, busy=busy)})
        assert fewer_threads(measured) == threads


def test_a_contest_with_fewer_threads_is_told_as_one_of_its_own() -> None:
    def contest(level: float) -> ContestJudgement:
        return contests_of(samples.report([samples.lived(level, "eager")]))[0]

    text = markdown.render(with_fewer_threads(contest(2.0), contest(1.0), 2))
    assert "a contest of its own" in text and "| eager | 2.0" in text and "| 2.00 |" in text


def test_a_profile_that_speaks_for_nothing_suggests_nothing() -> None:
    assert suggestions(profile({"a": "ReLU"}, ("relu", Kind.COMPUTE, 1.0)), samples.cell("onnx")) == []
    busy = profile({"a": "ReLU"}, ("Python and dispatch", Kind.FRAMEWORK, 0.5), ("relu", Kind.COMPUTE, 0.5))
    assert [each.configuration for each in suggestions(busy, samples.cell("eager"))] == ["inductor"]


def test_the_contest_holds_the_cell_beside_what_was_suggested() -> None:
    cell = samples.cell("eager", model="mlp", dimensions={"batch": 3, "features": 64, "hidden": 64})
    asked = request_to_try(Request(models=("conv",), devices=("cpu",)), cell, [Suggestion("torchscript", "why")], 2)
    (contest,) = plan(asked)
    assert [planned.cell.label for planned in contest.cells] == ["eager", "torchscript"]
    assert contest.cells[0].cell.dimensions == cell.dimensions and asked.processes == 2


def test_the_table_tells_what_each_brought() -> None:
    records = [samples.lived(level, backend) for level, backend in ((2.0, "eager"), (1.0, "onnx"))]
    failed = samples.failed(samples.cell("openvino"), Status.ERROR, "no memory")
    (contest,) = contests_of(samples.report([*records, failed]))
    text = markdown.render([brought(contest, "eager", {"onnx": "it is fast", "openvino": "so is this"})])
    assert "| onnx | it is fast | 1.0" in text and "| faster |" in text
    assert "| openvino | so is this | - | - | no memory |" in text.replace("\\-", "-")
