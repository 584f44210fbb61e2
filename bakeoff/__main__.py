"""`python -m bakeoff` is `bakeoff`."""

import sys

from bakeoff.cli import main

if __name__ == "__main__":
    sys.exit(main())
