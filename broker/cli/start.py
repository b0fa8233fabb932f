"""The command `liftlog`: the app, or one line on what is missing for it.

Where only the client or Spark's executors run, the package is installed without the extra [broker], and the command is
there without what it needs.
"""

from __future__ import annotations

import sys

from broker.cli.exits import FAILED


def main() -> None:
    """Entry point. Ends the process with one of the documented exit codes."""
    import signal

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C before the command begins: no traceback of an import
    try:
        from broker.cli.main import main as run
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "broker"):
            raise
        print(
            f"error[missing_package]: the command needs {missing}, which comes with the extra [broker]:"
            " pip install '.[broker]' in a clone of liftlog",
            file=sys.stderr,
        )
        sys.exit(FAILED)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
