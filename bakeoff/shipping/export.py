"""Writes what a backend has built for a cell into a folder that runs without Bakeoff, with what loads it.

torch.compile leaves nothing that another process can load, so the model is exported anew as a program, which is
compiled when it is loaded. Of eager, `bakeoff reproduce` has the model itself, pickled.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from bakeoff import backends
from bakeoff.backends.runtime.folder import DESCRIPTION, FORMAT
from bakeoff.backends.standalone import Runtime, Threads
from bakeoff.judging.answer import Certainty
from bakeoff.judging.judgement import contests_of
from bakeoff.judging.stored_report import builds_at
from bakeoff.measuring import isolation, probes
from bakeoff.measuring.controller.launcher import Launchers
from bakeoff.measuring.controller.server_start import temporary_folder
from bakeoff.measuring.messages import ExportProgram, Packaged
from bakeoff.measuring.same_model import require_same_model
from bakeoff.records import errors
from bakeoff.records import library as library_file
from bakeoff.records.atomic_file import write_atomically
from bakeoff.records.doubts import Unsure
from bakeoff.records.errors import BakeoffError, UsageError, first_line, os_reason
from bakeoff.records.report_file import folder_of
from bakeoff.records.schema import INFERENCE, Record, Report, Status
from bakeoff.records.store import Store
from bakeoff.records.text import first, last_words, listed, one_line
from bakeoff.shipping import cpp_program, script_environment, script_parts, triton_server
from bakeoff.shipping.sample_facts import Sample, sample_file, sample_of

TORCHS_OWN = frozenset((
    "_c10d_functional", "_dtensor", "_native", "_quantized", "aten", "c10d", "export", "flex_lib", "higher_order",
    "inductor", "inductor_prims", "mkl", "mkldnn", "mkldnn_prepacked", "onednn", "prim", "prims", "profiler",
    "quantization", "quantized", "rngprims", "sparse", "static_runtime", "streams", "symm_mem",
))  # fmt: skip
"""The namespaces of operators that are there as soon as torch is imported."""

_CALLS = {
    ".py": re.compile(r"\bops\.(\w+)\.(\w+)\("),  # the code of TorchScript
    ".json": re.compile(r'"target": ?"(?:torch\.ops\.)?(\w+)(?:::|\.)(\w+)'),  # a program, or what a package calls
}
_NO_OPERATORS = ("torch", "_operator", "math", "builtins")
"""Modules whose functions a program also calls."""


class Format(StrEnum):
    """What `bakeoff export` writes."""

    FOLDER = "folder"
    TRITON = "triton"
    CPP = "cpp"

    def next_step(self, file: Path) -> str:
        """Return what to do with the file to start with."""
        if self is Format.TRITON:
            return f"To serve it: tritonserver --model-repository {shlex.quote(str(file.parents[1]))}"
        if self is Format.CPP:
            return f"To build and to measure it: see {shlex.quote(str(file.with_name('README.md')))}"
        foreign = json.loads(file.with_name(DESCRIPTION).read_text(encoding="utf-8"))["operators"]
        first = f"IMPORT_FIRST=MODULE python {shlex.quote(str(file))}, with the module that registers its operators "
        start = f"{first}{', '.join(foreign)}" if foreign else f"python {shlex.quote(str(file))}"
        return f"To check and to measure it: {start}"


_NAMES = {Format.TRITON: "the server", Format.CPP: "a program in C++"}

START = "load.py"
"""The file of a folder to start with."""

COMPILED = "compiled"
"""The folder in it with what was compiled. `runtime/torch_programs.py`, which imports torch, has the same name."""


def choose(report: Report, name: str | None, with_models: bool = False) -> Record:
    """Return the record of a cell by its id or label, or of a contest's winner by its model or its id's beginning; by
    default that of the only contest. Raise UsageError, in one line, that says what to name."""
    contests = {contest.contest_id: contest for contest in contests_of(report)}
    if not contests:
        raise UsageError(f"{report.run_id} has no cell yet: there is nothing to export")
    if name is None and len(contests) > 1:
        named = listed(first(list(contests), script_parts.MAX_CELLS_NAMED), "or")
        raise UsageError(f"{report.run_id} has {len(contests)} contests: name one of {named}")
    of_model = [key for key, contest in contests.items() if contest.cell.model == name]
    begun = of_model or [key for key in contests if name is None or (name and key.startswith(name))]
    if len(begun) != 1:
        return script_parts.find_record(report, str(name))
    contest = contests[begun[0]]
    asked = contest.answer
    if asked.winner is None:
        how = "tie" if asked.certainty is Certainty.TIE else "are not told apart"
        best = [cell.record for cell in contest.cells if cell.label in asked.candidates]
        can_be_exported = script_parts.names_of(report, [one for one in best if _can_be_exported(one, with_models)])
        if not best:
            why = "cannot be ranked: name a cell"
        elif can_be_exported:
            one_of = "one of " if len(can_be_exported) > 1 else ""
            why = f"{how}: name {one_of}{', '.join(can_be_exported)}"
        else:
            why = f"{how}, and none of {', '.join(asked.candidates)} can be exported: name another cell"
        raise UsageError(f"{contest.contest_id} has no winner to export, its best {why}")
    return next(cell.record for cell in contest.cells if cell.label == asked.winner)


def export(
    path: Path,
    name: str | None,
    out: Path,
    format: Format = Format.FOLDER,
    with_models: bool = False,
    compiles: bool = True,
    say_step: Callable[[str], None] = lambda text: None,
) -> tuple[Record, Path]:
    """Write `out` for a cell of the run at `path`; return its record and the file to start with. `with_models` allows a
    model that was not compiled. Raise UsageError for a folder with files, and for nothing to export."""
    report = builds_at(path)
    run = folder_of(path)
    record = choose(report, name, with_models)
    runtime = _runtime_of(record, run, with_models)
    captures = backends.create(record.cell.backend).mode(record.cell.mode).captures
    if record.cell.dynamic and (captures or format is not Format.FOLDER):
        what = "its CUDA graph" if captures else _NAMES[format]
        raise UsageError(f"{record.cell.id} cannot be exported: it serves a range of sizes, and {what} has fixed ones")
    other = {Format.TRITON: triton_server, Format.CPP: cpp_program}.get(format)
    if other:
        other.require(record, runtime)
        if captures:
            why = "its CUDA graph is made in the process that serves it"
            raise UsageError(f"{record.cell.id} cannot be exported: {why}")
    sample = sample_of(record, run)
    require_sizes(record, runtime, sample, format)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out {out}: there is something already; name another folder")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.")
    except OSError as error:
        raise UsageError(f"--out {shlex.quote(str(out))}: cannot be written ({os_reason(error)})") from None
    with partial as temporary:
        folder = Path(temporary) / "export"
        folder.mkdir()
        artifact = _bring(record, runtime, run, folder)
        if format is not Format.FOLDER and (foreign := foreign_operators(folder / artifact)):
            raise UsageError(
                f"{record.cell.id} cannot be exported: a module of Python registers its operators "
                f"{', '.join(foreign)}, and {_NAMES[format]} imports none; the format {Format.FOLDER} does"
            )
        shutil.copyfile(sample_file(record, run), folder / "sample.npz")
        written = report, record, runtime, sample, folder, artifact
        # with `compiles`, what is compiled when it is loaded is loaded once, and the folder keeps that
        compiles = compiles and runtime.compiles_at_load
        say_step(f"exporting {record.cell.label}{', which compiles it anew' if compiles and not other else ''}")
        start = other.write(*written) if other else _write_folder(*written, compiles)
        if out.exists():
            out.rmdir()
        folder.rename(out)
    return record, out / start


def require_sizes(record: Record, runtime: Runtime, sample: Sample, format: Format) -> None:
    """Raise UsageError where the sizes of outputs depend on values, and what is written has memory of fixed sizes."""
    captures = backends.create(record.cell.backend).mode(record.cell.mode).captures
    has_fixed_sizes = format is not Format.FOLDER or captures or runtime.binds_outputs
    if sample.sizes_vary and has_fixed_sizes:
        raise UsageError(
            f"{record.cell.id} cannot be exported: the sizes of its outputs depend on the values in its inputs, and "
            "what is written would have memory of fixed sizes for them; torchscript and aotinductor have none"
        )


def _write_folder(
    report: Report, record: Record, runtime: Runtime, sample: Sample, folder: Path, artifact: str, compiles: bool
) -> str:
    foreign = foreign_operators(folder / artifact)
    shutil.copyfile(_SCRIPTS / START, folder / START)
    copy_runtime(runtime.loader, folder / "runtime")
    versions = [
        *requirements(report, record, runtime),
        *(script_environment.distributions_in(folder / artifact, runtime.libraries) if runtime.pickles else ()),
    ]
    write_atomically(folder / "requirements.txt", "".join(f"{line}\n" for line in versions))
    described = {**description(report, record, runtime, sample, artifact), "operators": foreign}
    write_atomically(folder / DESCRIPTION, json.dumps(described, indent=1))
    why_not = compile_folder(folder) if compiles else ""
    facts = {"Not compiled": why_not} if why_not else {}
    write_atomically(folder / "README.md", readme(report, record, runtime, artifact, foreign, facts))
    return START


_SCRIPTS = Path(__file__).with_name("scripts")
_RUNTIME = Path(backends.__file__).with_name("runtime")
_NEIGHBOURS = re.compile(r"^ *from \.(\w*) import (.+)$", re.MULTILINE)


def copy_runtime(loader: str, folder: Path) -> None:
    """Copy the files that load an artefact, with those that they import. Two of these import nothing of ours, and come
    from where Bakeoff has them."""
    folder.mkdir()
    wanted, copied = ["__init__", "folder", loader.partition(":")[0]], {"errors", "library"}
    for name, source in (("errors", errors), ("library", library_file)):
        shutil.copyfile(str(source.__file__), folder / f"{name}.py")
    while wanted:
        name = wanted.pop()
        if name not in copied and (file := _RUNTIME / f"{name}.py").exists():
            copied.add(name)
            shutil.copyfile(file, folder / file.name)
            for module, names in _NEIGHBOURS.findall(file.read_text(encoding="utf-8")):
                wanted += [module] if module else names.split(", ")


LONGEST_COMPILATION_S = 3600.0


def compile_folder(folder: Path, python: str = sys.executable) -> str:
    """Load a folder in a fresh process, and keep in it what that compiles. Return why nothing was, or an empty text."""
    with temporary_folder("compile") as temporary:
        compiled = temporary / COMPILED
        variables = isolation.child_environment(os.environ, isolation.make_workspace(temporary), "")
        variables |= {"TORCHINDUCTOR_CACHE_DIR": str(compiled), "TRITON_CACHE_DIR": str(compiled / "triton")}
        command = [python, str(_SCRIPTS / "compile_folder.py"), str(folder)]
        try:
            done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LONGEST_COMPILATION_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            done = subprocess.CompletedProcess(command, 1, "", first_line(error))
        if done.returncode:
            return last_words(done.stderr) or f"its process ended with {done.returncode}"
        shutil.copytree(compiled, folder / COMPILED, ignore=shutil.ignore_patterns("*.lock", "locks"))
    return ""


def _can_be_exported(record: Record, with_models: bool) -> bool:
    try:
        return bool(_runtime_of(record, Path(), with_models))
    except UsageError:
        return False


def _runtime_of(record: Record, run: Path, with_models: bool) -> Runtime:
    """Return what loads the record's artefact. Raises UsageError, with a remedy, where nothing does."""
    cell = record.cell
    backend = backends.create(cell.backend)
    kept = f"; what it built is in {record.artifact}" if record.artifact else ""
    runtime = backend.runtime(cell.device)
    reason = ""
    if record.status is not Status.OK:
        reason = f"it is {record.status}: {one_line(record.reason)}"
    elif runtime is not None and runtime.pickles and not with_models:
        reason = "eager compiles nothing: ship the model as it is, or see bakeoff reproduce"
    elif runtime is None:
        having = script_parts.backends_that(lambda backend: backend.runtime(cell.device))
        reason = f"nothing loads what {cell.backend} builds, only that of {having}{kept}"
    elif cell.mode not in backend.mode_names():
        reason = f"this version does not have its mode{kept}"
    elif no_script := backend.mode(cell.mode).no_script:
        reason = f"{no_script}{kept}"
    elif cell.task != INFERENCE:
        reason = f"only {INFERENCE} is exported, and this is {cell.task}"
    elif cell.dynamic and (runtime.exports_anew or not record.open_axes):
        reason = f"no program for a range of sizes is kept of it{kept}"
    elif cell.precision.is_quantised and not runtime.holds_quantised:
        reason = f"only the ONNX of a quantised model is exported{kept}"
    elif runtime.exports_anew and cell.environment:
        reason = f"it is exported anew by the torch beside Bakeoff, and it ran in {cell.environment}"
    elif not runtime.exports_anew and not record.artifact and record.is_in_part:
        rest = f"bakeoff resume {shlex.quote(str(run))}"
        reason = f"its artefact was not kept when the run ended. The rest of it keeps it: {rest}"
    elif not runtime.exports_anew and not record.artifact:
        reason = (
            "its artefact was not kept: measure it again without --no-artifacts, or with a higher --artifact-limit, "
            "or with room on the disk"
        )
    if reason or runtime is None:
        raise UsageError(f"{cell.id} cannot be exported: {reason}")
    return runtime


