"""Goal: when memory runs out within a message, earlier records are whole and the Intake says that it is lost.

Method: a process of its own with a limit on its address space; once it is reached the payload finds no room.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

pytest.importorskip("broker.ingest._intake")

SCRIPT = """
import resource
from broker.api.batch import decode_batch
from broker.ingest import IntakeProtocolError, load
from tests.unit.ingest.envelopes import envelope, message
from tests.unit.ingest.twins import builder
from tests.unit.ingest.wire import hmsg, msg

twin = load("compiled")
target = builder(twin, record_bytes_max=64 << 20, batch_bytes=64 << 20)
intake = twin.Intake()
intake.route(1, [target], partition_by="subject_suffix")
intake.feed(msg("a", b"first") + hmsg("b", b"second", ("Liftlog-Key", "k"), reply="r"), 1)
payload = b"x" * (40 << 20)
wire = {wire}
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (20 << 20), resource.RLIM_INFINITY))
try:
    intake.feed(wire, 1)
    print("stored")
except MemoryError as error:
    print("MemoryError", error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
try:
    intake.feed(b"PING\\r\\n", 1)
except IntakeProtocolError as error:
    print(error.problem)
intake.reset()
intake.feed(msg("c", b"third"), 2)
rows = decode_batch(target.take().compose(first_offset=0, leader_epoch=0, high_watermark=0)).to_pylist()
print([(row["subject"], row["key"], row["value"], row["reply"], row["timestamp"].microsecond)
       for row in rows])
"""
WIRES = {
    "whole": 'hmsg("lost", payload, ("X", "y"), reply="r2")',
    "in part": 'hmsg("lost", payload, ("X", "y"), reply="r2")[:200]',
    "an envelope": 'msg("lost", envelope(message(payload, inbox=b"r2")))',
    "an envelope in part": 'msg("lost", envelope(message(payload, inbox=b"r2")))[:200]',
}


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES)
def test_a_payload_without_room_costs_no_earlier_record(wire: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT.replace("{wire}", wire)], capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "MemoryError no memory for the records of a feed; those before it are kept",
        "no memory",
        "[('a', None, b'first', None, 1), ('b', b'k', b'second', 'r', 1), ('c', None, b'third', None, 2)]",
    ], done.stderr
