#!/bin/bash
# NVIDIA's own entry point prints a banner, which would stand before `doctor --json`. It also makes the driver's
# compatibility libraries found. The image does that for every bash through BASH_ENV, so this is a bash script.
exec python3 /opt/bakeoff/runner.py "$@"
