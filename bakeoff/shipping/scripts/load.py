#!/usr/bin/env python3
"""Loads what this folder holds, checks it on a stored input, and measures its latency.

README.md says where it comes from, and `bakeoff.json` has its options. In a program:

    from runtime import folder

    description = folder.read(PATH)
    folder.set_process_up(PATH, description)  # the threads and the precision of the measurement
    build = folder.load(folder.artifact_of(PATH, description), description["loader"])
    outputs = build.run(inputs)  # those of bakeoff.json, in their order
"""

import argparse
import sys
from pathlib import Path

from runtime import folder

if __name__ == "__main__":
    says = "Loads what this folder holds, checks it on a stored input, and measures its latency."
    argparse.ArgumentParser(description=says).parse_args()
    sys.exit(folder.main(Path(__file__).resolve().parent))
