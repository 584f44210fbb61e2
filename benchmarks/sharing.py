#!/usr/bin/env python3
"""Are latencies the same whether modes of one family share a build or each of them builds its own?

    python benchmarks/sharing.py --devices cuda
    python benchmarks/sharing.py --small --backends eager,onnx,onnx/cpu --devices cpu --processes 3 --min-time 0.3

`--small` gives the models sizes at which ten contests take minutes on two cores.

Each model is measured twice from empty caches: with one build for each family of modes, and with one for each cell. A
line for each cell that starts from another one's build has its speed-up over that other cell in both runs, with the
intervals, and the build time that both records tell. The speed-ups are the same if the intervals overlap. The last
line counts these, and has the geometric mean of the two speed-ups' ratio, which is 1 if sharing changes nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
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
from benchmarks.common import say

MODELS = "mlp,conv,transformer,rope,attention,transformer_lm,matmul_chain,mixed_ops,attention_block,fused_add_relu_mul"
BACKENDS = "eager,inductor,inductor/cuda-graph,onnx,onnx/cuda-graph,aotinductor/single-threaded,aotinductor/cuda-graph"


SMALL: dict[str, dict[str, object]] = {
    "mlp": {"batch": 4},
    "conv": {"batch": 1, "size": 32, "width": 16},
    "transformer": {"batch": 1, "seq": 32, "layers": 1},
    "rope": {"batch": 1, "seq": 64, "heads": 4},
    "attention": {"batch": 1, "seq": 128},
    "transformer_lm": {"batch": 1, "context": 16},
    "matmul_chain": {"batch": 8},
    "mixed_ops": {"batch": 32},
    "attention_block": {"batch": 1},
    "fused_add_relu_mul": {"elements": 100_000},
}


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
    parser.add_argument("--small", action="store_true", help="sizes for a CPU with few cores")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--min-time", type=float, default=1.5)
    options = parser.parse_args()
    say("| model | cell | shared with | speed-up over it, shared | and apart | build s, shared | and apart |")
    say("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    pairs: list[tuple[Ratio, Ratio]] = []
    for model in config.split([options.model]):
        request = Request(
            models=(model,),
            backends=config.split([options.backends]),
            devices=config.split([options.devices]),
            precision=config.split([options.precision]),
            set=config.parse_dimensions(
                [f"{name}={size}" for name, size in SMALL[model].items()] if options.small else []
            ),
            processes=options.processes,
            min_time_s=options.min_time,
        )
        (shared, shared_s), (apart, apart_s) = (measured(request, is_shared) for is_shared in (True, False))
        for line, ratios in lines(shared, apart):
            say(f"| {model} | {line} |")
            pairs.append(ratios)
        say(f"| {model} | all cells: {shared_s:.0f} s shared, {apart_s:.0f} s apart | | | | | |")
        if pairs:
            mean = statistics.geometric_mean(one.value / other.value for one, other in pairs)
            say(f"\n{sum(map(overlap, pairs))} of {len(pairs)} agree; shared over apart {mean:.3f} in the mean\n")


def overlap(pair: tuple[Ratio, Ratio]) -> bool:
    one, other = (ratio.ci95 for ratio in pair)
    return bool(one and other and one.low <= other.high and other.low <= one.high)


def lines(shared: list[Record], apart: list[Record]) -> Iterator[tuple[str, tuple[Ratio, Ratio]]]:
    """Yield the columns for each cell that started from another one's build, with its speed-ups."""
    fits = [fit_records(shared), fit_records(apart)]
    others = {record.cell.label: record for record in apart}
    for record in shared:
        label = record.cell.label
        builder = next((phase.shared_with for phase in record.phases if phase.shared_with), "")
        if builder and builder in others and label in others:
            one, other = (fit.ratio(label, builder) for fit in fits)
            builds = f"{record.build_s:.1f} | {others[label].build_s:.1f}"
            yield f"{label} | {builder} | {spelled(one)} | {spelled(other)} | {builds}", (one, other)


def spelled(ratio: Ratio) -> str:
    interval = f" [{ratio.ci95.low:.3f}, {ratio.ci95.high:.3f}]" if ratio.ci95 else ""
    return f"{ratio.value:.3f}{interval}"


if __name__ == "__main__":
    main()
