"""onnxruntime-genai: ONNX Runtime's engine for language models, with a graph and caches of its own, on the CPU."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from bakeoff.backends.base import Availability, Backend, BuildContext, Compiled, Settings, installed
from bakeoff.models.base import Inputs
from bakeoff.models.generation import context_of
from bakeoff.models.lazily import torch
from bakeoff.records.device import Device
from bakeoff.records.errors import Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import INFERENCE, PREFILL, Cell

CONFIG = "genai_config.json"


class OnnxRuntimeGenAI(Backend):
    name = "onnxruntime-genai"
    description = "onnxruntime-genai's own graph, caches and loop for a language model of transformers, on the CPU"
    devices = ("cpu",)
    tasks: ClassVar[tuple[str, ...]] = ()  # none but a generation's two
    libraries: ClassVar[tuple[str, ...]] = ("torch", "onnxruntime-genai", "onnxruntime", "transformers")
    module: ClassVar[str] = "onnxruntime_genai"
    caveat: ClassVar[str] = "an engine of its own: its graph and caches are not those that the other rows build"

    def available(self, device: Device) -> Availability:
        if device.is_cuda:
            return Availability(f"onnxruntime-genai runs on the CPU here, not on {device}")
        remedy = "pip install onnxruntime-genai transformers"
        return installed("onnxruntime-genai", remedy, "onnxruntime_genai", beside="transformers")

    def supports(self, cell: Cell) -> Availability:
        if cell.task == INFERENCE:
            asked = f"task '{cell.task}' in {cell.precision}"
            return Availability(f"onnxruntime-genai builds nothing but the models of --task generate, and not {asked}")
        return super().supports(cell)

    def reason_against(self, cell: Cell) -> str:
        if not cell.model.startswith("hf:"):
            return f"onnxruntime-genai builds decoders of transformers (hf:), not {cell.model}"
        if cell.device.is_cuda or cell.precision is not Precision.FP32:
            return f"onnxruntime-genai is built in fp32 on the CPU here, not in {cell.precision}"
        if int(cell.dimensions.get("batch", 1)) > 1:
            return "onnxruntime-genai takes given tokens one by one for one sequence only: set batch=1"
        return ""

    def build(self, module: torch.nn.Module, inputs: Inputs, context: BuildContext) -> Compiled:
        """Raises Unsupported for an architecture that onnxruntime-genai does not know."""
        import onnxruntime_genai

        folder = context.workspace / "model"
        with context.phase("export"):
            if not (folder / CONFIG).exists():
                _write(getattr(module, "language_model", module), folder)
            config = json.loads((folder / CONFIG).read_text())
            decoder = config["model"]["decoder"]
            decoder["session_options"]["intra_op_num_threads"] = context.threads
            (folder / CONFIG).write_text(json.dumps(config, indent=2))
        with context.phase("load"):
            model = onnxruntime_genai.Model(str(folder))
            caches = Caches(model, decoder["num_hidden_layers"], context_of(context.cell.dimensions))
            if context.cell.task == PREFILL:
                return PrefillEngine(caches)
            tokens: Any = module.sequence
            return DecodeEngine(caches, tokens)


def _write(language_model: Any, folder: Path) -> None:
    """Have onnxruntime-genai's builder write its model of a decoder of transformers into `folder`."""
    from onnxruntime_genai.models.builder import create_model, parse_extra_options
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    source, cache = folder.with_name("source"), folder.with_name("cache")
    language_model.save_pretrained(source)
    tokenizer = Tokenizer(WordLevel({"unknown": 0, "end": 1}, unk_token="unknown"))
    PreTrainedTokenizerFast(  # type: ignore[no-untyped-call,unused-ignore]
        tokenizer_object=tokenizer, unk_token="unknown", bos_token="end", eos_token="end", pad_token="end"
    ).save_pretrained(source)
    where = (str(source), str(folder), "fp32", "cpu", str(cache))
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            create_model("", *where, **parse_extra_options("", *where, []))
    except NotImplementedError as error:
        raise Unsupported(f"onnxruntime-genai builds no {type(language_model).__name__}") from error
    shutil.rmtree(source)
    shutil.rmtree(cache, ignore_errors=True)


