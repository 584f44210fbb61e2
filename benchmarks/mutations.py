#!/usr/bin/env python3
"""How many planted faults do the tests of a room find?

    python benchmarks/mutations.py judging planning measuring truth --count 100
    python benchmarks/mutations.py judging planning --count 30 --seed 7

Each fault is one changed expression: a comparison is reversed, `+` and `-` or `*` and `/` change places, a number
grows by one, `and` becomes `or`, or a function returns None. It is planted into a clone of the last commit, where the
tests of its room then run until one fails. Some faults change nothing that anybody could see, so that 100 % is not the
aim: compare two commits with one seed.
"""

import argparse
import ast
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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
    options = parser.parse_args()
    files = sorted(path for room in options.rooms for path in (ROOT / "bakeoff" / room).rglob("*.py"))
    faults = [(path, index) for path in files for index in range(len(list(faults_in(path))))]
    chosen = random.Random(options.seed).sample(faults, min(options.count, len(faults)))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
        for room in options.rooms:
            if not tests_pass(Path(folder), room):
                sys.exit(f"tests/{room} fails without a fault")
        found = 0
        for path, index in chosen:
            name = path.relative_to(ROOT)
            line, said, changed = list(faults_in(path))[index]
            (Path(folder) / name).write_bytes(changed)
            missed = tests_pass(Path(folder), name.parts[1])
            (Path(folder) / name).write_bytes(path.read_bytes())
            found += not missed
            print("MISSED" if missed else "found ", f"{name}:{line}: {said}", flush=True)  # noqa: T201
    print(f"{found} of {len(chosen)} faults found")  # noqa: T201


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


def tests_pass(folder: Path, room: str) -> bool:
    """Return True if every test of the room passes in this clone. A test that hangs fails after two minutes."""
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{folder / 'plugins/hotpath/src'}"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--timeout", "120", f"tests/{room}"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True).returncode == 0


if __name__ == "__main__":
    main()
