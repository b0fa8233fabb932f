"""Which master keys the logs in the data folder need: looked at now and then, and told.

What nobody opens (moved aside, staged, of a stream that the catalog does not name) is wrapped by the present master key
here. So a former one that no log needs any more may go, and a metric says so. A log whose files of keys cannot be read
may need any of them.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from broker.api.errors import LiftlogError
from broker.common.metrics import Sample
from broker.storage.disk import Disk

if TYPE_CHECKING:
    from broker.storage.encrypted.keys import Keyring

log = logging.getLogger(__name__)

LOOK_S: Final = 600.0
"""The folders of all logs are listed, and two small files of each are read."""


class MasterKeys:
    """Master keys in use. One thread calls `look`, any one `samples`.

    Args:
        root: The folder `streams`.
        keyring: None: this broker has none, and nothing is looked at.
    """

    def __init__(
        self, disk: Disk, root: str, keyring: Keyring | None, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._disk = disk
        self._root = root
        self._keyring = keyring
        self._now_s = now_s
        self._due_s = 0.0
        self._counts: Counter[str] | None = None  # nobody has looked yet
        self._left: dict[str, str] = {}

    def look(self) -> None:
        """Wrap anew what nobody opens, and count, if that is due."""
        keyring = self._keyring
        if keyring is None or self._now_s() < self._due_s:
            return
        self._due_s = self._now_s() + LOOK_S
        from broker.storage.encrypted.in_use import encrypted_folders, wrap_anew
        from broker.storage.encrypted.keyfile import masters_of

        all_of_them = {each.id for each in keyring.masters}
        counts: Counter[str] = Counter()
        left: dict[str, str] = {}
        try:
            for folder in encrypted_folders(self._disk, self._root):
                if why := wrap_anew(self._disk, folder, keyring):
                    left[folder] = why
                try:
                    counts.update(masters_of(self._disk, folder))
                except (LiftlogError, OSError):  # of this one alone
                    counts.update(all_of_them)
        except OSError as error:  # a folder went meanwhile, or the disk refuses: what was counted before stands
            log.info("encryption.not_looked path=%s error=%s", self._root, error)
            return
        for folder, why in left.items():
            if self._left.get(folder) != why:
                log.warning("encryption.not_wrapped path=%s error=%s", folder, why)
        self._counts, self._left = counts, left

    def samples(self) -> Iterator[Sample]:
        """For /metrics: of each master key that this broker has, and of others that logs name."""
        keyring, counts = self._keyring, self._counts
        if keyring is not None and counts is not None:
            for master in sorted({*counts, *(each.id for each in keyring.masters)}):
                text = "Encrypted logs that need a master key"
                yield "liftlog_encryption_logs", text, ("master",), (master,), counts[master]
