"""How numbers are written."""

import pytest

from bakeoff.records.schema import Status
from bakeoff.records.text import counted, first
from bakeoff.reports import number_format
from tests.reports.samples import cell, failed


@pytest.mark.parametrize(
    ("value", "spelt"),
    [
        (0, "0 FLOP"),
        (0.4, "0 FLOP"),
        (999, "999 FLOP"),
        (1000, "1.00 kFLOP"),
        (12_345, "12.3 kFLOP"),
        (99_960, "100 kFLOP"),
        (872_415_232, "872 MFLOP"),
        (999_900_000, "1.00 GFLOP"),
        (1.99e11, "199 GFLOP"),
        (7.9e14, "790 TFLOP"),
        (1.2e15, "1.20 PFLOP"),
        (5e18, "5,000 PFLOP"),
    ],
)
def test_quantities_have_three_digits_and_a_prefix(value: float, spelt: str) -> None:
    assert number_format.quantity(value, "FLOP") == spelt


@pytest.mark.parametrize(
    ("share", "spelt"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.00001, "<0.01"),
        (0.00034, "0.034"),
        (0.0461, "4.6"),
        (0.57, "57"),
        (0.0996, "10"),
        (1.51, "151"),
        (43.3, "4,330"),
    ],
)
def test_percentages_have_two_digits(share: float | None, spelt: str) -> None:
    assert number_format.percent(share) == spelt


def test_seconds_have_two_digits_however_short() -> None:
    spelt = [number_format.seconds(value_s) for value_s in (None, 0.0, 0.0000423, 0.0042, 0.42, 4.2, 42.0)]
    assert spelt == [number_format.NONE, "0", "0.000042", "0.0042", "0.42", "4.2", "42"]


def test_a_long_list_names_some_and_counts_the_rest() -> None:
    assert first([], 2) == []
    assert first(["a", "b", "c"], 2) == ["a", "b", "c"]
    assert first(["a", "b", "c", "d"], 2) == ["a", "b", "2 others"]


def test_shares_of_time_come_largest_first() -> None:
    assert number_format.time_shares({"CPU": 0.034, "CUDA": 0.966}) == ["CUDA 97 %", "CPU 3.4 %"]


def test_a_phase_is_not_said_twice_beside_the_reason() -> None:
    crash = failed(cell("onnx"), Status.CRASH, "died of signal 11 (SIGSEGV) in load", died_in="load")
    assert (number_format.ending(crash), number_format.ending_beside_reason(crash)) == ("crash in load", "crash")
    error = failed(cell("onnx"), Status.ERROR, "no such operator", died_in="export")
    assert number_format.ending_beside_reason(error) == "error in export"


@pytest.mark.parametrize(
    ("number", "noun", "written"),
    [
        (1, "cell", "1 cell"),
        (0, "cell", "0 cells"),
        (2, "process", "2 processes"),
        (0.5, "time", "0.5 times"),
        (12_345_678, "call", "12,345,678 calls"),
    ],
)
def test_what_is_counted_has_a_plural_unless_it_is_one(number: float, noun: str, written: str) -> None:
    assert counted(number, noun) == written
