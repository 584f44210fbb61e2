"""How a cell ends without TransformerEngine, or without a library that it needs."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bakeoff.models import fp8_layers
from bakeoff.records.errors import Unavailable

ON_CUDA_IN_16_BITS: Any = SimpleNamespace(is_cuda=True, element_size=lambda: 2)


@pytest.mark.parametrize("raised", ["ImportError('no module')", "OSError('libcudnn_graph.so.9: undefined symbol')"])
def test_an_engine_that_does_not_import_is_unavailable_and_says_what_to_do(
    raised: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformer_engine").mkdir()
    (tmp_path / "transformer_engine" / "__init__.py").write_text(f"raise {raised}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "transformer_engine", raising=False)
    with pytest.raises(Unavailable, match=r"(no module|undefined symbol).*linears=torch.*LD_LIBRARY_PATH"):
        fp8_layers.transformer_engine_layer(ON_CUDA_IN_16_BITS)
