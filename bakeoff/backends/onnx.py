"""ONNX Runtime with inputs and outputs bound on the device, so that a timed call copies nothing."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from bakeoff.backends import base, exporting, onnx_plugins, onnx_quantising, onnx_traps, weight_only
from bakeoff.backends.base import DEFAULT, Availability, Compiled, Mode, Settings
from bakeoff.backends.eager import torch_available
from bakeoff.backends.onnx_profiling import SessionProfiler, is_node, on_device
from bakeoff.backends.profiling import Profiler
from bakeoff.backends.ranges import lowest_and_highest
from bakeoff.backends.runtime import onnx as runtime
from bakeoff.backends.standalone import CppRuntime, Names, Runtime, ScriptPart, Threads, TritonBackend, literal, spelled
from bakeoff.models.base import Inputs
from bakeoff.models.generation import caches_in_place
from bakeoff.models.lazily import onnxruntime, torch
from bakeoff.records.device import Device
from bakeoff.records.errors import Unavailable, Unsupported
from bakeoff.records.precision import Precision
from bakeoff.records.schema import Cell, Extent, Placement

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    onnx_plugins.OPENVINO.mode: "OpenVINOExecutionProvider",  # of onnxruntime-openvino, without the plug-in
}
PACKAGES = {"cuda": "onnxruntime-gpu", "tensorrt": "onnxruntime-gpu"}
"""Distributions that bring a build of ONNX Runtime with the provider."""

PROFILED_CALLS = 5

ONE_FOR_ALL = "one for all"
"""The value of the knob `sessions` with which instances share a session and its threads."""

NO_CONVOLUTIONS = ".no-convolutions"
"""A file of this name lies beside an exported model that has none."""

Shapes = tuple[tuple[int, ...], ...]


ARTIFACTS = ("int8.onnx", "model.onnx")

LINES = """\
with torch.no_grad(), TemporaryDirectory() as folder:
    torch.onnx.export(model, inputs, f"{{folder}}/model.onnx", dynamo=True, verbose=False{opset})
    session = onnxruntime.InferenceSession(f"{{folder}}/model.onnx", providers={providers})
