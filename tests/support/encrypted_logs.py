"""Encrypted logs for tests: a keyring, settings with it. As a plugin of pytest (`-p tests.support.encrypted_logs`) it
lets every log of a run be encrypted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from broker.api.stream import StreamSettings
from broker.storage.encrypted.keys import Keyring, MasterKey
from broker.storage.segments.checkpoint import LogSettings

MASTER: Final = MasterKey(b"m" * 32)
KEYRING: Final = Keyring([MASTER])


def encrypted(settings: LogSettings, keyring: Keyring | None = KEYRING) -> LogSettings:
    """The same settings, for an encrypted log."""
    return replace(settings, is_encrypted=True, keyring=keyring)


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
