from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._inductor.config


@pytest.fixture(scope="session", autouse=True)
def compiler_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give all configurations caches that are empty at first and are not the user's."""
    folder = tmp_path_factory.mktemp("caches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))
        patch.setenv("TRITON_CACHE_DIR", str(folder / "triton"))
        # ahead of time two programs are compiled: preparing headers for them takes longer than it saves
        patch.setattr(torch._inductor.config.aot_inductor, "precompile_headers", False)
        # what the CPU says of itself is believed without compiling a program
        patch.setattr(torch._inductor.config.cpp, "vec_isa_ok", True)
        yield
