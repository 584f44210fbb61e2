"""The errors that a user sees. An exported folder has the file `bakeoff/records/errors.py` in place of this one."""

from bakeoff.records.errors import BakeoffError as BakeoffError
from bakeoff.records.errors import NotServed as NotServed
from bakeoff.records.errors import Unsupported as Unsupported
from bakeoff.records.errors import UsageError as UsageError
from bakeoff.records.errors import first_line as first_line
