"""What it takes to start an exported folder: the times of fresh processes, their memory, and sizes on disk."""

import statistics

from pydantic import Field

from bakeoff.records.frozen import Frozen


class Start(Frozen):
    """One fresh process. Times are the seconds of each stage, one after the other."""

    interpreter_s: float  # from the start of the process until Python runs its first line
    imports_s: float
    load_s: float
    first_answer_s: float
    later_answers_s: float  # the second to the tenth answer together
    peak_bytes: int | None  # resident, until the tenth answer
    steady_bytes: int | None  # resident, after the tenth answer
    device_bytes: int | None  # taken of a GPU's memory, its context included

    @property
    def start_s(self) -> float:
        """Seconds from the start of the process until the first answer."""
        return self.interpreter_s + self.imports_s + self.load_s + self.first_answer_s

    @property
    def tenth_answer_s(self) -> float:
        """Seconds from the start of the process until the tenth answer."""
        return self.start_s + self.later_answers_s


class StartedCell(Frozen):
    """The starts of one cell, or the reason why it has none."""

    cell_id: str
    label: str
    script: str = ""  # what was started: load.py or main.cpp of its folder
    artifact_bytes: int | None = None  # what the script loads, without the sample; None: it loads no artefact
    distributions: dict[str, int] | None = None  # bytes of each distribution that must be installed
    starts: list[Start] = Field(default_factory=list)
    reason: str = ""
    is_cut_off: bool = False  # by the time budget, or an interruption, before all of its starts

    @property
    def environment_bytes(self) -> int | None:
        """Bytes of all distributions that must be installed, without Python itself."""
        return None if self.distributions is None else sum(self.distributions.values())

    def median(self, quantity: str) -> float | None:
        values = [value for start in self.starts if (value := getattr(start, quantity)) is not None]
        return statistics.median(values) if values else None


class Starts(Frozen):
    """All that `bakeoff start` has measured. The n-th starts of all cells are of the same turn."""

    run_id: str
    title: str
    created_at: str
    machine: str
    python: str
    is_page_cache_dropped: bool
    cells: list[StartedCell]
