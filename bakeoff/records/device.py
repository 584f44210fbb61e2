"""Where a cell runs."""

from __future__ import annotations

import re
from typing import Any

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from bakeoff.records.errors import UsageError


class Device(str):
    """`cpu`, `cuda` or `cuda:N`. It is a string, and JSON keeps it as one. Raises UsageError for any other name."""

    def __new__(cls, name: str) -> Device:
        if not re.fullmatch(r"cpu|cuda(:\d+)?", name, re.ASCII):
            raise UsageError(f"unknown device '{name}': write cpu, cuda or cuda:N")
        return super().__new__(cls, name)

    @property
    def kind(self) -> str:
        return self.partition(":")[0]

    @property
    def is_cuda(self) -> bool:
        return self.kind == "cuda"

    @property
    def cuda_index(self) -> int | None:
        """The GPU's number, 0 for `cuda`; None for the CPU."""
        return int(self.partition(":")[2] or 0) if self.is_cuda else None

    @property
    def slug(self) -> str:
        """The name without its colon, which no file has on Windows."""
        return self.replace(":", "")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


CPU = Device("cpu")
