"""What a cell's own process tells against its numbers. A record carries these doubts, and `kind` tells them apart.

Doubts that only the whole contest shows, such as a narrow lead, are in `bakeoff.judging.doubts`.
"""

from typing import Annotated, Literal

from pydantic import Field

from bakeoff.records.failure import Failure
from bakeoff.records.frozen import Frozen
from bakeoff.records.traits import Access


class Caveat(Frozen):
    """Something that is true of every number of this backend."""

    kind: Literal["caveat"] = "caveat"
    text: str


class NarrowReference(Frozen):
    """Not all of the reference was computed in float64."""

    kind: Literal["reference"] = "reference"
    computed_in: str  # "float64" if only single operators ran in float32
    why: str = ""  # how float64 failed
    in_float32: tuple[str, ...] = ()  # operators that have no float64


class Recompiled(Frozen):
    """The backend compiled again while the cell was measured."""

    kind: Literal["recompiled"] = "recompiled"
    count: int


class WarmUpTrend(Frozen):
    """Calls still became faster or slower at the end of the warm-up."""

    kind: Literal["warm-up"] = "warm-up"
    seconds: float  # that the warm-up took


class WarmUpNoise(Frozen):
    """Calls did not become steady in the warm-up, but no trend was left."""

    kind: Literal["warm-up noise"] = "warm-up noise"


class ProcessLost(Frozen):
    """A process of the cell could not be measured to its end."""

    kind: Literal["process lost"] = "process lost"
    reason: str
    rounds: int = 0  # of it that count: its outputs were right before them, and were not checked again after them


class BuiltAnew(Frozen):
    """The cell failed with a build of an earlier run. What was measured is a new build."""

    kind: Literal["built anew"] = "built anew"
    reason: str  # how it failed


EAGER_DIFFERS = (
    "the model's answer depends on more than its inputs, such as the time or the process: eager itself fails the check "
    "when it is called beside this build"
)


class Unchecked(Frozen):
    """The outputs of the cell, or some of them, could not be compared."""

    kind: Literal["unchecked"] = "unchecked"
    why: str
    others_compared: bool = False

    @property
    def is_eager_different(self) -> bool:
        """Return True if eager fails the check as well."""
        return self.why == EAGER_DIFFERS


class Accepted(Frozen):
    """The numeric check rejects the outputs, and something that the user has written accepts them."""

    required: str  # such as `top1>-1%` or `rmse<1e-3`
    relative_rmse: float
    failure: Failure  # of the numeric check


class AcceptedByMetric(Accepted):
    """A required metric of the user's own surely holds."""

    kind: Literal["accepted by metric"] = "accepted by metric"


class AcceptedByLimit(Accepted):
    """The errors are within the limits of `--accept`."""

    kind: Literal["accepted by limit"] = "accepted by limit"


class OtherWidths(Frozen):
    """Outputs have the right values in a wider or narrower type than eager's."""

    kind: Literal["other widths"] = "other widths"
    outputs: tuple[str, ...]  # such as `output[1] as int32 in place of int64`


class FrozenChoices(Frozen):
    """A trace made constants of what the model decides by the values of its inputs."""

    kind: Literal["frozen choices"] = "frozen choices"
    places: tuple[str, ...]  # such as `mine.py, line 20`


class InputsNotWritten(Frozen):
    """A call does not leave in its inputs what the model's own call leaves there."""

    kind: Literal["inputs not written"] = "inputs not written"
    names: tuple[str, ...]  # such as `input 0`
    are_converted: bool = False  # the mode copies images into channels_last memory, and a call gets these copies


class Dropped(Frozen):
    """A call does not read from outside, or does not do there, what the model's own call does."""

    kind: Literal["dropped"] = "dropped"
    accesses: tuple[Access, ...]


class DecidedByRounding(Frozen):
    """The model's answer in float64 is another one, so that eager in the cell's own type is the reference."""

    kind: Literal["decided by rounding"] = "decided by rounding"
    how: str  # the answers differ
    computed_in: str


class Recalled(Frozen):
    """The model keeps what it has answered, so that inputs that come again are not computed again."""

    kind: Literal["recalled"] = "recalled"
    operators: int  # of a call with new values
    again: int  # of the next call with the same ones


class Growing(Frozen):
    """The model keeps more from call to call, so that each call may take longer than the one before."""

    kind: Literal["growing"] = "growing"
    names: tuple[str, ...]  # of what grows, such as `attribute history`


RecordDoubt = Annotated[
    Caveat
    | Unchecked
    | AcceptedByMetric
    | AcceptedByLimit
    | FrozenChoices
    | InputsNotWritten
    | Dropped
    | DecidedByRounding
    | Growing
    | Recalled
    | NarrowReference
    | OtherWidths
    | Recompiled
    | WarmUpTrend
    | WarmUpNoise
    | ProcessLost
    | BuiltAnew,
    Field(discriminator="kind"),
]

UNSURE = (Unchecked, FrozenChoices, InputsNotWritten, Dropped, Growing, Recalled)
"""A build with one of these doubts is no sure winner, whatever was asked."""
