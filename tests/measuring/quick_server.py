"""Fork servers without torch, which start in a tenth of the time. Their workers can only try to import a module.

The process of such a server executes this file, before it serves.
"""

import importlib
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from bakeoff.measuring import isolation, messages
from bakeoff.measuring.controller.server_start import command_of


def command() -> list[str]:
    """Return the command of an interpreter with the stubs, for `ForkLauncher`."""
    *python, code = command_of(sys.executable)
    ours = f"exec(open({str(Path(__file__))!r}).read()); put_in_place()"
    return [*python, code.replace("; exec(", f"; {ours}; exec(")]


def put_in_place() -> None:
    """Put stubs in the place of what imports torch, and of torch."""
    asked = dict.fromkeys(("current_device", "get_device_capability", "get_device_properties"))
    _stub("torch", cuda=SimpleNamespace(**asked))
    _stub("bakeoff.measuring.worker.main", main=work)
    _stub("bakeoff.measuring.worker.sampling", freeze_garbage=lambda: None, no_garbage_collection=SuspendedNothing)


def _stub(name: str, **content: Any) -> None:
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)


class SuspendedNothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def work(connection: Connection, assignment: messages.Assignment) -> NoReturn:
    assert isinstance(assignment.job, messages.TryImport)
    os.setsid()
    isolation.die_with_parent()
    os.environ.clear()
    os.environ.update(assignment.environment)
    reason = ""
    try:
        importlib.import_module(assignment.job.module)
    except Exception as error:
        reason = str(error)
    messages.send(connection, messages.Tried(reason=reason))
    os._exit(0)
