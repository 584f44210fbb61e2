"""Loads an exported folder in a fresh process, whose compilers keep what they make in a cache of its own.

It is started as `python compile_folder.py FOLDER`, and notes there with which torch and for what it has compiled.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path


def compile_folder(path: Path) -> int:
    """Return 1 if an output is wrong."""
    sys.path[0] = str(path)
    from runtime import folder

    description = folder.read(path)
    folder.set_process_up(path, description)
    artifact = folder.artifact_of(path, description)
    in_programs = {**artifact.settings, "calling": "no_grad"}  # as `bakeoff.load` calls it
    folder.load(replace(artifact, settings=in_programs), description["loader"])
    is_right = folder.Measured(path, description).check()
    from runtime import torch_programs

    made_by = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], torch_programs.MADE_BY)
    made_by.write_text(torch_programs.maker(), encoding="utf-8")
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(compile_folder(Path(sys.argv[1])))
