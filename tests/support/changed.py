"""Prints the test files to run for what changed since a commit: `python -m tests.support.changed main`.

`make fast` runs them. They are a quick look, not a proof: `make test` runs every test.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.checkout import ROOT

ALWAYS = (
    "tests/planning/test_config.py",
    "tests/planning/test_time_plan.py",
    "tests/measuring/test_rounds.py",
    "tests/judging/test_contest.py",
    "tests/judging/test_costs.py",
    "tests/reports/test_sentences.py",
    "tests/reports/test_columns.py",
)
"""Files that take a second or so each, from every room that computes without a model."""

TOO_SLOW = {
    *("test_conformance.py", "test_quantising.py", "test_run.py", "test_cli.py"),
    *("test_export.py", "test_fit.py", "test_streams.py", "test_image.py"),
}
"""Files that take most of a minute. They run only if they were changed themselves."""

MOST_FILES = 12
"""Most test files that are added for changed code. A change that reaches further needs `make test`."""


def changed_since(commit: str) -> list[str]:
    """Return the Python files that differ from the commit from which this branch began, uncommitted ones included."""
    base = _git("merge-base", "HEAD", commit).strip()
    named = _git("diff", "--name-only", "--diff-filter=d", base) + _git("ls-files", "--others", "--exclude-standard")
    return sorted({name for name in named.splitlines() if name.endswith(".py")})


def select_tests(changed: Iterable[str]) -> list[str]:
    """Return the test files for these files: themselves, those of the same name, and those that import them."""
    changed = list(changed)
    own = [name for name in changed if _is_test(name) and (ROOT / name).exists()]
    folders = (ROOT / "tests", ROOT / "plugins")
    tests = [path.relative_to(ROOT).as_posix() for folder in folders for path in sorted(folder.rglob("test_*.py"))]
    quick = [name for name in tests if Path(name).name not in TOO_SLOW]
    stems = {Path(name).stem for name in changed if name.startswith(("bakeoff/", "plugins/"))}
    of_the_name = [name for name in quick if Path(name).stem.removeprefix("test_") in stems]
    importing = [name for name in quick if any(_imports(ROOT / name, module) for module in _modules(changed))]
    added = list(dict.fromkeys([*of_the_name, *importing]))[:MOST_FILES]
    always = [name for name in ALWAYS if (ROOT / name).exists()]
    return list(dict.fromkeys([*own, *added, *always]))


def _is_test(name: str) -> bool:
    return name.startswith(("tests/", "plugins/")) and Path(name).name.startswith("test_")


def _modules(changed: Iterable[str]) -> Iterator[str]:
    """Yield `bakeoff.planning.plan` for `bakeoff/planning/plan.py`. What lies before a folder `src` is no package."""
    for name in changed:
        of_ours = name.startswith(("bakeoff/", "plugins/", "tests/support/", "benchmarks/"))
        if of_ours and not name.endswith("__init__.py"):
            yield name.rpartition("/src/")[2].removesuffix(".py").replace("/", ".")


def _imports(test: Path, module: str) -> bool:
    package, _, name = module.rpartition(".")
    pattern = rf"\b{re.escape(module)}\b|^from {re.escape(package)} import .*\b{name}\b"
    return re.search(pattern, test.read_text(encoding="utf-8"), re.MULTILINE) is not None


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    print(*select_tests(changed_since(sys.argv[1] if len(sys.argv) > 1 else "main")))  # noqa: T201
