"""Models of transformers and of diffusers, in local folders and on a hub, with random weights."""

import hashlib
import importlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bakeoff import models
from bakeoff.measuring.worker import reference
from bakeoff.models import huggingface
from bakeoff.models.base import INPUT_SETS, Inputs, LoadedModel
from bakeoff.models.generation import Generating, positions_of, writes_in_place
from bakeoff.records.device import Device
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import DECODE, PREFILL, Cell
from tests.models.loading import load
from tests.support.checkout import python

transformers = pytest.importorskip("transformers")
TINY = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def save(folder: Path, module: Any) -> str:
    module.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.fixture
def bert(tmp_path: Path) -> str:
    config = transformers.BertConfig(**TINY, vocab_size=40, max_position_embeddings=32)
    return save(tmp_path / "bert", transformers.BertModel(config))


def edit_config(name: str, **changes: object) -> str:
    path = Path(name.removeprefix("hf:")) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return name


def call(loaded: LoadedModel) -> Any:
    with torch.inference_mode():
        return loaded.module(*loaded.inputs[0].args, **loaded.inputs[0].kwargs)


def test_planning_imports_neither_torch_nor_transformers(bert: str) -> None:
    code = (
        "import sys; from bakeoff import models\n"
        f"assert models.find({bert!r}).resolve({{'batch': 2}}) == {{'batch': 2, 'seq': 32}}\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    python(code)


def test_it_names_the_modules_that_loading_waits_for(bert: str) -> None:
    assert "transformers.models.bert.modeling_bert" in models.find(bert).imports
    for name in models.find(bert).imports:
        importlib.import_module(name)


def test_text(bert: str) -> None:
    loaded = load(bert, batch=3, seq=16)
    assert type(loaded.module).__name__ == "BertModel" and not loaded.module.training
    assert len(loaded.inputs) == INPUT_SETS
    assert call(loaded).last_hidden_state.shape == (3, 16, 8)
    for inputs in loaded.inputs:
        assert set(inputs.kwargs) == {"input_ids", "attention_mask"}
        ids = inputs.kwargs["input_ids"]
        assert ids.dtype == torch.int64 and ids.min() > 0 and ids.max() < 40  # 0 is BERT's padding
        mask = inputs.kwargs["attention_mask"]
        assert mask.dtype == torch.int64 and mask[0].all()  # the longest text; the others are padded at their end
        assert torch.equal(mask, mask.sort(dim=1, descending=True).values) and (mask.sum(dim=1) >= 8).all()
    assert any(not inputs.kwargs["attention_mask"].all() for inputs in loaded.inputs)
    assert not torch.equal(loaded.inputs[0].kwargs["input_ids"], loaded.inputs[1].kwargs["input_ids"])


def test_seeds_decide_the_inputs(bert: str) -> None:
    first, again, other = (load(bert, seed).inputs[2].kwargs["input_ids"] for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_weights_are_the_folders_in_float32(tmp_path: Path) -> None:
    saved = transformers.BertModel(transformers.BertConfig(**TINY, vocab_size=40)).half()
    loaded = load(save(tmp_path, saved), seq=4).module
    assert {weight.dtype for weight in loaded.parameters()} == {torch.float32}
    for (name, weight), (_, expected) in zip(loaded.named_parameters(), saved.named_parameters(), strict=True):
        assert torch.equal(weight, expected.float()), name


def test_decoder_returns_no_cache(tmp_path: Path) -> None:
    config = transformers.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=40, n_positions=16)
    name = save(tmp_path, transformers.GPT2LMHeadModel(config))
    output = call(load(name, batch=2))
    assert output.logits.shape == (2, 16, 40)
    assert output.past_key_values is None
    whisper = bare(tmp_path / "whisper", "WhisperModel", transformers.WhisperConfig(max_target_positions=16))
    for longer in (name, whisper):
        with pytest.raises(UsageError, match="seq=17 is more than the model's 16 positions"):
            models.find(longer).resolve({"seq": 17})


def test_image(tmp_path: Path) -> None:
    name = save(tmp_path, transformers.ViTModel(transformers.ViTConfig(**TINY, image_size=16, patch_size=8)))
    assert models.find(name).resolve({}) == {"batch": 4, "size": 16}
    loaded = load(name, batch=2)
    assert loaded.inputs[0].kwargs["pixel_values"].shape == (2, 3, 16, 16)
    assert call(loaded).last_hidden_state.shape == (2, 5, 8)
    assert call(load(name, batch=2, size=32)).last_hidden_state.shape == (2, 17, 8)


def test_encoder_decoder(tmp_path: Path) -> None:
    config = transformers.T5Config(d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2, vocab_size=40, n_positions=8)
    config.decoder_start_token_id = 0
    loaded = load(save(tmp_path, transformers.T5ForConditionalGeneration(config)), batch=2, seq=12)
    assert set(loaded.inputs[0].kwargs) == {"input_ids", "attention_mask", "decoder_input_ids"}
    output = call(loaded)
    assert output.logits.shape == (2, 12, 40)
    assert output.past_key_values is None


def test_roberta_has_fewer_tokens_than_positions(tmp_path: Path) -> None:
    config = transformers.RobertaConfig(**TINY, vocab_size=40, max_position_embeddings=18, pad_token_id=1)
    name = save(tmp_path, transformers.RobertaModel(config))
    assert models.find(name).resolve({})["seq"] == 16
    assert call(load(name)).last_hidden_state.shape == (4, 16, 8)


def test_an_unknown_architecture_of_a_known_type_loads_as_that_type(bert: str) -> None:
    assert type(load(edit_config(bert, architectures=["MyBert"]), seq=4).module).__name__ == "BertModel"


def test_code_in_the_folder_is_never_run(bert: str) -> None:
    folder = Path(bert.removeprefix("hf:"))
    (folder / "mine.py").write_text("raise SystemExit('the code was run')")
    name = edit_config(bert, architectures=["MyBert"], auto_map={"AutoModel": "mine.MyBert"})
    with pytest.raises(UsageError, match="MyBert is code of the folder, which Bakeoff never runs: write a factory"):
        load(name)


def bare(folder: Path, architecture: str, config: Any) -> str:
    """Write a config.json without weights, and return the model's name."""
    config.architectures = [architecture]
    config.save_pretrained(folder)
    return f"hf:{folder}"


VISION = {**TINY, "image_size": 16, "patch_size": 8}
SOUND = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
         "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "config", "given", "inputs", "shapes"),
    [
        ("BertForMaskedLM", ("Bert", TINY), {"seq": 6}, {"input_ids", "attention_mask"}, [(4, 6, 40)]),
        ("BertForQuestionAnswering", ("Bert", TINY), {"seq": 6}, {"input_ids", "attention_mask"}, [(4, 6), (4, 6)]),
        ("LlamaForCausalLM", ("Llama", TINY), {"seq": 6}, {"input_ids", "attention_mask"}, [(4, 6, 40)]),
        ("Wav2Vec2ForCTC", ("Wav2Vec2", {**TINY, **SOUND}), {"samples": 400}, {"input_values"}, [(4, 39, 40)]),
        ("ViTForImageClassification", ("ViT", VISION), {}, {"pixel_values"}, [(4, 2)]),
        (
            "CLIPModel",
            ("CLIP", {"text_config": {**TINY, "vocab_size": 40}, "vision_config": VISION}),
            {"seq": 6},
            {"input_ids", "attention_mask", "pixel_values"},
            [(4, 4), (4, 4)],
        ),
        (
            "WhisperForConditionalGeneration",
            (
                "Whisper",
                {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
                 "decoder_attention_heads": 2, "max_source_positions": 10, "num_mel_bins": 4, "pad_token_id": 0},
            ),
            {"seq": 6},
            {"input_features", "decoder_input_ids"},
            [(4, 6, 40)],
        ),
    ],
)  # fmt: skip
def test_a_bare_configuration_gets_random_weights_and_its_own_head(
    tmp_path: Path, architecture: str, config: Any, given: Any, inputs: set[str], shapes: list[tuple[int, ...]]
) -> None:
    kind, values = config
    made = getattr(transformers, f"{kind}Config")(**{"vocab_size": 40, **values})
    name = bare(tmp_path, architecture, made)
    assert "random weights" in models.find(name).description
    loaded, again = load(name, **given), load(name, **given)
    assert type(loaded.module).__name__ == architecture
    assert set(loaded.inputs[0].kwargs) == inputs
    outputs, same = call(loaded).to_tuple(), call(again).to_tuple()
    assert [tuple(output.shape) for output in outputs[: len(shapes)]] == shapes
    assert torch.equal(outputs[0], same[0])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "no folder .*: hf: takes a local folder that save_pretrained wrote, or ORG/NAME of the hub"),
        ({}, "no config.json in"),
        ({"config.json": "{"}, "cannot read .*config.json"),
        ({"config.json": "[]"}, "holds no object"),
        ({"config.json": "{}"}, "speaks of no text, image or sound: write a factory"),
        ({"config.json": "{}", "model.safetensors.index.json": "{}"}, r"there is no \*.safetensors in"),
        ({"config.json": "{}", "pytorch_model.bin": ""}, "takes safetensors only: convert it once with"),
        ({"config.json": "{}", "model.safetensors": "version https://git-lfs"}, "run `git lfs pull` in"),
        ({"config.json": '{"quantization_config": {}}'}, "its weights are quantised"),
        ({"config.json": '{"text_config": {}}', "model.safetensors": ""}, "no text, image or sound: write a"),
    ],
)
def test_folders_that_cannot_be_measured(tmp_path: Path, files: dict[str, str] | None, message: str) -> None:
    folder = tmp_path / "model"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        models.find(f"hf:{folder}")
    assert "\n" not in str(caught.value)


