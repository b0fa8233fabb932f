"""Small messages whose rows have neither headers nor replies become one batch, without Arrow.

P2  The batch is byte for byte the one that `RowBatch` composes of the same rows, one message after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from broker.api.batch import BUFFERS_AT, HEADER_BYTES, NODE_COUNT, NODES_AT, ROWS_AT, TEMPLATE
from broker.api.plain_rows import PlainBatch, TextColumn

_TIMES: Final = 3
"""The buffer of the timestamps; those of the offset come before it, a text column has three."""
_TEXTS: Final = ((4, 2), (7, 3), (10, 4))
"""Subject, key, value: the first buffer, and the node."""
_HEADERS, _REPLY, _TIMESTAMP = 5, 9, 1
"""Nodes."""
_PLACES: Final = struct.Struct("<26q")
"""Position and length of the first 13 buffers."""
_NODES: Final = struct.Struct(f"<{2 * NODE_COUNT}q")


def joined(messages: Sequence[memoryview]) -> PlainBatch | None:
    """The rows of verified messages, of one row at least each, as one batch.

    Returns:
        None: some of the rows have headers or a reply, or a timestamp is missing, or a message is compressed.
    """
    places, counts, rows = [], [], []
    for message in messages:
        (n,) = struct.unpack_from("<q", message, ROWS_AT)
        nodes = _NODES.unpack_from(message, NODES_AT)
        nulls = nodes[1::2]
        if message[:8] != TEMPLATE[:8] or nulls[_HEADERS] != n or nulls[_REPLY] != n or nulls[_TIMESTAMP]:
            return None
        places.append(_PLACES.unpack_from(message, BUFFERS_AT))
        counts.append(nulls)
        rows.append(n)
    times = b"".join(
        [_bytes(message, place, _TIMES) for message, place in zip(messages, places, strict=True)]  # one buffer each
    )
    texts = (
        _text(messages, places, rows, [nulls[node] for nulls in counts], first_buffer) for first_buffer, node in _TEXTS
    )
    return PlainBatch(times, int(np.frombuffer(times, "<i8").max()), *texts)


def _text(
    messages: Sequence[memoryview],
    places: Sequence[tuple[int, ...]],
    rows: Sequence[int],
    nulls: Sequence[int],
    buffer: int,
) -> TextColumn:
    """One column of all messages."""
    each = list(zip(messages, places, strict=True))
    data = [_bytes(message, place, buffer + 2) for message, place in each]
    ends = np.frombuffer(
        b"".join([_bytes(message, place, buffer + 1)[4:] for message, place in each]),  # without the 0 at their begin
        "<i4",
    )
    begins = np.repeat(np.array(list(accumulate(map(len, data), initial=0))[:-1], "<i4"), rows)
    validity = b""
    if any(nulls):
        bits = [
            np.unpackbits(np.frombuffer(_bytes(message, place, buffer), np.uint8), count=n, bitorder="little")
            if missing
            else np.ones(n, np.uint8)
            for (message, place), n, missing in zip(each, rows, nulls, strict=True)
        ]
        validity = np.packbits(np.concatenate(bits), bitorder="little").tobytes()
    return TextColumn(sum(nulls), validity, bytes(4) + (ends + begins).astype("<i4").tobytes(), b"".join(data))


def _bytes(message: memoryview, place: tuple[int, ...], buffer: int) -> memoryview:
    begin = HEADER_BYTES + place[2 * buffer]
    return message[begin : begin + place[2 * buffer + 1]]
