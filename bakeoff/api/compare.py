"""`bakeoff.compare`: which build of a model that lives in this program is fastest and right?"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Never

from bakeoff.api.result import Ended, Result, result_at
from bakeoff.judging.constraints import Requirements
from bakeoff.measuring.controller.server_start import temporary_folder
from bakeoff.planning import config as options_file
from bakeoff.records.errors import UsageError
from bakeoff.records.schema import DEVICE

if TYPE_CHECKING:
    import torch

    from bakeoff.models.base import Call, Pipeline
    from bakeoff.models.calls_file import Calls
    from bakeoff.planning.request import Request

CALLS = "calls.pt"

Texts = str | Sequence[str]
"""One name, several with commas between them, or a list of names."""

FIELDS = {key.replace("-", "_"): name for key, name in options_file.KEYS.items() if name not in ("models", "inputs")}
"""Field of a request, by the keyword of `compare` that gives it."""


NOT_ALL_ERROR = "relative_rmse<1"
"""All that is required of a part's error where a metric of the whole pipeline judges the parts together."""


def compare(
    model: torch.nn.Module | Callable[..., Any] | Pipeline | str,
    inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any] | Call | Iterable[Call] | Calls | str | Path | None = None,
    *,
    backends: Texts | None = None,
    devices: Texts | None = None,
    precision: Texts | None = None,
    separate: bool = False,
    task: str | None = None,
    set: Mapping[str, int | str | Sequence[int | str]] | Texts | None = None,
    dynamic: Mapping[str, str] | Texts | None = None,
    seed: int | None = None,
    time_limit: float | None = None,
    min_time: float | None = None,
    processes: int | None = None,
    builds: int | None = None,
    schedule: str | None = None,
    start_method: str | None = None,
    malloc: str | None = None,
    cold_cache: bool = False,
    inputs_from: str | None = None,
    strict: bool = False,
    calls: int | None = None,
    baseline: str | None = None,
    require: str | None = None,
    accept: str | None = None,
    starts: bool = False,
    evaluate: Callable[..., Mapping[str, Any]] | str | None = None,
    evaluate_timeout: float | None = None,
    budget: str | float | None = None,
    wait_for_quiet: str | float | None = None,
    load: str | None = None,
    slo: str | None = None,
    soak: float | None = None,
    price: str | None = None,
    env: Mapping[str, str] | Texts | None = None,
    surgical: Texts | None = None,
    cluster: str | None = None,
    shard: str | None = None,
    parts: Texts | None = None,
    fresh: bool = False,
    no_artifacts: bool = False,
    artifact_limit: str | None = None,
    out: str | Path | None = None,
    config: str | Path | None = None,
    preset: str | None = None,
    progress: bool = True,
    **unknown: Never,
) -> Result:
    """Compare backends on a model, and return the verdict with everything that it rests on.

    Keywords are the options of `bakeoff run`, with the same meaning and default. Only `progress` is not, and `--quiet`,
    `--json`, `--dry-run`, `--check-only`, `--junit` and `--summary` are for the command line alone. Where an option
    takes a list, a text with commas or a list of texts is given here. The run has processes of its own. The model and
    this process stay as they are: the device, mode, gradients and hooks of the model, global settings and random
    states.

    Ctrl-C, and the stop button of a notebook, end the run and return the result so far (`Result.complete`).

    Args:
        model: A module, as it is now. Or a function that makes it, whose parameters are sizes for `set`. Or the name of
            any model that the command line knows, such as `"mlp"` or `"hf:bert-base-uncased"`. Or a module with what a
            request does around it, as a `bakeoff.Pipeline`; its `before` makes the inputs from the raw example that is
            given in their place.
        inputs: An example call: a tensor, a tuple of positional arguments, a dict of keyword arguments, or a
            `bakeoff.Call` with both. Or several calls, as a list of `bakeoff.Call`. Or what `bakeoff.record` kept, or
            the path of a file that `--inputs` takes: its sizes are weighted by how often they came. A function that
            returns the model with its inputs needs none, nor does a name.
        backends: What is compared, such as `"eager,onnx"` or `["inductor/max-autotune"]`. All by default.
        devices: Where, such as `"cpu"` or `"cuda:1"`. By default the GPU that the module lies on, else the first one,
            else the CPU.
        precision: `"fp32"` by default. The module's weights are cast to it.
        separate: Make a contest for each precision. By default they are one, with one table.
        task: `"inference"` by default, or `"forward_backward"` or `"train_step"`.
        set: Values of a factory's parameters: `{"batch": [1, 8]}` compares both sizes.
        dynamic: Ranges of sizes that one build serves: `{"seq": "16:512"}`.
        seed: Seed of a factory's weights, and of inputs that are drawn.
        time_limit: Seconds that each cell may take.
        min_time: Seconds that each cell is sampled in three processes or more. One or two take their share, and a cell
            that is clearly behind takes half of it, as short calls do: a burst of a hundred is enough.
        processes: Fresh processes of each cell: 1 or 2 are all, and 3 or more the least.
        builds: Times that each cell is built anew.
        schedule: `"interleaved"` or `"sequential"`.
        start_method: `"auto"`, `"forkserver"` or `"spawn"`.
        malloc: The allocator that cells start with: `"glibc"`, `"glibc-tuned"`, `"jemalloc"` or `"tcmalloc"`.
        cold_cache: Evict the last-level cache before each call.
        inputs_from: Where calls find their inputs: `"device"` by default. With `"host"` or `"pinned"` (page-locked
            memory), each call copies inputs to the GPU, and outputs back.
        strict: A cell that ran only in part where it was asked to has failed.
        calls: Compare what so many calls cost, building included.
        baseline: Over what speed-ups are: `"eager"` by default, or `"eager/best"`, the fastest of eager's modes.
        require: What may win, such as `"p99_ms<5, peak_device_bytes<4GB"`.
        accept: Errors to accept beyond what the check allows, such as `"relative_rmse<1e-2"`.
        starts: Also start what the best have built in fresh processes, as `bakeoff start` does.
        evaluate: A function that says how good a build is: `evaluate(predict)` returns metrics by name, each a number
            or a list with the score of each sample. `predict` is called like the model. Or `"FILE.py:FUNCTION"`. By
            default the function `evaluate(predict)` of the model's file, if there is one.
        evaluate_timeout: Seconds that it may take for each build.
        budget: Time for the whole run, such as `"90s"`, `"5m"` or seconds as a number.
        wait_for_quiet: Time to wait in all until other programs leave the cores alone, such as `"10m"`.
        load: Serve requests: `"server"`, `"offline"`, `"single-stream"` or `"multi-stream:8"`.
        slo: With `load="server"`, what must hold, such as `"p99_ms<20"`.
        soak: Seconds that each cell serves at the rate found, beyond `time_limit`.
        price: What an hour of this machine costs, such as `"2.5/h"`.
        env: Interpreters for backends such as `onnx@NAME`: `{"NAME": "/path/to/python"}`.
        surgical: Patterns of the parts that `inductor/surgical` compiles.
        cluster: `"auto"` or the address of a Ray cluster. Its nodes have no live model, so give the model by its name.
        shard: `"2/8"`: only every 8th contest, from the second on.
        parts: Modules of a pipeline of several models, by path, such as `["unet", "vae.decoder"]`. Then `model` is the
            pipeline, and `inputs` an example call of it, or a function that takes the pipeline and calls it. `evaluate`
            is called with the pipeline, and what `require` says of its metrics is of the whole. The result is a
            `PipelineResult`.
        fresh: Build everything anew.
        no_artifacts: Do not keep what backends have built. Then the winner cannot be loaded.
        artifact_limit: Size of what is kept, of all cells together, such as `"4GB"`.
        out: Folder of the run. By default a new one in `results/`.
        config: TOML file with these options as keys.
        preset: Name of a preset. Keywords win over it.
        progress: Show the run while it goes on: one updating output in a notebook, a live table in a terminal, a few
            lines in a log. The latter two go to standard error.

    Returns:
        The verdict, the measured rows, the doubts, and where the report lies.

    Raises:
        TypeError: For an unknown keyword. It names the nearest one.
        bakeoff.UsageError: For a value that cannot be used, inputs that are missing, or a part of the model that no
            other process can have, which is named by its path.
        bakeoff.BakeoffError: Where the run failed as a whole. A backend that fails is a row of the result instead.
    """
    given = dict(locals())
    if unknown:
        __tracebackhide__ = True  # pytest shows the line of the test
        name = next(iter(unknown))
        if instead := COMMAND_LINE_ONLY.get(name):
            raise TypeError(f"compare() has no keyword '{name}', an option of the command line only: {instead}")
        nearest = difflib.get_close_matches(name, keywords(), n=1, cutoff=0.5)
        hint = f"did you mean '{nearest[0]}'?" if nearest else f"known: {', '.join(keywords())}"
        raise TypeError(f"compare() got an unexpected keyword argument '{name}': {hint}")
    function = None if isinstance(evaluate, str) else given.pop("evaluate")
    own = {FIELDS[name]: value for name, value in given.items() if name in FIELDS}
    fields = {name: _field(name, value) for name, value in own.items() if value is not None and value is not False}
    asked = _Asked(fields, _path(out), _path(config), preset, progress)
    if parts is not None:
        from bakeoff.api.pipelines import compare_parts

        whole = asked.gathered().request
        of_parts = asked.for_parts()
        of_parts.check(is_of_parts=True)
        return compare_parts(
            model,
            inputs,
            options_file.split(map(str, _listed(parts))),
            of_parts.run_parts,
            evaluate=function or whole.get("evaluate"),
            require=str(whole.get("require") or ""),
            seed=whole.get("seed", 0),
            out=_path(out),
        )
    if not isinstance(model, str):
        asked.check()
    with _travelling(model, inputs, function) as travelling:
        return asked.run(travelling).result