names = [value.name for value in session.get_inputs()]
call = partial(session.run, None, {{name: tensor.numpy(force=True) for name, tensor in zip(names, inputs)}})"""

OTHER_PROVIDER = "what is exported runs by the CPU's and CUDA's providers only"

NEVER_RAN_TENSORRT = (
    "ONNX Runtime's TensorRT provider was never run by us: its libraries are out of our machines' reach"
)


class Onnx(base.Backend):
    name = "onnx"
    description = "ONNX Runtime from the torch.export-based ONNX exporter, with IO binding"
    usual_build_s = 5.0
    colour = "#0072b2"
    traps = onnx_traps.TRAPS
    links = onnx_traps.LINKS
    quantises = True
    takes_onnx = True
    profiles_artefact = True
    takes_ranges = True
    shared_phases = ("export",)
    tunes_late = True
    modes = (
        Mode(worth_trying=base.ANYWHERE),
        Mode("cpu", {"provider": "cpu"}, device="cpu", redundant=True, built_as=DEFAULT),
        Mode("cuda", {"provider": "cuda"}, device="cuda", redundant=True, built_as=DEFAULT),
        Mode(
            base.CUDA_GRAPH,
            {"provider": "cuda", "options": {"enable_cuda_graph": "1"}},
            worth_trying=base.Suits("cuda"),
            captures=True,
            built_as=DEFAULT,
        ),
        Mode("opset-23", {"opset": 23}),  # in which attention is one operator, which a provider may run as one kernel
        base.int8_products({"accuracy_level": 4}),
        Mode(
            "tensorrt-ep", {"provider": "tensorrt"}, device="cuda", no_script=OTHER_PROVIDER, caveat=NEVER_RAN_TENSORRT
        ),
        *(
            Mode(
                plugin.mode,
                {"provider": plugin.mode},
                device=plugin.device,
                no_script=OTHER_PROVIDER,
                built_as=DEFAULT if plugin.device == "cpu" else "",
                caveat=plugin.caveat,
            )
            for plugin in onnx_plugins.PLUGINS.values()
        ),
    )
    serving: ClassVar[base.ServingKnobs] = base.ServingKnobs(
        instance="session", options={"sessions": ("one each", ONE_FOR_ALL), "spinning": ("on", "off")}
    )
    libraries: ClassVar[tuple[str, ...]] = (
        "torch",
        "onnx",
        "onnxscript",
        "onnxruntime",
        "onnxruntime-gpu",
        "onnxruntime-openvino",
        *(plugin.package for plugin in onnx_plugins.PLUGINS.values()),
    )
    module: ClassVar[str] = "onnxruntime"

    def available(self, device: Device) -> Availability:
        for library in ("onnx", "onnxscript", "onnxruntime"):
            if not (imports := base.installed(library, f"pip install {library}", library)):
                return imports
        return _provider_available(device.kind) and torch_available(device)

    def reason_against(self, cell: Cell) -> str:
        if cell.mode == "opset-23" and cell.is_onnx_file:
            return f"{cell.model} has an opset of its own"
        products = cell.precision.products
        if products.is_16_bit and not cell.device.is_cuda:
            return f"ONNX Runtime's CPU provider has no {products} kernels for most operators"
        if cell.precision.is_weight_only and _provider(cell) not in ("cpu", "cuda"):
            return f"mode {cell.mode} has no MatMulNBits, which multiplies weights of few bits: use onnx"
        if cell.precision is Precision.INT8 and _provider(cell) == "cuda":
            return "ONNX Runtime's CUDA provider has no kernels for quantised layers: use tensorrt-ep"
        if cell.precision is Precision.INT8 and _provider(cell) == onnx_plugins.OPENVINO.mode:
            return "int8 through OpenVINO is what the backend openvino measures"
        if cell.precision is Precision.FP8:
            return "ONNX Runtime has no static fp8 quantisation for this model"
        return ""

    def script(self, cell: Cell, settings: Mapping[str, object]) -> ScriptPart | None:
        if self.mode(cell.mode).no_script:
            return None
        options, provider = self.mode(cell.mode).options, PROVIDERS[_provider(cell)]
        given: object = [provider]
        if provider == runtime.CUDA:
            given = [(provider, {"use_tf32": "1" if cell.precision.allows_tf32 else "0", **self._more(cell)})]
        return ScriptPart(
            LINES.format(
                opset=spelled({"opset_version": options["opset"]} if "opset" in options else {}),
                providers=literal(given),
            ),
            ("from tempfile import TemporaryDirectory", "import onnxruntime"),
        )

    def loading(self, cell: Cell, settings: Mapping[str, object]) -> Mapping[str, object]:
        return {"options": self._more(cell)}

    @classmethod
    def _more(cls, cell: Cell) -> Mapping[str, str]:
        more: Any = cls.mode(cell.mode).options.get("options", {})
        return dict(more)

    def runtime(self, device: Device) -> Runtime:
        on_cpu = Runtime(
            ARTIFACTS,
            ("onnxruntime", "numpy"),
            ("onnxruntime",),
            loader="onnx:load",
            binds_outputs=True,
            triton=TRITON,
            cpp=CPP,
            holds_quantised=True,
        )
        if not device.is_cuda:
            return on_cpu
        libraries, imports = ("onnxruntime-gpu", "torch", "numpy"), ("onnxruntime", "torch")
        # a session has one stream
        return replace(on_cpu, libraries=libraries, imports=imports, cpp=None, threads=Threads.TURNS)

    def keeps_choices(self, cell: Cell, workspace: Path) -> bool:
        """The CUDA provider tries out nothing but convolutions."""
        return _provider(cell) == "cuda" and (workspace / NO_CONVOLUTIONS).exists()

    def build(self, module: torch.nn.Module, inputs: Inputs, context: base.BuildContext) -> Compiled:
        cell = context.cell
        provider = _provider(cell)
        if plugin := _plugin(provider):
            plugin.find(cell.device)
        elif not (available := _provider_available(provider)):
            raise Unavailable(available.reason)
        if cell.device.is_cuda:
            onnxruntime.preload_dlls()  # cuDNN and cuBLAS from torch's wheels
        if provider == "tensorrt" and (missing := _missing_for_tensorrt()):
            raise Unavailable(f"ONNX Runtime's TensorRT provider does not load: {missing}")
        experts = exporting.use_exportable_experts(module)
        exported = exporting.exported_before(context.workspace)
        if exported is None:
            with context.phase("export"):
                opset: Any = self.mode(cell.mode).options.get("opset")
                exported = exporting.export_onnx(module, inputs, context.workspace, opset, context.open_axes)
                if cell.precision is Precision.INT8:
                    exported = onnx_quantising.static_onnx(
                        exported,
                        context.calibration,
                        context.workspace,
                        symmetric=provider.startswith("tensorrt"),
                        kept=context.kept_in_float32,
                    )
                elif cell.precision.is_weight_only:
                    weight_only.onnx_weights(exported, cell.precision, self.mode(cell.mode).options)
            if not exporting.convolves(exported.path):
                (context.workspace / NO_CONVOLUTIONS).touch()
        if cell.device.is_cuda and not self.keeps_choices(cell, context.workspace):
            context.await_quiet()
        with context.phase("compile"):
            sessions = Sessions(exported, context, provider, inputs)
            graph = cell.mode == base.CUDA_GRAPH
            is_rounded = cell.precision.is_quantised
            layers = onnx_quantising.onnx_layers(exported, cell.precision) if is_rounded else {}
            caches = caches_in_place(module, inputs)
            changed = {**experts, **({"caches": "in place"} if caches else {})}
            bound = BoundSession(sessions, layers, changed, caches, static=inputs if graph else None)
            bound.bind(inputs)
            for _ in range(runtime.CAPTURING_CALLS if graph else 1):
                bound.run()
        return bound


def _names_in(path: Path) -> Names:
    exported = exporting.model_at(path)
    return exported.input_names, exported.output_names


TRITON = TritonBackend("onnxruntime", names=_names_in, threads="intra_op_thread_count")
CPP = CppRuntime(
    "onnxruntime",
    "ONNXRUNTIME_LIBRARY",
    'import glob, onnxruntime; print(glob.glob(onnxruntime.__path__[0] + "/capi/libonnxruntime.so.*")[0])',
)


def _provider(cell: Cell) -> str:
    """Return the cell's key of `PROVIDERS`. The default mode takes the provider of the device."""
    return str(Onnx.mode(cell.mode).options.get("provider", cell.device.kind))


