"""A liftlog of one's own: `liftlog up` in a folder when entered, `liftlog down` and no folder when left.

    with Liftlog.up(Path("quickstart-data"), console) as liftlog:
        liftlog.run("stream", "create", "flights", "--subject", "flights.>")

With `is_secure=True` it has certificates of a CA of its own, and refuses what is not granted; each part that talks to
it is let in by `let_in` (secured.py has how). Else all of them are nobody.

Every command is printed as one would type it. However the block ends (done, failed, Ctrl-C, SIGTERM),
the processes that it started are stopped and the folder is removed; what a run that was killed hard left
in the folder is stopped and removed by the next.

L1  Only a folder that this module made is ever removed: it has a mark in it.
L2  Two runs in one folder: the second is refused, by a lock that the system drops with its holder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.markup import escape

from broker.api.environment import PROFILE_VARIABLE, TLS_VARIABLES, TOKEN_VARIABLE
from examples.secured import ADMIN, Secrets
from spark_liftlog import connect

if TYPE_CHECKING:
    from broker.client import Client

MARK: Final = ".made-by-liftlog-examples"
OTHERS: Final = (PROFILE_VARIABLE, TOKEN_VARIABLE, *TLS_VARIABLES)
"""Variables of the user's shell that are about other brokers."""
COMMAND_TIMEOUT_S: Final = 120.0
STOP_TIMEOUT_S: Final = 60.0


class CommandFailed(Exception):
    """A `liftlog` command ended with an error; the text is its own."""


@dataclass(frozen=True, slots=True)
class Liftlog:
    """A running liftlog.

    Attributes:
        folder: Where its data is.
        brokers: HTTP addresses, host:port, separated by commas; what Spark's option `brokers` and `connect` take.
        nats: URL of its NATS server.
        console: Where commands are printed.
        secrets: None: everybody may do everything.
    """

    folder: Path
    brokers: str
    nats: str
    console: Console
    secrets: Secrets | None = None

    @classmethod
    @contextlib.contextmanager
    def up(
        cls, folder: Path, console: Console, *, brokers_count: int = 1, is_secure: bool = False
    ) -> Iterator[Liftlog]:
        """Start it, a cluster if there are to be several brokers; stop it and remove the folder when the block is left.

        Raises:
            CommandFailed: it does not start; says why.
            FileExistsError: the folder is somebody else's, or another run is at work in it.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(_own(folder))
            stack.callback(_clean_up, folder, console)
            secrets = Secrets(folder.absolute()) if is_secure else None
            for words in secrets.commands(brokers_count) if secrets else ():
                _show(console, words)
                _liftlog(words)
            ports = _free_ports(4 + 10 * (brokers_count - 1))
            words = ["up", "--detach", "--data", str(folder), "--port-base", str(ports)]
            words += ["--brokers-count", str(brokers_count)] if brokers_count > 1 else []
            settings = secrets.environment(brokers_count) if secrets else {}
            _show(console, words, **settings)
            addresses = json.loads(_liftlog([*words, "--json"], **settings))
            brokers = ",".join(broker["http"] for broker in addresses["brokers"])
            if secrets:
                secrets.note_brokers(brokers)
            yield cls(folder, brokers, addresses["nats"]["url"], console, secrets)

    def run(self, *words: str) -> str:
        """Print and run a command on this liftlog, as its admin; return what it wrote.

        Raises:
            CommandFailed: it ended with an error.
        """
        words = words if self.secrets is None else ("--profile", self.secrets.profile(ADMIN), *words)
        _show(self.console, words)
        return _liftlog(words, LIFTLOG_BROKERS=self.brokers, LIFTLOG_NATS_URL=self.nats)

    def let_in(self, part: str, *grants: tuple[str, str]) -> None:
        """Make a token for a part of the whole, and let it do these things and no others."""
        if self.secrets is None:
            return
        self.run("auth", "token", "create", f"svc:{part}", str(self.secrets.token(part)), "--ttl", "1d")
        for action, name in grants:
            self.run("auth", "grant", f"svc:{part}", action, name)
        self.secrets.note_part(part, self.brokers)

    def options(self, part: str) -> dict[str, str]:
        """Spark's options by which a part finds the brokers, and is known to them."""
        return {"brokers": self.brokers} if self.secrets is None else {"profile": self.secrets.profile(part)}

    def told(self, part: str) -> tuple[str, str]:
        """How one would type that, for Spark and for `connect`. Spark's default is the broker of this machine."""
        if self.secrets is None:
            return "", f'"{self.brokers}"'
        return f'.option("profile", "{self.secrets.profile(part)}")', f'profile="{self.secrets.profile(part)}"'

    def connect(self, part: str) -> Client:
        """A client of this part."""
        return connect(self.brokers) if self.secrets is None else connect(profile=self.secrets.profile(part))


@contextlib.contextmanager
def terminated_as_interrupted() -> Iterator[None]:
    """Within the block SIGTERM does what Ctrl-C does: the stack unwinds, and everything is cleaned up."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[None]:
    """Make the folder and hold it (L1, L2); remove it in the end."""
    if folder.exists() and not (folder / MARK).exists():
        raise FileExistsError(f"{folder} exists and is not of this example; name another one with --data")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / MARK).touch()
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise FileExistsError(f"another run is at work in {folder}; name another folder with --data") from None
    try:
        if (folder / "run").exists():
            _liftlog(["down", "--force", "--data", str(folder)])
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _clean_up(folder: Path, console: Console) -> None:
    """Stop what runs in the folder. A second Ctrl-C does not stop it half-way."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        words = ["down", "--force", "--data", str(folder)]
        _show(console, words)
        _liftlog(words)
    except CommandFailed as error:
        console.print(f"[red]could not stop everything:[/] {escape(str(error))}")
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _liftlog(words: list[str] | tuple[str, ...], **env: str) -> str:
    # Its own session: Ctrl-C reaches us alone, and we decide what it means for the command.
    process = subprocess.Popen(
        [sys.executable, "-m", "broker.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**{name: value for name, value in os.environ.items() if name not in OTHERS}, **env},
        start_new_session=True,
    )
    try:
        output, problem = process.communicate(timeout=COMMAND_TIMEOUT_S)
    except BaseException:
        process.send_signal(signal.SIGINT)  # `up` stops what it has started
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=STOP_TIMEOUT_S)
        process.kill()
        raise
    if process.returncode:
        raise CommandFailed(f"liftlog {shlex.join(words)}: {problem.strip() or f'exit code {process.returncode}'}")
    return output


def _show(console: Console, words: list[str] | tuple[str, ...], **settings: str) -> None:
    said = [f"{name}={shlex.quote(value)}" for name, value in settings.items()] + [f"liftlog {shlex.join(words)}"]
    console.print("  $ " + " \\\n      ".join(said), style="dim", markup=False, highlight=False, soft_wrap=True)


def _free_ports(count: int) -> int:
    """The first of `count` ports in a row that nobody listens on now."""
    for base in random.sample(range(20_000, 32_000 - count, count), 200):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(base, base + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base
    raise OSError(f"no {count} free ports in a row")