def folder_with_config(folder: Path, **config: object) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return f"hf:{folder}"


def test_a_config_may_leave_out_what_equals_its_class_s_defaults(tmp_path: Path) -> None:
    bert = models.find(folder_with_config(tmp_path / "bert", model_type="bert", architectures=["BertModel"]))
    assert {name: dimension.default for name, dimension in bert.dimensions.items()} == {"batch": 4, "seq": 128}
    vit = models.find(folder_with_config(tmp_path / "vit", model_type="vit", architectures=["ViTModel"]))
    assert {name: dimension.default for name, dimension in vit.dimensions.items()} == {"batch": 4, "size": 224}


def test_generating_without_architectures_says_what_to_add(tmp_path: Path) -> None:
    llama = folder_with_config(tmp_path / "llama", model_type="llama", vocab_size=32, **TINY)
    with pytest.raises(UsageError, match=r'names no architecture.*add "architectures": \["LlamaForCausalLM"\] to it'):
        models.find_for(llama, "generate")


def test_a_torchvision_of_another_torch_is_named_with_its_remedy(bert: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> object:
            try:
                raise RuntimeError("operator torchvision::nms does not exist")
            except RuntimeError as error:
                raise ModuleNotFoundError(f"Could not import module '{name}'") from error

    lazy = Lazy("transformers")
    lazy.__spec__ = transformers.__spec__
    monkeypatch.setitem(sys.modules, "transformers", lazy)
    said = r"operator torchvision::nms does not exist\): pip install .*--no-deps 'torchvision=="
    for ask in (lambda: load(bert, batch=1), lambda: huggingface.describe(bert.removeprefix("hf:"))):
        with pytest.raises(UsageError, match=said):
            ask()


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
for name in sys.argv[1:]:
    try:
        family = models.find(name)
        family.prepare()
        print(family.name, family.folder, family.resolve({"batch": 2}))
    except UsageError as error:
        print("UsageError:", error)
assert "torch" not in sys.modules
"""


def ask(hub: str, cache: Path, *names: str, **more: str) -> list[str]:
    """What planning says of each model, in a process in which the hub is at this address."""
    return python(CODE, *names, HF_ENDPOINT=hub, HF_HOME=str(cache), **more).splitlines()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def test_a_model_is_pinned_to_a_commit_and_comes_without_its_code(hub: str, cache: Path) -> None:
    (told,) = ask(hub, cache, "hf:org/tiny")
    name, folder, sizes = told.split(maxsplit=2)
    assert (name, sizes) == (f"hf:org/tiny@{SHA}", "{'batch': 2, 'seq': 128}")
    assert sorted(path.name for path in Path(folder).iterdir()) == ["config.json", "model.safetensors"]
    family = models.find(f"hf:{folder}")
    loaded = family.load(family.resolve({"seq": 4}), 0)
    with torch.inference_mode():
        assert loaded.module(**loaded.inputs[0].kwargs).last_hidden_state.shape == (4, 4, 8)
    (again,) = ask(hub, cache, f"hf:org/tiny@{SHA}", HF_HUB_OFFLINE="1")  # as in a worker
    assert again.startswith(name)


def test_what_the_hub_does_not_have_is_said_in_one_line(hub: str, cache: Path) -> None:
    absent, pickled = ask(hub, cache, "hf:org/tinny", "hf:org/pickled")
    assert absent.startswith("UsageError:") and "hf:org/tinny is no folder here, and http://127.0.0.1" in absent
    assert pickled.startswith("UsageError:")
    assert "has no model*.safetensors: Bakeoff reads no pickles, which can run code" in pickled


diffusers = pytest.importorskip("diffusers")
UNET = {
    "sample_size": 8,
    "in_channels": 4,
    "block_out_channels": [8, 16],
    "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
    "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "attention_head_dim": 4,
    "cross_attention_dim": 12,
}
AUTOENCODER = {"block_out_channels": [8], "norm_num_groups": 4, "sample_size": 16}
DIT = {
    "sample_size": 8,
    "in_channels": 4,
    "num_layers": 1,
    "num_attention_heads": 2,
    "attention_head_dim": 8,
    "num_embeds_ada_norm": 10,
}


def written(folder: Path, name: str, config: dict[str, Any]) -> str:
    """Write a config.json without weights, and return the model's name."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"_class_name": name, **config}))
    return f"diffusers:{folder}"


def denoised(loaded: LoadedModel) -> torch.Tensor:
    with torch.inference_mode():
        return loaded.module(**loaded.inputs[0].kwargs).sample


@pytest.mark.parametrize(
    ("name", "config", "given", "inputs", "shape"),
    [
        (
            "UNet2DConditionModel",
            UNET,
            {"batch": 3, "seq": 5},
            {"sample": (3, 4, 8, 8), "timestep": (3,), "encoder_hidden_states": (3, 5, 12)},
            (3, 4, 8, 8),
        ),
        ("AutoencoderKL", AUTOENCODER, {"size": 8}, {"sample": (2, 3, 8, 8)}, (2, 3, 8, 8)),
        (
            "DiTTransformer2DModel",
            DIT,
            {},
            {"hidden_states": (2, 4, 8, 8), "timestep": (2,), "class_labels": (2,)},
            (2, 4, 8, 8),
        ),
    ],
)
def test_a_bare_configuration_gets_random_weights_and_its_own_inputs(
    tmp_path: Path, name: str, config: dict[str, Any], given: Any, inputs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    model = written(tmp_path / "model", name, config)
    loaded = load(model, **given)
    assert "random weights" in models.find(model).description
    assert type(loaded.module).__name__ == name and not loaded.module.training
    assert {key: tuple(tensor.shape) for key, tensor in loaded.inputs[0].kwargs.items()} == inputs
    assert len(loaded.inputs) == INPUT_SETS
    sample = denoised(loaded)
    assert sample.shape == shape and sample.std() > 1e-2
    assert torch.equal(sample, denoised(load(model, **given)))


def test_weights_are_the_folders(tmp_path: Path) -> None:
    saved = diffusers.AutoencoderKL(**AUTOENCODER)
    saved.save_pretrained(tmp_path)
    loaded = load(f"diffusers:{tmp_path}").module
    assert torch.equal(loaded.encoder.conv_in.weight, saved.encoder.conv_in.weight)


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("UNet2DConditionModl", {}, "unknown class in .*: did you mean 'UNet2DConditionModel'"),
        ("DDIMScheduler", {}, "DDIMScheduler is no model of diffusers: write a factory"),
        ("UVit2DModel", {}, "UVit2DModel takes .*input_ids.*: write a factory"),
        ("AutoencoderKL", {"weights.bin": ""}, "weights.bin can run code when read.*AutoencoderKL.from_pretrained"),
        ("AutoencoderKL", {"config.json": "{"}, "cannot read .*config.json"),
    ],
)
def test_folders_of_diffusers_that_cannot_be_measured(
    tmp_path: Path, name: str, more: dict[str, str], message: str
) -> None:
    model = written(tmp_path / "model", name, {})
    for file, text in more.items():
        (tmp_path / "model" / file).write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        models.find(model)
    assert "\n" not in str(caught.value)