def _plugin(provider: str) -> onnx_plugins.Plugin | None:
    """Return the plug-in that a mode runs on, or None where this build of ONNX Runtime has the provider itself."""
    plugin = onnx_plugins.PLUGINS.get(provider)
    is_built_in = PROVIDERS.get(provider) in onnxruntime.get_available_providers()
    return plugin if plugin and (plugin.is_installed or not is_built_in) else None


def _provider_available(provider: str) -> Availability:
    name = PROVIDERS[provider]
    if name in onnxruntime.get_available_providers():
        return base.AVAILABLE
    return Availability(
        f"this build of onnxruntime {onnxruntime.__version__} has no {name}: "
        f"pip install {PACKAGES.get(provider, 'onnxruntime')} in its place"
    )


def _missing_for_tensorrt() -> str:
    """Return why the provider's library does not load, or an empty string. It needs the TensorRT it was linked to."""
    with contextlib.suppress(ImportError, OSError):
        import tensorrt  # noqa: F401  # loads its libraries from where pip has put them
    library = Path(onnxruntime.__file__).parent / "capi" / "libonnxruntime_providers_tensorrt.so"
    try:
        # its symbols come from ONNX Runtime's libraries; only lazy binding loads it without them
        ctypes.CDLL(str(library), mode=os.RTLD_LAZY)
    except OSError as error:
        # only symbols of its host are missing, so TensorRT's libraries were found
        return "" if "undefined symbol" in str(error) else str(error)
    return ""