def _bring(record: Record, runtime: Runtime, run: Path, folder: Path) -> str:
    if runtime.exports_anew:
        program = runtime.files[0]
        if not runtime.pickles and (kept_program := _program_of(record, run)).exists():
            shutil.copyfile(kept_program, folder / program)
            return program
        require_same_model(Store(run), record.cell.reference_id)
        with Launchers("spawn") as launchers:
            try:
                _export_program(record, run, folder / program, launchers, runtime.pickles)
            except BakeoffError as error:
                raise UsageError(f"{record.cell.id} cannot be exported: {error}") from None
        return program
    kept = run / record.artifact
    name = next((name for name in runtime.files if (kept / name).exists()), None)
    if name is None:
        raise UsageError(f"{kept} has none of {', '.join(runtime.files)}: was the run's folder moved or cleaned?")
    others = tuple(f"{Path(other).stem}." for other in runtime.files if Path(other).stem != Path(name).stem)
    for file in kept.iterdir():
        if not file.name.startswith(others):
            shutil.copyfile(file, folder / file.name)
    return name


def keep_programs(report: Report, run: Path, of_all: bool) -> None:
    """Export now what may win, or all that is right, into the run's folder: nobody can load the model after the run. A
    cell for which that fails cannot be exported later, which is reported then."""
    for contest in contests_of(report):
        kept: set[Path] = set()  # several modes of a backend have the same program, and each precision its own
        for cell in (cell for cell in contest.cells if cell.rank is not None or cell.beyond):
            runtime = backends.create(cell.cell.backend).runtime(cell.cell.device)
            is_wanted = of_all or cell.label in (*contest.fastest.candidates, *contest.answer.candidates)
            if is_wanted and runtime and runtime.exports_anew and not (runtime.pickles or cell.cell.environment):
                program = _program_of(cell.record, run)
                if program in kept:
                    continue
                kept.add(program)
                program.parent.mkdir(exist_ok=True)
                with Launchers("spawn") as launchers, contextlib.suppress(BakeoffError):
                    _export_program(cell.record, run, program, launchers)


