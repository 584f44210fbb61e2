"""Why a cell failed, in parts: who reads it need not take a sentence apart."""

from typing import Self

from bakeoff.records.frozen import Frozen

DISK_FULL = "disk full"
"""The kind of a failure where a disk had no space left. It says nothing of the cell, so `resume` measures it again."""

NO_BUDGET_LEFT = "time budget"
"""The kind of a failure where `--budget` was over before the cell began, or before it had numbers."""


LATER = ", later"
"""Ends the kind of a failure of a build that was right at first."""


class Failure(Frozen):
    """Why a cell failed. Failures of several models are of one sort when kind, operator and `raised_by` are equal."""

    kind: str  # the type of the exception, or a few words of ours such as "no ONNX function"
    operator: str = ""  # that the library names, or several: "aten.sort, aten.topk"
    place: str = ""  # in the user's code: "mine.py, line 26, in forward"
    raised_by: str = ""  # the function or the source file of a library that raised it: "torch.export.export"
    log: str = ""  # the file that has everything that was printed, where no record has its end
    text: str  # one line that says it whole, but for the place and the log

    @property
    def sentence(self) -> str:
        return " ".join([self.text, *(f"({where})" for where in (self.place, self.log) if where)])

    @property
    def sort(self) -> tuple[str, str, str]:
        """What is equal for failures of one sort, whatever the model, its numbers and its names."""
        return self.kind, self.operator, self.raised_by

    @property
    def on_full_disk(self) -> Self:
        return self.but(kind=DISK_FULL, text=f"{self.text}: a disk is full, make room")

    @property
    def of_memory(self) -> Self:
        """The same failure, where memory was short, with what needs less of it."""
        return self.but(text=f"{self.text}: smaller inputs or a narrower --precision need less")

    def within(self, text: str) -> Self:
        """Return it with `text` before its own: what it made impossible."""
        return self.but(text=f"{text}: {self.text}")
