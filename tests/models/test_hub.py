"""Models of a Hugging Face hub, which is a small server on this machine."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from bakeoff import models
from tests.support.checkout import python

transformers = pytest.importorskip("transformers")
SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of each repository: one has safetensors and code, one has only a pickle."""
    folder = tmp_path_factory.mktemp("hub")
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=40
    )
    transformers.BertModel(config).save_pretrained(folder / "org/tiny")
    (folder / "org/tiny/modeling_mine.py").write_text("raise SystemExit")
    config.save_pretrained(folder / "org/pickled")
    (folder / "org/pickled/pytorch_model.bin").write_bytes(b"a pickle")
    return folder


@pytest.fixture(scope="module")
def hub(repositories: Path) -> Iterator[str]:
    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            parts = self.path.partition("?")[0].strip("/").split("/")
            api = parts[:2] == ["api", "models"]
            repository = "/".join(parts[2:4] if api else parts[:2])
            folder = repositories / repository
            if not folder.is_dir():
                return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
            if not api:
                file = folder / parts[-1]
                if not file.exists():
                    return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
                content = file.read_bytes()
                return self.answer(
                    200, content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": SHA}
                )
            files = sorted(path.name for path in folder.iterdir())
            if "tree" in parts:
                tree = [
                    {"type": "file", "path": name, "size": (folder / name).stat().st_size, "oid": "0" * 40}
                    for name in files
                ]
                return self.answer(200, json.dumps(tree).encode(), {})
            described = {"id": repository, "sha": SHA, "siblings": [{"rfilename": name} for name in files]}
            return self.answer(200, json.dumps(described).encode(), {})

        def answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


CODE = """
import sys
from bakeoff import models
from bakeoff.records.errors import UsageError
try:
    family = models.find(sys.argv[1])
    family.prepare()
    print(family.name, family.folder, family.resolve({"batch": 2}))
except UsageError as error:
    print("UsageError:", error)
assert "torch" not in sys.modules
"""


def ask(hub: str, cache: Path, name: str, **more: str) -> str:
    """What planning says of a model, in a process in which the hub is at this address."""
    return python(CODE, name, HF_ENDPOINT=hub, HF_HOME=str(cache), **more).strip()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_a_model_is_pinned_to_a_commit_and_comes_without_its_code(hub: str, cache: Path) -> None:
    name, folder, sizes = ask(hub, cache, "hf:org/tiny").split(maxsplit=2)
    assert (name, sizes) == (f"hf:org/tiny@{SHA}", "{'batch': 2, 'seq': 128}")
    assert sorted(path.name for path in Path(folder).iterdir()) == ["config.json", "model.safetensors"]
    family = models.find(f"hf:{folder}")
    loaded = family.load(family.resolve({"seq": 4}), 0)
    with torch.inference_mode():
        assert loaded.module(**loaded.inputs[0].kwargs).last_hidden_state.shape == (4, 4, 8)
    again = ask(hub, cache, f"hf:org/tiny@{SHA}", HF_HUB_OFFLINE="1")  # as in a worker
    assert again.startswith(name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("hf:org/tinny", "hf:org/tinny is no folder here, and http://127.0.0.1"),
        ("hf:org/pickled", "has no model*.safetensors: Bakeoff reads no pickles, which can run code"),
    ],
)
def test_what_the_hub_does_not_have_is_said_in_one_line(hub: str, cache: Path, name: str, said: str) -> None:
    answer = ask(hub, cache, name)
    assert answer.startswith("UsageError:") and said in answer and "\n" not in answer
