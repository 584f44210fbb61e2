"""The base of everything in a report."""

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """Base of everything in a report. It is immutable, and an unknown field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=True, ser_json_inf_nan="strings")
