"""The base of everything in a report."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of everything in a report. It is immutable, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """Return one with these fields, and for each other field the attribute of `source` that has its name."""
        return cls(**{name: getattr(source, name) for name in cls.model_fields if name not in others}, **others)

    def but(self, **changes: Any) -> Self:
        """Return the same with these fields, which are not validated."""
        return self.model_copy(update=changes)
