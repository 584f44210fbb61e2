"""The folder of one model, as Hugging Face's libraries write it: config.json, and weights as safetensors.

It is fetched from the Hugging Face hub in a pinned revision: configuration and safetensors only. The hub's address and
the folder of the cache are huggingface_hub's own: HF_ENDPOINT, HF_HOME and HF_HUB_CACHE.
"""

import functools
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bakeoff.records.errors import UsageError, first_line

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
INDEX = "*.safetensors.index.json"

FACTORY_INSTEAD = "write a factory and name it as path/to/file.py:FACTORY (docs/recipes.md shows one)"


def read_config(model: str, folder: Path, takes: str) -> dict[str, Any]:
    """Return the object in the folder's config.json. If there is none, raise UsageError with what a source `takes`."""
    if not folder.is_dir():
        raise UsageError(f"{model}: no folder {folder}: {takes}")
    path = folder / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UsageError(f"{model}: no config.json in {folder}: {takes}") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{model}: cannot read {path}: {error}") from None
    if not isinstance(config, dict):
        raise UsageError(f"{model}: {path} holds no object")
    if "quantization_config" in config:
        raise UsageError(f"{model}: its weights are quantised: Bakeoff takes float weights and chooses the precision")
    return config


def has_weights(model: str, folder: Path, model_class: str) -> bool:
    """Return False if the folder holds a bare configuration. Raise UsageError for weights that cannot be read."""
    weights = sorted(folder.glob("*.safetensors"))
    for file in weights:
        with file.open("rb") as stream:
            if stream.read(16) == b"version https://":
                raise UsageError(f"{model}: {file} is a Git LFS pointer, not weights: run `git lfs pull` in {folder}")
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if not weights and pickles:
        raise UsageError(
            f"{model}: {pickles[0]} can run code when read, Bakeoff takes safetensors only: convert it once with "
            f"{model_class}.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    if not weights and (index := next(folder.glob(INDEX), None)):
        raise UsageError(f"{model}: {index.name} names weights, and there is no *.safetensors in {folder}")
    return bool(weights)


NAME = re.compile(r"(?P<repository>[\w-][\w.-]*/[\w-][\w.-]*)(@(?P<revision>[\w./-]+))?")
COMMIT = re.compile(r"[0-9a-f]{40}")

FILES = ("config.json", "model*.safetensors", "model.safetensors.index.json")
"""What is downloaded of a repository. It holds no code and nothing that runs code when it is read."""


@dataclass(frozen=True)
class Commit:
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