COMMAND_LINE_ONLY = {
    "quiet": "progress=False shows nothing while the run goes on",
    "json": "`answer` and `to_dict()` of the result have what it prints",
    "check_only": "`bakeoff run --check-only` builds and compares without timing",
    "dry_run": "`bakeoff run --dry-run` says what would be measured",
    "junit": "`bakeoff report RUN --junit FILE` writes it",
    "summary": "`bakeoff report RUN --summary FILE` writes it",
}
"""The options of `bakeoff run` that `compare` does not have, and what there is in their place."""


def keywords() -> list[str]:
    parameters = inspect.signature(compare).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY]


class _Travelling(NamedTuple):
    """What a run takes along from the program: the names of its models, their folder, and fields of the request."""

    names: tuple[str, ...]
    folder: Path | None = None
    fields: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class _Asked:
    """What the keywords ask for, whatever the models are."""

    fields: Mapping[str, Any]
    out: Path | None
    config_file: Path | None
    preset: str | None
    progress: bool

    def gathered(self, **own: Any) -> options_file.Options:
        return options_file.gather({**own, **self.fields}, self.out, not self.progress, self.config_file, self.preset)

    def check(self, is_of_parts: bool = False) -> None:
        """Raise UsageError for what is wrong, before weights are written."""
        from bakeoff.commands.environments import with_interpreters
        from bakeoff.records.store import Store

        options = self.gathered(models=("mlp",))
        if is_of_parts and options.request.get("runs"):
            raise UsageError("the parts of a pipeline are the runs: leave [[run]] out of the file of options")
        asked = with_interpreters(options.to_request())
        if is_of_parts:
            _require_one_contest(asked)
        options_file.require_names(asked)
        if options.out is not None:
            Store.check(options.out)
        if asked.cluster:
            raise UsageError(
                "the nodes of a cluster do not have a live model: write a factory, and give it as FILE.py:FACTORY"
            )

    def run(self, travelling: _Travelling) -> Ended:
        """Measure in a process of its own. Raise KeyboardInterrupt where nothing was measured before one."""
        from bakeoff.api.progress import shown
        from bakeoff.api.run_process import RunEnded, RunFailed, RunProcess, StartRun
        from bakeoff.reports.console import written_to_the_end

        begun_s = time.monotonic()
        options = self.gathered(**{"models": travelling.names, **travelling.fields})
        request = options.to_request()
        name = ", ".join(travelling.names)
        keyword = {field: name for name, field in FIELDS.items()}
        given = ", ".join(f"{keyword[field]}={value!r}" for field, value in self.fields.items() if value != "")
        begin = StartRun(request, options.out, f"bakeoff.compare({name}{', ' if given else ''}{given})", begun_s)
        ended: RunEnded | RunFailed | None = None
        was_interrupted = False
        try:
            display_of = shown(not options.quiet, request.require.without_starts(), request.calls)
            with display_of as display, RunProcess(begin, travelling.folder) as process:
                ended = process.result(display)
                was_interrupted = process.is_interrupted
        except KeyboardInterrupt:
            if ended is None:
                raise
            was_interrupted = True
        if isinstance(ended, RunFailed):
            raise ended.error or KeyboardInterrupt
        assert ended is not None
        with written_to_the_end() as interruptions:
            return Ended(result_at(ended.folder), was_interrupted or bool(interruptions))

    def for_parts(self) -> _Asked:
        """Return what is asked of the parts of a pipeline: the metrics are those of the whole. Where one is required,
        it judges builds of other precisions, and no tolerance of a part does."""
        whole = self.gathered().request
        required = Requirements.parse(str(whole.get("require") or ""))
        of_parts = required.without_metrics()
        asked = str(of_parts)
        if required.metrics and not of_parts.judge_errors and len(whole.get("precision") or ()) > 1:
            asked = ", ".join(filter(None, [asked, NOT_ALL_ERROR]))
        return replace(self, fields={**self.fields, "evaluate": "", "require": asked}, out=None)

    def run_parts(self, modules: Mapping[str, torch.nn.Module], calls: Mapping[str, Calls], out: Path) -> Ended:
        """Compare the parts of a pipeline with their recorded calls, in one run in the folder `out`."""
        with _travelling_parts(
            modules, calls, has_precision=bool(self.gathered().request.get("precision"))
        ) as travelling:
            return replace(self, out=out).run(travelling)


