"""Fills caches in the fork server that imports this module, so that none of the workers it forks has to do it again."""

import numpy.ma  # noqa: F401 - NumPy imports it at the first median

from bakeoff.records import plug_ins
from bakeoff.truth import user_code

plug_ins.versions()
user_code.user_modules()
del __file__  # a module without a file is none of the user's
