"""Runs an exported script in a fresh process, stage by stage, and says when each stage ended.

It is started as `python start_stages.py SCRIPT IMPORTS_END LOAD_END CHECK_BEGIN CHECK_END`, with numbers of lines, and
imports nothing that the script does not. After the tenth answer it waits for a line on standard input, and then runs
the lines with the script's own check of its outputs.
"""

import sys
import time

BEGAN_NS = time.monotonic_ns()


def run_stages(script: str, imports_end: int, load_end: int, check_begin: int, check_end: int) -> None:
    """Run the stages of `script` and write the time at which each ended, in ns of the monotonic clock."""
    names = globals()  # those of the script, as if it were started itself
    with open(script, encoding="utf-8") as file:
        lines = file.read().split("\n")

    def run(begin: int, end: int) -> None:
        # empty lines before it keep the numbers of lines in tracebacks
        exec(compile("\n" * begin + "\n".join(lines[begin:end]) + "\n", script, "exec"), names)

    def answer(number: int) -> None:
        names["bind"](number % len(names["input_sets"]))()
        if "stream" in names:  # torch's, on a GPU
            names["stream"].synchronize()

    ends_ns = [BEGAN_NS]
    run(0, imports_end)
    ends_ns.append(time.monotonic_ns())
    run(imports_end, load_end)
    ends_ns.append(time.monotonic_ns())
    if "torch" in names:
        calling = "no_grad" if "torch.no_grad()" in "".join(lines[load_end:]) else "inference_mode"  # as in the script
        getattr(names["torch"], calling)().__enter__()  # for the rest of this process
    answer(0)
    ends_ns.append(time.monotonic_ns())
    for number in range(1, 10):
        answer(number)
    ends_ns.append(time.monotonic_ns())
    sys.stdout.write(f"\nbakeoff start: {' '.join(map(str, ends_ns))}\n")
    sys.stdout.flush()
    sys.stdin.readline()
    if check_end > check_begin:
        lines[check_begin - 1] = "if True:"
        run(check_begin - 1, check_end)


if __name__ == "__main__":
    sys.path[0] = sys.argv[1].replace("\\", "/").rpartition("/")[0] or "."
    __file__ = sys.argv[1]
    run_stages(sys.argv[1], *map(int, sys.argv[2:]))