def _require_one_contest(of_part: Request) -> None:
    """Raise UsageError for a request that makes several contests of a part, because only one winner can answer for it.
    Contests of several sizes are allowed, since each of them has a build of its own."""
    if of_part.separate and len(of_part.precision) > 1:
        raise UsageError(
            f"--separate makes contests of {', '.join(of_part.precision)}, and only one winner can answer for a part: "
            "leave --separate out, so that all precisions are in one table, or compare once for each --precision"
        )
    if len(devices := of_part.devices_of_cells) > 1:
        raise UsageError(
            f"a pipeline is compared on one device, and --devices names {', '.join(map(str, devices))}: name one"
        )
    if of_part.shard:
        raise UsageError(f"--shard {of_part.shard} would leave out parts of the pipeline, which is compared as a whole")
    if of_part.inputs_from != DEVICE:
        raise UsageError(f"--inputs-from {of_part.inputs_from}: the parts of a pipeline pass tensors on, on the device")


@contextlib.contextmanager
def _travelling(model: object, inputs: object, evaluate: Callable[..., Any] | None = None) -> Iterator[_Travelling]:
    """Write a live model, its inputs and a function that evaluates it into a folder, as far as they are given, until
    the run has ended."""
    if isinstance(model, str) and inputs is None and evaluate is None:
        yield _Travelling((model,))
        return
    import torch

    from bakeoff.models import live_model
    from bakeoff.models.base import Pipeline
    from bakeoff.models.calls_file import Calls
    from bakeoff.models.example_inputs import require_fitting

    if not isinstance(model, str | Pipeline) and not callable(model):
        kind = type(model).__name__
        raise UsageError(
            f"model is a {kind}: give a torch.nn.Module, a function that makes one, or a name such as 'mlp'"
        )
    module = model.model if isinstance(model, Pipeline) else model
    if isinstance(module, torch.nn.Module) and inputs is None:
        raise UsageError(
            "inputs are missing: give the arguments of a call, such as compare(model, torch.randn(1, 3, 224, 224))"
        )
    with temporary_folder("live") as folder:
        fields: dict[str, Any] = {}
        if evaluate is not None:
            fields["evaluate"] = live_model.save_evaluate(evaluate, folder)
        if isinstance(module, torch.nn.Module) and (gpu := _gpu_of(module)):
            fields["devices"] = (gpu,)
        if isinstance(model, Pipeline) and model.before is not None:
            yield _Travelling((live_model.save(model, inputs, folder),), folder, fields)
            return
        inputs = list(inputs) if isinstance(inputs, Iterator) else inputs
        if isinstance(inputs, list) and not inputs:
            raise UsageError("inputs are an empty list: give the arguments of at least one call")
        is_file, is_name = isinstance(inputs, str | Path), isinstance(model, str)
        if is_file:
            fields["inputs"] = str(inputs)
        elif isinstance(inputs, Calls) or _are_several(inputs) or (is_name and inputs is not None):
            fields["inputs"] = str(Calls.of(inputs).save(folder / CALLS))
        if isinstance(model, str):
            yield _Travelling((model,), folder if evaluate is not None else None, fields)
            return
        if "inputs" not in fields:
            require_fitting(model.model if isinstance(model, Pipeline) else model, inputs)
        name = live_model.save(model, None if "inputs" in fields else inputs, folder)
        yield _Travelling((name,), folder, fields)


