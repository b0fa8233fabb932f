"""NATS protocol bytes as a server sends them, for the tests of ingest."""

from __future__ import annotations

from collections.abc import Iterator


def msg(subject: str | bytes, value: bytes = b"", *, reply: str | bytes | None = None, sid: int = 1) -> bytes:
    """A MSG with its payload."""
    return _line(b"MSG", subject, sid, reply, len(value)) + value + b"\r\n"


def hmsg(
    subject: str | bytes,
    value: bytes = b"",
    *headers: tuple[str, str],
    reply: str | bytes | None = None,
    sid: int = 1,
    block: bytes | None = None,
) -> bytes:
    """An HMSG with headers, or with `block` as its header block."""
    if block is None:
        lines = b"".join(b"%b: %b\r\n" % (name.encode(), text.encode()) for name, text in headers)
        block = b"NATS/1.0\r\n" + lines + b"\r\n"
    head = _line(b"HMSG", subject, sid, reply, len(block), len(block) + len(value))
    return head + block + value + b"\r\n"


def _line(operation: bytes, subject: str | bytes, sid: int, reply: str | bytes | None, *sizes: int) -> bytes:
    fields = [operation, _raw(subject), b"%d" % sid]
    if reply is not None:
        fields.append(_raw(reply))
    return b" ".join([*fields, *(b"%d" % size for size in sizes)]) + b"\r\n"


def _raw(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def answers_in(blob: bytes) -> list[tuple[bytes, bytes]]:
    """The (reply subject, body) pairs of a blob of PUBs, which must hold nothing else."""
    return list(_answers(blob))


def _answers(blob: bytes) -> Iterator[tuple[bytes, bytes]]:
    while blob:
        line, _, blob = blob.partition(b"\r\n")
        operation, reply, size = line.split(b" ")
        assert operation == b"PUB"
        body, end, blob = blob[: int(size)], blob[int(size) : int(size) + 2], blob[int(size) + 2 :]
        assert end == b"\r\n"
        assert len(body) == int(size)
        yield reply, body
