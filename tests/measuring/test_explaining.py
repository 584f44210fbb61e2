"""A failure of a library without a message is told by the place that raised it."""

from bakeoff.measuring.worker.worker_context import explain
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Status


class InductorError(Exception):
    """What Inductor raises for an error of its own: the other error's name and message."""


def lower(size: int) -> int:
    assert size > 0
    return size


def failed(error: Exception) -> Exception:
    """Return the error as Inductor raises it: with the traceback of its cause, and without the cause."""
    return InductorError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)


def test_an_assertion_without_a_message_names_its_place() -> None:
    try:
        lower(0)
    except AssertionError as error:
        status, failure = explain(failed(AssertionError().with_traceback(error.__traceback__)))
    assert status is Status.ERROR
    assert failure.text.startswith("InductorError: AssertionError, raised in lower (test_explaining.py, line ")
    assert failure.text.endswith(": assert size > 0)")


def test_a_message_is_enough() -> None:
    assert explain(ValueError("no such size."))[1].text == "ValueError: no such size"


def test_a_reason_of_ours_ends_without_a_full_stop() -> None:
    assert explain(Unsupported("there is only one size."))[1].text == "there is only one size"
