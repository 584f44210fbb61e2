"""Turns in one process: in each round everybody has one, in random order. A drift of the machine so meets all alike."""

import random
import time
from collections.abc import Iterator, Sequence


def turns(names: Sequence[str], seconds: float, fewest_rounds: int, most_rounds: int) -> Iterator[tuple[int, str]]:
    """Yield the number of a round and who has a turn in it, for so many seconds and at least the fewest rounds."""
    order, begun_s = random.Random(0), time.monotonic()
    for number in range(most_rounds):
        if number >= fewest_rounds and time.monotonic() - begun_s > seconds:
            return
        for name in order.sample(names, len(names)):
            yield number, name
