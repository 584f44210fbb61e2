#!/usr/bin/env python3
"""Bakeoff from a checkout: `python runner.py` is `bakeoff`."""

import sys

from bakeoff.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
