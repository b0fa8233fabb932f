"""A member of a consumer group, as a process that may be killed: `python -m tests.support.group_member BROKERS FILE`.

For each batch it writes a line to FILE when its work is done, and another one when it is committed: the time, the word,
the partition, the offsets. Time is of the machine's monotonic clock, so lines of several processes can be compared.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from broker.api.errors import GroupFenced
from broker.client import connect


def main(brokers: str, file: str) -> None:
    with open(file, "a", buffering=1, encoding="utf-8") as out:

        def say(word: str, partition: Any, offsets: Any) -> None:
            out.write(json.dumps([time.monotonic(), word, partition, offsets]) + "\n")

        with connect(brokers, deadline_s=60.0) as client:
            reader = client.group("billing", timeout_s=3.0).read("orders", max_bytes=2_000)
            for rows in reader:
                assert reader.at is not None
                partition, offsets = reader.at[1], rows.column("offset").to_pylist()
                say("done", partition, offsets)
                try:
                    reader.commit()
                except GroupFenced:
                    say("fenced", partition, offsets)
                    continue
                say("committed", partition, offsets)


if __name__ == "__main__":
    main(*sys.argv[1:])
