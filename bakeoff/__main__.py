"""The entry of the command line: `bakeoff`, `python -m bakeoff`, and `python runner.py` in a checkout."""

import gc
import signal
import sys
import time

INTERRUPTED = 130


def main() -> int:
    """Start the fork servers that the command most likely needs. Then import the command line, and carry out.

    SIGTERM is taken as Ctrl-C is. Once the command has said all, either passes, and the exit status is the command's.
    """
    begun_s = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers end, as after Ctrl-C
    try:
        from bakeoff.measuring.controller.server_start import early_servers, servers_for, start_said

        with early_servers(servers_for(sys.argv[1:])), start_said(sys.argv[1:], begun_s):
            gc.disable()  # it would take a tenth of the time, and finds nothing among what stays
            from bakeoff import cli

            gc.enable()
            status = cli.main(begun_s=begun_s)
    except KeyboardInterrupt:
        status = INTERRUPTED
        if "bakeoff.cli" not in sys.modules:  # it would say more
            sys.stderr.write("error: interrupted\n")
            if "--json" in sys.argv[1:]:
                sys.stdout.write(f'{{\n  "error": "interrupted",\n  "exit_status": {INTERRUPTED}\n}}\n')
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # at its end Python itself would take the usual handlers back
    # Python ends by SIGINT if a KeyboardInterrupt has left an `exec`, such as namedtuple's, and none came after it
    exec("")
    return status


if __name__ == "__main__":
    sys.exit(main())
