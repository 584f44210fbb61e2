#!/usr/bin/env python3
"""How many planted faults do the tests of a room find?

    python benchmarks/mutations.py judging planning measuring truth --count 100
    python benchmarks/mutations.py judging planning --count 30 --seed 7

Each fault is one changed expression: a comparison is reversed, `+` and `-` or `*` and `/` change places, a number
grows by one, `and` becomes `or`, or a function returns None. It is planted into a copy of this folder, where the tests
of its room then run until one fails. Tests that fail there without a fault are left out. Some faults change nothing
that anybody could see, so that 100 % is not the aim: compare two commits with one seed.
"""

import argparse
import ast
import json
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import ROOT, Limit, say

LEFT_BEHIND = shutil.ignore_patterns(".*", "results", "build", "__pycache__")
PAIRS: list[tuple[Any, Any]] = [
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.And, ast.Or),
    (ast.Eq, ast.NotEq),
    (ast.Lt, ast.GtE),
]
PAIRS += [(ast.Gt, ast.LtE), (ast.Is, ast.IsNot), (ast.In, ast.NotIn)]
SWAPS = dict(PAIRS) | {second: first for first, second in PAIRS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="+", help="folders of bakeoff/, such as judging")
    parser.add_argument("--count", type=int, default=100, help="[100]")
    parser.add_argument("--seed", type=int, default=1, help="[1]")
    parser.add_argument("--jobs", type=int, default=1, help="faults that are tried at a time [1]")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds after which no fault is planted")
    parser.add_argument("--root", type=Path, default=ROOT, help="another version's folder [this one]")
    options = parser.parse_args()
    root, limit = options.root.resolve(), Limit(options.limit)
    files = sorted(path for room in options.rooms for path in (root / "bakeoff" / room).rglob("*.py"))
    faults = [(path, index) for path in files for index in range(len(list(faults_in(path))))]
    chosen = random.Random(options.seed).sample(faults, min(options.count, len(faults)))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: queue.Queue[Path] = queue.Queue()
        for number in range(options.jobs):
            copies.put(shutil.copytree(root, Path(folder) / str(number), symlinks=True, ignore=LEFT_BEHIND))

        def failing_in(room: str) -> list[str]:
            copy = copies.get()
            passes = tests_pass(copy, room)
            file = copy / ".pytest_cache/v/cache/lastfailed"
            failing = [] if passes else list(json.loads(file.read_text(encoding="utf-8")))
            say(f"{room}: {len(failing)} tests fail without a fault, and are left out")
            copies.put(copy)
            return failing

        left_out = dict(zip(options.rooms, pool.map(failing_in, options.rooms), strict=True))

        def is_found(fault: tuple[Path, int]) -> bool | None:
            path, index = fault
            if limit.left_s <= 0:
                return None
            copy, name = copies.get(), path.relative_to(root)
            line, said, changed = list(faults_in(path))[index]
            (copy / name).write_bytes(changed)
            missed = tests_pass(copy, name.parts[1], "-x", *(f"--deselect={test}" for test in left_out[name.parts[1]]))
            (copy / name).write_bytes(path.read_bytes())
            copies.put(copy)
            say(f"{'MISSED' if missed else 'found '} {name}:{line}: {said}")
            return not missed

        tried = [found for found in pool.map(is_found, chosen) if found is not None]
    say(f"{sum(tried)} of {len(tried)} faults found")


def faults_in(path: Path) -> Iterator[tuple[int, str, bytes]]:
    """Yield the line, the changed expression and the changed file for every fault that can be planted into a file."""
    lines = path.read_bytes().splitlines(keepends=True)
    for node in ast.walk(ast.parse(path.read_bytes())):
        mutant = mutant_of(node)
        if isinstance(node, ast.expr | ast.stmt) and mutant and node.end_lineno:
            said = ast.unparse(mutant) if isinstance(mutant, ast.stmt) else f"({ast.unparse(mutant)})"
            head, tail = lines[node.lineno - 1][: node.col_offset], lines[node.end_lineno - 1][node.end_col_offset :]
            changed = [*lines[: node.lineno - 1], head, said.encode(), tail, *lines[node.end_lineno :]]
            yield node.lineno, said, b"".join(changed)


def mutant_of(node: ast.AST) -> ast.expr | ast.stmt | None:
    match node:
        case ast.Compare() if swapped := SWAPS.get(type(node.ops[0])):
            return ast.Compare(node.left, [swapped(), *node.ops[1:]], node.comparators)
        case ast.BinOp() if swapped := SWAPS.get(type(node.op)):
            return ast.BinOp(node.left, swapped(), node.right)
        case ast.BoolOp():
            return ast.BoolOp(SWAPS[type(node.op)](), node.values)
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return ast.Constant(number + 1)
        case ast.Return(value=ast.expr()):
            return ast.Return(ast.Constant(None))
    return None


def tests_pass(folder: Path, room: str, *options: str) -> bool:
    """Return True if every test of the room passes in this copy. A test that hangs fails after two minutes."""
    path = filter(None, (str(folder), str(folder / "plugins/hotpath/src"), os.environ.get("PYTHONPATH")))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:benchmark", "--timeout", "120", *options]
    return not subprocess.run([*pytest, f"tests/{room}"], cwd=folder, env=environment, capture_output=True).returncode


if __name__ == "__main__":
    main()
