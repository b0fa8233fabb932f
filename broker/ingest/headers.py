"""The header block of an HMSG as pairs, in order, duplicates kept.

    NATS/1.0[ status and text]\\r\\n      the status is the server's own; it is read past
    name:[spaces]value\\r\\n              0..n times
    \\r\\n                                exactly at the end of the block

Names are kept as they are; of values, leading spaces and tabs are dropped and nothing else, as
nats-server and nats.go do. A line without a colon or with an empty name makes the block malformed.
"""

from __future__ import annotations

from broker.ingest.rules import HEADER_START


def parse_headers(block: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return the headers of a block, or None if it is malformed."""
    first, found, rest = block.partition(b"\r\n")
    status = first[len(HEADER_START) :]
    if not found or not first.startswith(HEADER_START) or (status and status[:1] not in b" \t"):
        return None
    if not rest.endswith(b"\r\n"):
        return None
    lines = rest[:-2].split(b"\r\n")
    if lines.pop():
        return None
    headers = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not name:
            return None
        headers.append((name, value.lstrip(b" \t")))
    return headers
