"""`liftlog down`: stops what `up` started in a folder, and only what is provably that."""

from __future__ import annotations

import signal
import time
from typing import Annotated, Final

import click

from broker.api.errors import DeadlineExceeded
from broker.cli.arguments import Option
from broker.cli.local.datafolder import Record, UpFolder, copy_notice
from broker.cli.local.processes import ProcessIdentity
from broker.cli.options import DEFAULT_DATA, Data, Json, is_json
from broker.cli.output import json_out, note

FORCE_TIMEOUT_S: Final = 10.0
FIRST, LAST = "up", "nats"
"""A supervisor stops the others itself, in order; then brokers, all at once, so that NATS outlives them."""


def down(
    ctx: click.Context,
    data: Data = DEFAULT_DATA,
    timeout_s: Annotated[float, Option("--timeout-s", min=0, help="Seconds to wait for each process.")] = 30.0,
    force: Annotated[bool, Option("--force", help="Kill what has not ended in time.")] = False,
    json: Json = False,
) -> None:
    """Stop what `liftlog up` started in a folder."""
    folder = UpFolder(data)
    stopped: dict[str, int] = {}
    record = folder.load()
    if record is None:
        folder.check()
        if (copied := folder.copied()) is not None:
            note(copy_notice(folder, *copied))
    if record is not None:
        if "up" in record.alive():  # holds no lock: it supervises
            stopped |= _stop_all(record, timeout_s, force)
        else:
            with folder.locked():
                stopped |= _stop_all(record, timeout_s, force)
                folder.forget(record)
    if is_json(ctx, json):
        json_out({"data": str(folder.path), "stopped": stopped})
    elif not stopped:
        note(f"nothing runs in {folder.path}")


def _stop_all(record: Record, timeout_s: float, force: bool) -> dict[str, int]:
    """Stop in order; returns the pids of those that ran."""
    alive = record.alive()
    for name, recorded in record.processes.items():
        found = None if name in alive else ProcessIdentity.of(recorded.pid)
        if found is not None and found.boot_id == recorded.boot_id:
            note(f"left alone: pid {found.pid}, recorded as {name}, is now {' '.join(found.command)!r}: not ours")
    brokers = sorted(set(alive) - {FIRST, LAST})
    if FIRST in alive:
        _stop(FIRST, alive[FIRST], timeout_s, force)
    told = [name for name in (*brokers[1:], *brokers[:1]) if _told_to_stop(name, alive[name])]
    for name in told:
        _wait(name, alive[name], timeout_s, force)
    if LAST in alive:
        _stop(LAST, alive[LAST], timeout_s, force)
    return {name: identity.pid for name, identity in alive.items()}


def _stop(name: str, identity: ProcessIdentity, timeout_s: float, force: bool) -> None:
    if _told_to_stop(name, identity):
        _wait(name, identity, timeout_s, force)


def _told_to_stop(name: str, identity: ProcessIdentity) -> bool:
    """False: it has ended already."""
    is_told = identity.send(signal.SIGTERM)
    if is_told:
        note(f"stopping {name} (pid {identity.pid})")
    return is_told


def _wait(name: str, identity: ProcessIdentity, timeout_s: float, force: bool) -> None:
    began = time.monotonic()
    if identity.wait(timeout_s):
        return
    waited_s = time.monotonic() - began
    if not force:
        raise DeadlineExceeded(
            f"{name} (pid {identity.pid}) has not ended after {waited_s:.0f} s; --force kills it",
            process=name,
            pid=identity.pid,
        )
    note(f"killing {name} (pid {identity.pid}), which has not ended after {waited_s:.0f} s")
    identity.send(signal.SIGKILL)
    if not identity.wait(FORCE_TIMEOUT_S):
        raise DeadlineExceeded(f"{name} (pid {identity.pid}) cannot be killed", process=name, pid=identity.pid)
