import functools
from collections.abc import Generator, Iterator
from importlib.util import find_spec

import pytest
import torch
import torch._inductor.config

from bakeoff.records.errors import chain_of


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that needs torchao where there is none, as beside the oldest torch."""
    try:
        return (yield)
    except Exception as error:
        if find_spec("torchao") or not any("torchao" in str(one) for one in chain_of(error)):
            raise
        pytest.skip("it needs torchao")


@pytest.fixture(scope="session", autouse=True)
def compiler_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give all configurations caches that are empty at first and are not the user's."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        # ahead of time two programs are compiled: preparing headers and optimising them takes longer than it saves
        patch.setattr(torch._inductor.config.aot_inductor, "precompile_headers", False)
        patch.setattr(torch._inductor.config.aot_inductor, "compile_wrapper_opt_level", "O0")
        # what the CPU says of itself is believed without compiling a program
        patch.setattr(torch._inductor.config.cpp, "vec_isa_ok", True)
        yield


@pytest.fixture(scope="session", autouse=True)
def known_onnx_functions() -> Iterator[None]:
    """Read the source of onnxscript's functions once. Each export would do it again, which takes half of its time."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield
