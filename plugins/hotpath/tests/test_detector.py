"""Which iterations take the same path, and when a path is hot."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bakeoff_hotpath import HotPathDetector

SOURCES = Path(__file__).parents[1] / "src"
LINEAR = ("linear", (4, 8))
RELU = ("relu", (4, 16))


def iterate(detector: HotPathDetector, *operations: tuple[str, tuple[int, ...]]) -> bool:
    detector.begin_iteration()
    for name, shape in operations:
        detector.record_operation(name, input_shape=shape)
    return detector.end_iteration()


def test_a_path_becomes_hot_once_and_at_the_threshold() -> None:
    detector = HotPathDetector(hot_threshold=10)
    assert [iterate(detector, LINEAR, RELU) for _ in range(12)] == [False] * 9 + [True] + [False] * 2
    assert detector.signature is not None and detector.count(detector.signature) == 12
    assert detector.is_hot(detector.signature)


def test_iterations_that_differ_are_counted_apart() -> None:
    detector = HotPathDetector(hot_threshold=2)
    assert not iterate(detector, LINEAR, RELU)
    assert not iterate(detector, LINEAR)
    assert not iterate(detector, RELU, LINEAR)
    assert iterate(detector, LINEAR)
    assert iterate(detector, LINEAR, RELU)


@pytest.mark.parametrize(("shapes", "is_same"), [("exact", False), ("any", True)])
def test_other_shapes_are_another_path_unless_any_shape_is_the_same(shapes: str, is_same: bool) -> None:
    detector = HotPathDetector(2, shapes)  # type: ignore[arg-type]
    iterate(detector, ("linear", (4, 8)))
    assert iterate(detector, ("linear", (5, 8))) is is_same


def test_names_do_not_run_together() -> None:
    detector = HotPathDetector(hot_threshold=2, shapes="any")
    iterate(detector, ("ab", ()), ("c", ()))
    first = detector.signature
    iterate(detector, ("a", ()), ("bc", ()))
    assert detector.signature != first


def test_signatures_are_the_same_in_every_process() -> None:
    code = (
        "from bakeoff_hotpath import HotPathDetector\n"
        "d = HotPathDetector()\n"
        "d.begin_iteration(); d.record_operation('linear', input_shape=(4, 8)); d.end_iteration()\n"
        "import sys; assert 'torch' not in sys.modules; sys.stdout.write(d.signature)"
    )
    elsewhere = subprocess.run([sys.executable, "-c", code], cwd=SOURCES, check=True, capture_output=True, text=True)
    detector = HotPathDetector()
    iterate(detector, LINEAR)
    assert elsewhere.stdout == detector.signature


def test_iterations_that_were_not_recorded_count_too() -> None:
    detector = HotPathDetector(hot_threshold=10)
    iterate(detector, LINEAR)
    assert detector.signature is not None
    assert not detector.count_again(detector.signature, 8)
    assert detector.count_again(detector.signature, 5)
    assert not detector.count_again(detector.signature)


def test_threads_have_iterations_of_their_own_and_counts_in_common() -> None:
    detector = HotPathDetector(hot_threshold=800)
    became_hot: list[bool] = []
    together = threading.Barrier(8)

    def work() -> None:
        together.wait()
        became_hot.extend(iterate(detector, LINEAR, RELU) for _ in range(100))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    iterate(detector, LINEAR, RELU)
    assert detector.signature is not None and detector.count(detector.signature) == 801
    assert became_hot.count(True) == 1


def test_a_wrong_use_is_named() -> None:
    detector = HotPathDetector()
    with pytest.raises(RuntimeError, match="record_operation outside of an iteration"):
        detector.record_operation("linear")
    with pytest.raises(RuntimeError, match="end_iteration outside of an iteration"):
        detector.end_iteration()
    detector.begin_iteration()
    with pytest.raises(RuntimeError, match="begin_iteration inside an iteration"):
        detector.begin_iteration()
    detector.abandon_iteration()
    assert not iterate(detector, LINEAR)
    with pytest.raises(ValueError, match="hot_threshold must be at least 1, not 0"):
        HotPathDetector(0)
    with pytest.raises(ValueError, match="shapes must be 'exact' or 'any', not 'all'"):
        HotPathDetector(shapes="all")  # type: ignore[arg-type]
