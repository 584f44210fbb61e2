import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "matplotlib", "jinja2", "rich"}


def loaded_by(*modules: str) -> set[str]:
    """The top-level modules, and the rooms of ours, that importing `modules` in a fresh process loads."""
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    environment = {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    parts = [name.split(".") for name in done.stdout.split()]
    return {".".join(part[:2]) if part[0] == "bakeoff" else part[0] for part in parts}


def rooms(loaded: set[str]) -> set[str]:
    return {name for name in loaded if name.startswith("bakeoff.")}


def test_records_load_nothing_else_of_ours() -> None:
    loaded = loaded_by(
        "bakeoff.records.schema", "bakeoff.records.report_file", "bakeoff.records.store", "bakeoff.records.text"
    )
    assert rooms(loaded) == {"bakeoff.records"}
    assert not loaded & (HEAVY | {"numpy", "scipy"})


def test_judging_loads_records_only_and_nothing_that_draws_or_computes_models() -> None:
    loaded = loaded_by("bakeoff.judging.judgement", "bakeoff.judging.compare")
    assert rooms(loaded) == {"bakeoff.judging", "bakeoff.records"}
    assert not loaded & HEAVY
