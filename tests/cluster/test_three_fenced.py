"""Goal: who publishes on NATS with a fence stores nothing any more once somebody has taken the next one, also while the
leader dies; and the audit says who took it.

Method: three real brokers. A publisher names fence after fence, as it is told, another one the first for ever; a third
takes the fences, and every other time the leader is killed first. All repeat what has no answer, by its id.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from pathlib import Path

import nats
import nats.errors
import pytest

from tests.support.clusters import three
from tests.support.processes import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


class Writer:
    """A publisher in a thread. Each message is `fence/number`, until its answer is there.

    Attributes:
        fence: That it names in its next message.
        stored, refused: Messages by their answer.
    """

    def __init__(self, url: str, name: str, fence: int) -> None:
        self.fence = fence
        self.stored: dict[bytes, int] = {}
        self.refused: set[bytes] = set()
        self._url, self._name = url, name
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            asyncio.run(self._publish())
        except BaseException as error:
            self._error = error

    async def _publish(self) -> None:
        connection = await nats.connect(self._url)
        for number in itertools.count():
            fence = self.fence
            value = b"%d/%s/%d" % (fence, self._name.encode(), number)
            headers = {"Liftlog-Fence": str(fence), "Nats-Msg-Id": value.decode()}
            while not self._stop.is_set():
                try:
                    answer = await connection.request("fenced", value, timeout=1.0, headers=headers)
                except (TimeoutError, nats.errors.Error):
                    continue
                body = json.loads(answer.data)
                if "error" not in body:
                    self.stored[value] = body["seq"] - 1
                    break
                if "[writer_fenced]" in body["error"]["description"]:
                    self.refused.add(value)
                    await asyncio.sleep(0.01)
                    break
            if self._stop.is_set():
                break
        await connection.close()

    def more(self, count: int) -> None:
        """Wait for so many more answers."""
        goal = len(self.stored) + len(self.refused) + count
        eventually(
            lambda: self._error is not None or len(self.stored) + len(self.refused) >= goal,
            timeout_s=120.0,
            what="answers",
        )
        assert self._error is None, self._error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        assert self._error is None, self._error


def test_a_former_fence_stores_nothing_while_leaders_die(tmp_path: Path) -> None:
    with three(tmp_path) as cluster, cluster.client(deadline_s=120.0) as client:
        assert cluster.nats is not None
        client.create_stream("fenced", subject="fenced", replication_factor=3)
        first = client.fence("fenced", 0)
        begun = {first.fence: first.next_offset}
        newest, oldest = (Writer(cluster.nats.url, name, first.fence) for name in ("newest", "oldest"))
        for turn in range(4):
            newest.more(50)
            oldest.more(5)
            victim = cluster.leader("fenced") if turn % 2 else None
            if victim is not None:
                cluster.brokers[victim].kill9()
            taken = client.fence("fenced", 0)
            begun[taken.fence] = taken.next_offset  # one whose answer is lost takes another
            newest.fence = taken.fence
            newest.more(20)
            if victim is not None:
                cluster.brokers[victim].start(wait=False)
                cluster.wait_ready(victim)
                cluster.in_sync("fenced", 3)
        newest.more(20)
        for writer in (newest, oldest):
            writer.stop()
        values = client.read("fenced").to_table()["value"].to_pylist()
        assert len(set(values)) == len(values)
        for offset, value in enumerate(values):
            fence = int(value.partition(b"/")[0])
            assert all(offset < begun[later] for later in begun if later > fence), (offset, value, begun)
        for writer in (newest, oldest):
            assert {value: values.index(value) for value in writer.stored} == writer.stored
            assert not writer.refused & set(values)
        assert oldest.refused

        def audited() -> set[int]:
            audit = [json.loads(each) for each in client.read("__audit").to_table()["value"].to_pylist()]
            fences = [each for each in audit if each["operation"] == "raise_fence" and each["result"] != "failed"]
            assert all(each["resource"]["stream"] == "fenced" for each in fences)
            return {int(each["asked"]["after"]) + 1 for each in fences}

        eventually(lambda: audited() >= {*begun}, what="who took them")
