"""The worker process: it does one job, such as building and measuring one cell, and reports it to the controller."""

import contextlib
import faulthandler
import importlib
import os
import pkgutil
import platform
import random
import sys
import tempfile
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from bakeoff import backends, models
from bakeoff.backends import fast_path
from bakeoff.backends.base import AheadOfTime
from bakeoff.backends.calling import FlatModule, as_called
from bakeoff.backends.vector_instructions import try_vector_instructions
from bakeoff.measuring import isolation, messages
from bakeoff.measuring.versions import all_versions
from bakeoff.measuring.worker import ceilings, evaluating, memory, open_axes, pickled_model, precision, reference
from bakeoff.measuring.worker.cell_model import load, move_to_device, save_inputs, saved_inputs
from bakeoff.measuring.worker.compiler_checks import CompilerChecks
from bakeoff.measuring.worker.fingerprint import require_weights
from bakeoff.measuring.worker.sample import require_outputs
from bakeoff.measuring.worker.serving import serve
from bakeoff.measuring.worker.worker_context import WorkerContext, explain, last_frame_below, last_frame_of_program
from bakeoff.models.user import loaded
from bakeoff.records.errors import Unavailable, first_line
from bakeoff.truth.checking import unchanged_inputs
from bakeoff.truth.decisions import noting_frozen_choices
from bakeoff.truth.global_settings import few_threads, threads_for_untimed_work
from bakeoff.truth.moved_clock import clock_at


def main(connection: Connection, assignment: messages.Assignment) -> None:
    """Do the job in this process, which is the worker's own from here on. This never returns."""
    status = 1
    try:
        _set_up_process(assignment)
        if answer := do_job(connection, assignment):
            messages.send(connection, answer)
        status = 0
    except BaseException as error:  # the model's own code may raise anything
        traceback.print_exc()
        ending, failure = explain(error)
        if not failure.place:
            failure = failure.but(place=place_of(error, assignment.job))
        with contextlib.suppress(OSError):
            messages.send(connection, messages.Failed(status=ending, failure=failure))
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        # without exit handlers: a library that crashes at exit must not spoil a finished cell
        os._exit(status)


def place_of(error: BaseException, job: messages.Job) -> str:
    """Return `mine.py, line 12, in forward`, or nothing where no code of the user's own model is in the traceback."""
    if not isinstance(
        job, messages.CellJob | messages.ComputeReference | messages.EvaluateReference | messages.FindOpenAxes
    ):
        return ""
    if job.cell.is_live:
        return last_frame_of_program(error)
    model = loaded(job.cell.model)
    return last_frame_below(model.root, error, model.file) if model is not None else ""


def spawned() -> None:
    """Run in a fresh interpreter, whose argument is the number of the pipe's descriptor."""
    descriptor = int(sys.argv[1])
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection

        connection: Connection = PipeConnection(descriptor)
    else:
        connection = Connection(descriptor)
    main(connection, messages.Assignment.model_validate_json(connection.recv_bytes()))


def do_job(connection: Connection, assignment: messages.Assignment) -> messages.Event | None:
    """Return the answer to the job, or None where its answers were sent while it was done."""
    match job := assignment.job:
        case messages.MeasureCell():
            measure(WorkerContext.begin(connection, job, assignment.workspace))
        case messages.PackageCell():
            worker = WorkerContext.begin(connection, job, assignment.workspace)
            package(worker)
            return messages.Packaged(seconds=worker.building_s)
        case messages.MeasurePackagedCell():
            measure_packaged(WorkerContext.begin(connection, job, assignment.workspace))
        case messages.LookInto():
            worker = WorkerContext.begin(connection, job, assignment.workspace)
            found = pkgutil.resolve_name(job.function)(worker, **job.question)
            return messages.Found(answer=found.model_dump_json())
        case messages.ComputeReference():
            with threads_for_untimed_work(job.is_machine_busy):
                return reference.compute(job, assignment.cwd, assignment.workspace, connection=connection)
        case messages.EvaluateReference():
            return messages.Evaluated(metrics=evaluating.of_reference(job, assignment.cwd))
        case messages.FindOpenAxes():
            return open_axes.find(job.cell, assignment.cwd)
        case messages.ExportProgram():
            export_program(job, assignment.cwd)
            return messages.Packaged()
        case messages.MeasureCeilings():
            precision.apply(job.precision)
            return messages.CeilingsMeasured(ceilings=ceilings.measure(job.device, job.precision))
        case messages.ProbeTorch():
            return probe(job.lists_versions)
        case messages.TryBackend():
            return messages.Tried(reason=backends.create(job.backend).available(job.device).reason)
        case messages.PrecompileHeaders():
            return messages.HeadersMade(checks_s=precompile_headers(connection, job))
        case messages.TryImport():
            return messages.Tried(reason=import_error(job.module))
    return None