class Sessions:
    """Opens sessions on one exported model, with the options of the cell."""

    def __init__(
        self, exported: exporting.OnnxModel, context: base.BuildContext, provider: str, example: Inputs | None = None
    ) -> None:
        self.exported = exported
        self.context = context
        self._example = example
        self._asked = provider
        self.plugin = _plugin(provider)
        self.provider = self.plugin.provider() if self.plugin else PROVIDERS[provider]

    def open(self, may_fall_back: bool = True, profile: str = "", optimised: str = "") -> Any:
        """Return a session, which writes its graph to the file `optimised`, and a profile to files with the prefix
        `profile`. Raise BakeoffError if the provider did not start: ONNX Runtime would silently go on without it."""
        options = runtime.session_options(self.context.threads)
        if serving := self.context.serving:
            if serving.options.get("sessions") == ONE_FOR_ALL:
                options.intra_op_num_threads = serving.instances * self.context.threads
            if serving.options.get("spinning") == "off":
                options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        if profile:
            options.enable_profiling = True
            options.profile_file_prefix = profile
        if optimised:
            options.optimized_model_filepath = optimised
            options.log_severity_level = 3  # it warns that the file is for this machine alone
            weights = f"{Path(optimised).name}.data"
            options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights)
        providers = self._with_fallbacks(self._asked)  # with the stream that is current now
        if not may_fall_back:
            # ONNX Runtime adds its CPU provider itself, and naming it contradicts the option
            options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
            providers = [provider for provider in providers if provider[0] != PROVIDERS["cpu"]]
        if self.plugin:
            prefix = self.plugin.profile
            self.plugin.add_to(options, self.context, self._profile(prefix) if prefix else {})
        return runtime.open_session(self.exported.path, options, providers, wanted=self.provider)

    @property
    def are_shared(self) -> bool:
        serving = self.context.serving
        return serving is not None and serving.options.get("sessions") == ONE_FOR_ALL

    def accepted_without_cpu(self) -> str:
        """Open a session that may not fall back to the CPU. Return "accepted", or why ONNX Runtime refused."""
        try:
            self.open(may_fall_back=False)
        except Exception as error:  # only some builds of ONNX Runtime have their own type for this
            return f"refused: {str(error).strip().splitlines()[0][:200]}"
        return "accepted"

    def _with_fallbacks(self, provider: str) -> list[tuple[str, dict[str, str]]]:
        """Return the asked provider first, then those that take the nodes it leaves. A plug-in is not named here."""
        cpu: tuple[str, dict[str, str]] = (PROVIDERS["cpu"], {})
        if provider == "cuda":
            return [(PROVIDERS["cuda"], self._cuda_options()), cpu]
        if provider == "tensorrt":
            return [(PROVIDERS["tensorrt"], self._tensorrt_options()), (PROVIDERS["cuda"], self._cuda_options()), cpu]
        if self.plugin:
            return []
        if provider == onnx_plugins.OPENVINO.mode:
            kept_types = {"device_type": "CPU", "precision": "ACCURACY"}
            return [(self.provider, {**kept_types, **onnx_plugins.openvino_options(self.context)}), cpu]
        return [cpu]

    def _cuda_options(self) -> dict[str, str]:
        cell = self.context.cell
        return runtime.cuda_options(*_device_and_stream(cell.device), cell.precision.allows_tf32, Onnx._more(cell))

    def _tensorrt_options(self) -> dict[str, str]:
        """Return the options. TF32 is on and has no option: only NVIDIA_TF32_OVERRIDE turns it off."""
        os.environ["NVIDIA_TF32_OVERRIDE"] = "1" if self.context.cell.precision.allows_tf32 else "0"
        folder = str(self.context.workspace)
        device, stream_handle = _device_and_stream(self.context.cell.device)
        return {
            "device_id": str(device.index or 0),
            "user_compute_stream": str(stream_handle),
            "trt_engine_cache_enable": "1",
            "trt_engine_cache_path": folder,
            "trt_timing_cache_enable": "1",
            "trt_timing_cache_path": folder,
            **self._profile("trt"),
        }

    def _profile(self, prefix: str) -> dict[str, str]:
        """Return the shapes that one TensorRT engine serves, as `name:2x16x256,other:2x16`; nothing for one size."""
        axes = self.context.open_axes
        if not axes or self._example is None:
            return {}
        shapes = [tuple(tensor.shape) for tensor in self._example.tensors()]
        low, high = zip(*(lowest_and_highest(axes, *numbered) for numbered in enumerate(shapes)), strict=True)
        ends = {"min": low, "opt": shapes, "max": high}
        names = self.exported.input_names
        return {
            f"{prefix}_profile_{end}_shapes": ",".join(
                f"{name}:{'x'.join(map(str, shape))}" for name, shape in zip(names, tuned, strict=True)
            )
            for end, tuned in ends.items()
        }