def _program_of(record: Record, run: Path) -> Path:
    return run / "programs" / f"{record.cell.reference_id}.pt2"


def _export_program(record: Record, run: Path, program: Path, launchers: Launchers, pickles: bool = False) -> None:
    """Export or pickle the model, if it still has the weights and gives the outputs that the run has kept."""
    store, reference_id = Store(run), record.cell.reference_id
    sample = store.sample(reference_id)
    repeats = record.traits is None or record.traits.begins_alike
    job = ExportProgram(
        cell=record.cell,
        program=program.resolve(),
        pickles=pickles,
        weights=store.origin(reference_id).weights,
        sample=sample.resolve() if repeats and sample.exists() else None,
    )
    probes.ask(launchers.first, job, Packaged, "exporting the model")


def description(report: Report, record: Record, runtime: Runtime, sample: Sample, artifact: str) -> dict[str, object]:
    cell = record.cell
    loading: dict[str, Any] = {
        "options": {},
        "variables": {},
        **backends.create(cell.backend).loading(cell, record.settings),
    }
    settings = script_parts.common_settings(report, record, loading["variables"])
    names = sample.call.get("names")
    names = names if isinstance(names, list) else [f"input_{number}" for number in range(len(sample.inputs))]
    inputs = zip(names, sample.inputs, sample.input_shapes, strict=True)
    return {
        "format": FORMAT,
        "label": cell.label,
        "title": cell.title,
        "device": str(cell.device),
        "file": artifact,
        "loader": runtime.loader,
        "imports": runtime.imports,
        "libraries": runtime.libraries,
        "thread_safety": _thread_safety(record, runtime),
        "settings": {
            **loading,
            **{name: settings[name] for name in SETTINGS},
            "variables": settings["variables"] if "torch" in runtime.libraries else {},  # nothing else reads them
        },
        "reported": settings["reported"],
        "inputs": [
            {"name": name, "type": kind, "shape": shape, "ranges": record.open_axes.get(number, {})}
            for number, (name, kind, shape) in enumerate(inputs)
        ],
        "outputs": [
            {"name": f"output_{number}", **output.model_dump(mode="json")}
            for number, output in enumerate(sample.outputs)
        ],
        "call": sample.call,
    }


