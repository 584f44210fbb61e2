"""`python -m bakeoff.shipped FOLDER` loads an exported folder as `bakeoff.load` does, checks it, and measures it.

It measures as the folder's `load.py` does, but through the model's own signature.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bakeoff.backends.runtime import folder
from bakeoff.backends.runtime.folder import DESCRIPTION, SETS_IN_ROTATION, say
from bakeoff.records.errors import BakeoffError
from bakeoff.shipping.loading import ShippedModel, load


def main(arguments: list[str] | None = None) -> int:
    """Print whether the outputs are right, and the median latency. Return 1 if an output is wrong."""
    parser = argparse.ArgumentParser(prog="python -m bakeoff.shipped", description=str(__doc__).partition("\n")[0])
    parser.add_argument("folder", type=Path, help=f"a folder with a {DESCRIPTION}, which `bakeoff export` wrote")
    parser.add_argument("--device", help="another GPU than the one it was built on, such as cuda:1")
    given = parser.parse_args(arguments)
    try:
        folder.set_process_up(given.folder, folder.read(given.folder))
        fast = load(given.folder, device=given.device)
        say(repr(fast))
        say(f"threads: {fast.thread_safety}")
        is_right = check(fast)
        if is_right:
            reported = fast.description["reported"]
            say(f"median latency {median_ms(fast):.4g} ms, with what bakeoff.load adds; in the report {reported}")
    except BakeoffError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0 if is_right else 1


def _given(fast: ShippedModel) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if "torch" not in fast.description["libraries"]:
        return fast.sample_call(fast.sample_inputs())
    return fast.sample_call(fast.sample_tensors())


def check(fast: ShippedModel) -> bool:
    """Compare the outputs for the sample with those that the model must give, and report each error."""
    args, kwargs = _given(fast)
    return folder.check(fast.tensors_of(fast(*args, **kwargs)), fast.folder, fast.description)


def median_ms(fast: ShippedModel) -> float:
    calls = [partial(fast, *args, **kwargs) for args, kwargs in (_given(fast) for _ in range(SETS_IN_ROTATION))]
    return folder.median_ms(lambda number: calls[number % SETS_IN_ROTATION], _synchronise(fast.device))


def _synchronise(device: str) -> Callable[[], object]:
    if device == "cpu":
        return lambda: None
    import torch

    return torch.cuda.current_stream(device).synchronize


if __name__ == "__main__":
    sys.exit(main())
