"""The child process: one cell from its model to its last burst, or one of the smaller jobs beside it.

Messages to the parent: `phase` (one begins), `phase_ended`, `packaged` (built ahead of time; this process is done),
`ready` (built, checked, warm), `burst`, `finished`, and `ended` (it will not go on, and why). The parent sends `burst`
and `finish`.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import random
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import backends
from backends.base import AheadOfTime
from harness import isolation, link, precision
from harness.worker import ceilings as machine_ceilings
from harness.worker import golden
from harness.worker.bench import Bench
from harness.worker.ending import explain
from harness.worker.serving import serve
from models.base import Inputs


def main(connection: Connection, job: dict[str, Any]) -> None:
    """Carry out `job` in this process, which is its own from here on; never returns."""
    status = 1
    try:
        _settle(job)
        ROLES[job["role"]](connection, job)
        status = 0
    except (EOFError, BrokenPipeError):
        pass  # the parent is gone, and there is nobody left to tell
    except BaseException as error:
        traceback.print_exc()
        status_name, reason = explain(error)
        with contextlib.suppress(OSError):
            link.send(connection, "ended", status=status_name, reason=reason)
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # no exit handlers: a library that crashes while it is torn down must not spoil a finished cell
        os._exit(status)


def spawned() -> None:
    """Entry point of a fresh interpreter. argv: number of the pipe's descriptor; the job is the first message."""
    descriptor = int(sys.argv[1])
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        connection: Connection = PipeConnection(descriptor)
    else:
        connection = Connection(descriptor)
    main(connection, link.receive(connection))


def measure(connection: Connection, job: dict[str, Any]) -> None:
    """Build one cell, check it, warm it up, and take bursts on command."""
    bench = Bench.begin(connection, job)
    module, sets = bench.model()
    with bench.running(), bench.backend.build(module, sets[0], bench.context(sets)) as compiled:
        serve(bench, compiled, sets)


def package(connection: Connection, job: dict[str, Any]) -> None:
    """Build one cell ahead of time into the cell's folder, from which other processes load it."""
    import torch

    bench = Bench.begin(connection, job)
    assert isinstance(bench.backend, AheadOfTime)
    module, sets = bench.model()
    with bench.running():
        bench.backend.package(module, sets[0], bench.context(sets))
        bench.clock.synchronise()
    torch.save([(one.args, dict(one.kwargs)) for one in sets], bench.handover)
    link.send(connection, "packaged")


def measure_packaged(connection: Connection, job: dict[str, Any]) -> None:
    """Load what `package` left, and go on as `measure`. This process never sees the model."""
    import torch

    bench = Bench.begin(connection, job)
    assert isinstance(bench.backend, AheadOfTime)
    with bench.phases.announced("inputs"):
        os.chdir(bench.workspace)
        # a pickle, because arguments may be anything; it was written by this run
        handed_over = torch.load(bench.handover, map_location=bench.clock.device, weights_only=False)
        sets = tuple(Inputs(args, kwargs) for args, kwargs in handed_over)
    with bench.running(), bench.backend.load(sets[0], bench.context(sets)) as compiled:
        serve(bench, compiled, sets)


def ceilings(connection: Connection, job: dict[str, Any]) -> None:
    """What this machine can do at best, on one device in one precision."""
    precision.apply(job["precision"])
    found = machine_ceilings.measure(job["device"], job["precision"])
    link.send(connection, "finished", ceilings=found.model_dump())


def probe(connection: Connection, job: dict[str, Any]) -> None:
    """What torch says of this machine."""
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    link.send(
        connection,
        "finished",
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cuda_devices=count,
        threads=torch.get_num_threads(),
    )


def availability(connection: Connection, job: dict[str, Any]) -> None:
    """Whether this machine has a backend, for one device."""
    available = backends.create(job["backend"]).available(job["device"])
    link.send(connection, "finished", reason=available.reason)


def importing(connection: Connection, job: dict[str, Any]) -> None:
    """Whether a module imports here. Built against another version of its neighbours, it may take its process along."""
    try:
        importlib.import_module(job["module"])
    except Exception as error:  # a library's own way to say that its libraries are missing may be of any type
        traceback.print_exc()
        link.send(connection, "finished", reason=explain(error)[1])
    else:
        link.send(connection, "finished", reason="")


ROLES: dict[str, Callable[[Connection, dict[str, Any]], None]] = {
    "measure": measure,
    "package": package,
    "measure_packaged": measure_packaged,
    "golden": golden.compute,
    "ceilings": ceilings,
    "probe": probe,
    "availability": availability,
    "importing": importing,
}


def _settle(job: dict[str, Any]) -> None:
    """Make this process the cell's own: session, output, environment, random state."""
    if hasattr(os, "setsid") and os.getpid() != os.getsid(0):
        os.setsid()
    isolation.die_with_parent()
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    faulthandler.enable()
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environment"])
    tempfile.tempdir = None  # it may have been looked up under the old environment
    random.seed()