def measure(worker: WorkerContext) -> None:
    module, sets = worker.model()
    # of the cell's own size for a dynamic build, and like those of the build, since compilers note inference tensors
    measured = saved_inputs(worker.job.inputs, worker.cell.device) if worker.job.inputs else sets
    worker.await_turn()
    given = worker.to_build_with(sets)
    unchanged = unchanged_inputs(worker.cell, worker.traits, measured)
    memory.return_unused(worker.cell.device)
    with worker.running(), contextlib.ExitStack() as held:
        with noting_frozen_choices() as frozen, clock_at(worker.traits.clock_s):
            context = worker.context(given, worker.await_quiet)
            compiled = held.enter_context(worker.backend.build(module, given[0], context))
        worker.frozen_choices = frozen.among(worker.traits.decisions)
        serve(worker, compiled, measured, unchanged)


def package(worker: WorkerContext) -> None:
    assert isinstance(worker.backend, AheadOfTime)
    module, sets = worker.model()
    worker.await_turn()
    if worker.job.inputs is None:
        save_inputs(sets, worker.handover)  # before a build may write into them
    given = worker.to_build_with(sets)
    with worker.running(), clock_at(worker.traits.clock_s):
        worker.backend.package(module, given[0], worker.context(given, worker.await_quiet))
        worker.clock.synchronise()


def measure_packaged(worker: WorkerContext) -> None:
    """Load what `package` has left, and go on as `measure` does. This worker never sees the model."""
    assert isinstance(worker.backend, AheadOfTime)
    worker.phases.announce("inputs")
    with few_threads():
        models.find(worker.cell.model).make_importable()
        os.chdir(worker.workspace)
        sets = saved_inputs(worker.job.inputs or worker.handover, worker.cell.device)
    worker.await_turn()
    unchanged = unchanged_inputs(worker.cell, worker.traits, sets)
    memory.return_unused(worker.cell.device)
    with worker.running(), worker.backend.load(sets[0], worker.context(sets)) as compiled:
        serve(worker, compiled, sets, unchanged)


def export_program(job: messages.ExportProgram, cwd: Path) -> None:
    """Write a cell's model, with its weights and in its precision, as a program that torch loads without its source, or
    as a pickle. Raises BakeoffError where the model is not the one that was measured."""
    precision.apply(job.cell.precision)
    fast_path.apply(backends.create(job.cell.backend), job.cell)
    module, sets = move_to_device(load(job.cell, cwd), job.cell)
    require_weights(module, job.weights)
    with torch.no_grad():
        flat = FlatModule(module, sets[0])
        program = None if job.pickles else torch.export.export(flat, as_called(sets[0]))
        # before the first call, which changes what a model keeps from call to call
        if program is not None:
            torch.export.save(program, job.program)
        else:
            pickled_model.write(module, sets[0], job.program)
        if job.sample is not None:
            require_outputs(job.sample, program.module() if program else flat, job.cell.device)


def probe(lists_versions: bool) -> messages.TorchFacts:
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    error = ""
    if torch.version.cuda and not devices:
        try:
            torch.empty(1, device="cuda")
        except Exception as raised:  # of several types, from version to version
            error = first_line(raised)
    return messages.TorchFacts(
        torch=torch.__version__,
        cuda=torch.version.cuda,
        cuda_devices=devices,
        threads=torch.get_num_threads(),
        cuda_error=error,
        python=platform.python_version(),
        versions=all_versions() if lists_versions else {},
    )


def precompile_headers(connection: Connection, job: messages.PrecompileHeaders) -> float:
    """Have torch precompile the headers that the backend's builds include. Return for how many seconds torch checked
    the compiler, or 0 where it has not. Raises Unavailable where the backend is."""
    backend = backends.create(job.backend)
    if kept := CompilerChecks.known(job.backend, job.device):
        return kept.seconds
    if not job.may_make:
        return 0.0
    if not (available := backend.available(job.device)):
        raise Unavailable(available.reason)
    messages.send(connection, messages.PhaseBegun(name="precompile"))
    begun_s = time.monotonic()
    answers = try_vector_instructions()
    checks = CompilerChecks(answers=answers, seconds=time.monotonic() - begun_s)
    backend.precompile(job.device)
    checks.keep(job.backend, job.device)
    return checks.seconds


def import_error(module: str) -> str:
    """Return why the module does not import here, or an empty string. An import can end the process, too."""
    try:
        importlib.import_module(module)
    except Exception as error:  # a library may raise anything to say that another one is missing
        traceback.print_exc()
        return explain(error)[1].sentence
    return ""


def _set_up_process(assignment: messages.Assignment) -> None:
    if hasattr(os, "setsid") and os.getpid() != os.getsid(0):
        os.setsid()
    isolation.die_with_parent()
    isolation.die_first()
    log = os.open(assignment.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(log)
    faulthandler.enable()
    isolation.ignore_torchs_own_warning()
    os.chdir(assignment.cwd)
    os.environ.clear()
    os.environ.update(assignment.environment)
    tempfile.tempdir = None  # it may have been looked up under the old environment
    random.seed()
