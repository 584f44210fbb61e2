"""The shell commands in the documents: how a test runs each of them, or why none can."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.checkout import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^`([\w./-]+)`:\n\n```(?:python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TABLE_STARTS = "TABLE: dict[str, str] = {\n"
COMMENT = re.compile(r"\s+#\s.*$")


@dataclass(frozen=True)
class Command:
    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


NOT_RUN = {
    r"^(\. \.venv/bin/activate|make )": "sets up its own environment; CI itself is `make test`",
    r"^docker ": "needs Docker; tests/container builds the image and runs the same arguments in it",
    r"^printf .* > \.env$": "only Docker Compose reads it",
    r"^pipx? ": "changes what is installed",
    r" (explain|blame) ": "builds cells of a run again; tests/why does it with small models",
    r" start results/": "starts processes for a minute; tests/shipping/test_loading.py starts a small folder",
    r" publish results/": "needs two runs; tests/reports/test_page.py publishes two",
    r" bisect ": "installs packages; tests/commands/test_scripts_and_environments.py finds a planted version",
    r" max-batch ": "takes minutes; tests/commands/test_checks.py finds a batch",
    r" run-script ": "runs a script of the reader's; tests/commands/test_scripts_and_environments.py runs several",
    r" env (add|remove) |onnx@old": "installs a package; test_scripts_and_environments.py makes an environment",
    r"^git ": "reads the history, which a copy of the checkout has not got",
    r"--devices cuda": "needs an NVIDIA GPU",
    r"report results/zoo-1 ": "joins runs on GPUs; tests/reports/test_suite_report.py joins two",
    r"^bakeoff doctor( --json > doctor\.json)?$": "takes minutes; pages also name backends",
    r"--model my_model\.py:factory( --set batch=1,8,64)?$": "runs every backend; recipes.md has a sweep of two",
    r"^bakeoff --model mlp (--dry-run|--budget 60s|--json > answer\.json)$": (
        "runs every backend; tests/test_cli.py has these options"
    ),
    r"--preset zoo-small": "measures 53 models; tests/scaling/test_pool.py measures side by side",
    r"--preset serving": "takes minutes; tests/measuring/test_load_run.py puts cells under load",
    r"^tritonserver |--format triton": "nothing here is a server; tests/shipping/test_export.py exports for one",
    r"--format cpp": "needs CMake; tests/shipping/test_export.py builds the program",
    r"^python -m pytest -m container": "is the test that it names",
}
"""Patterns of commands that no test runs, and why. Commands of the runner are planned all the same."""

FOLLOWED = {
    "docs/how-to-add-a-backend.md": "tests/docs/test_how_to_add_a_backend.py follows the page",
    "docs/adding-a-model.md": "tests/docs/test_how_to_add_a_backend.py follows the page",
}
"""Pages that another test follows, in a copy of the checkout."""


def commands(page: Path, root: Path = ROOT) -> Iterator[Command]:
    """Yield the commands of a page below `root` in order, without comments.

    In console blocks a command follows `$ `. In other blocks each line is one.
    """
    name = page.relative_to(root).as_posix()
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        lines = block.replace("\\\n", " ").splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")]
        for line in typed or lines:
            if text := " ".join(COMMENT.sub("", line).split()):
                yield Command(name, text)


def files(page: Path) -> dict[str, str]:
    """Return the files that the page has its reader write: a name in backticks and a colon, then a block of text."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


def reason(command: Command) -> str:
    """Return why no test runs the command, or an empty string."""
    if command.page in FOLLOWED:
        return FOLLOWED[command.page]
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command.text)), "")


ALL = [command for page in PAGES for command in commands(page)]


def copy_checkout(folder: Path, files: Mapping[str, str], table: str, row: str) -> Path:
    """Copy the code into `folder`, add `files`, and add `row` to the table in the file `table`."""
    for part in ("bakeoff", "examples"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("runner.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    text = (folder / table).read_text(encoding="utf-8")
    assert text.count(TABLE_STARTS) == 1
    (folder / table).write_text(text.replace(TABLE_STARTS, TABLE_STARTS + row), encoding="utf-8")
    return folder


def follow(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    assert command[0] == "python"
    return subprocess.run(
        [sys.executable, *command[1:]],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
    )
