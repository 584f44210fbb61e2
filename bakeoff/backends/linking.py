"""Linker options for packages that AOTInductor compiles, so that they load on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SHARED_LIBSTDCXX = "libstdc++.so.6"

LINKED = "aot_inductor.custom_op_libs"
"""Inductor's option that names further libraries of a package."""


def linker_options() -> dict[str, Any]:
    """Return the options of Inductor that a package needs to load on this machine.

    On some machines the compiler finds no shared libstdc++ (a dangling symlink is enough), and the linker silently
    takes the static one. The package then holds a second C++ runtime, its symbols mix with those of the first, and
    loading it ends with signal 11. Naming the shared library by its file avoids that.
    """
    if sys.platform != "linux" or _finds_shared_libstdcxx():
        return {}
    return {LINKED: [f":{SHARED_LIBSTDCXX}"]}


def _finds_shared_libstdcxx() -> bool:
    """Return True if the C++ compiler would link the shared libstdc++, or cannot be asked."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    asked = subprocess.run(
        [get_cpp_compiler(), "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=False
    )
    found = asked.stdout.strip()
    # a compiler that does not find the library prints its bare name
    return asked.returncode != 0 or (os.sep in found and Path(found).exists())
