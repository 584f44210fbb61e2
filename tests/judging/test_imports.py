import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = {"backends", "doctor", "harness", "hotpath", "judging", "models", "records", "reports", "runner"}
HEAVY = {"torch", "matplotlib", "jinja2", "rich"}


def loaded_by(*modules: str) -> set[str]:
    """The names of all top-level modules that importing `modules` in a fresh process loads."""
    code = f"import sys, {', '.join(modules)}; print(*{{name.split('.')[0] for name in sys.modules}})"
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_records_load_nothing_else_of_ours() -> None:
    loaded = loaded_by(
        "bakeoff.records.schema", "bakeoff.records.report_file", "bakeoff.records.store", "bakeoff.records.text"
    )
    assert loaded & OURS == {"records"}
    assert not loaded & (HEAVY | {"numpy", "scipy"})


def test_judging_loads_records_only_and_nothing_that_draws_or_computes_models() -> None:
    loaded = loaded_by("bakeoff.judging.judgement", "bakeoff.judging.compare")
    assert loaded & OURS == {"judging", "records"}
    assert not loaded & HEAVY