@contextlib.contextmanager
def _travelling_parts(
    modules: Mapping[str, torch.nn.Module], calls: Mapping[str, Calls], has_precision: bool
) -> Iterator[_Travelling]:
    """Write the parts of a pipeline with their calls into a folder. Each is a run of one request."""
    from bakeoff.models import live_model

    gpus = {gpu for module in modules.values() if (gpu := _gpu_of(module))}
    if len(gpus) > 1:
        raise UsageError(f"the parts lie on {', '.join(sorted(gpus))}: name one of them as devices")
    with temporary_folder("live") as folder:
        runs = []
        for name, module in modules.items():
            (folder / name).mkdir()
            run: dict[str, Any] = {
                "models": (live_model.save(module, None, folder / name, name),),
                "inputs": str(calls[name].save(folder / name / CALLS)),
            }
            if not has_precision and (precision := _narrow_precision_of(module)):
                run["precision"] = (precision,)
            runs.append(run)
        names = tuple(model for run in runs for model in run["models"])
        yield _Travelling(names, folder, {"runs": tuple(runs), **({"devices": tuple(gpus)} if gpus else {})})


def _are_several(inputs: object) -> bool:
    from bakeoff.models.base import Call

    return isinstance(inputs, list) and len(inputs) > 1 and all(isinstance(call, Call) for call in inputs)


def _gpu_of(model: torch.nn.Module) -> str:
    first = next((weight for weight in (*model.parameters(), *model.buffers())), None)
    return f"cuda:{first.device.index or 0}" if first is not None and first.is_cuda else ""


def _narrow_precision_of(module: torch.nn.Module) -> str:
    kinds = {str(weight.dtype) for weight in module.parameters()}
    return {"torch.float16": "fp16", "torch.bfloat16": "bf16"}.get(kinds.pop(), "") if len(kinds) == 1 else ""


def _field(name: str, value: Any) -> Any:
    """Return a keyword's value as a field of a request: as it would be read from the command line or a TOML file."""
    kind = options_file.kind_of(name)
    if kind is dict:
        if not isinstance(value, Mapping):
            return options_file.parse_dimensions([value] if isinstance(value, str) else list(value))
        return {key: options_file.split(map(str, _listed(entry))) for key, entry in value.items()}
    if kind is tuple:
        if isinstance(value, Mapping):
            value = [f"{key}={entry}" for key, entry in value.items()]
        return options_file.split(map(str, _listed(value)))
    return value


def _listed(value: Any) -> Iterable[Any]:
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else value


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)
