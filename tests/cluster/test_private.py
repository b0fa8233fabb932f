"""Goal: another user of the machine reads nothing of what a broker and `up` write. Method: each with a umask that hides
nothing, in a folder that is there and open to all, and in one that is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.test_cli import Folder
from tests.support.processes import free_port

pytestmark = pytest.mark.process


@contextmanager
def open_to_all() -> Iterator[None]:
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def readable(folder: Path) -> list[Path]:
    """The files below a folder that another user can get at."""
    found = []
    for place, folders, files in os.walk(folder):
        if not os.stat(place).st_mode & 0o007:
            folders.clear()
            continue
        found += [Path(place, name) for name in files if os.stat(os.path.join(place, name)).st_mode & 0o007]
    return found


@pytest.mark.parametrize("is_there", [False, True])
def test_what_a_broker_and_up_write_is_their_owners_alone(tmp_path: Path, is_there: bool) -> None:
    house = Folder(tmp_path / "data", free_port(4))
    with open_to_all():
        if is_there:
            house.path.mkdir()
        house.up()
        try:
            house.liftlog("stream", "create", "orders", "--subject", "orders.>")
            house.liftlog("publish", "orders.1", "secret")
            assert readable(house.path) == []
            assert any(house.path.rglob("*.log")), "it looked at the right place"
        finally:
            house.liftlog("down", "--data", str(house.path), "--force")
    assert readable(house.path) == []