CPU = Device("cpu")
SMALL = {"prompt": "6", "new_tokens": "5", "batch": "2"}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 100, "intermediate_size": 64}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 32}
SHAPES = {
    "llama": {"architectures": ["LlamaForCausalLM"], **SIZES, **HEADS},
    "gemma3_text": {"architectures": ["Gemma3ForCausalLM"], **SIZES, **HEADS, "sliding_window": 4},
    "gpt2": {"architectures": ["GPT2LMHeadModel"], "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 100},
    "mixtral": {"architectures": ["MixtralForCausalLM"], **SIZES, **HEADS, "num_local_experts": 4},
    "mamba": {"architectures": ["MambaForCausalLM"], **SIZES, "state_size": 4},
}


def template() -> tuple[Generating, dict[str, int | str]]:
    family = Generating(models.find("transformer_lm"))
    return family, family.resolve({**SMALL, "size": "tiny"})


def language_model(kind: str, folder: Path) -> str:
    """Return the name of a model of this shape, whose configuration is written into `folder`."""
    pytest.importorskip("transformers")
    ids = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **SHAPES[kind], **ids}))
    return f"hf:{folder}"


@pytest.mark.parametrize("kind", SHAPES)
def test_the_two_graphs_of_a_decoder_of_transformers_give_the_logits_of_its_own_pass(kind: str, tmp_path: Path) -> None:
    family = models.find(language_model(kind, tmp_path))
    decoder = family.load_decoder(Generating(family).resolve(SMALL), 0, CPU, torch.float32)
    model = decoder.prefill.language_model
    tokens = decoder.tokens[torch.randint(len(decoder.tokens), (2, 11))]
    with torch.inference_mode():
        wanted = model(input_ids=tokens, use_cache=False).logits[:, 5:]
        logits, *caches = decoder.prefill(tokens[:, :6])
        found = [logits]
        for position in range(6, 11):
            logits, *caches = decoder.step(tokens[:, position : position + 1], torch.tensor([position]), *caches)
            found.append(logits)
    torch.testing.assert_close(torch.stack(found, dim=1), wanted)


