"""Which partition a message belongs to: CRC-32 (IEEE 802.3), unsigned, modulo the partitions.

The stream says what is hashed: the key, the subject, or the N-th token of the subject (from 1). Without key or token it
is the subject. Liftbridge's clients hash keys the same way, so a key meets its partition whoever routes it.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

FIXED: Final = 0
BY_KEY: Final = 1
BY_SUBJECT: Final = 2
BY_TOKEN: Final = 3


def parse_partition_by(partition_by: str) -> tuple[int, int]:
    """Read the setting `partition_by` as (one of the constants here, token number or 0).

    Raises:
        ValueError: not `subject_suffix`, `key`, `subject` or `token:N`.
    """
    if partition_by == "subject_suffix":
        return FIXED, 0
    if partition_by == "key":
        return BY_KEY, 0
    if partition_by == "subject":
        return BY_SUBJECT, 0
    kind, _, number = partition_by.partition(":")
    if kind == "token" and number.isascii() and number.isdigit() and int(number) > 0:
        return BY_TOKEN, int(number)
    raise ValueError(f"partition_by={partition_by!r}: must be subject_suffix, key, subject or token:N")


def hashed_part(subject: bytes, key: bytes | None, by: int, token: int) -> bytes:
    """The bytes that decide.

    Args:
        subject: The concrete subject.
        key: Value of `Liftlog-Key`, None without one.
        by, token: As `parse_partition_by` reads them.
    """
    if by == BY_KEY and key is not None:
        return key
    if by == BY_TOKEN:
        tokens = subject.split(b".", token)
        if len(tokens) >= token:
            return tokens[token - 1]
    return subject


def partition_of(subject: bytes, key: bytes | None, partition_by: str, partition_count: int) -> int:
    """The partition of a message, of a stream that captures it under one subject for all partitions.

    Raises:
        ValueError: as `parse_partition_by`.
    """
    by, token = parse_partition_by(partition_by)
    return crc32(hashed_part(subject, key, by, token)) % partition_count if by != FIXED else 0