SETTINGS = ("threads", "tf32", "graph", "channels_last", "fast_path", "calling")
"""What all loaders have in `Artifact.settings`, besides `options` and `variables`."""


def _thread_safety(record: Record, runtime: Runtime) -> Threads:
    captures = backends.create(record.cell.backend).mode(record.cell.mode).captures
    return runtime.threads_of_modes.get(record.cell.mode, Threads.TURNS if captures else runtime.threads)


def requirements(report: Report, record: Record, runtime: Runtime) -> list[str]:
    """Return the lines of requirements.txt: the exact versions that the record was measured with. A local version, such
    as torch's `+cpu`, is on no registry: it becomes a comment."""
    versions = {**report.environment.versions, **record.versions}
    lines = []
    for library in runtime.libraries:
        version = versions.get(library, "")
        public, _, local = version.partition("+")
        if local:
            lines.append(f"# {library} was {version}; see https://download.pytorch.org/whl/{local} for that build")
        lines.append(f"{library}=={public}" if version else library)
    return lines


def readme(
    report: Report,
    record: Record,
    runtime: Runtime,
    artifact: str,
    foreign: Sequence[str] = (),
    facts: Mapping[str, str] | None = None,
) -> str:
    served = ", ".join(
        f"axis {axis} of input {tensor} from {low} to {high}"
        for tensor, axes in record.open_axes.items()
        for axis, (low, high) in axes.items()
    )
    return script_parts.render(
        "README.md.jinja",
        {
            **script_parts.common_settings(report, record),
            "artifact": artifact,
            "operators": ", ".join(foreign),
            "portability": runtime.note,
            "thread_safety": _thread_safety(record, runtime),
            "facts": {
                "Cell": one_line(f"{record.cell.label}: {record.cell.title}"),
                "Error": _error(record),
                "Built in": f"{record.build_s:.3g} s",
                **({"Serves": served} if record.open_axes else {}),
                **({"Caution": one_line(". ".join(cautions(record)))} if cautions(record) else {}),
                **script_parts.facts_of(report, record),
                **(facts or {}),
            },
        },
    )


