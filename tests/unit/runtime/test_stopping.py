"""Goal: a stop ends, also where a disk or another broker hangs (`stopping`). What hangs goes on when a test says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.api.errors import FolderInUse, NotReady
from broker.common import stopping
from broker.common.stopping import StillRunning, take
from broker.config.configuration import load
from broker.runtime import broker as broker_module
from broker.storage.folder import DataFolder
from tests.unit.runtime.test_control import append, make, running


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Times are short; set it, and what hangs goes on."""
    monkeypatch.setattr(stopping, "STEP_S", 0.2)
    monkeypatch.setattr(stopping, "THREAD_S", 0.2)
    goes_on = threading.Event()
    yield goes_on
    goes_on.set()


async def test_a_step_that_hangs_or_fails_keeps_no_other_from_being_taken(
    hanging: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    taken = list[str]()

    def fails() -> None:
        raise ValueError("no")

    def leaves_something() -> None:
        taken.append("leaves")
        raise StillRunning("link-to-b")

    def hangs() -> None:
        hanging.wait(60)

    async def waits() -> None:
        taken.append("waits")

    assert await take((lambda: taken.append("first"), waits), log_count=0)
    assert await take((fails,), log_count=0), "it has ended"
    assert not await take((hangs, leaves_something, lambda: taken.append("last")), log_count=0)
    hanging.set()
    assert taken == ["first", "waits", "leaves", "last"]
    said = [(record.levelno, record.getMessage().partition(" ")[0]) for record in caplog.records]
    assert said == [(logging.ERROR, f"broker.stop_{what}") for what in ("failed", "hangs", "hangs")]
    assert "what=link-to-b" in caplog.text


async def test_the_folder_stays_locked_while_what_hangs_may_write(tmp_path: Path, hanging: threading.Event) -> None:
    """The other logs are marked clean."""
    broker = make(tmp_path)
    await broker.start()
    await broker.create_stream("s", {})
    await append(broker, "s")
    broker._threads.append(lambda: hanging.wait(60) and None)
    assert not await broker.stop()
    hanging.set()
    with pytest.raises(FolderInUse):
        DataFolder.open(str(tmp_path / "data"), broker_id=broker.broker_id)
    broker._folder.close()  # as the end of the process does
    async with running(tmp_path) as broker:
        assert broker.partition("s", 0).log.state.recovery.clean


@pytest.mark.parametrize(("has_ended", "codes"), [(True, []), (False, [70])])
async def test_the_process_ends_without_waiting_for_what_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, has_ended: bool, codes: list[int]
) -> None:
    class Node:
        async def start(self) -> None:
            raise NotReady("it cannot")

        async def stop(self) -> bool:
            return has_ended

    ended = list[int]()
    monkeypatch.setattr(broker_module, "_made", lambda config: Node())
    monkeypatch.setattr("os._exit", ended.append)
    with pytest.raises(NotReady):
        await broker_module._serve(load(None, {}))
    assert ended == codes
