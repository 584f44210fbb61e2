#!/bin/bash
# NVIDIA's own entry point prints a banner, which has no place before `doctor --json`. What else it does, making the
# driver's compatibility libraries found, the image does for every bash, by BASH_ENV: hence a script, and one of bash.
exec python3 /opt/bakeoff/runner.py "$@"
