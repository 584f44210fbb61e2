"""The shell commands in the documents, and how a test runs each of them, or why none can."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.controller.launcher import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(?:console|bash|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^`([\w./-]+)`:\n\n```(?:python|toml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s+#\s.*$")


@dataclass(frozen=True)
class Command:
    page: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


NOT_RUN = {
    r"^(\. \.venv/bin/activate|make )": "sets up an environment of its own; CI itself is `make test`",
    r"^docker ": "needs Docker; tests/container builds the image and runs the same arguments in it",
    r"^printf .* > \.env$": "is read by Docker Compose alone",
    r"^pip ": "changes what is installed",
    r"^apt-get ": "changes the machine",
    r"^git ": "reads the history, which a copy of the checkout has not got",
    r"^cpupower ": "changes the machine",
    r"^nvidia-smi ": "needs an NVIDIA GPU",
    r"--devices cuda": "needs an NVIDIA GPU",
    r"^python runner\.py list$": "asks every backend; tests/test_runner.py runs it",
    r"--model examples/minilm\.py:factory$": "is on every backend, which takes minutes; tests/models has this model",
    r'--calls 1000 --require "p99_ms<5, build_s<60"$': "is on every backend and model; recipes.md has it small",
    r"^python runner\.py doctor( --json > doctor\.json)?$": "takes a minute a backend; named ones are run",
    r"^python runner\.py --model mlp --set batch=1,8,64$": "is on every backend; recipes.md has a sweep of two",
    r"^python -m pytest -m container": "is what it names",
}
"""Commands that no test here runs, by what they look like, and why. Those of the runner are planned all the same."""

FOLLOWED = {
    "docs/how-to-add-a-backend.md": "tests/docs/test_how_to_add_a_backend.py follows the page",
    "docs/adding-a-model.md": "tests/docs/test_adding_a_model.py follows the page",
}
"""Pages whose commands only make sense in a copy of the checkout, and the test that makes one."""


def commands(page: Path) -> Iterator[Command]:
    """The page's commands in order: what stands after `$ ` in console blocks, else each line; comments left out."""
    name = page.relative_to(ROOT).as_posix()
    for block in BLOCK.findall(page.read_text(encoding="utf-8")):
        lines = block.replace("\\\n", " ").splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")]
        for line in typed or lines:
            if text := " ".join(COMMENT.sub("", line).split()):
                yield Command(name, text)


def files(page: Path) -> dict[str, str]:
    """Files that the page has its reader write: a name between backticks and a colon, then its text in a block."""
    return dict(FILE.findall(page.read_text(encoding="utf-8")))


def reason(command: Command) -> str:
    """Why no test runs the command, or nothing."""
    if command.page in FOLLOWED:
        return FOLLOWED[command.page]
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, command.text)), "")


ALL = [command for page in PAGES for command in commands(page)]
