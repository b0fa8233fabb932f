"""Encrypted logs for tests: a keyring, settings with it. As a plugin of pytest (`-p tests.support.encrypted_logs`) it
lets every log of a run be encrypted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from broker.api.batch import FIELDS, VALUE_AT, seal
from broker.api.schema import SCHEMA_BYTES
from broker.api.stream import StreamSettings
from broker.storage.disk import OsDisk
from broker.storage.encrypted.keys import Keyring, MasterKey
from broker.storage.segments.checkpoint import LogSettings
from broker.storage.segments.scan import scan

MASTER: Final = MasterKey(b"m" * 32)
KEYRING: Final = Keyring([MASTER])


def encrypted(settings: LogSettings, keyring: Keyring | None = KEYRING) -> LogSettings:
    """The same settings, for an encrypted log."""
    return replace(settings, is_encrypted=True, keyring=keyring)


def forged(batch: bytes, field: str, value: int) -> bytes:
    """A stored batch with another value in its header, and a CRC that fits: what anybody can write."""
    message, names = bytearray(batch), list(FIELDS)
    at = VALUE_AT + sum(FIELDS[name] for name in names[: names.index(field)])
    message[at : at + FIELDS[field]] = b"%0*x" % (FIELDS[field], value)
    seal(message)
    return bytes(message)


def forge_one(path: Path, field: str, value: int, number: int = -1) -> bytes:
    """Forge the header of a batch in a segment file of a broker that does not run. Returns what was there."""
    before, segment = path.read_bytes(), OsDisk().open(str(path), readonly=True)
    try:
        batch = scan(segment, start=len(SCHEMA_BYTES), first_offset=0, where=str(path)).batches[number]
    finally:
        segment.close()
    start, end = int(batch["position"]), int(batch["position"] + batch["length"])
    path.write_bytes(before[:start] + forged(before[start:end], field, value) + before[end:])
    return before


def pytest_configure() -> None:
    """Only where this is loaded as a plugin."""
    from broker.storage.inspect import inspection, repair

    init: Any = LogSettings.__init__
    init.__kwdefaults__.update(is_encrypted=True, keyring=KEYRING)
    of = LogSettings.of

    def encrypted_of(settings: StreamSettings, broker: LogSettings | None = None) -> LogSettings:
        return encrypted(of(settings, broker))

    LogSettings.of = encrypted_of  # type: ignore[method-assign]
    for function in (inspection.inspect_partition, repair.repair):
        defaults: Any = function.__kwdefaults__
        defaults["keyring"] = KEYRING
