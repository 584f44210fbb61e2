"""Fetches models from the Hugging Face hub: a pinned revision, configuration and safetensors only.

The hub's address and the folder of the cache are huggingface_hub's own: HF_ENDPOINT, HF_HOME and HF_HUB_CACHE.
"""

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bakeoff.records.errors import UsageError, first_line

NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")

FILES = ("config.json", "model*.safetensors", "model.safetensors.index.json")
"""What is downloaded of a repository. It holds no code and nothing that runs code when it is read."""


@dataclass(frozen=True)
class Commit:
    """One state of a repository, which cannot change any more."""

    repository: str
    sha: str

    def __str__(self) -> str:
        return f"{self.repository}@{self.sha}"


@functools.cache
def commit_of(source: str) -> Commit | None:
    """Return the commit that `ORG/NAME` or `ORG/NAME@REVISION` is now, or None if `source` has another form."""
    match = NAME.fullmatch(source)
    if match is None:
        return None
    repository, revision = match["repository"], match["revision"] or "main"
    if COMMIT.fullmatch(revision):
        return Commit(repository, revision)
    with _explained(source):
        return Commit(repository, str(_library(source).HfApi().model_info(repository, revision=revision).sha))


@functools.cache
def folder_with_config(commit: Commit) -> Path:
    """Return the folder of the cache that has the commit's config.json, and its weights if they were downloaded."""
    with _explained(str(commit)):
        path = _library(str(commit)).hf_hub_download(commit.repository, "config.json", revision=commit.sha)
    return Path(path).parent


def download_weights(commit: Commit) -> None:
    """Download the weights into the folder of config.json. Raises UsageError if there are no safetensors."""
    library = _library(str(commit))
    with _explained(str(commit)):
        folder = Path(library.snapshot_download(commit.repository, revision=commit.sha, allow_patterns=list(FILES)))
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"hf:{commit} has no model*.safetensors: Bakeoff reads no pickles, which can run code")


def _library(source: str) -> Any:
    try:
        import huggingface_hub
    except ImportError as error:
        raise UsageError(f"hf:{source} needs huggingface_hub: pip install transformers") from error
    return huggingface_hub


@contextmanager
def _explained(source: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of httpx, requests, the operating system or huggingface_hub, by version
        from huggingface_hub import constants

        raise UsageError(
            f"hf:{source} is no folder here, and {constants.ENDPOINT} did not give it: "
            f"{type(error).__name__}: {first_line(error)}"
        ) from error
