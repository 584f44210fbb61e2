"""What was found out about a model before it was judged: what its answers depend on, and what its calls change."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import PurePath

from bakeoff.records.frozen import Frozen
from bakeoff.records.text import first, listed


class Decision(Frozen):
    """A line at which the model reads the value of a tensor, and may go another way by it."""

    file: str
    line: int
    function: str
    code: str = ""  # the line itself, if the file could be read
    goes_both_ways: bool = False  # inputs were found that make the model go another way than the first input set

    @property
    def place(self) -> str:
        return f"{PurePath(self.file).name}, line {self.line}"


class Setting(Frozen):
    """A global setting that the model's file or its calls have changed, with both values as words."""

    name: str
    before: str
    after: str


class NotFinite(Frozen):
    """An output that has values that are not finite, for the model's own inputs."""

    output: str  # such as `output[0]`
    nan: int
    infinite: int
    values: int  # that are compared


class Recall(Frozen):
    """How much less a call does for inputs that the model has seen: it keeps answers, or parts of them."""

    operators: int  # of a call with new values
    again: int  # of the next call with the same ones


class OneAnswer(Frozen):
    """The model gives one answer to all of its input sets."""

    tried: int  # inputs of other scales and signs that eager takes
    differing: int  # of these, those with another answer, of which some are checked

    @property
    def how(self) -> str:
        """Say to which inputs it gives this answer, and what is compared."""
        if not self.differing:
            return f"to all of its input sets, and to {self.tried} of other scales, so that a constant passes as well"
        return f"to all of its input sets, and another one to {self.differing} of {self.tried} of other scales"


class FastPath(Frozen):
    """How eager answers otherwise with the fast path of its transformer layers than without it."""

    differing: int  # values, by more than rounding
    values: int
    are_zeros: bool  # with the fast path, as at padded places


class AccessKind(StrEnum):
    """What a call reads from outside of the model, or does there."""

    CLOCK = "clock"
    VARIABLE = "variable"
    SET_VARIABLE = "set variable"
    READ_FILE = "read file"
    WRITTEN_FILE = "written file"
    READ_FOLDER = "read folder"
    MADE_FOLDER = "made folder"
    DATABASE = "database"
    PRINT = "print"
    LOG = "log"
    PROGRAM = "program"
    NETWORK = "network"
    SLEEP = "sleep"
    ATTRIBUTE = "attribute"  # or a variable of the model's file, on which no answer depends

    @property
    def is_path(self) -> bool:
        return self in (AccessKind.READ_FILE, AccessKind.WRITTEN_FILE, AccessKind.READ_FOLDER, AccessKind.MADE_FOLDER)


class Access(Frozen):
    """One thing that the model's own code reads from outside in each call, or does there."""

    kind: AccessKind
    name: str = ""  # of the variable, the file or the attribute


WORDS = {
    AccessKind.CLOCK: ("reads", "the clock"),
    AccessKind.VARIABLE: ("reads", "the variable"),
    AccessKind.SET_VARIABLE: ("sets", "the variable"),
    AccessKind.READ_FILE: ("reads", "the file"),
    AccessKind.WRITTEN_FILE: ("writes", "the file"),
    AccessKind.READ_FOLDER: ("reads", "the folder"),
    AccessKind.MADE_FOLDER: ("makes", "the folder"),
    AccessKind.DATABASE: ("queries", "a database"),
    AccessKind.PRINT: ("prints", ""),
    AccessKind.LOG: ("logs to", ""),
    AccessKind.PROGRAM: ("starts", ""),
    AccessKind.NETWORK: ("connects to", ""),
    AccessKind.SLEEP: ("sleeps", ""),
    AccessKind.ATTRIBUTE: ("changes", ""),
}
"""What a call does outside, and to what."""


READS = frozenset({AccessKind.CLOCK, AccessKind.VARIABLE, AccessKind.READ_FILE, AccessKind.READ_FOLDER})
"""Of a database is not known whether it is read or written."""


def is_reading(accesses: Sequence[Access]) -> bool:
    """Return True if something is read from outside, which may be another thing in the next call."""
    return any(access.kind in READS for access in accesses)


