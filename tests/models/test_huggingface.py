"""Local Hugging Face folders: tiny models with random weights, as save_pretrained writes them."""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from bakeoff import models
from bakeoff.models import huggingface
from bakeoff.models.base import INPUT_SETS, LoadedModel
from bakeoff.records.errors import UsageError
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
