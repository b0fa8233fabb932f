"""Goal: whatever ends a broker at whatever moment, its encrypted logs have their keys: none is taken for one that has
lost them, and none goes on in clear.

Method: the life of a log of `test_log_ends.py`, encrypted, which is cut, begun anew and made again, and whose key is
wrapped anew; power fails at each of its steps. Each log that is left is opened, with another master key
first, and grows.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from broker.api.errors import CorruptLog, OffsetOutOfRange, WrongKeys
from broker.api.stream import settings_from
from broker.node.folders import Folders
from broker.storage.disk import Disk
from broker.storage.encrypted.keyfile import has_files
from broker.storage.encrypted.keys import Keyring, MasterKey
from broker.storage.encrypted.message import is_encrypted
from tests.support.effort import first_short
from tests.support.encrypted_logs import KEYRING
from tests.support.simdisk import Crashed, modes_at
from tests.unit.runtime.test_log_ends import INFO, MovingDisk, a_life, folders_on, grow

ENCRYPTED = replace(INFO, settings=replace(INFO.settings, encryption="aes-256-gcm"))
OTHER = Keyring([MasterKey(b"n" * 32), *KEYRING.masters])
SEGMENT_START = 568


def encrypted_on(disk: Disk, keyring: Keyring) -> Folders:
    made = folders_on(disk)
    return replace(made, settings=replace(made.settings, keyring=keyring))


def lived(disk: MovingDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.runtime.test_log_ends.INFO", ENCRYPTED)
    a_life(encrypted_on(disk, KEYRING))
    opened(encrypted_on(disk, OTHER), is_known=True)


def opened(folders: Folders, *, is_known: bool) -> int:
    """Open what is there, as a start does whose catalog knows the stream or does not, and let it grow."""
    count = 0
    for identity in folders.found():
        settings = folders.log_settings(ENCRYPTED.settings if is_known else settings_from({}))
        try:
            log = folders.open(identity, settings)
        except WrongKeys as error:
            raise AssertionError(str(error)) from error
        except CorruptLog:  # it begins anew
            continue
        log.remembered.update_settings(folders.log_settings(ENCRYPTED.settings))
        with suppress(OffsetOutOfRange):  # it was about to begin anew where its leader's log begins: it may not lead
            grow(log, 90, 2, committed=2)
            count += 1
        log.close()
    return count


@pytest.mark.slow
@pytest.mark.parametrize("part", first_short(range(24)))
def test_no_log_has_lost_its_keys_whenever_the_power_goes(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, grown = MovingDisk(), 0
    lived(whole, monkeypatch)
    assert whole.steps > 100
    for step in range(1 + part, whole.steps + 1, 24):
        disk = MovingDisk(crash_at=step)
        with suppress(Crashed):
            lived(disk, monkeypatch)
        for mode in modes_at(step):
            left = disk.after_crash(mode, seed=step)
            for is_known in (step % 2 == 0, True):
                grown += opened(encrypted_on(left, OTHER), is_known=is_known)
            grown += opened(encrypted_on(left, OTHER), is_known=True)
            for path, inode in left.names.items():
                content = bytes(inode.content)
                if path.endswith(".arrows") and len(content) > SEGMENT_START + 264 and any(content[SEGMENT_START:]):
                    assert is_encrypted(content[SEGMENT_START:]), (path, step, mode)
            for number in list(left.folders):
                if (
                    number.endswith("/0")
                    and left.exists(f"{number}/partition.json")
                    and left.exists(f"{number}/epochs")
                ):
                    assert has_files(left, number)
    assert grown > 16
