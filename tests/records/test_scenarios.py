"""What differs between the load scenarios is in their specifications."""

import pytest

from bakeoff.records.scenarios import Scenario


@pytest.mark.parametrize("scenario", Scenario)
def test_a_value_and_its_milliseconds_are_two_forms_of_one_thing(scenario: Scenario) -> None:
    spec = scenario.spec
    assert spec.value_from_ms(spec.ms_per_request(250.0)) == pytest.approx(250.0)
    assert spec.rate_from(spec.value_from_ms(4.0), streams=1) == pytest.approx(250.0)
    assert (spec.unit == "requests/s") == spec.is_rate


@pytest.mark.parametrize("scenario", Scenario)
def test_the_load_generator_has_each_scenario(scenario: Scenario) -> None:
    generator = pytest.importorskip("mlperf_loadgen")
    assert hasattr(generator.TestScenario, scenario.spec.generator_name)


def test_requests_that_come_together_share_a_latency() -> None:
    assert Scenario.MULTI_STREAM.spec.rate_from(20.0, streams=8) == pytest.approx(400.0)
