"""A consumer group at a real broker that is alone: it is kept over a restart, and a silent member ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.client import connect
from tests.support.processes import BrokerProcess, eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.long]


def test_a_silent_member_ends_and_the_group_outlives_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "broker", None).start()
    try:
        with connect(broker.address, deadline_s=60.0) as client:
            client.create_stream("orders", partitions=2)
            for number in range(2):
                client.append("orders", number, [{"value": b"%d" % each} for each in range(10)])
            silent = client.group("billing", timeout_s=2.0).read("orders")
            assert next(silent).num_rows == 10
            silent.commit()
            with client.group("billing", timeout_s=2.0).read("orders") as other:
                silent._life._over.set()  # its process hangs
                assert next(other).num_rows == 10
                other.commit()
                eventually(lambda: len(client.describe_group("billing").members) == 1, what="the end of the silent one")
                broker.kill9()
                broker.start()
                for number in range(2):
                    client.append("orders", number, [{"value": b"x"}])
                assert [next(other).num_rows for _ in range(2)] == [1, 1]
                other.commit()
            said = client.describe_group("billing")
            assert (said.members, [each.offset for each in said.partitions]) == ((), [11, 11])
    finally:
        broker.stop()
