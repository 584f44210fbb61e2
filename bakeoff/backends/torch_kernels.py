"""Modes that choose among torch's own kernels: cuDNN's algorithms for convolutions, and the kernels of attention.

ONNX Runtime and TensorRT try out the kernels of convolutions by themselves. Torch does it only if a switch says so.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from bakeoff.backends.base import Mode, Suits
from bakeoff.models.lazily import nn, torch
from bakeoff.records.errors import Unsupported
from bakeoff.records.schema import Extent, Placement

CUDNN_BENCHMARK = "backends.cudnn.benchmark"

BENCHMARK = Mode(
    "cudnn-benchmark", switches={CUDNN_BENCHMARK: True}, worth_trying=Suits("cuda", convolutions=True), device="cuda"
)

SWITCHES = {"flash": "flash", "efficient": "mem_efficient", "cudnn": "cudnn", "math": "math"}
"""The kernels of `scaled_dot_product_attention`, with their names in torch's switches. A CPU has the first and last."""

ATTENTION = {
    f"attention-{kernel}": Mode(
        f"attention-{kernel}",
        switches={f"backends.cuda.enable_{other}_sdp": other == switch for other in SWITCHES.values()},
        device="" if kernel in ("flash", "math") else "cuda",
    )
    for kernel, switch in SWITCHES.items()
}
"""The modes that allow one kernel of attention alone, by their names."""

CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "a device's own"}
"""The values of torch.nn.attention.SDPBackend, and the kernels that they stand for."""

OPERATORS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "_scaled_dot_product_efficient_attention": "efficient",
    "_scaled_dot_product_cudnn_attention": "cudnn",
    "_scaled_dot_product_fused_attention_overrideable": "a device's own",
    "_transformer_encoder_layer_fwd": "fast path",
    "_native_multi_head_attention": "fast path",
}
"""The operators that torch's attention becomes, and their kernels. `math` becomes products and a softmax."""


def kernel_of(operator: str) -> str:
    """Return the kernel of attention that an operator stands for, such as `aten._scaled_dot_product_flash_attention`,
    or an empty string."""
    return OPERATORS.get(operator.removeprefix("aten."), "")


def attention_in(call: Callable[[], object]) -> dict[str, int]:
    """Make a call, and return how often each kernel of torch's attention ran in it, in the words of a placement."""
    from bakeoff.backends.plain_dispatch import OperatorWatch

    ran: Counter[str] = Counter()

    def note(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], _: object) -> None:
        if func is torch.ops.aten.scaled_dot_product_attention.default:  # is whole in inference mode
            ran[CHOICES.get(torch._fused_sdp_choice(*args, **kwargs), "")] += 1
        else:
            ran[kernel_of(str(func.overloadpacket))] += 1

    with OperatorWatch(note):
        call()
    return {f"{kernel} attention": count for kernel, count in ran.items() if kernel}


def placement(call: Callable[[], object], **engines: int) -> Placement:
    """Return a full placement of what torch runs, with the kernels of attention in one more call."""
    attention = attention_in(call)
    evidence = ["torch's dispatcher, which names the kernels of attention in a call"] if attention else []
    return Placement(extent=Extent.FULL, engines={**engines, **attention}, evidence=evidence)


def tries_out(mode: Mode) -> bool:
    """Return True if first calls in the mode try out kernels on the device."""
    return mode.switches.get(CUDNN_BENCHMARK, False)


def statements(mode: Mode) -> list[str]:
    return [
        f"torch.{path}({value})" if path.startswith("backends.cuda.enable_") else f"torch.{path} = {value}"
        for path, value in mode.switches.items()
    ]


def require(mode: Mode, module: torch.nn.Module, call: Callable[[], object]) -> None:
    """Raise Unsupported where the mode has nothing to choose in this call of the module, or its kernel does not take
    the call."""
    if tries_out(mode):
        if not any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules()):
            raise Unsupported("the model has no convolution, for which cuDNN could try out algorithms")
    elif mode.name in ATTENTION:
        with warnings.catch_warnings(record=True) as warned:  # torch says why a kernel does not take the call
            warnings.simplefilter("always")
            try:
                kernels = attention_in(call)
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                texts = [str(warning.message).partition(" (Triggered")[0] for warning in warned]
                reasons = [text for text in texts if not text.endswith("because:")]
                raise Unsupported(
                    ": ".join([f"{mode.name} does not take this model's attention", *reasons[:1]])
                ) from error
        if not kernels:
            raise Unsupported("the model does not call torch's scaled_dot_product_attention")
