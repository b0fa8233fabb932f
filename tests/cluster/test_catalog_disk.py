"""A disk that tears a line of the catalog and lets nobody cut it off, under a real broker.

Goal: the client is told `storage_failed`, of that command and of those behind it; once the disk is well commands are
answered again, and what was answered, and nothing else, is there after a kill. Each pair and triple of faults, without
processes: `tests/unit/runtime/test_catalog_faults.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from broker.api.errors import StorageFailed
from broker.client import connect
from tests.soak.faults import Faults
from tests.support.processes import BrokerProcess

MANY = 1 << 20
CATALOG = r"/catalog\.log"


def test_a_torn_command_is_told_and_what_comes_after_it_is_neither_lost_nor_in_the_way(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="catalog-") as short:  # the path of a socket must be short
        disk = Faults(Path(short) / "faults")
        command = ("tests.soak.broker", "--faults", str(disk.path))
        broker = BrokerProcess(tmp_path / "broker", None, command=command).start()
        catalog = tmp_path / "broker" / "data" / "catalog.log"
        try:
            with connect(broker.address, deadline_s=0) as client:
                client.create_stream("before")
                whole = catalog.stat().st_size
                for call in ("truncate", "replace"):
                    disk.order("fail", call=call, match=CATALOG, count=MANY)
                disk.order("fail", call="write", match=CATALOG, part=True)
                for name in ("torn", "behind"):
                    with pytest.raises(StorageFailed):
                        client.create_stream(name)
                with pytest.raises(StorageFailed):
                    client.delete_stream("before")
                assert catalog.stat().st_size > whole, "half a line is in the file"
                disk.order("clear")
                client.create_stream("after")
                broker.kill9()
                broker.start()
                assert [stream.name for stream in client.streams()] == ["after", "before"]
        finally:
            broker.stop()
        assert "Traceback" not in broker.output()
        assert "http.bug" not in broker.output()