def test_heads_that_share_keys_attend_together_so_that_a_step_repeats_none(tmp_path: Path) -> None:
    family = models.find(language_model("llama", tmp_path))
    dimensions = Generating(family).resolve(SMALL)
    step = family.load_decoder(dimensions, 0, CPU, torch.float32).step
    inputs = Generating(family).load_graph(DECODE, dimensions, 0, CPU, torch.float32).inputs[0]
    exported = torch.export.export(step, inputs.args)
    attended = [node for node in exported.graph.nodes if "scaled_dot_product_attention" in str(node.target)]
    shapes = [tuple(node.args[place].meta["val"].shape) for node in attended for place in range(3)]
    assert shapes == 2 * [(2, 2, 2, 8), (2, 2, 11, 8), (2, 2, 11, 8)]  # two layers: queries, keys and values


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mamba"])
def test_both_graphs_of_a_decoder_of_transformers_have_a_reference_in_float64(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = language_model(kind, tmp_path)
    monkeypatch.chdir(tmp_path)
    for task in (PREFILL, DECODE):
        cell = Cell(model=model, dimensions=Generating(models.find(model)).resolve(SMALL), task=task, backend="eager")
        with torch.inference_mode():
            exact = reference.Subject(cell, tmp_path, tmp_path).exact()
        assert (exact.computed_in, exact.in_float32, exact.why_narrower) == ("float64", (), "")


def test_a_step_of_the_template_goes_on_where_its_prefill_ended() -> None:
    family, dimensions = template()
    decoder = models.find("transformer_lm").load_decoder(dimensions, 0, CPU, torch.float32)
    tokens = torch.randint(10_000, (2, 8))
    with torch.inference_mode():
        wanted = decoder.prefill.language_model(tokens)[:, -1]
        _, *caches = decoder.prefill(tokens[:, :7])
        logits, *_ = decoder.step(tokens[:, 7:], torch.tensor([7]), *caches)
    torch.testing.assert_close(logits, wanted)
    torch.testing.assert_close(decoder.prefill(tokens)[0], wanted)
    assert family.load_graph(PREFILL, dimensions, 0, CPU, torch.float32).inputs[0].args[0].shape == (2, 6)


def test_a_step_that_writes_in_place_leaves_in_its_caches_what_the_other_one_returns() -> None:
    family, dimensions = template()
    model = family.load_graph(DECODE, dimensions, 0, CPU, torch.float32)
    first = model.inputs[0]
    with torch.inference_mode():
        logits, *wanted = model.module(*first.args)
        assert not first.args[2][:, :, 10].any(), "the row of the highest position is empty at first"
        (found,) = writes_in_place(model.module)(*first.args)
    torch.testing.assert_close(found, logits)
    torch.testing.assert_close(list(first.args[2:]), wanted)


def test_a_step_is_measured_from_the_last_position_down_to_the_first_over_shared_caches() -> None:
    family, dimensions = template()
    sets = family.load_graph(DECODE, dimensions, 0, CPU, torch.float32).inputs
    assert [int(one.args[1]) for one in sets] == positions_of(dimensions) == [10, 8, 7, 6]
    assert len({one.args[2].data_ptr() for one in sets}) == 1


def test_bytes_that_a_step_need_not_move_are_known() -> None:
    """Caches have two layers, keys and values of 11 rows, 2 sequences and 4 heads of 16 in float32."""
    family, dimensions = template()
    row = 2 * 2 * 2 * 4 * 16 * 4
    used = 1 + (10 + 8 + 7 + 6) / 4
    assert family.load_graph(DECODE, dimensions, 0, CPU, torch.float32).spared_bytes == row * (2 * 11 - used)
    assert family.load_graph(PREFILL, dimensions, 0, CPU, torch.float32).spared_bytes == row * 5


def test_the_same_seed_gives_the_same_inputs() -> None:
    family, dimensions = template()
    one, other = (family.load_graph(DECODE, dimensions, 3, CPU, torch.float32).inputs[1] for _ in range(2))
    assert isinstance(one, Inputs)
    assert all(torch.equal(*pair) for pair in zip(one.tensors(), other.tensors(), strict=True))
