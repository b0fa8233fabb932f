"""Decoders of what an encrypted log has on disk: a batch, a state file, the file with its keys.

Whatever the bytes are, what opens is what was encrypted: a changed one is an error, also with a CRC that fits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final

from broker.api.batch import BatchHeader, encode_batch, seal, verify_batch
from broker.api.errors import BadBatch, KeyMissing, UnknownFormatVersion
from broker.storage.encrypted.keyfile import load_keys
from broker.storage.encrypted.keys import Keyring, MasterKey
from broker.storage.encrypted.vault import Vault
from broker.storage.rewrite.rewriting import NO_ROWS
from tests.fuzz.decoder import Decoder
from tests.fuzz.files import JSON_WORDS, good_batch, seal_json, unseal_json
from tests.support.logs import FOLDER, IDENTITY
from tests.support.simdisk import SimDisk

MASTER: Final = MasterKey(bytes(32))
KEYRING: Final = Keyring([MASTER], random=bytes)  # the same bytes for the same input
VAULT: Final = Vault({1: bytes(32)}, IDENTITY, KEYRING)
STATE: Final = b"liftlogS of a test"


def plain_batches() -> tuple[bytes, ...]:
    header = BatchHeader(first_offset=3, last_offset=5)
    return good_batch(), bytes(encode_batch(NO_ROWS, header))


def check_batch(data: bytes) -> None:
    assert bytes(VAULT.open_message(data)) in {seal_anew(batch) for batch in plain_batches()}


def seal_anew(batch: bytes) -> bytes:
    verify_batch(batch)
    return batch


def seal_batch(data: bytes) -> bytes:
    """Any bytes with a CRC in its place."""
    changed = bytearray(data)
    if len(changed) >= 264:
        seal(changed)
    return bytes(changed)


def check_state(data: bytes) -> None:
    assert VAULT.open_file(data, "state") in (None, STATE)


def check_keys(data: bytes) -> None:
    """Nothing is made, and what unwraps is the key that was wrapped."""
    disk = SimDisk()
    disk.makedirs(FOLDER)
    disk.replace_file(f"{FOLDER}/keys", data)
    assert load_keys(disk, FOLDER, IDENTITY, KEYRING, is_empty=False) == {1: bytes(32)}


ENCRYPTED: Final = (
    Decoder(
        name="encrypted-batch",
        modules=("broker/storage/encrypted/message.py",),
        check=check_batch,
        errors=(BadBatch, UnknownFormatVersion),
        unseal=lambda data: data,
        seal=seal_batch,
    ),
    Decoder(
        name="encrypted-state",
        modules=("broker/storage/encrypted/vault.py",),
        check=check_state,
        errors=(),
    ),
    Decoder(
        name="file-keys",
        modules=("broker/storage/encrypted/keyfile.py", "broker/storage/encrypted/keys.py"),
        check=check_keys,
        errors=(KeyMissing, UnknownFormatVersion),
        form="json",
        words=JSON_WORDS,
        unseal=unseal_json,
        seal=seal_json,
        weight=4,
    ),
)


def of_encrypted() -> Iterator[tuple[str, str, bytes]]:
    """What the corpus begins with. Nonces are zeros here, so that it is the same each time."""
    rows, empty = plain_batches()
    yield "encrypted-batch", "rows", bytes(VAULT.encrypt(rows))
    yield "encrypted-batch", "empty", bytes(VAULT.encrypt(empty))
    yield "encrypted-batch", "plain", rows
    yield "encrypted-state", "good", VAULT.encrypt_file(STATE, "state")
    yield "encrypted-state", "other-name", VAULT.encrypt_file(STATE, "other")
    disk = SimDisk()
    disk.makedirs(FOLDER)
    load_keys(disk, FOLDER, IDENTITY, KEYRING, is_empty=True)
    good = disk.read_file(f"{FOLDER}/keys")
    [entry] = json.loads(unseal_json(good))["keys"]
    yield "file-keys", "good", good
    yield "file-keys", "empty-list", seal_json(b'{"format_version":1,"keys":[]}')
    yield "file-keys", "twice", seal_json(json.dumps({"format_version": 1, "keys": [entry, entry]}).encode())
