"""What a Python program calls: `bakeoff.compare` and what it returns. `bakeoff` itself exports the names."""

import random

_state = random.getstate()
import rich.console  # noqa: E402, F401 - it draws random numbers when it is imported, and they belong to the program

random.setstate(_state)
