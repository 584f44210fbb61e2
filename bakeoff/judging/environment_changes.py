"""Finds the differences between two environments, and whether they can change the speed."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from bakeoff.records.schema import Environment

UNKNOWN = "unknown"
NOT_SET = "not set"


class Bearing(StrEnum):
    """The effect of a difference on a comparison of latencies."""

    MACHINE = "another machine"  # other hardware, or another share of it: not even the ratio to eager carries over
    MODEL = "another model"  # other code or other weights
    SPEED = "bears on speed"
    NOTE = "note"


@dataclass(frozen=True)
class Difference:
    """One fact that is not the same in both."""

    what: str
    base: str
    new: str
    bearing: Bearing

    def __str__(self) -> str:
        return f"{self.what}: {self.base} -> {self.new}"


def differences(base: Environment, new: Environment) -> list[Difference]:
    """Return every fact that differs, the most important first. A fact that only one of them has differs, too."""
    old_facts, new_facts = _facts(base), _facts(new)
    differences = [
        Difference(what, _spelled(old_facts, what), _spelled(new_facts, what), (old_facts | new_facts)[what][0])
        for what in old_facts | new_facts
        if _spelled(old_facts, what) != _spelled(new_facts, what)
    ]
    return sorted(differences, key=lambda difference: list(Bearing).index(difference.bearing))


def bear_on_speed(base: Environment, new: Environment) -> list[Difference]:
    return [difference for difference in differences(base, new) if difference.bearing is not Bearing.NOTE]


_OF_ONE_RUN = ("host", "commit", "Bakeoff's source files")
"""What bears on no speed, and differs between two runs rather than within one."""


def within_run(base: Environment, new: Environment, *ignored: str) -> list[Difference]:
    """Return the differences that keep processes of one run from being compared. Programs on a GPU come and go."""
    return [
        difference
        for difference in differences(base, new)
        if difference.bearing is not Bearing.NOTE or difference.what in _OF_ONE_RUN
        if not difference.what.startswith(("other processes on GPU", *ignored))
    ]


_Facts = dict[str, tuple[Bearing, object]]

_BESIDE_THE_CALL = {"matplotlib", "nvidia-ml-py", "pydantic", "safetensors", "scipy"}
"""Libraries of ours that no measured call uses."""


def _facts(environment: Environment) -> _Facts:
    machine = {
        "GPUs": ", ".join(gpu.name for gpu in environment.gpus) or "none",
        "CPU": environment.cpu,
        "physical cores": environment.physical_cores,
        "usable cores": environment.usable_cores,
        "torch threads": environment.torch_threads,
    }
    speed: dict[str, object] = {
        "governor": environment.governor,
        "system": environment.os,
        "CUDA": environment.cuda,
        "Python": environment.python,
        **{name: version for name, version in environment.versions.items() if name not in _BESIDE_THE_CALL},
        **{f"${name}": value for name, value in environment.variables.items()},
    }
    speed |= {f"${name}": f"set (digest {environment.own_variables[name]})" for name in environment.own_variables_set}
    for gpu in environment.gpus:
        speed |= {
            f"driver of GPU {gpu.index}": gpu.driver,
            f"power limit of GPU {gpu.index} (W)": gpu.power_limit_w,
            f"highest SM clock of GPU {gpu.index} (MHz)": gpu.max_sm_clock_mhz,
            f"persistence mode of GPU {gpu.index}": gpu.persistence_mode,
            f"other processes on GPU {gpu.index}": gpu.other_processes,
        }
    notes = {
        "host": environment.hostname,
        "container": environment.container,
        "memory (bytes)": environment.memory_bytes,
        **{name: version for name, version in environment.versions.items() if name in _BESIDE_THE_CALL},
        "commit": environment.git_commit,
        "uncommitted changes": environment.git_dirty,
        "Bakeoff's source files": environment.source_digest,
    }
    return {**_known(machine, Bearing.MACHINE), **_known(speed, Bearing.SPEED), **_known(notes, Bearing.NOTE)}


def _known(values: Mapping[str, object], bearing: Bearing) -> _Facts:
    return {what: (bearing, value) for what, value in values.items() if value is not None}


def _spelled(facts: _Facts, what: str) -> str:
    return str(facts[what][1]) if what in facts else NOT_SET if what.startswith("$") else UNKNOWN
