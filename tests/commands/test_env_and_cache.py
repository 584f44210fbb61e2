"""What `bakeoff cache` says of kept builds."""

from datetime import UTC, datetime

import pytest

from bakeoff.commands.env_and_cache import used_at
from bakeoff.measuring.controller.build_cache import CachedBuild

BUILT = datetime(2026, 11, 29, 12, 54, tzinfo=UTC)


@pytest.mark.parametrize(("claimed_s", "expected_s"), [(-60.0, 0.0), (3600.0, 3600.0)])
def test_no_build_was_used_before_it_was_built(claimed_s: float, expected_s: float) -> None:
    """A cell claims the folder of its build before there is one."""
    build = CachedBuild("key", "mlp: onnx", BUILT.isoformat(timespec="seconds"), 10, BUILT.timestamp() + claimed_s)
    assert datetime.fromisoformat(used_at(build)).timestamp() == BUILT.timestamp() + expected_s
