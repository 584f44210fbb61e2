"""A whole generation is judged by its prefill and its decode steps together."""

from __future__ import annotations

import pytest

from bakeoff.judging.judgement import Judgement, judge
from bakeoff.records.schema import Generated, Record, Status
from bakeoff.reports import generation
from tests.reports.samples import LAYOUTS, cell, failed, ok, report, steady
from tests.support.golden import same_as_golden

SIZES = {"batch": 2, "prompt": 64, "new_tokens": 11}


def part(task: str, level_ms: float, backend: str, build_s: float = 0.0, prompt: int = 64, **more: object) -> Record:
    measured = cell(backend, model="transformer_lm", task=task, dimensions=SIZES | {"prompt": prompt})
    return ok(measured, steady([level_ms * layout for layout in LAYOUTS]), build_s=build_s, **more)


def both(first_ms: float, further_ms: float, backend: str, build_s: float = 0.0, **more: object) -> list[Record]:
    first = part("prefill", first_ms, backend, build_s)
    return [first, part("decode", further_ms, backend, build_s, settings={"caches": "in place"}, **more)]


def judged(*records: Record) -> Judgement:
    return judge(report(list(records)))


def test_a_generation_takes_one_prefill_and_a_step_for_each_further_token() -> None:
    found = judged(*both(100.0, 10.0, "eager"), *both(150.0, 2.0, "onnx", build_s=3.0)).contests[1].generation
    assert found is not None
    onnx, eager = found.cells
    assert (onnx.label, onnx.total_ms, eager.total_ms) == (
        "onnx",
        pytest.approx(170.0, 0.01),
        pytest.approx(200.0, 0.01),
    )
    assert onnx.value == pytest.approx(2 / 2e-3, 0.01)
    assert onnx.speedup is not None and onnx.speedup.value == pytest.approx(200 / 170, 0.01)
    assert (onnx.rank, eager.rank, found.answer.baseline) == (1, 2, "eager")
    # six seconds of building both graphs, 30 ms gained in a generation of 22 tokens
    assert onnx.pays_after_tokens == pytest.approx(22 * 200, 0.05)
    assert eager.pays_after_tokens is None


def test_only_what_is_ranked_in_both_contests_is_judged() -> None:
    wrong = failed(part("decode", 1.0, "onnx").cell, Status.INCORRECT, "output 0: wrong")
    records = [*both(100.0, 10.0, "eager"), part("prefill", 50.0, "onnx"), wrong]
    found = judged(*records).contests[1].generation
    assert found is not None
    assert [one.label for one in found.cells] == ["eager"]
    assert judged(part("decode", 1.0, "eager")).contests[0].generation is None


def test_generations_are_told_as_before() -> None:
    """Eager that does not repeat its own tokens is not compared with itself by name."""
    agreed = {"tokens": 10, "usual_margin": 0.5, "agreed": 4, "margin": 0.01}
    two, one = (Generated.model_validate({**agreed, "sequences": sequences}) for sequences in (2, 1))
    cases = {
        "onnx differs": judged(*both(100.0, 10.0, "eager"), *both(50.0, 5.0, "onnx", generated=two)),
        "eager differs": judged(*both(100.0, 10.0, "eager", generated=one), *both(50.0, 5.0, "onnx")),
    }
    lines = []
    for name, judgement in cases.items():
        (table,) = generation.tables(judgement.contests[1])
        cells = [f"{each.heading}: {each.text_of(table.rows[0])}" for each in table.columns if each.is_text]
        lines += [f"{name}: {told}" for told in (*generation.sentences(judgement.contests[1]), *cells)]
    same_as_golden("generations.txt", "\n".join(lines))


def test_memory_is_told_for_every_context_that_was_decoded() -> None:
    records = [
        one
        for prompt in (64, 256)
        for one in (part("prefill", 9.0, "eager", prompt=prompt), part("decode", 1.0, "eager", prompt=prompt))
    ]
    contests = [one for one in judged(*records).contests if one.generation]
    assert len(contests) == 2
    _, memory = generation.tables(contests[0])
    assert [column.heading for column in memory.columns] == ["backend", "75 rows (MiB)", "267 rows (MiB)"]
    assert memory.rows[0][0] == "eager"
