"""What a cell's own process notes against its numbers: a class for each doubt. A record carries them by their `kind`.

Doubts that only the whole contest shows, such as a narrow lead, are in `bakeoff.judging.doubts`.
"""

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from bakeoff.records.failure import Failure
from bakeoff.records.frozen import Frozen
from bakeoff.records.text import counted, first, listed
from bakeoff.records.traits import Access, is_reading, of_accesses


class Effect(IntEnum):
    """What a doubt does to the answer of its contest, the worst first."""

    WINNER = 0  # another cell may be the one that wins
    NUMBER = 1  # the winner's latency or speed-up may be another
    NONE = 2


class AnyDoubt(ABC):
    """What every doubt has: of a cell alone, or of a whole contest (`bakeoff.judging.doubt`)."""

    @property
    def worst(self) -> Effect:
        """The worst that it can do to the answer: what it does where it is about the first place."""
        return Effect.NUMBER

    @property
    def brief(self) -> str:
        """A few words, to be read after `but`. Only a doubt that could change the winner has them."""
        raise ValueError(f"{type(self).__name__} does not make a winner doubtful")

    @abstractmethod
    def say(self) -> str:
        """Say which cells it is about, what it means, and what to do."""


class CellDoubt(AnyDoubt, Frozen):
    """A doubt about the numbers of one cell. What it says is read after the label of the cell."""


class Unsure(CellDoubt):
    """A doubt that keeps a cell from being a sure winner, whatever was asked."""

    worst: ClassVar[Effect] = Effect.WINNER


class Remark(CellDoubt):
    """A doubt that changes neither the winner nor its numbers."""

    worst: ClassVar[Effect] = Effect.NONE


class Caveat(CellDoubt):
    """Something that is true of every number of this backend."""

    kind: Literal["caveat"] = "caveat"
    text: str

    def say(self) -> str:
        return self.text


class NarrowReference(Remark):
    """Not all of the reference was computed in float64."""

    kind: Literal["reference"] = "reference"
    computed_in: str  # "float64" if only single operators ran in float32
    why: str = ""  # how float64 failed
    in_float32: tuple[str, ...] = ()  # operators that have no float64

    def say(self) -> str:
        if self.computed_in == "float64":
            return f"checked against float64, but without float64 ran in float32: {', '.join(self.in_float32)}"
        causes = "; ".join([*([self.why] if self.why else []), *self.in_float32])
        return (
            f"checked against eager in {self.computed_in}, since float64 gave no reference here"
            f"{f' ({causes})' if causes else ''}: an error that eager makes too is not seen"
        )


class Recompiled(CellDoubt):
    """The backend compiled again while the cell was measured."""

    kind: Literal["recompiled"] = "recompiled"
    count: int

    def say(self) -> str:
        return (
            f"compiled {counted(self.count, 'more time')} while it was measured: its latency may contain compiling. "
            "Fix the shapes of the inputs"
        )


class WarmUpTrend(CellDoubt):
    """Calls still became faster or slower at the end of the warm-up."""

    kind: Literal["warm-up"] = "warm-up"
    seconds: float  # that the warm-up took

    def say(self) -> str:
        return (
            f"still became faster or slower after {self.seconds:.0f} s of warm-up: its latency in a long-lived process "
            "may be another. A longer --min-time shows it"
        )


class WarmUpNoise(Remark):
    """Calls did not become steady in the warm-up, but no trend was left."""

    kind: Literal["warm-up noise"] = "warm-up noise"

    def say(self) -> str:
        return (
            "latencies still moved by more than 2 % at the end of the warm-up, but neither up nor down: this is noise"
        )


class ProcessLost(CellDoubt):
    """A process of the cell could not be measured to its end."""

    kind: Literal["process lost"] = "process lost"
    reason: str
    rounds: int = 0  # of it that count: its outputs were right before them, and were not checked again after them
    brief: ClassVar[str] = "its outputs were not checked after its rounds"

    @property
    def worst(self) -> Effect:
        return Effect.WINNER if self.rounds else Effect.NUMBER

    def say(self) -> str:
        if not self.rounds:
            return f"a further process was lost: {self.reason}. Its numbers are those of the processes before"
        measured = f"What {counted(self.rounds, 'round')} measured until then counts"
        return f"{self.reason}. {measured}, but the outputs were not checked again"


class BuiltAnew(Remark):
    """The cell failed with a build of an earlier run. What was measured is a new build."""

    kind: Literal["built anew"] = "built anew"
    reason: str  # how it failed

    def say(self) -> str:
        return f"a build that an earlier run kept failed ({self.reason}): its numbers are those of a new build"


EAGER_DIFFERS = (
    "the model's answer depends on more than its inputs, such as the time or the process: eager itself fails the check "
    "when it is called beside this build"
)


class Unchecked(Unsure):
    """The outputs of the cell, or some of them, could not be compared."""

    kind: Literal["unchecked"] = "unchecked"
    why: str
    others_compared: bool = False
    brief: ClassVar[str] = "its outputs could not be compared"

    def say(self) -> str:
        which = "some of its outputs" if self.others_compared else "its outputs"
        return f"{which} could not be compared: {self.why}. Compare them yourself before you rely on it"


class Accepted(Remark):
    """The numeric check rejects the outputs, and something that the user has written accepts them."""

    required: str  # such as `top1>-1%` or `rmse<1e-3`
    relative_rmse: float
    failure: Failure  # of the numeric check

    @property
    @abstractmethod
    def why(self) -> str:
        """What accepts the outputs."""

    def say(self) -> str:
        return (
            f"the numeric check rejects it (relative RMSE {self.relative_rmse:.1e}), but {self.why}. Make "
            "sure that this covers what you need"
        )


