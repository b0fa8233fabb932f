"""The machine's disk, where a call can be held, or fail: the n-th write or fsync of a file waits for a gate.

write     before anything of it is written
sync      before the fsync
synced    after the fsync, before its caller hears of it
space     before a small file is written whole, under another name
effects   (not of the disk) before what the partition's core wants is done: high watermark, answers
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from broker.node.partitions.effects import Effects
from broker.replication.events import Answer, Effect
from broker.storage import disk
from broker.storage.disk import TEMPORARY, OsDisk, ReadableBuffer
from broker.storage.disk.osfile import OsFile
from tests.support.waiting import DEADLINE_S


class Gate:
    """The first thread that comes to it waits until it is open.

    Attributes:
        reached: Somebody waits at it, or has passed it.
        error: The errno with which the call fails that was held; 0: it goes on.
    """

    def __init__(self, point: str, is_meant: Callable[[str], bool], error: int = 0) -> None:
        self.point = point
        self.is_meant = is_meant
        self.error = error
        self.reached = threading.Event()
        self._go = threading.Event()

    def open(self) -> None:
        self._go.set()

    def wait(self) -> None:
        self.reached.set()
        assert self._go.wait(DEADLINE_S), f"nobody opened the gate at {self.point}"
        if self.error:
            raise OSError(self.error, os.strerror(self.error))


class Gates:
    """The gates that are set; each holds one call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: list[Gate] = []
        self._all: list[Gate] = []

    def hold(self, point: str, is_meant: Callable[[str], bool], error: int = 0) -> Gate:
        """Hold the next call of this kind to a path that is meant (at `effects`: to a partition, by its folder)."""
        gate = Gate(point, is_meant, error)
        self._gates.append(gate)
        self._all.append(gate)
        return gate

    def fail(self, point: str, is_meant: Callable[[str], bool], error: int) -> None:
        """Let the next call fail."""
        self.hold(point, is_meant, error).open()

    def open_all(self) -> None:
        for gate in self._all:
            gate.open()
        self._gates.clear()
        self._all.clear()

    def pass_(self, point: str, path: str) -> None:
        with self._lock:
            found = next((gate for gate in self._gates if gate.point == point and gate.is_meant(path)), None)
            if found is None:
                return
            self._gates.remove(found)
        found.wait()


class GatedFile:
    """A file behind gates."""

    def __init__(self, file: OsFile, path: str, gates: Gates) -> None:
        self._file = file
        self._path = path
        self._gates = gates

    def write(self, data: ReadableBuffer) -> None:
        self._gates.pass_("write", self._path)
        self._file.write(data)

    def sync(self) -> None:
        self._gates.pass_("sync", self._path)
        self._file.sync()
        self._gates.pass_("synced", self._path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def gated(patch: pytest.MonkeyPatch) -> Gates:
    """Gates in front of each disk and partition that is made from now on."""
    gates = Gates()

    class GatedDisk(OsDisk):
        def open(self, path: str, *, create: bool = False, readonly: bool = False, ahead: int = 0) -> Any:
            gates.pass_("open", path)
            file = super().open(path, create=create, readonly=readonly, ahead=ahead)
            return file if readonly else GatedFile(file, path, gates)

        def unlink(self, path: str) -> None:
            gates.pass_("unlink", path)
            super().unlink(path)

        def sync_dir(self, path: str) -> None:
            gates.pass_("sync_dir", f"{path}/")

        def replace_file(self, path: str, data: ReadableBuffer, *, frees: bool = False) -> None:
            gates.pass_("replace", path)
            super().replace_file(path, data, frees=frees)

        def remove_tree(self, path: str) -> None:
            gates.pass_("remove_tree", f"{path}/")
            super().remove_tree(path)

    def do(self: Effects, effects: Sequence[Effect], **options: Any) -> None:
        if any(type(effect) is Answer for effect in effects):
            gates.pass_("effects", f"{self._replica.log.state.folder}/")
        real(self, effects, **options)

    def write_whole(path: str, data: ReadableBuffer, flags: int) -> None:
        if path.endswith(TEMPORARY):
            gates.pass_("space", path)
        real_write(path, data, flags)

    real, real_write = Effects.do, disk._write_whole
    patch.setattr(disk, "_write_whole", write_whole)
    patch.setattr(OsFile, "sync", lambda file: None)  # the power stays on, and the disk of the machine is slow
    patch.setattr("broker.runtime.assembled.OsDisk", GatedDisk)
    patch.setattr(Effects, "do", do)
    return gates
