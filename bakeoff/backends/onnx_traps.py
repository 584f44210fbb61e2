"""Known traps of ONNX Runtime, whose builds come as several distributions."""

from collections.abc import Iterator

from bakeoff.backends.traps import Facts, Finding, Link, Trap, Weight, major_version

LINKS = (
    Link("CUDA", "onnxruntime-gpu", "onnxruntime/capi/libonnxruntime_providers_cuda.so", "libcudart.so"),
    Link("TensorRT", "onnxruntime-gpu", "onnxruntime/capi/libonnxruntime_providers_tensorrt.so", "libnvinfer.so"),
)


def several_onnxruntimes(facts: Facts) -> Iterator[Finding]:
    """The builds of ONNX Runtime are packages with different names that install the same folder."""
    installed = _onnxruntimes(facts)
    if len(installed) > 1:
        wanted = "onnxruntime-gpu" if "onnxruntime-gpu" in installed and facts.has_gpu else installed[0]
        yield Finding(
            weight=Weight.PROBLEM,
            text=f"{' and '.join(installed)} are installed over one another, and chance decides which files are left",
            remedy=f"pip uninstall -y {' '.join(installed)} && pip install {wanted}",
            backends=["onnx"],
        )


def onnxruntime_without_cuda(facts: Facts) -> Iterator[Finding]:
    if facts.has_gpu and _onnxruntimes(facts) == ["onnxruntime"]:
        yield Finding(
            weight=Weight.PROBLEM,
            text=f"onnxruntime {facts.version('onnxruntime')} is the build for the CPU, and this machine has a GPU",
            remedy="pip uninstall -y onnxruntime && pip install onnxruntime-gpu",
            backends=["onnx"],
            devices=["cuda"],
        )


def onnxruntime_of_another_cuda(facts: Facts) -> Iterator[Finding]:
    """The CUDA provider is linked against one major version of CUDA and finds its libraries in torch's wheels."""
    linked, version = facts.linked.get("CUDA"), facts.version("onnxruntime-gpu")
    if linked and version and facts.torch_cuda and linked != major_version(facts.torch_cuda):
        yield Finding(
            weight=Weight.PROBLEM,
            text=f"onnxruntime-gpu {version} wants CUDA {linked}, found {facts.torch_cuda} (torch {facts.torch})",
            remedy=(
                f"pip install a torch and a torchvision for CUDA {linked}, "
                f"or an onnxruntime-gpu for CUDA {major_version(facts.torch_cuda)}"
            ),
            backends=["onnx"],
            devices=["cuda"],
        )


def onnxruntime_of_another_tensorrt(facts: Facts) -> Iterator[Finding]:
    """The TensorRT provider is linked against one major version of TensorRT. `onnx` works without that provider."""
    linked, installed = facts.linked.get("TensorRT"), facts.version("tensorrt")
    if linked and installed and linked != major_version(installed):
        yield Finding(
            weight=Weight.WARNING,
            text=(
                f"onnxruntime-gpu {facts.version('onnxruntime-gpu')} links TensorRT {linked} (libnvinfer.so.{linked}), "
                f"and TensorRT {installed} is installed: onnx/tensorrt-ep cannot start"
            ),
            remedy=(
                f"bakeoff env add trt{linked} 'tensorrt=={linked}.*', "
                f"and name onnx/tensorrt-ep@trt{linked} among the backends"
            ),
        )


def _onnxruntimes(facts: Facts) -> list[str]:
    beside = ("onnxruntime-genai", "onnxruntime-ep-")  # these are no builds of it
    names = [name for name in facts.libraries if name.startswith("onnxruntime") and not name.startswith(beside)]
    return [name for name in names if facts.libraries[name].version]


TRAPS: tuple[Trap, ...] = (
    several_onnxruntimes,
    onnxruntime_without_cuda,
    onnxruntime_of_another_cuda,
    onnxruntime_of_another_tensorrt,
)
