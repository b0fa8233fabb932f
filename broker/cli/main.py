"""`liftlog`: the app, its global options, and how errors end a command.

Every error of the tree is one line on stderr, `error[reason]: text`, and an exit code (exits.py). A
traceback is shown only when it was asked for, by `liftlog --debug …`.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from typing import Annotated, Any

import click

from broker import __version__
from broker.api.errors import DiskFull, LiftlogError
from broker.api.plain import printable
from broker.cli.arguments import Option, command
from broker.cli.exits import FAILED, INTERRUPTED, code_of
from broker.cli.lazy import COMMANDS, LazyGroup
from broker.cli.options import Brokers, Globals, Json, Nats, Profile, RetrySeconds, TlsCa, TlsCert, TlsKey, TokenFile
from broker.cli.output import make_writable


def _version(asked: bool) -> None:
    if asked:
        click.echo(f"liftlog {__version__}")
        raise click.exceptions.Exit


def _globals(
    ctx: click.Context,
    brokers: Brokers = None,
    nats: Nats = None,
    json: Json = False,
    retry_s: RetrySeconds = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    profile: Profile = None,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """A durable, replayable log for NATS subjects, read as Arrow."""
    ctx.obj = Globals(
        brokers=brokers,
        nats=nats,
        json=json,
        retry_s=retry_s,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token_file=token_file,
        profile=profile,
    )


class Root(LazyGroup):
    """`liftlog` itself, with the options that hold for every command."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None


_whole = command("liftlog", _globals)
app = Root(
    "liftlog",
    COMMANDS,
    params=_whole.params,
    callback=_whole.callback,
    help=_whole.help,
    context_settings={"help_option_names": ["-h", "--help"]},
)

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EPIPE)


def main() -> None:
    """Entry point. Ends the process with one of the documented exit codes."""
    if sys.stdout is None:  # `>&-`
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 likewise
    make_writable()
    try:
        try:
            app(prog_name="liftlog")
        except SystemExit:
            sys.stdout.flush()  # not left to the interpreter, which could only say that it failed
            raise
    except LiftlogError as error:
        _report(error.reason, str(error))
        sys.exit(code_of(error))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in UNWRITABLE:  # of stdout, mostly
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or what is left is tried again at the end
            if error.errno != errno.EPIPE:  # nobody is there to read it
                _report(DiskFull.reason, f"the output cannot be written: {error.strerror}")
            sys.exit(FAILED)
        _report("internal", f"{type(error).__name__}: {error} (a fault of liftlog; --debug shows where)")
        sys.exit(FAILED)
    finally:
        gc.freeze()  # or the interpreter ends with a search for cycles in all modules: 0.2 s of a core for a broker


def _report(reason: str, text: str) -> None:
    if "--debug" in sys.argv[1:2]:
        import traceback

        traceback.print_exc()
    sys.stderr.write(f"error[{reason}]: {printable(text)}\n")


if __name__ == "__main__":
    main()
