"""The entry of the command line: `bakeoff`, `python -m bakeoff`, and `python runner.py` in a checkout."""

import gc
import signal
import sys

from bakeoff.measuring.controller.server_start import early_servers, servers_for


def main() -> int:
    """Start the fork servers that the command most likely needs. Then import the command line, and carry out."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end, as after Ctrl-C
    try:
        with early_servers(servers_for(sys.argv[1:])):
            gc.disable()  # it would take a tenth of the time, and finds nothing among what stays
            from bakeoff import cli

            gc.enable()
            return cli.main()
    except KeyboardInterrupt:  # the command line, which would say more, was not imported yet
        sys.stderr.write("error: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