def _device_and_stream(device: Device) -> tuple[torch.device, int]:
    return torch.device(device), torch.cuda.current_stream().cuda_stream


class BoundSession(Compiled):
    """A session with inputs and outputs bound to the memory of torch tensors. The last inputs are `caches` of a decode
    step, bound as outputs, too: ONNX Runtime writes into them. `static` inputs have fixed buffers."""

    def __init__(
        self,
        sessions: Sessions,
        layers: Settings,
        changed: Settings,
        caches: int,
        static: Inputs | None = None,
        session: Any = None,
    ) -> None:
        self._sessions = sessions
        self._layers = layers
        self._changed = changed
        self._is_open = bool(sessions.context.open_axes)
        self._session = session or sessions.open()
        self._exported = sessions.exported
        self._device = torch.device(sessions.context.cell.device)
        self._caches = caches
        self._static = tuple(_as_bound(tensor).clone() for tensor in static.tensors()) if static else None
        self._run_options = runtime.run_options()
        self._buffers: dict[Shapes, list[torch.Tensor | None]] = {}  # the outputs, by the shapes of the inputs
        self._unsized: tuple[str, ...] = ()  # outputs for which each call allocates memory
        self._spare = torch.empty(1, dtype=torch.uint8, device=self._device)  # the address of outputs without elements
        self._bindings: dict[int, tuple[Any, Inputs, tuple[torch.Tensor, ...]]] = {}
        self._current: Any = None
        self._last_bound: tuple[torch.Tensor, ...] = ()
        if self._static is not None:
            self._current = self._binding(self._static)
            if unsized := self._without_size(self._static):
                raise Unsupported(f"a CUDA graph replays calls of one size, and that of '{unsized[0]}' is not known")

    def bind(self, inputs: Inputs) -> None:
        if self._static is not None:
            for buffer, tensor in zip(self._static, inputs.tensors(), strict=True):
                buffer.copy_(_as_bound(tensor))
            return
        key = id(inputs)
        if key not in self._bindings:
            tensors = tuple(_as_bound(tensor) for tensor in inputs.tensors())
            # `inputs` is kept with its binding, so that nothing else gets its id
            self._bindings[key] = (self._binding(tensors), inputs, tensors)
        self._current, _, self._last_bound = self._bindings[key]
        self._unsized = self._without_size(self._last_bound)

    def run(self) -> None:
        for name in self._unsized:  # or the last call's size would be demanded again
            self._current.bind_output(name, self._device.type, self._device.index or 0)
        self._session.run_with_iobinding(self._current, self._run_options)

    def outputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.clone() for tensor in self.results())

    def results(self) -> tuple[torch.Tensor, ...]:
        bound = self.own_inputs()
        buffers = (*self._buffers_for(bound), *self._caches_in(bound))
        allocated = self._current.get_outputs() if self._unsized else (None,) * len(buffers)
        return tuple(
            _copied(value, self._device) if buffer is None else buffer
            for buffer, value in zip(buffers, allocated, strict=True)
        )

    def own_inputs(self) -> tuple[torch.Tensor, ...]:
        return self._static or self._last_bound

    def seed(self, number: int) -> None:
        """Seed dropout, which adds 1 to its seed in each call. Seeds so close give masks that resemble each other."""
        onnxruntime.set_seed(number)

    def _without_size(self, tensors: tuple[torch.Tensor, ...]) -> tuple[str, ...]:
        pairs = zip(self._exported.output_names, self._buffers_for(tensors), strict=False)  # caches come last
        return tuple(name for name, buffer in pairs if buffer is None)

    def _caches_in(self, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return tensors[len(tensors) - self._caches :]

    def instance(self) -> Compiled:
        if self._static is not None:
            raise Unsupported("a session that replays a CUDA graph answers one call at a time")
        if self._sessions.are_shared and self._device.type == "cuda":
            raise Unsupported("a session on CUDA has one stream, and instances need one each")
        session = self._session if self._sessions.are_shared else None
        return BoundSession(self._sessions, self._layers, self._changed, self._caches, session=session)

    def placement(self) -> Placement | None:
        return self._assignment

    def profiler(self, module: torch.nn.Module) -> Profiler:
        if self._sessions.provider not in (PROVIDERS["cpu"], PROVIDERS["cuda"]):
            raise Unsupported(f"ONNX Runtime does not say which nodes {self._sessions.provider} has compiled into one")
        nodes = SessionProfiler(
            lambda profile, optimised: self._sessions.open(profile=profile, optimised=optimised),
            lambda session: self._binding(self.own_inputs(), session),
            self._exported.path,
        )
        return on_device(nodes, self.run) if self._sessions.provider == PROVIDERS["cuda"] else nodes

    def precision(self) -> Settings:
        kept: Settings = {key: value for key, value in self._options().items() if key in ("use_tf32", "load_config")}
        if override := os.environ.get("NVIDIA_TF32_OVERRIDE"):
            kept["NVIDIA_TF32_OVERRIDE"] = override
        types = {_element(value.type) for value in (*self._session.get_inputs(), *self._session.get_outputs())}
        return {**kept, "graph_input_and_output_types": ", ".join(sorted(types)), **self._layers}

    def settings(self) -> Settings:
        noted = ("enable_cuda_graph", "cudnn_conv_algo_search", "trt_engine_cache_enable", "device_type")
        kept = {key: value for key, value in self._options().items() if key in noted}
        providers = ", ".join(self._session.get_providers())
        return {"provider": self._sessions.provider, "providers": providers, **kept, **self._changed}

    def _options(self) -> dict[str, str]:
        options: dict[str, str] = self._session.get_provider_options().get(self._sessions.provider, {})
        return options

    @cached_property
    def _assignment(self) -> Placement | None:
        """Ask the session, a second one that may not fall back, and a profile if providers are mixed on a GPU."""
        provider = self._sessions.provider
        placement = assignment(self._session, provider)
        if placement is None:
            return None
        evidence = ["ONNX Runtime's assignment of nodes, before fusion"]
        if self._sessions.plugin and self._device.type == "cuda":
            evidence.append("the session itself, which may not fall back to the CPU")
        # not for TensorRT: its engines take minutes to build, and it falls back to CUDA first
        elif provider not in (PROVIDERS["cpu"], PROVIDERS["tensorrt"]):
            verdict = self._sessions.accepted_without_cpu()
            evidence.append(f"a second session with CPU fallback disabled: {verdict}")
        # not on the CPU: the kernels in the profile of OpenVINO's plug-in have averages over all calls so far
        time_share: dict[str, float] = {}
        if len(placement.engines) > 1 and self._device.type == "cuda":
            with tempfile.TemporaryDirectory() as folder:
                session = self._sessions.open(profile=f"{folder}/profile")
                binding = self._binding(self.own_inputs(), session)
                for _ in range(PROFILED_CALLS):
                    session.run_with_iobinding(binding)
                time_share = time_share_of(json.loads(Path(session.end_profiling()).read_text()))
        if time_share:
            evidence.append("ONNX Runtime's profile of further calls")
        return placement.but(evidence=evidence, time_share=time_share)

    def _buffers_for(self, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor | None]:
        """Return the buffers of the outputs for inputs of these shapes, or None for those that ONNX Runtime
        allocates."""
        key = tuple(tuple(tensor.shape) for tensor in tensors)
        if key not in self._buffers:
            values = self._session.get_outputs()
            values = values[: len(values) - self._caches]
            shapes = (
                runtime.shapes_by_call(self._session, tensors, self._device.type, self._device.index or 0)
                if self._is_open
                else [value.shape for value in values]
            )
            of_graph = self._exported.output_shapes or ((),) * len(values)
            self._buffers[key] = [
                None
                # a session that infers another size than the exporter, as for a Resize, refuses the right buffer
                if _depends_on_values(value, self._is_open) or runtime.are_other_sizes(value.shape, exported)
                else torch.empty(tuple(shape), dtype=_torch_type(value.type), device=self._device)
                for value, shape, exported in zip(values, shapes, of_graph, strict=False)
            ]
        return self._buffers[key]

    def close(self) -> None:
        self._bindings.clear()
        self._buffers.clear()
        self._last_bound = ()
        self._current = None
        self._session = None

    def _binding(self, tensors: tuple[torch.Tensor, ...], session: Any = None) -> Any:
        binding = (session or self._session).io_binding()
        runtime.bind(binding.bind_input, self._exported.input_names, tensors)
        outputs = (*self._buffers_for(tensors), *self._caches_in(tensors))
        for name, buffer in zip(self._exported.output_names, outputs, strict=True):
            if buffer is None:
                binding.bind_output(name, self._device.type, self._device.index or 0)
            else:
                runtime.bind(binding.bind_output, [name], [buffer], self._spare.data_ptr())
        return binding


def assignment(session: Any, provider: str) -> Placement | None:
    """Ask ONNX Runtime which provider got which node, before fusion. Return None before version 1.24. Shape arithmetic
    on the CPU is a fallback, too, because it costs a synchronisation."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return None
    engines: dict[str, int] = {}
    elsewhere: list[str] = []
    for part in session.get_provider_graph_assignment_info():
        nodes = part.get_nodes()
        engines[part.ep_name] = engines.get(part.ep_name, 0) + len(nodes)
        if part.ep_name != provider:
            elsewhere += [f"{node.op_type} on {part.ep_name}" for node in nodes]
    counted = [f"{name} ({elsewhere.count(name)})" for name in dict.fromkeys(elsewhere)]
    extent = Extent.FALLBACK if not engines.get(provider) else Extent.PARTIAL if counted else Extent.FULL
    return Placement(extent=extent, engines=engines, fallbacks=counted)


def time_share_of(events: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return each provider's share of the time in `events`, a profile of ONNX Runtime; empty if they do not show it."""
    on_cpu = sum(
        event["dur"] for event in events if is_node(event) and event.get("args", {}).get("provider") == PROVIDERS["cpu"]
    )
    # A node's event times the launch alone. Only builds with CUPTI write kernels: onnxruntime-gpu 1.31.1 does not.
    on_gpu = sum(event["dur"] for event in events if event.get("cat") == "Kernel")
    if not on_cpu or not on_gpu:
        return {}
    whole = on_cpu + on_gpu
    return {PROVIDERS["cuda"]: on_gpu / whole, PROVIDERS["cpu"]: on_cpu / whole}


def _as_bound(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as the graph takes it: contiguous, with complex numbers as pairs in a last dimension."""
    return torch.view_as_real(tensor.resolve_conj().contiguous()) if tensor.is_complex() else tensor.contiguous()


def _depends_on_values(value: Any, is_open: bool) -> bool:
    """Return True if the values in the inputs decide the size of an output: torch.export calls such sizes `u0`. Other
    names are those of open axes, or of unknown sizes in an ONNX file."""
    names = [size for size in value.shape if not isinstance(size, int)]
    return any(size is None or re.search(r"\bu\d", size) for size in names) if is_open else bool(names)


class _DeviceMemory:
    """Memory of a CUDA device that torch can take as a tensor of bytes."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _copied(value: Any, device: torch.device) -> torch.Tensor:
    dtype, shape = _torch_type(value.data_type()), tuple(value.shape())
    size = math.prod(shape) * dtype.itemsize
    if not size:
        return torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cuda":
        memory = torch.as_tensor(_DeviceMemory(value.data_ptr(), size), device=device)
    else:
        memory = torch.frombuffer((ctypes.c_uint8 * size).from_address(value.data_ptr()), dtype=torch.uint8)
    return memory.view(dtype).view(shape).clone()


def _torch_type(name: str) -> torch.dtype:
    types = {"float": torch.float32, "double": torch.float64}
    inner = _element(name)
    dtype = types.get(inner) or getattr(torch, inner)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _element(name: str) -> str:
    return name.removeprefix("tensor(").removesuffix(")")
