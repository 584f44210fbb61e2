"""What `--load`, `--slo` and `--price` take."""

import pytest

from bakeoff.planning.load_plan import LoadPlan, Traffic, parse_objective
from bakeoff.planning.plan import plan
from bakeoff.planning.request import Request
from bakeoff.planning.sampling_plan import MIN_PROCESSES
from bakeoff.records.errors import UsageError
from bakeoff.records.load_samples import Objective
from bakeoff.records.scenarios import Scenario


def test_an_objective_belongs_to_the_scenario_server() -> None:
    found = LoadPlan.of(Traffic.parse("server"), parse_objective("p99_ms<20"), 60.0, 1.5)
    assert found == LoadPlan(Scenario.SERVER, 1, Objective(percentile="p99", limit_ms=20.0), 60.0, 1.0)
    assert found.objective is not None and found.objective.quantile == 0.99


@pytest.mark.parametrize(
    ("rate", "share", "requests"),
    [(5.0, 1.0, 20), (50.0, 1.0, 200), (100.0, 1.0, 200), (400.0, 1.0, 800), (5000.0, 1.0, 1000), (400.0, 0.25, 200)],
)
def test_windows_with_few_requests_last_longer(rate: float, share: float, requests: int) -> None:
    found = LoadPlan.of(Traffic.parse("server"), parse_objective("p99_ms<20"), None, 1.5)
    assert found is not None and found.requests_of(rate, share) == requests


def test_two_cells_under_load_are_planned_to_take_less_than_two_minutes() -> None:
    found = LoadPlan.of(Traffic.parse("server"), parse_objective("p99_ms<20"), None, 1.5)
    assert found is not None and 2 * (found.once_s + MIN_PROCESSES * found.turns_s(MIN_PROCESSES)) <= 100


def test_streams_have_a_number() -> None:
    found = [
        LoadPlan.of(Traffic.parse(text), None, 0.0, 0.75)
        for text in ("multi-stream:4", "multi-stream", "single-stream")
    ]
    assert [each and (each.scenario, each.streams, each.window_s) for each in found] == [
        (Scenario.MULTI_STREAM, 4, 0.5),
        (Scenario.MULTI_STREAM, 8, 0.5),
        (Scenario.SINGLE_STREAM, 1, 0.5),
    ]


def test_nothing_is_planned_where_nothing_is_asked_for() -> None:
    assert LoadPlan.of(None, None, 60.0, 1.5) is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"load": "servr", "slo": "p99_ms<20"}, "did you mean 'server'"),
        ({"load": "server"}, "--load server needs an objective: add --slo 'p99_ms<20'"),
        ({"load": "offline", "slo": "p99_ms<20"}, "--load offline takes no --slo"),
        ({"load": "server:3", "slo": "p99_ms<20"}, "only multi-stream takes a number"),
        ({"load": "multi-stream:0"}, "write multi-stream:N"),
        ({"load": "server", "slo": "p98_ms<20"}, "such as p99_ms<20"),
        ({"load": "server", "slo": "p99_ms<0"}, "such as p99_ms<20"),
        ({"slo": "p99_ms<20"}, "add --load server"),
        ({"price": "2.5/h"}, "add --load server"),
        ({"load": "offline", "price": "2.5"}, "such as 2.5/h"),
        ({"load": "offline", "task": "train_step"}, "only inference is served"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(fields: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as error:
        plan(Request(**{"devices": ("cpu",), **fields}))
    assert message in str(error.value) and len(str(error.value).splitlines()) == 1
