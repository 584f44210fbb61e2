#!/usr/bin/env python3
"""Are latencies the same whether modes of one family share a build or each of them builds its own?

    python benchmarks/sharing.py --devices cuda
    python benchmarks/sharing.py --model mlp,conv --backends eager,onnx,onnx/cpu --devices cpu

Each model is measured twice from empty caches: with one build for each family of modes, and with one for each cell. A
line for each cell that starts from another one's build has its speed-up over that other cell in both runs, with the
intervals, and the build time that both records tell. The speed-ups are the same if the intervals overlap.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bakeoff.commands import run as runs
from bakeoff.judging.fit import fit_records
from bakeoff.measuring.controller import build_cache, build_folder
from bakeoff.measuring.controller.progress import Silent
from bakeoff.planning import config
from bakeoff.planning.request import Request
from bakeoff.records.schema import Ratio, Record, Status

MODELS = "mlp,conv,transformer,rope,attention,transformer_lm,matmul_chain,mixed_ops,attention_block,fused_add_relu_mul"
BACKENDS = "eager,inductor,inductor/cuda-graph,onnx,onnx/cuda-graph,aotinductor/single-threaded,aotinductor/cuda-graph"


@contextlib.contextmanager
def building_apart() -> Iterator[None]:
    """Have every cell build its own inside of the block."""
    with contextlib.ExitStack() as held:
        for module in (build_folder, build_cache):
            held.enter_context(mock.patch.object(module, "built_as", lambda cell: cell))
        yield


def measured(request: Request, is_shared: bool) -> tuple[list[Record], float]:
    """Return the records of a run from an empty cache that ended well, and the seconds that it took."""
    with tempfile.TemporaryDirectory() as folder, contextlib.nullcontext() if is_shared else building_apart():
        os.environ["BAKEOFF_CACHE_DIR"] = str(Path(folder, "builds"))
        begun_s = time.monotonic()
        report, _ = runs.run(request, Path(folder, "run"), "benchmarks/sharing.py", Silent())
        return [each for each in report.records if each.status is Status.OK], time.monotonic() - begun_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODELS)
    parser.add_argument("--backends", default=BACKENDS)
    parser.add_argument("--devices", default="cuda")
    parser.add_argument("--precision", default="fp32")
    options = parser.parse_args()
    say("| model | cell | shared with | speed-up over it, shared | and apart | build s, shared | and apart |")
    say("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for model in config.split([options.model]):
        request = Request(
            models=(model,),
            backends=config.split([options.backends]),
            devices=config.split([options.devices]),
            precision=config.split([options.precision]),
        )
        (shared, shared_s), (apart, apart_s) = (measured(request, is_shared) for is_shared in (True, False))
        for line in lines(shared, apart):
            say(f"| {model} | {line} |")
        say(f"| {model} | all cells: {shared_s:.0f} s shared, {apart_s:.0f} s apart | | | | | |")


def lines(shared: list[Record], apart: list[Record]) -> Iterator[str]:
    """Yield the columns for each cell that started from another one's build."""
    fits = [fit_records(shared), fit_records(apart)]
    others = {record.cell.label: record for record in apart}
    for record in shared:
        label = record.cell.label
        builder = next((phase.shared_with for phase in record.phases if phase.shared_with), "")
        if builder and builder in others and label in others:
            ratios = [spelled(fit.ratio(label, builder)) for fit in fits]
            yield " | ".join([label, builder, *ratios, f"{record.build_s:.1f}", f"{others[label].build_s:.1f}"])


def spelled(ratio: Ratio) -> str:
    interval = f" [{ratio.ci95.low:.3f}, {ratio.ci95.high:.3f}]" if ratio.ci95 else ""
    return f"{ratio.value:.3f}{interval}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
