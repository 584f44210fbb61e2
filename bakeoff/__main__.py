"""The entry of the command line: `bakeoff`, `python -m bakeoff`, and `python runner.py` in a checkout."""

import sys

from bakeoff.measuring.controller.server_start import early_server, will_fork


def main() -> int:
    """Start a fork server if the command will most likely need one. Then import the command line, and carry out."""
    with early_server(will_fork(sys.argv[1:])):
        from bakeoff import cli

        return cli.main()


if __name__ == "__main__":
    sys.exit(main())