@dataclass(frozen=True)
class Caches:
    """Makes generators whose caches have `rows` rows in each of their layers."""

    model: Any
    layers: int
    rows: int

    def generator(self) -> Any:
        import onnxruntime_genai

        options = onnxruntime_genai.GeneratorParams(self.model)
        options.set_search_options(max_length=self.rows, batch_size=1)
        return onnxruntime_genai.Generator(self.model, options)

    def outputs(self, generator: Any, given: Sequence[torch.Tensor], held: int) -> tuple[torch.Tensor, ...]:
        """Return the last position's logits (1, vocabulary), then keys and values of each layer, (1, heads, rows,
        width). After the `held` rows, caches are as `given`, or empty where nothing was given."""
        outputs = [torch.from_numpy(generator.get_output("logits")[:, -1].copy())]
        names = [f"present.{layer}.{kind}" for layer in range(self.layers) for kind in ("key", "value")]
        for place, name in enumerate(names):
            kept = torch.from_numpy(generator.get_output(name).copy())
            kept[:, :, held:] = given[place][:, :, held:] if given else 0
            outputs.append(kept)
        return tuple(outputs)


class Engine(Compiled):
    def precision(self) -> Settings:
        return {"graph": "fp32"}

    def settings(self) -> Settings:
        return {"caches": "kept by the engine"}


class PrefillEngine(Engine):
    """Computes a prompt (1, tokens), from empty caches each time."""

    def __init__(self, caches: Caches) -> None:
        self._caches = caches
        self._generator = caches.generator()
        self._prompt: Any = None

    def bind(self, inputs: Inputs) -> None:
        self._prompt = inputs.args[0].numpy().astype("int32")

    def run(self) -> None:
        self._generator.rewind_to(0)
        self._generator.append_tokens(self._prompt)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return self._caches.outputs(self._generator, (), self._prompt.shape[1])

    def close(self) -> None:
        self._generator = None


class DecodeEngine(Engine):
    """Computes one token (1, 1) after the rows that the engine's own caches hold, with a generator for each input set.
    The rows before a position are computed from `sequence`, since the engine takes no caches."""

    def __init__(self, caches: Caches, sequence: Sequence[int]) -> None:
        self._caches = caches
        self._sequence = sequence
        self._kept: dict[int, Any] = {}  # by the address of a set's position, which a generation counts up in place
        self._tokens: dict[int, list[int]] = {}
        self._bound = self._ran = _Call(None, 0, [], ())

    def bind(self, inputs: Inputs) -> None:
        token, position, *given = inputs.args
        place, at = position.data_ptr(), int(position)
        if place not in self._kept:
            self._kept[place] = self._caches.generator()
        generator = self._kept[place]
        held = self._tokens.get(place, [])[: generator.token_count()]
        before = held if len(held) == at else self._sequence[:at]
        differing = (place for place, pair in enumerate(zip(held, before, strict=False)) if pair[0] != pair[1])
        common = next(differing, min(len(held), len(before)))
        generator.rewind_to(common)
        if missing := before[common:]:
            generator.append_tokens([missing])
        self._tokens[place] = [*before, int(token)]
        self._bound = _Call(generator, at, [[int(token)]], given)

    def run(self) -> None:
        generator, at, token, _ = self._ran = self._bound
        generator.rewind_to(at)
        generator.append_tokens(token)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return self._caches.outputs(self._ran.generator, self._ran.given, self._ran.position + 1)

    def close(self) -> None:
        self._kept.clear()
        self._bound = self._ran = _Call(None, 0, [], ())


class _Call(NamedTuple):
    generator: Any
    position: int
    token: list[list[int]]
    given: Sequence[torch.Tensor]