class AcceptedByMetric(Accepted):
    """A required metric of the user's own surely holds."""

    kind: Literal["accepted by metric"] = "accepted by metric"

    @property
    def why(self) -> str:
        return f"{self.required} surely holds, which decides"


class AcceptedByLimit(Accepted):
    """The errors are within the limits of `--accept`."""

    kind: Literal["accepted by limit"] = "accepted by limit"

    @property
    def why(self) -> str:
        return f"--accept '{self.required}' allows it"


class OtherWidths(Remark):
    """Outputs have the right values in a wider or narrower type than eager's."""

    kind: Literal["other widths"] = "other widths"
    outputs: tuple[str, ...]  # such as `output[1] as int32 in place of int64`

    def say(self) -> str:
        return f"returns {', '.join(self.outputs)}, with the right values: cast it where your code needs the type"


class FrozenChoices(Unsure):
    """A trace made constants of what the model decides by the values of its inputs."""

    kind: Literal["frozen choices"] = "frozen choices"
    places: tuple[str, ...]  # such as `mine.py, line 20`
    brief: ClassVar[str] = "a choice of the model is frozen in it"

    def say(self) -> str:
        return (
            f"the trace froze what the model decides by the values of its inputs ({'; '.join(self.places)}): for other "
            "inputs this build may answer wrongly, and it does less work than the model"
        )


class InputsNotWritten(Unsure):
    """A call does not leave in its inputs what the model's own call leaves there."""

    kind: Literal["inputs not written"] = "inputs not written"
    names: tuple[str, ...]  # such as `input 0`
    are_converted: bool = False  # the mode copies images into channels_last memory, and a call gets these copies
    brief: ClassVar[str] = "it does not write into its inputs as the model does"

    def say(self) -> str:
        why = (
            ". The mode copies images into channels_last memory, unless they are in it already, and calls write into "
            "the copies"
        )
        return (
            f"does not write the change into its inputs that the model makes ({listed(first(self.names))}): a caller "
            f"that reads them afterwards sees other values{why if self.are_converted else ''}"
        )


class Dropped(Unsure):
    """A call does not read from outside, or does not do there, what the model's own call does."""

    kind: Literal["dropped"] = "dropped"
    accesses: tuple[Access, ...]

    @property
    def brief(self) -> str:
        if is_reading(self.accesses):
            return "it froze what the model reads in forward"
        return "it leaves out what the model does in forward"

    def say(self) -> str:
        why = ": its answer holds what was read while it was built" if is_reading(self.accesses) else ""
        return f"the model {of_accesses(self.accesses)} in forward, and this build does not{why}"


class DecidedByRounding(CellDoubt):
    """The model's answer in float64 is another one, so that eager in the cell's own type is the reference."""

    kind: Literal["decided by rounding"] = "decided by rounding"
    how: str  # the answers differ
    computed_in: str
    brief: ClassVar[str] = "the answer depends on rounding"

    @property
    def worst(self) -> Effect:
        return Effect.WINNER if self.computed_in == "float64" else Effect.NONE

    def say(self) -> str:
        if self.computed_in == "float64":
            return (
                f"the answer depends on rounding ({self.how}): what is at most four times as far off as eager passes, "
                "so that a fault of that size is not seen"
            )
        return (
            f"checked against eager in {self.computed_in}, since what the model decides depends on the rounding or the "
            f"range of its type ({self.how})"
        )


class Recalled(Unsure):
    """The model keeps what it has answered, so that inputs that come again are not computed again."""

    kind: Literal["recalled"] = "recalled"
    operators: int  # of a call with new values
    again: int  # of the next call with the same ones
    brief: ClassVar[str] = "the model keeps its answers to these inputs"

    def say(self) -> str:
        return (
            f"the model keeps answers, or parts of them: inputs that it has seen take {self.again:,} of the "
            f"{counted(self.operators, 'operator')} that new ones take. Here the same few inputs come again, so its "
            "latency may be that of a lookup. Measure the model without its cache"
        )


class WithoutEffect(Unsure):
    """The model uses inputs with which no output moves, so that a build may do anything with them."""

    kind: Literal["without effect"] = "without effect"
    inputs: tuple[str, ...]  # such as `input 1`
    brief: ClassVar[str] = "the model has inputs that move no output"

    def say(self) -> str:
        return (
            f"no output moves with {listed(first(self.inputs))}, though the model uses it: what a build does with it "
            "is not checked. Weights of zero may hide it, so give the model trained ones"
        )


class Growing(Unsure):
    """The model keeps more from call to call, so that each call may take longer than the one before."""

    kind: Literal["growing"] = "growing"
    names: tuple[str, ...]  # of what grows, such as `attribute history`
    brief: ClassVar[str] = "the model keeps more from call to call"

    def say(self) -> str:
        return (
            f"the model keeps more from call to call ({listed(first(self.names))} grows): its memory grows, and calls "
            "may take longer the more there were before"
        )


RecordDoubt = Annotated[
    Unchecked
    | FrozenChoices
    | InputsNotWritten
    | Dropped
    | Growing
    | Recalled
    | WithoutEffect
    | AcceptedByMetric
    | AcceptedByLimit
    | Caveat
    | DecidedByRounding
    | NarrowReference
    | OtherWidths
    | Recompiled
    | WarmUpTrend
    | WarmUpNoise
    | ProcessLost
    | BuiltAnew,
    Field(discriminator="kind"),
]
"""Every doubt that a record can carry, in order of weight."""
