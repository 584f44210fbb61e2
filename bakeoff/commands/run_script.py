"""Runs a user's own script unchanged, and offers the modules that it calls as contests: `bakeoff run-script`."""

import contextlib
import runpy
import shlex
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from bakeoff.models import live_model
from bakeoff.models.script_watch import TRAINING, Watch, WatchedModule, watched
from bakeoff.records.errors import UsageError, first_line, unknown
from bakeoff.records.schema import TRAIN_STEP, Frozen
from bakeoff.reports.blocks import Block, Code, Look, Text
from bakeoff.reports.console import console_for, print_blocks, print_json, say
from bakeoff.reports.number_format import count, percent, seconds
from bakeoff.reports.tables import Column, Table

FACTORY = '''"""{name} of {script}, recorded by `bakeoff run-script`: weights and code lie beside this file."""

from pathlib import Path

from bakeoff.models.live_model import load_saved


def factory():
    return load_saved(Path(__file__).parent)
'''


class FoundModule(Frozen):
    """One module that the script called from outside of other modules, in one mode."""

    name: str
    called_at: str  # the file and line of the first call
    mode: str  # `inference`, or `training`: in training mode with gradients, and without the backward pass
    calls: int
    instances: int
    seconds: float
    share: float  # of the time of the script
    sizes: dict[str, int]  # calls by their size
    why_not: str = ""  # why no inputs could be recorded
    command: str = ""  # records it

    @classmethod
    def seen(cls, row: WatchedModule, script_s: float, command: str) -> "FoundModule":
        reasons = [] if len(row.calls) else row.calls.reasons
        return cls.of(
            row,
            calls=row.calls.count,
            share=row.seconds / script_s,
            sizes=row.calls.sizes,
            why_not="; ".join(reasons),
            command="" if reasons else command,
        )


class RunScriptAnswer(Frozen):
    """What `bakeoff run-script --json` prints. The module that took most of the time comes first."""

    script: str
    failure: str  # why the script failed; empty if it did not
    seconds: float
    modules: tuple[FoundModule, ...]
    recorded: str = ""  # the name of the module that was recorded
    command: str = ""  # compares backends on it

    def blocks(self) -> list[Block]:
        columns: list[Column[FoundModule]] = [
            Column("module", lambda found: found.name, is_text=True),
            Column("called at", lambda found: found.called_at, is_text=True),
            Column("mode", lambda found: found.mode, is_text=True),
            Column("calls", lambda found: found.calls, write=count),
            Column("s", lambda found: found.seconds, write=seconds),
            Column("share", lambda found: f"{percent(found.share)} %"),
            Column(
                "inputs", lambda found: ", ".join([*found.sizes][:2] + ["..."] * (len(found.sizes) > 2)), is_text=True
            ),
        ]
        ended = f"{self.script} failed: {self.failure}" if self.failure else f"{self.script} took {self.seconds:.1f} s"
        reasons = [f"{found.name} cannot be recorded: {found.why_not}" for found in self.modules if found.why_not]
        return [
            Text(ended, Look.WARNING if self.failure else Look.PLAIN),
            Table(columns, self.modules) if self.modules else Text("It called no torch.nn.Module."),
            *(Text(reason, Look.SOFT) for reason in reasons),
            Code("\n".join(found.command for found in self.modules if found.command), "sh", "To record one of them"),
        ]


def run_script(script: Path, arguments: Sequence[str], find: bool, module: str, out: Path | None, as_json: bool) -> int:
    """Run, say what was called, and record a module unless it is only to `find` them. Return 1 if the script failed.
    Raise UsageError where there is no such script, or the module that is named was not called."""
    if not script.is_file():
        raise UsageError(f"no script {script}")
    watch, console = Watch(keeps_modules=bool(module) or not find, wanted=module), console_for(as_json)
    words = shlex.join([str(script), *(["--", *arguments] if arguments else [])])
    with _as_script(script, arguments):
        begun_s = time.perf_counter()
        with watched(watch), contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
            failure = _run(script)
        script_s = time.perf_counter() - begun_s
        rows = sorted(watch.rows.values(), key=lambda row: -row.seconds)
        found = [FoundModule.seen(row, script_s, f"bakeoff run-script --module '{row.name}' {words}") for row in rows]
        answer = RunScriptAnswer(script=str(script), failure=failure, seconds=script_s, modules=tuple(found))
        print_blocks(answer.blocks(), console)
        if module and all(row.name != module for row in rows):
            raise unknown("module", module, [row.name for row in rows], f"{script} calls these")
        # some sizes with values are enough
        if chosen := next((row for row in rows if row.module is not None and (module or len(row.calls))), None):
            command = record(chosen, script, out or Path(f"recorded-{chosen.name.replace('#', '-')}"))
            say(f"To compare backends on {chosen.name}: {command}", console)
            answer = answer.but(recorded=chosen.name, command=command)
    status = 1 if failure else 0
    return print_json(answer, status) if as_json else status


def record(row: WatchedModule, script: Path, folder: Path) -> str:
    """Write the module and its calls into `folder`, and return the command that compares backends on them. Raise
    UsageError for what cannot be recorded."""
    assert row.module is not None
    folder.mkdir(parents=True, exist_ok=True)
    calls, factory = row.calls.save(folder / "calls.pt"), folder / "model.py"
    live_model.save(row.module, next(iter(row.calls)), folder)
    factory.write_text(FACTORY.format(name=row.name, script=script.name), encoding="utf-8")
    task = f" --task {TRAIN_STEP}" if row.mode == TRAINING else ""
    return f"bakeoff --model {shlex.quote(f'{factory}:factory')} --inputs {shlex.quote(str(calls))}{task}"


@contextlib.contextmanager
def _as_script(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Give the block the arguments and the search path that `python SCRIPT` gives."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.resolve().parent)]
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def _run(script: Path) -> str:
    """Run a script, and return why it failed, or an empty text."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        return "" if ended.code in (None, 0) else f"it exited with {ended.code}"
    except KeyboardInterrupt:
        return "it was interrupted"
    except Exception as error:  # a user's script may raise anything
        traceback.print_exc()
        return f"{type(error).__name__}: {first_line(error)}"
    return ""
