"""Contests of scripted workers: what became of each cell, and in which order all began and ended.

The files `golden/contests.*.txt` hold them. A scene is one run, or several in one folder, of which each goes on where
the one before was interrupted. `UPDATE_GOLDEN=1 pytest tests/measuring/test_contest_scenes.py` writes the files anew:
read what `git diff` shows then.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bakeoff.judging.under_load import soaks_of
from bakeoff.measuring.messages import EagerCall
from bakeoff.planning.load_plan import USUAL_MIN_TIME_S, LoadPlan, Traffic
from bakeoff.planning.sampling_plan import SamplingPlan
from bakeoff.records.device import Device
from bakeoff.records.load_samples import Load, Objective
from bakeoff.records.precision import Precision
from bakeoff.records.scenarios import Scenario
from bakeoff.records.schema import Memory, Record, Status
from bakeoff.records.text import counted
from tests.support.golden import same_as_golden
from tests.support.scripted import (
    HANG,
    INTERRUPT,
    SEGFAULT,
    WRONG,
    Ending,
    Script,
    ScriptedLauncher,
    plan_of,
    run_contest,
)

Run = dict[str, Any]
"""What `run_contest` is called with."""

GPU = Device("cuda:0")
PAIR = ("eager", "null")
THREE = (*PAIR, "null/double")
RACE = replace(plan_of(3), races=True)
RUNNERS = {"eager": Script(level_ms=3.0), "null": Script(level_ms=1.0), "null/double": Script(level_ms=2.0)}
LOUD = Script(spread=0.3)
LARGE = Script(resident_bytes=10**10)
COMPILED = Script(phases=("compile", "capture"))
MODES = ("inductor", "inductor/cuda-graph")
BEST_ON_GPU = ("eager", *MODES, "aotinductor/single-threaded", "aotinductor/cuda-graph")
SMALL = Memory(peak_resident_bytes=1)
KEEPS = {"null": Script(level_ms=2.0, built_bytes=60_000)}
SERVER = LoadPlan(Scenario.SERVER, 1, Objective(percentile="p99", limit_ms=20.0), soak_s=6.0)


def of(labels: Sequence[str] = THREE, /, plan: SamplingPlan | None = None, **limits: Any) -> Run:
    """Return a contest of cells, of which `scripts` names those that do other than the usual."""
    return {"scripts": {label: Script() for label in labels} | limits.pop("scripts", {}), "plan": plan, **limits}


def ending(process: int, stage: str, how: Ending, label: str = "null", **script: Any) -> Mapping[str, Script]:
    return {label: Script(endings={(process, stage): how}, **script)}


def open_until(processes: int, *pair: str) -> Any:
    """Return a judge who cannot tell a pair apart before it has so many processes."""
    return lambda records: [pair or ("null", "eager")] if max(len(one.processes) for one in records) < processes else []


def room_for_two(launcher: ScriptedLauncher) -> int:
    return 10**12 if launcher.alive() < 2 else 0


def less_room_in_the_second_epoch(launcher: ScriptedLauncher) -> int:
    return 0 if launcher.epoch == 1 and launcher.alive() >= 2 else 10**12


def rounds() -> dict[str, list[Run]]:
    """Return contests whose rounds are shared, are repeated, or end with a cell."""
    quick, slow, slowest = (
        {label: replace(LOUD, seconds_per_start=start_s, seconds_per_burst=burst_s) for label in THREE}
        for start_s, burst_s in ((0.5, 0.125), (2.0, 0.125), (1.0, 1.0))
    )
    still_open = {"undecided": open_until(99), "scripts": {"eager": Script(seconds_per_start=0.0),
                                                           "null": Script(seconds_per_burst=0.15)}}  # fmt: skip
    return {
        "three processes of three cells, eager named last": [of(("null", "null/double", "eager"), plan_of(3))],
        "disturbed rounds": [of(plan=plan_of(1), scripts={"null": Script(disturbed_of_ten=5)})],
        "loud cells that start slowly": [
            of(plan=plan_of(2, 3), scripts={label: replace(LOUD, seconds_per_start=9.0) for label in THREE})
        ],
        "loud cells that start quickly": [of(plan=plan_of(2, 3), scripts=quick)],
        "loud cells that start less quickly": [of(plan=plan_of(2, 3), scripts=slow)],
        "loud cells with rounds of three seconds": [of(plan=plan_of(1, 3), scripts=slowest)],
        "loud cells that a time limit ends": [
            of(plan=plan_of(1, 3), scripts={label: replace(LOUD, seconds_per_start=31.0) for label in THREE},
               time_limit_s=60.0)
        ],
        "an open pair": [of(PAIR, plan_of(3, 6), **still_open)],
        "an open pair that a time limit ends": [of(PAIR, plan_of(3, 6), **still_open, time_limit_s=9.0)],
        "an open pair that an interruption does not give more time": [
            of(PAIR, plan_of(3, 6), **still_open, time_limit_s=9.0, interrupted_at=(2, "eager")),
            of(PAIR, plan_of(3, 6), **still_open, time_limit_s=9.0),
        ],
        "an open pair without further servers": [of(PAIR, plan_of(3, 6), **still_open, epochs=4)],
        **{
            f"a cell that dies in {stage} of process {process}, on {cores} cores": [
                of(plan=plan_of(2), scripts=ending(process, stage, SEGFAULT), cores=cores)
            ]
            for process, stage, cores in ((1, "start", 2), (1, "start", 8), (1, "build", 2), (0, "burst 3", 2))
        },
        **{
            f"a further process that ends with {how} in a round": [
                of(plan=plan_of(2), scripts=ending(1, "burst 3", how))
            ]
            for how in (SEGFAULT, Status.ERROR)
        },
        **{
            f"a process that ends with {how} ahead of its epoch": [
                of(("eager", "inductor"), plan_of(3), scripts=ending(2, "build", how, "inductor"), cores=16, device=GPU)
            ]
            for how in (SEGFAULT, HANG, Status.ERROR)
        },
        "what was loaded for an epoch that does not come": [
            of(("eager", "inductor"), plan_of(3, 9), cores=16, device=GPU,
               undecided=open_until(4, "inductor", "eager"))
        ],
        "a build that dies": [of(PAIR, scripts=ending(0, "build", SEGFAULT))],
        "a build that dies on a full disk": [of(PAIR, scripts=ending(0, "build", SEGFAULT, fills_disk=True))],
        **{
            f"a hang in {stage}": [of(PAIR, scripts=ending(0, stage, HANG), time_limit_s=30.0)]
            for stage in ("start", "build")
        },
        **{
            f"a further process that hangs in {stage}": [of(PAIR, plan_of(3), scripts=ending(1, stage, HANG))]
            for stage in ("start", "build", "burst 3", "finish")
        },
    }  # fmt: skip


def builds() -> dict[str, list[Run]]:
    """Return contests of modes that share builds, of what `best` leaves out, and of what is kept afterwards."""
    failing = replace(COMPILED, endings={(0, "build"): SEGFAULT}, built_bytes=10)
    calls_ms = ((0.2, 0.2), (5.0, 1.0), (20.0, 2.0), (20.0, 15.0))
    wrong = {"null/wrong": Script(built_bytes=10_000, answers={(0, "start"): WRONG})}
    quicker = {"null/double": Script(level_ms=1.0, built_bytes=60_000)}
    labels = ("aotinductor", "inductor", "inductor/max-autotune", "torchscript")
    return {
        "modes with options of their own": [
            of((), scripts=dict.fromkeys(("inductor", "inductor/reduce-overhead"), COMPILED), device=GPU)
        ],
        "the first of a family fails": [
            of((), plan_of(2), scripts={MODES[0]: failing, MODES[1]: COMPILED}, cores=16, device=GPU)
        ],
        "a family that is built ahead of time": [of(BEST_ON_GPU[-2:], plan_of(2), device=GPU)],
        **{
            f"calls of eager of {call_ms:g} ms, {host_ms:g} of them its own": [
                of(BEST_ON_GPU, device=GPU, eager_call=EagerCall(call_ms=call_ms, host_ms=host_ms))
            ]
            for call_ms, host_ms in calls_ms
        },
        "a graph that fails where another mode was left out": [
            of(BEST_ON_GPU, plan_of(2), scripts=ending(0, "build", Status.UNSUPPORTED, MODES[1]), device=GPU,
               eager_call=EagerCall(call_ms=0.2, host_ms=0.2))
        ],
        "builds that fail and lack memory beside others": [
            of(("eager", *labels), plan_of(2), cores=16, device=GPU,
               scripts={**ending(0, "build", SEGFAULT, "inductor"), **ending(0, "build", Status.OOM, "torchscript")})
        ],
        "more is built than is kept": [
            of(("eager",), plan_of(2), scripts=KEEPS | quicker, artifact_limit=100_000)
        ],
        "the fastest is built after an interruption": [
            of(("eager",), plan_of(3), scripts=KEEPS | wrong, interrupted_at=(1, "eager"), artifact_limit=100_000),
            of(("eager",), plan_of(3), artifact_limit=100_000,
               scripts={"eager": Script(built_bytes=60_000)} | KEEPS | wrong),
        ],
        **{
            f"a build whose process {process} ends in {stage}": [
                of(PAIR, plan_of(2), scripts=ending(process, stage, how, built_bytes=10))
            ]
            for process, stage, how in ((0, "burst 3", INTERRUPT), (1, "finish", HANG))
        },
    }  # fmt: skip


def measured_further() -> dict[str, list[Run]]:
    """Return contests of cells that answer wrongly, and what is measured once the rounds are over."""
    slow, near = {"eager": Script(level_ms=1.1)}, {"eager": Script(level_ms=1.1), "null/double": Script(level_ms=1.3)}
    wrong_at_first = {(0, "start"): WRONG}
    lost = (("burst 9", HANG), ("further", HANG), ("further", SEGFAULT), ("further", Status.ERROR), ("finish", HANG),
            ("finish", SEGFAULT))  # fmt: skip
    plain, first_only = replace(plan_of(3), races=False), {0: 50.0}
    return {
        "a cell that is packaged": [of(("null-packaged",), plan_of(3))],
        "a cell that is packaged twice": [of(("null-packaged",), replace(plan_of(5), builds=2))],
        **{
            f"wrong answers at the {stage} of process {process}": [
                of(("null",), plan_of(3), scripts={"null": Script(answers={(process, stage): WRONG})})
            ]
            for process in (0, 1)
            for stage in ("start", "finish")
        },
        "the quickest answers wrongly": [
            of(("eager",), scripts={"null": Script(level_ms=1.1),
                                    "null/wrong": Script(level_ms=0.1, answers=wrong_at_first)})
        ],
        "wrong answers, and a hang at the end": [
            of(PAIR, scripts=ending(0, "finish", HANG, answers=wrong_at_first), time_limit_s=30.0)
        ],
        **{
            f"{counted(processes, 'process')}, of which one cell has one": [
                of(PAIR, plan_of(processes), scripts=ending(1, "start", HANG))
            ]
            for processes in (1, 3)
        },
        **{
            f"a cell far from the best, {'with' if asked else 'without'} its energy, in {processes}": [
                of(plan=replace(plan_of(processes), races=False, energy_of_all=asked), scripts=near, device=GPU)
            ]
            for processes in (1, 3)
            for asked in (False, True)
        },
        **{
            f"a cell far from the best{' whose throughput is required' if required else ''}": [
                of(plan=replace(plain, throughput_of_all=required),
                   scripts=near | {"null/double": Script(level_ms=1.3, calls_per_s=first_only)})
            ]
            for required in (False, True)
        },
        "a cell with little time": [of(("null",), plan_of(2), budget_s=60.0)],
        "a cell with a short limit": [of(("null",), plan_of(2), time_limit_s=60.0)],
        **{
            f"process {process} ends with {how} in {stage}": [
                of((), plan_of(3), time_limit_s=30.0,
                   scripts={"eager": Script(level_ms=2.0, calls_per_s=first_only),
                            **ending(process, stage, how, calls_per_s=first_only)})
            ]
            for process in (0, 1)
            for stage, how in lost
        },
        **{
            f"a process that ends with {how} in a trace": [
                of(("null",), plan_of(2), scripts=ending(1, "trace", how), device=GPU)
            ]
            for how in (SEGFAULT, HANG, Status.ERROR)
        },
        "code that is compiled while it is measured": [
            of(("null",), plan_of(2), scripts={"null": Script(recompilations=2)})
        ],
        **{
            f"an error in {stage}": [of(("null",), scripts=ending(0, stage, Status.ERROR))]
            for stage in ("start", "burst 3")
        },
        "a cell near the best": [of(PAIR, plan_of(2), scripts=slow)],
    }  # fmt: skip


def with_budgets() -> dict[str, list[Run]]:
    names = ("eager", "torchscript", "onnx", "inductor", "aotinductor")
    slow = {label: Script(level_ms=500.0, seconds_per_start=2.0, seconds_per_burst=2.5) for label in names}
    tensorrt = {
        label: Script(seconds_per_start=400.0 if label == "tensorrt" else 8.0)
        for label in ("eager", "inductor", "onnx", "tensorrt")
    }
    return {
        "a budget of 22 s": [
            of((), plan_of(3), budget_s=22.0, scripts={"eager": Script(seconds_per_start=3.0), "inductor": Script(),
                                                       "onnx": Script(seconds_per_start=8.0)})
        ],
        "a budget that leaves an open pair": [
            of((), plan_of(3, 20), budget_s=28.0, undecided=open_until(99),
               scripts=dict.fromkeys(PAIR, Script(seconds_per_start=4.0)))
        ],
        "a budget for calls of half a second": [
            of((), replace(plan_of(1), burst_calls=5), scripts=slow, cores=16, budget_s=50.0, reference_memory=SMALL)
        ],
        "a budget and a build of minutes": [
            of((), plan_of(1), scripts=tensorrt, cores=16, device=GPU, budget_s=60.0)
        ],
        **{
            f"a budget and a hang in {stage}": [of(PAIR, plan_of(3), scripts=ending(0, stage, HANG), budget_s=30.0)]
            for stage in ("build", "burst 2", "burst 7", "further", "finish")
        },
        "a budget for slow rounds": [
            of((), plan_of(3), scripts=dict.fromkeys(PAIR, Script(seconds_per_burst=5.0)), budget_s=30.0)
        ],
        "no time at all": [of(budget_s=0.0)],
    }  # fmt: skip


def with_little_memory() -> dict[str, list[Run]]:
    """Return contests whose memory does not hold all cells, or whose cells run out of it."""
    loud_and_large, at_the_end = replace(LOUD, resident_bytes=10**10), {(0, "finish"): Status.OOM}
    return {
        **{
            f"out of memory in {stage}, {'always' if len(processes) > 1 else 'once'}": [
                of(scripts={"null": Script(endings={(number, stage): Status.OOM for number in processes})})
            ]
            for stage in ("start", "build", "burst 3", "finish")
            for processes in (range(1), range(9))
        },
        "out of memory in a burst beside one": [of(PAIR, scripts=ending(0, "burst 3", Status.OOM))],
        "two that run out of memory beside eager": [
            of(scripts={"eager": LARGE, **dict.fromkeys(THREE[1:], replace(LARGE, endings=at_the_end))},
               available_bytes=lambda launcher: 10**10)
        ],
        "two large cells beside eager": [
            of(plan=plan_of(1, 3), available_bytes=lambda launcher: 5 * 10**9,
               scripts={"eager": LOUD, "null": loud_and_large, "null/double": loud_and_large})
        ],
        "one large cell": [
            of(plan=plan_of(2), scripts={"null/double": LARGE}, available_bytes=lambda launcher: 5 * 10**9)
        ],
        "room for two": [of(plan=plan_of(3), available_bytes=room_for_two)],
        "less room in the second epoch": [of(plan=plan_of(3), available_bytes=less_room_in_the_second_epoch)],
        "room for two in a race": [of((), RACE, scripts=RUNNERS, available_bytes=room_for_two)],
        "room for two beside an unsteady eager": [
            of(plan=plan_of(2), scripts={"eager": LOUD}, available_bytes=room_for_two)
        ],
        "room for two beside an unsteady eager and a large cell": [
            of(plan=plan_of(1), scripts={"eager": LOUD, "null": LARGE}, available_bytes=room_for_two)
        ],
        "one after the other": [of(interleaved=False)],
    }  # fmt: skip


def that_go_on() -> dict[str, list[Run]]:
    """Return contests that are interrupted and go on."""
    dead, in_round = ending(0, "burst 3", SEGFAULT), ending(0, "burst 3", INTERRUPT)
    packaged = {"null-packaged": Script(resident_bytes=7 * 10**9), "null": Script()}
    builds, idle = replace(plan_of(4), builds=2), {"eager": Script(seconds_per_start=0.01)}
    return {
        "interrupted in the third epoch": [
            of(plan=plan_of(3), interrupted_at=(2, "null/double")), of(plan=plan_of(3))
        ],
        "interrupted before anything was built": [
            of(PAIR, plan_of(2), scripts=idle, interrupted_at=(0, "null")), of(PAIR, plan_of(2), scripts=idle)
        ],
        "interrupted with a package": [
            of((), plan_of(2), scripts=packaged, interrupted_at=(0, "null")), of((), plan_of(2), scripts=packaged)
        ],
        "interrupted in a round": [of(scripts=in_round), of()],
        "interrupted three times": [
            of(scripts=in_round),
            of(scripts=ending(0, "warm-up", INTERRUPT)),
            of(scripts=ending(0, "burst 6", INTERRUPT)),
        ],
        "interrupted with wrong answers so far": [
            of(PAIR, scripts=ending(0, "burst 3", INTERRUPT, answers={(0, "start"): WRONG}))
        ],
        "interrupted after a cell had ended": [
            of(plan=plan_of(3), scripts=dead, interrupted_at=(1, "eager")), of(plan=plan_of(3), scripts=dead)
        ],
        "several builds, interrupted": [
            of((), builds, scripts=RUNNERS, interrupted_at=(1, "null")), of((), builds, scripts=RUNNERS)
        ],
        "a race, interrupted": [
            of((), RACE, scripts=RUNNERS, interrupted_at=(2, "null")), of((), RACE, scripts=RUNNERS)
        ],
    }  # fmt: skip


def races() -> dict[str, list[Run]]:
    again, longer = (replace(plan_of(3, most), races=True) for most in (6, 12))
    return {
        "a race": [of((), RACE, scripts=RUNNERS)],
        "no race": [of((), plan_of(3), scripts=RUNNERS)],
        "a race with two builds": [of((), replace(RACE, builds=2), scripts=RUNNERS)],
        "a verdict that depends on what left": [
            of((), again, scripts=RUNNERS, undecided=open_until(5, "null", "null/double"))
        ],
        **{
            f"a race whose baseline varies by {spread:.1%}": [
                of((), longer, scripts=RUNNERS | {"eager": Script(level_ms=3.0, spread=spread)},
                   undecided=open_until(8, "null", "null/double"))
            ]
            for spread in (0.001, 0.3)
        },
        "a race whose winner dies": [of((), RACE, scripts=RUNNERS | ending(1, "burst 3", SEGFAULT))],
    }  # fmt: skip


def loads() -> dict[str, list[Run]]:
    """Return contests under load."""
    long = replace(SERVER, soak_s=30.0, window_s=2.0)
    unasked = replace(SERVER, soak_s=0.0)
    by_default = LoadPlan.of(Traffic(Scenario.SERVER, 1), SERVER.objective, None, USUAL_MIN_TIME_S)
    inexact = WRONG.model_copy(update={"is_only_inexact": True})
    off = {"null": Script(answers={(number, stage): inexact for number in (0, 1) for stage in ("start", "finish")})}
    accepted = (("top1>-1%", Precision.BF16), ("top1>5", Precision.BF16), ("top1>-1%", Precision.FP32),
                ("", Precision.BF16))  # fmt: skip

    def misses(share: float, **script: Any) -> Mapping[str, Script]:
        return {"null": Script(slower_after_s=4.0, slower_share=share, **script)}

    def served(plan: LoadPlan | None = SERVER, processes: int = 3, **limits: Any) -> list[Run]:
        return [of(PAIR, plan_of(processes), load=plan, **limits)]

    return {
        "load": served(scripts={"eager": Script(level_ms=2.0)}),
        "load with a soak of ten minutes": served(
            replace(SERVER, soak_s=600.0), scripts=misses(0.75), time_limit_s=600.0
        ),
        **{f"load with {budget_s:g} s": served(long, budget_s=budget_s) for budget_s in (40.0, 90.0, 10_000.0)},
        **{
            f"a soak at {slower:g} of the rate, with {budget_s:g} s": served(
                long, scripts=misses(slower), budget_s=budget_s
            )
            for budget_s, slower in ((1e4, 0.95), (1e4, 0.75), (1e4, 0.5), (1e4, 0.2), (130.0, 0.95))
        },
        "a soak at the rate that another cell holds": served(
            long, scripts={"eager": Script(level_ms=10.0), **misses(0.15)}
        ),
        **{
            f"a further soak with {budget_s:g} s": served(
                replace(SERVER, soak_s=12.0, soaks_all=False), budget_s=budget_s,
                scripts={"eager": Script(level_ms=2.0), "null": Script(slower_after_s=1.9, slower_share=0.75)},
            )
            for budget_s in (10_000.0, 70.0)
        },
        **{
            f"soaks by default, {name}": [
                of((), plan_of(3), load=by_default,
                   scripts=RUNNERS | {"null": winner, "null/double": Script(level_ms=runner_up_ms)})
            ]
            for name, winner, runner_up_ms in (
                ("near", Script(), 1.2), ("far", Script(), 2.0),
                ("the winner misses", Script(slower_after_s=1.9, slower_share=0.15), 2.0),
            )
        },
        "an objective below the floor": served(
            replace(unasked, objective=Objective(percentile="p99", limit_ms=5e-7)), 1, interrupted_at=(0, "eager")
        ),
        "load without a soak": served(unasked, budget_s=30.0),
        "overload in the first process": served(scripts={"null": Script(overloaded=frozenset({0}))}),
        "death under load": served(processes=1, scripts=ending(0, "load 3", SEGFAULT)),
        "a hang under load": served(processes=1, scripts=ending(0, "load 3", HANG)),
        "a later hang under load": served(processes=2, scripts=ending(1, "load 1", HANG)),
        "wrong answers, and load": served(
            processes=1, scripts={"null": Script(answers={(0, "start"): WRONG, (0, "finish"): WRONG})}
        ),
        **{
            f"inexact answers in {precision} with {require or 'nothing'} required": served(
                processes=2, scripts=off, evaluate="live:evaluate", precision=precision, require=require
            )
            for require, precision in accepted
        },
        "load, interrupted": [
            *served(interrupted_at=(2, "null")), *served()
        ],
    }  # fmt: skip


def schedules() -> dict[str, list[Run]]:
    """Return contests whose cells start, build and load beside one another."""
    compilers = ("eager", "aotinductor", "inductor", "inductor/max-autotune", "torchscript")
    many = ("eager", *(f"null/{name}" for name in ("again", "double", "partial", "slow", "fallback", "wrong")))
    levels_ms = {"eager": 1.0, "null": 1.1, "null/double": 2.0, "null/slow": 3.0, "null/again": 4.0}
    apart = {label: Script(level_ms=level_ms) for label, level_ms in levels_ms.items()}
    seconds = {"eager": 1.0, "aotinductor": 9.0} | dict.fromkeys(
        ("torchscript", "torchscript/cuda-graph", "eager/cuda-graph", "inductor", "inductor/reduce-overhead"), 2.0
    )
    waves = {label: Script(seconds_per_start=each_s) for label, each_s in seconds.items()}
    minutes = {label: Script(seconds_per_start=5.0) for label in ("eager", "inductor", "onnx")}
    minutes["tensorrt"] = Script(seconds_per_start=40.0)
    long = {label: Script(seconds_per_start=20.0) for label in ("eager", "aotinductor", "inductor", "onnx")}
    slow = {label: Script(seconds_per_start=7.0) for label in ("eager", "inductor", "torchscript")}
    unsure, small = open_until(99, "inductor", "eager"), {"resident_bytes": 10**9}
    big, few, cpu = {"cores": 16, "device": GPU}, {"cores": 4, "device": GPU}, {"cores": 16}
    machines = {"a GPU and 16 cores": big, "a GPU and 4 cores": few, "16 cores": cpu}
    pressed = {"scripts": {"null": Script(seconds_per_start=3.0)}, "reference_memory": SMALL}
    left = {"torchscript": Script(level_ms=9.0)}
    return {
        "seven cells on 8 cores": [of(many, plan_of(3), cores=8)],
        **{f"no cores to share, {cores}": [of(plan=plan_of(2), cores=cores)] for cores in (0, 1)},
        **{f"compilers, {name}": [of(compilers, plan_of(2), **machine)] for name, machine in machines.items()},
        "compilers, and headers that are made meanwhile": [of(compilers, plan_of(1), **big, headers_s=1.5)],
        **{
            f"{name}, {processes} processes and more": [
                of(("eager", "aotinductor", "inductor"), plan_of(processes, 5), **machine, undecided=unsure)
            ]
            for processes in (3, 4)
            for name, machine in machines.items()
        },
        "what tunes is built alone in its epoch": [of(("eager", "onnx"), plan_of(3), **big)],
        "what tunes begins beside other builds": [of((), plan_of(1), scripts=long, **big)],
        "what tunes for minutes": [of((), plan_of(1), scripts=minutes, **big)],
        "what tunes for minutes, with a budget": [of((), plan_of(1), scripts=minutes, **big, budget_s=300.0)],
        "what starts slowly": [
            of(("eager",), plan_of(3), scripts={"inductor": Script(seconds_per_start=7.0)}, **big)
        ],
        **{
            f"slow starts of five processes on {cores} cores": [
                of((), plan_of(5, 5), scripts=slow, cores=cores, device=GPU, undecided=unsure)
            ]
            for cores in (8, 16)
        },
        "a beaten cell that was loaded ahead": [of(("eager", "inductor"), RACE, scripts=left, **big)],
        "builds of two and of nine seconds": [of((), plan_of(1), scripts=waves, cores=8, device=GPU)],
        "a family that is built ahead of time, on 16 cores": [of(BEST_ON_GPU[-2:], plan_of(2), **big)],
        **{f"headers, {name}": [of(plan=plan_of(2), **machine)] for name, machine in machines.items()},
        "room for three cells of a gigabyte": [
            of((), plan_of(2), scripts=dict.fromkeys(THREE, Script(**small)), cores=8,
               available_bytes=lambda launcher: 3 * 10**9)
        ],
        **{
            f"a {'busy' if is_busy else 'quiet'} machine, {budget_s:g} s": [
                of(PAIR, plan_of(1), **pressed, budget_s=budget_s, is_machine_busy=is_busy)
            ]
            for budget_s, is_busy in ((math.inf, True), (30.0, False), (30.0, True))
        },
        "all built before an interruption": [of(scripts=ending(0, "burst 3", INTERRUPT)), of(cores=8)],
        "last checks on a GPU": [of((), plan_of(3), scripts=apart, **big)],
        "last checks on a CPU": [of((), plan_of(3), scripts=apart, **cpu)],
        "further processes of what may be chosen": [
            of(("null",), plan_of(3, 20), **big, undecided=open_until(5),
               scripts={"eager": Script(level_ms=1.1), "null/double": Script(level_ms=1.05)})
        ],
    }  # fmt: skip


def in_order(run: SimpleNamespace) -> list[str]:
    """Return a line for each time that another epoch goes on: what its cells do, one after the other.

    Then comes how many cells of each epoch did something at once at most.
    """
    lines, before = list[str](), (-1, "")
    for epoch, what, label in run.steps:
        if what in ("loaded", "furthermeasured", "finished"):
            continue
        if epoch != before[0]:
            lines.append(f"- {epoch}: {what}")
        elif what != before[1]:
            lines[-1] += f"; {what}"
        if what != "burst":
            lines[-1] += f" {label}"
        before = epoch, what
    spans = {"starting": ("launched", "ready"), "building": ("builds", "built"), "warming up": ("warms up", "ready"),
             "measuring": ("measures", "furthermeasured"), "checking": ("finishes", "finished")}  # fmt: skip
    most = [f"{name} {' '.join(map(str, run.most(*span).values()))}" for name, span in spans.items()]
    timed = f"beside what is timed {run.most_beside_what_is_timed}; {run.ended_s:.1f} s"
    return [*lines, f"- at once {', '.join(most)}; {timed}"]


def in_short(run: SimpleNamespace) -> list[str]:
    """Return a line for each cell, and one for the run: what started in which epoch, and when it ended."""
    started: dict[int, list[str]] = {}
    for epoch, label in run.started:
        started.setdefault(epoch, []).append(label)
    lines = [f"- {label}: {'; '.join(_of_cell(record))}" for label, record in run.records.items()]
    starts = "; ".join(f"{epoch}: {', '.join(labels)}" for epoch, labels in started.items())
    state = "" if run.complete else ", incomplete"
    return [
        *lines,
        f"- started {starts or 'nothing'}; {run.ended_s:.1f} s{state}",
        *(f"- {note}" for note in run.notes),
    ]


def _of_cell(record: Record) -> list[str]:
    parts = [f"{record.status}{', left to resume' if record.is_left_to_resume else ''}"]
    parts += [f"{record.reason}{f' (in {record.died_in})' if record.died_in else ''}"] if record.reason else []
    rounds = Counter((burst.process, burst.group) for burst in record.bursts)
    for process in record.processes:
        taken = [f"{count} in {group}" for (index, group), count in rounds.items() if index == process.index]
        phases = ", ".join(phase.name for phase in process.phases)
        build = f"build {process.build}, {phases}" if process.build else phases
        parts.append(f"{process.index} {'warm' if process.warm else 'cold'}: {build} ({', '.join(taken)})")
    parts += [f"{phase.name} of {phase.shared_with}" for phase in record.phases if phase.shared_with]
    if left := record.left:
        parts.append(f"left after {left.after_process}, {left.ratio:.2g}x {left.than}, {left.seen_in}")
    parts += [f"{type(doubt).__name__}: {doubt.say()}" for doubt in record.doubts]
    if record.throughput:
        parts.append(f"{record.throughput.calls_per_s:.0f}/s in {counted(record.throughput.blocks, 'block')}")
    further = {
        "energy": record.energy,
        "trace": record.kernel_times,
        "memory without torch": record.memory and record.memory.engine_resident_bytes,
        "last check": record.accuracy and record.accuracy.rmse_after is not None,
    }
    parts += [name for name, value in further.items() if value]
    parts += [f"keeps {record.artifact.rpartition('/')[2]}"] if record.artifact else []
    return [*parts, *(_of_load(record.load) if record.load else [])]


def _of_load(load: Load) -> list[str]:
    rates: dict[int, list[str]] = {}
    for turn in load.turns:
        rates.setdefault(turn.process, []).append(f"{turn.value:.0f}" if turn.value else "none")
    turns = [f"{process}: {' '.join(each)}" for process, each in rates.items()]
    served = f"{load.settings.instances} x {load.settings.threads} threads" if load.settings else load.reason
    soaks = [
        f"soak of {soak.rate:.0f}/s for {soak.seconds:.0f} s{', missed' if soak.has_missed else ''}"
        for soak in soaks_of(load)
    ]
    left_out = [note for note in load.left_out if "no dimension batch" not in note]
    return [f"load with {served}: {', '.join(turns)}", *soaks, *left_out]


OF_CELLS = (rounds, builds, measured_further, with_budgets, with_little_memory, that_go_on, races, loads)


@pytest.mark.parametrize(
    ("make", "told"), [*((make, in_short) for make in OF_CELLS), (schedules, in_order)], ids=lambda each: each.__name__
)
def test_contests_run_as_before(
    make: Callable[[], dict[str, list[Run]]], told: Callable[[SimpleNamespace], list[str]], tmp_path: Path
) -> None:
    lines = []
    for number, (name, runs) in enumerate(make().items()):
        lines.append(f"## {name}")
        for place, asked in enumerate(runs):
            lines += ["then" for _ in range(place > 0)]
            lines += told(run_contest(tmp_path / str(number), **asked))
    same_as_golden(f"contests.{make.__name__}.txt", "\n".join(lines))
