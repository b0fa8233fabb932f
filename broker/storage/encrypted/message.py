"""One batch message, encrypted with AES-256-GCM: as long as it was, so that all that knows places needs no key.

    plain     | marker, length  | constants        | body length | constants | value | rows, buffers, nodes | body |
    encrypted | marker, -length | salt, nonce, key | body length | tag       | value | all of that, encrypted     |
              0                 8                  48            56          88      264

    8    16 bytes    salt: with the key of the log it gives the key of this message
    24   12 bytes    nonce
    36   uint32      number of the log's key, in its file `keys`
    40   8 bytes     zeros
    48   int64       body length, as it was
    56   16 bytes    tag
    72   16 bytes    zeros
    88   176 digits  the value, as it was, but for the CRC, which is that of the encrypted message
    264  ...         encrypted

S1  A header of a template is the same up to byte 264 in each message, but for body length and value. So nothing of it
    is lost, and a message opens to the bytes that it was made of, but for the CRC, which is computed anew: its digits
    are not kept, for they would tell something of the records.
S2  All before the encrypted bytes but tag and CRC is authenticated: whoever moves a batch to other offsets, another
    epoch or another log is found out.
S3  Its length says that it is none of Arrow's, so no other reader takes it for a batch.
"""

from __future__ import annotations

import struct
from typing import Final

from broker.api.batch import (
    BODY_LENGTH_AT,
    CRC_AT,
    FIELDS,
    HEADER_BYTES,
    HEADER_LENGTHS,
    TEMPLATE,
    VALUE_AT,
    VALUE_BYTES,
    BatchHeader,
    checksum,
    message_bytes,
    read_header,
    seal,
    verify_batch,
)
from broker.api.errors import BadBatch

KEY_BYTES: Final = 32
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
ENCRYPTED_AT: Final = VALUE_AT + VALUE_BYTES
_KEYS: Final = struct.Struct(f"<{SALT_BYTES}s{NONCE_BYTES}sI8x")
_KEYS_AT: Final = 8
_TAG_AT: Final = BODY_LENGTH_AT + 8
_TAG_END: Final = VALUE_AT

assert _KEYS_AT + _KEYS.size == BODY_LENGTH_AT
assert _TAG_AT + TAG_BYTES + 16 == _TAG_END
assert CRC_AT + FIELDS["crc"] == ENCRYPTED_AT


def _encrypted_prefix(plain: bytes) -> bytes:
    (length,) = struct.unpack_from("<i", plain, 4)
    return plain[:4] + struct.pack("<i", -length)


_ENCRYPTED: Final = {plain: _encrypted_prefix(plain) for plain in HEADER_LENGTHS}
_PLAIN: Final = {encrypted: plain for plain, encrypted in _ENCRYPTED.items()}
STORED_LENGTHS: Final = {**HEADER_LENGTHS, **{_ENCRYPTED[plain]: length for plain, length in HEADER_LENGTHS.items()}}
"""The first 8 bytes of a message in a file, plain or encrypted -> length of its header."""


def parts_of(message: memoryview) -> tuple[int, bytes, bytes, bytes]:
    """What opens an encrypted message: number of the log's key, salt, nonce, and what is authenticated beside it."""
    salt, nonce, number = _KEYS.unpack_from(message, _KEYS_AT)
    return number, salt, nonce, bytes(message[:_TAG_AT]) + bytes(message[_TAG_AT + TAG_BYTES : CRC_AT])


def with_tag(block: bytearray, length: int) -> memoryview:
    """What is encrypted in the message of this length at the beginning of `block`, and its tag behind it."""
    block[length : length + TAG_BYTES] = block[_TAG_AT : _TAG_AT + TAG_BYTES]
    return memoryview(block)[ENCRYPTED_AT : length + TAG_BYTES]


def is_encrypted(message: bytes | bytearray | memoryview) -> bool:
    """Whether it begins as an encrypted message does."""
    return bytes(message[:8]) in _PLAIN


def begun(message: bytes | bytearray | memoryview, *, salt: bytes, nonce: bytes, key: int) -> bytearray:
    """The first 264 bytes of what a plain message is to become, without tag and CRC.

    Raises:
        BadBatch: its header is not that of a template (S1).
    """
    head = bytearray(message[:ENCRYPTED_AT])
    after = BODY_LENGTH_AT + 8
    constants = TEMPLATE[8:BODY_LENGTH_AT] + TEMPLATE[after:VALUE_AT]
    encrypted = _ENCRYPTED.get(bytes(head[:8]))
    if encrypted is None or head[8:BODY_LENGTH_AT] + head[after:VALUE_AT] != constants:
        raise BadBatch("only a batch whose header is as this release writes it can be encrypted")
    head[:8] = encrypted
    _KEYS.pack_into(head, _KEYS_AT, salt, nonce, key)
    head[_TAG_AT:_TAG_END] = bytes(_TAG_END - _TAG_AT)
    return head


def finished(head: bytearray, stored: bytearray) -> bytearray:
    """The encrypted message: `begun`, and behind it what AES-GCM gives, the tag last, as it stands in `stored`."""
    head[_TAG_AT : _TAG_AT + TAG_BYTES] = stored[-TAG_BYTES:]
    stored[:ENCRYPTED_AT] = head
    del stored[-TAG_BYTES:]
    seal(stored)
    return stored


def aad_of(head: bytearray) -> bytes:
    """What is authenticated and not encrypted, of `begun` (S2)."""
    return bytes(head[:_TAG_AT]) + bytes(head[_TAG_AT + TAG_BYTES : CRC_AT])


def begin_plain(message: memoryview, plain: memoryview) -> None:
    """Write the beginning of the plain message that an encrypted one was made of, and its CRC (S1).

    Args:
        plain: All of it, of which what was encrypted is there.
    """
    plain[:ENCRYPTED_AT] = TEMPLATE[:ENCRYPTED_AT]
    plain[:8] = _PLAIN[bytes(message[:8])]
    plain[BODY_LENGTH_AT : BODY_LENGTH_AT + 8] = message[BODY_LENGTH_AT : BODY_LENGTH_AT + 8]
    plain[VALUE_AT:CRC_AT] = message[VALUE_AT:CRC_AT]
    seal(plain)


def stored_bytes(head: bytes | bytearray | memoryview, *, where: str = "") -> int:
    """As `batch.message_bytes`, of a message in a file."""
    return message_bytes(_as_plain(head), where=where)


def read_stored_header(message: bytes | bytearray | memoryview, *, where: str = "") -> BatchHeader:
    """As `batch.read_header`, of a message in a file."""
    return read_header(_as_plain(message), where=where)


def verify_stored(message: bytes | bytearray | memoryview, *, where: str = "") -> BatchHeader:
    """As `batch.verify_batch`, of a message in a file. Needs no key: of an encrypted one it says that the disk has not
    changed it, and nothing more."""
    if not is_encrypted(message):
        return verify_batch(message, where=where)
    length = stored_bytes(message, where=where)
    if length != len(message):
        raise BadBatch(f"{where}batch of {length} bytes, {len(message)} are there")
    said, computed = bytes(message[CRC_AT:ENCRYPTED_AT]), checksum(message)
    if said != computed:
        raise BadBatch(f"{where}CRC-32C is {computed!r}, the batch says {said!r}")
    return read_stored_header(message, where=where)


def _as_plain(message: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """What has a header's length and value where a plain message has them."""
    plain = _PLAIN.get(bytes(message[:8]))
    return message if plain is None else plain + bytes(message[8:HEADER_BYTES])