def of_accesses(accesses: Sequence[Access]) -> str:
    """Return what is accessed as a part of a sentence, such as `reads the file bias.txt and prints`."""
    by_verb: dict[str, list[str]] = {}
    for access in accesses:
        verb, noun = WORDS[access.kind]
        name = (access.kind.is_path and PurePath(access.name).name) or access.name
        by_verb.setdefault(verb, []).append(" ".join(filter(None, (noun, name))))
    return listed([f"{verb} {listed(first(nouns))}".rstrip() for verb, nouns in by_verb.items()])


MILDER_SETS = {
    "rows of whole numbers": "whole numbers are those of the example, in other rows",
    "rows": "all values are those of the example, in other rows",
    "copies": "all sets are copies of the example",
}
"""What input sets have for a model that raises for the usual ones, the most varied ones first."""


class ModelTraits(Frozen):
    """What a model does that matters where its answers are compared or its calls are timed.

    A model that only computes its outputs from its inputs has none of these traits.
    """

    is_random: bool = False  # two calls with the same inputs differ, from the same state
    varying: tuple[str, ...] = ()  # the outputs of a random model that differ, such as `output[0]`
    repeats_with_seed: bool = True  # False for a random model whose answers change though torch's seed is set
    loads_other_weights: bool = False  # each time that it is loaded, though seeds are set
    unwritten: tuple[str, ...] = ()  # outputs that hold memory that nothing wrote, as `torch.empty` gives it
    state: tuple[str, ...] = ()  # buffers and attributes that calls change, and on which the next answer depends
    settles_after: int = 0  # of a model with state: so many equal calls have different answers or states, at most
    kept_buffers: tuple[str, ...] = ()  # each call changes these buffers, and the first answers do not depend on them
    grows: tuple[str, ...] = ()  # attributes that are longer after each call
    accesses: tuple[Access, ...] = ()  # what its own code reads from outside in a call, and does there
    clock_s: float | None = None  # when compared calls are made, in seconds since 1970, if the answer depends on it
    autocasts: tuple[str, ...] = ()  # types that its own autocasts compute in, such as `bfloat16`
    not_finite: tuple[NotFinite, ...] = ()
    one_answer: OneAnswer | None = None
    constant_outputs: tuple[str, ...] = ()  # with the same values for all input sets, where others vary
    empty_by_shape: tuple[str, ...] = ()  # outputs without elements, where no size depends on values
    recall: Recall | None = None  # if it answers the same inputs with fewer operators
    changed_kinds: tuple[str, ...] = ()  # of inputs that differ between the sets because the model takes it
    unvaried_inputs: tuple[str, ...] = ()  # that are the same in all input sets, such as `input 1`
    inputs_without_effect: tuple[str, ...] = ()  # that vary and are used, and with which no output moves
    tiny_weights: tuple[str, ...] = ()  # of zero, or nearly, that hide what is multiplied with them
    written_inputs: tuple[str, ...] = ()  # inputs whose values a call changes
    writes_in_any_order: bool = False  # several values to one place, as `x[index] = y` does for equal indices
    decisions: tuple[Decision, ...] = ()  # where it decides by the values of its inputs
    depends_on_rounding: str = ""  # how its answer in float64 differs by more than rounding
    keeps_types: bool = False  # its weights stay in the types that they came in, between which its code casts
    needs_autograd: bool = False  # its calls fail or answer otherwise in inference mode
    fast_path: FastPath | None = None  # if it matters to what eager answers
    settings: tuple[Setting, ...] = ()
    threads: int | None = None  # torch's threads once the model is loaded and called, which are in force for all cells
    unwrapped: tuple[str, ...] = ()  # wrappers that were taken off, such as `torch.compile`
    forms: tuple[str, ...] = ()  # what else the module is, such as `is a ScriptModule`
    unexamined: str = ""  # why some of this could not be found out

    @property
    def draws_independently(self) -> bool:
        """True for a random model whose next draw does not depend on a state, but for that of a generator."""
        return self.is_random and all(name.startswith("random generator") for name in self.state)

    @property
    def begins_alike(self) -> bool:
        """True if calls can be compared without restoring a state, setting a seed or stopping the clock."""
        return not (self.is_random or self.state or self.clock_s is not None)


NO_TRAITS = ModelTraits()
