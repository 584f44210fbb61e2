"""How a package that AOTInductor compiles is linked, so that it can be loaded on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SHARED_LIBSTDCXX = "libstdc++.so.6"

LINKED = "aot_inductor.custom_op_libs"
"""Inductor's option for further libraries of a package."""


def linker_options() -> dict[str, Any]:
    """What Inductor needs to be told so that the package can be loaded on this machine.

    Where the compiler finds no shared libstdc++ to link (a dangling symlink is enough, as on the H200 machine that we
    use), the linker silently takes the static one. The package then holds a second C++ runtime whose unique symbols are
    merged with those of the running one, and loading dies with signal 11 in std::regex, which parses the device's name.
    Naming the shared library by its file avoids that.
    """
    if sys.platform != "linux" or _finds_shared_libstdcxx():
        return {}
    return {LINKED: [f":{SHARED_LIBSTDCXX}"]}


def _finds_shared_libstdcxx() -> bool:
    """Whether the C++ compiler would link the shared libstdc++; yes for one that cannot be asked, or has another."""
    from torch._inductor.cpp_builder import get_cpp_compiler

    asked = subprocess.run(
        [get_cpp_compiler(), "-print-file-name=libstdc++.so"], capture_output=True, text=True, check=False
    )
    found = asked.stdout.strip()
    # a compiler that does not find it prints the bare name
    return asked.returncode != 0 or (os.sep in found and Path(found).exists())
