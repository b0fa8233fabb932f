"""The same story in less time: a message that was verified is not verified again, whoever meets the same bytes.

Replicas, readers, passes of compaction and the checker meet each message some twenty times. The answer of
`verify_batch` depends on the bytes alone, and is remembered by those: a message with one bit that is another is new.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Final

from broker.api import batch
from broker.api.batch import BatchHeader, verify_batch
from broker.api.errors import LiftlogError
from broker.storage import aside, read
from broker.storage.inspect import scrub
from broker.storage.rewrite import gaps, reused_blocks, rewriting
from broker.storage.writing import append

USERS: Final = (aside, batch, read, append, gaps, rewriting, reused_blocks, scrub)
"""The modules of a replica that call it by name."""


@lru_cache(4_000)
def _verified(message: bytes) -> BatchHeader:
    return verify_batch(message)


def _once(message: bytes | bytearray | memoryview, *, where: str = "") -> BatchHeader:
    try:
        return _verified(bytes(message))
    except LiftlogError:
        return verify_batch(message, where=where)


@contextmanager
def verified_once() -> Iterator[None]:
    """Within it."""
    for module in USERS:
        setattr(module, "verify_batch", _once)  # noqa: B010
    try:
        yield
    finally:
        for module in USERS:
            setattr(module, "verify_batch", verify_batch)  # noqa: B010
