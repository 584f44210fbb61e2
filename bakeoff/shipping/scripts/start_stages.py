"""Starts an exported folder in a fresh process, stage by stage, and says when each stage ended.

It is started as `python start_stages.py FOLDER`, and imports nothing that the folder's `load.py` does not. After the
tenth answer it waits for a line on standard input, and then checks the folder's outputs.
"""

import sys
import time

BEGAN_NS = time.monotonic_ns()


def run_stages(path: str) -> int:
    """Run the stages and write the time at which each ended, in ns of the monotonic clock. Return the exit status."""
    sys.path[0] = path
    from pathlib import Path

    from runtime import folder

    ends_ns = [BEGAN_NS]
    description = folder.read(Path(path))
    folder.set_process_up(Path(path), description)
    ends_ns.append(time.monotonic_ns())
    measured = folder.Measured(Path(path), description)
    ends_ns.append(time.monotonic_ns())
    measured.answer(0)
    ends_ns.append(time.monotonic_ns())
    for number in range(1, 10):
        measured.answer(number)
    ends_ns.append(time.monotonic_ns())
    sys.stdout.write(f"\nbakeoff start: {' '.join(map(str, ends_ns))}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    return 0 if measured.check() else 1


if __name__ == "__main__":
    sys.exit(run_stages(sys.argv[1]))