def cautions(record: Record) -> list[str]:
    """Return what keeps the cell from being a sure winner, whatever was asked, as sentences."""
    return [f"{record.cell.label}: {doubt.say()}" for doubt in record.doubts if isinstance(doubt, Unsure)]


def _error(record: Record) -> str:
    accuracy = record.accuracy
    if accuracy is None:
        return "not known"
    if not accuracy.has_errors:
        return f"not known: {accuracy.unchecked}"
    eager = "" if accuracy.eager_rmse is None else f", eager's {accuracy.eager_rmse:.2g}"
    return f"RMSE {accuracy.rmse:.2g} against the reference{eager}"


def foreign_operators(artifact: Path) -> list[str]:
    """Return such as `torchvision::nms` that the artefact calls: a module must register them before it is loaded."""
    if not zipfile.is_zipfile(artifact):  # an ONNX graph and OpenVINO's IR
        return []
    called: set[tuple[str, str]] = set()
    with zipfile.ZipFile(artifact) as package:
        for member in package.namelist():
            if pattern := _CALLS.get(Path(member).suffix):
                called |= set(pattern.findall(package.read(member).decode(errors="replace")))
    return sorted(f"{space}::{name}" for space, name in called if space not in {*TORCHS_OWN, *_NO_OPERATORS})
