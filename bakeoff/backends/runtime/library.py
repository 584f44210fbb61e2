"""A library that is imported late. An exported folder has `bakeoff/records/library.py` in place of this file."""

from bakeoff.records.library import Library as Library
