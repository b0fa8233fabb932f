"""What one log seals and opens its messages and state files with.

N1  A nonce is never used twice under one key: both key and nonce are random. A message key is that of a random salt of
    128 bits, drawn when the log is opened and after `MESSAGES_PER_SALT` messages; under it each message has a random
    nonce of 96 bits. So it makes no difference that a log is cut and written anew at the same offsets, that a pass of
    compaction writes them anew, that an old copy of the folder is taken into use, or that a machine is cloned while it
    runs.
N2  A log takes nothing that is not encrypted by its own keys, under its own name.

Thread-safe.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from broker.api.batch import read_header
from broker.api.errors import BadBatch, LiftlogError, UnknownFormatVersion
from broker.storage.disk import Disk
from broker.storage.encrypted.keyfile import keep_keys, load_keys
from broker.storage.encrypted.keys import Keyring, name_of
from broker.storage.encrypted.message import (
    ENCRYPTED_AT,
    KEY_BYTES,
    NONCE_BYTES,
    SALT_BYTES,
    TAG_BYTES,
    aad_of,
    begin_plain,
    begun,
    finished,
    is_encrypted,
    parts_of,
    stored_bytes,
    verify_stored,
    with_tag,
)
from broker.storage.encrypted.proof import check_keys
from broker.storage.segments.checkpoint import LogIdentity

MESSAGES_PER_SALT: Final = 1 << 20
"""By then the chance that two of their nonces are the same is 1 in 2^57."""
CHECK_BYTES: Final = 8
KEYS_REMEMBERED_MAX: Final = 256
"""Message keys, so that they need not be derived for each message that is opened."""
_INTO: Final = hasattr(AESGCM, "decrypt_into")
"""Later releases of the library write into memory that is there."""
_FILE: Final = struct.Struct(f"<8sI{SALT_BYTES}s{NONCE_BYTES}s")
_MAGIC: Final = b"liftlogE"


class Vault:
    """See the module.

    Args:
        keys: The log's, by their numbers; the greatest encrypts.

    Attributes:
        check: Tells this key from others, and nothing of it. The log's checkpoint has it (`proof.py`).
    """

    def __init__(self, keys: dict[int, bytes], identity: LogIdentity, keyring: Keyring) -> None:
        self._keys = keys
        self._latest = max(keys)
        self._name = name_of(identity)
        self.check = self._check_of(self._latest)
        self._identity, self._keyring, self._random = identity, keyring, keyring.random
        self._derived: OrderedDict[tuple[int, bytes], AESGCM] = OrderedDict()
        self._salt = b""
        self._left = 0

    @classmethod
    def open(cls, disk: Disk, folder: str, identity: LogIdentity, keyring: Keyring, *, is_empty: bool) -> Vault:
        """The vault of a log. As `keyfile.load_keys`."""

        def prove(keys: dict[int, bytes]) -> None:
            if not is_empty:
                check_keys(cls(keys, identity, keyring), disk, folder)

        return cls(load_keys(disk, folder, identity, keyring, is_empty=is_empty, prove=prove), identity, keyring)

    def keep(self, disk: Disk, folder: str) -> None:
        """Have the files of the log's keys on disk, if the disk lets it (`keyfile.Q6`)."""
        with suppress(OSError, LiftlogError):
            keep_keys(disk, folder, self._keys, self._identity, self._keyring)

    def is_of(self, check: str) -> bool:
        """Whether one of its keys has this check value."""
        return any(self._check_of(number) == check for number in self._keys)

    def _check_of(self, number: int) -> str:
        info = b"liftlog key check\0" + self._name
        return HKDF(SHA256(), CHECK_BYTES, None, info).derive(self._keys[number]).hex()

    # --- messages -------------------------------------------------------------------------------------------

    def encrypt(self, message: bytes | bytearray | memoryview) -> bytearray:
        """A plain message as it is to be stored. Raises BadBatch: it cannot be (`message.S1`)."""
        salt, nonce = self._current_salt(), self._random(NONCE_BYTES)
        head = begun(message, salt=salt, nonce=nonce, key=self._latest)
        aes, data = self._message_key(self._latest, salt), memoryview(message)[len(head) :]
        stored = bytearray(len(message) + TAG_BYTES)
        into = memoryview(stored)[len(head) :]
        if _INTO:
            aes.encrypt_into(nonce, data, aad_of(head), into)
        else:
            into[:] = aes.encrypt(nonce, data, aad_of(head))
        into.release()
        return finished(head, stored)

    def open_message(self, message: bytes | bytearray | memoryview, *, where: str = "") -> memoryview:
        """Check a stored message, and give the plain one that it was made of.

        Raises:
            BadBatch: it is damaged; or whole, and not what this log wrote there (N2).
        """
        block = bytearray(len(message) + TAG_BYTES)
        block[: len(message)] = message
        return self.open_into(block, len(message), bytearray(len(message)), where=where)

    def open_into(self, block: bytearray, length: int, plain: bytearray, *, where: str = "") -> memoryview:
        """As `open_message`, in memory that is there already.

        Args:
            block: Begins with the message, of this length; behind it `TAG_BYTES` are free.
            plain: At least as long. What comes back lies at its beginning.
        """
        view = memoryview(block)[:length]
        if not is_encrypted(view):
            verify_stored(view, where=where)
            raise BadBatch(f"{where}a batch that is not encrypted, in a log that is: somebody else wrote it")
        if stored_bytes(view, where=where) != length:
            raise BadBatch(f"{where}batch of {stored_bytes(view)} bytes, {length} are there")
        number, salt, nonce, aad = parts_of(view)
        if number not in self._keys:
            verify_stored(view, where=where)
            raise BadBatch(f"{where}encrypted with key {number}, which this log does not have")
        data, into = with_tag(block, length), memoryview(plain)[ENCRYPTED_AT:length]
        aes = self._message_key(number, salt)
        try:
            if _INTO:
                aes.decrypt_into(nonce, data, aad, into)
            else:
                into[:] = aes.decrypt(nonce, data, aad)
        except InvalidTag:
            with suppress(UnknownFormatVersion):  # it says so, and was not encrypted here
                verify_stored(view, where=where)
            raise BadBatch(
                f"{where}not what was encrypted here: changed, moved, or of another log, and the CRC made to fit"
            ) from None
        found = memoryview(plain)[:length]
        begin_plain(view, found)
        read_header(found, where=where)
        return found

    @staticmethod
    def taken_by(length: int) -> int:
        """So many bytes the opening of a message of this length takes beside the memory that it is given."""
        return 0 if _INTO else length

    # --- files ----------------------------------------------------------------------------------------------

    def encrypt_file(self, data: bytes, name: str) -> bytes:
        """What is to be stored under a name of this log."""
        salt, nonce = self._current_salt(), self._random(NONCE_BYTES)
        head = _FILE.pack(_MAGIC, self._latest, salt, nonce)
        return head + self._message_key(self._latest, salt).encrypt(nonce, data, head + name.encode())

    def open_file(self, data: bytes, name: str) -> bytes | None:
        """What was stored under that name; None: it is damaged, or something else."""
        if len(data) < _FILE.size:
            return None
        magic, number, salt, nonce = _FILE.unpack_from(data)
        if magic != _MAGIC or number not in self._keys:
            return None
        try:
            aad = data[: _FILE.size] + name.encode()
            return self._message_key(number, salt).decrypt(nonce, data[_FILE.size :], aad)
        except InvalidTag:
            return None

    # --- keys -----------------------------------------------------------------------------------------------

    def _current_salt(self) -> bytes:
        if self._left <= 0:  # two threads may draw one each: both are good
            self._salt, self._left = self._random(SALT_BYTES), MESSAGES_PER_SALT
        self._left -= 1
        return self._salt

    def _message_key(self, number: int, salt: bytes) -> AESGCM:
        at = number, salt
        found = self._derived.get(at)
        if found is None:
            info = b"liftlog messages\0" + self._name
            found = AESGCM(HKDF(SHA256(), KEY_BYTES, salt, info).derive(self._keys[number]))
            self._derived[at] = found
            while len(self._derived) > KEYS_REMEMBERED_MAX:
                try:
                    self._derived.popitem(last=False)
                except KeyError:  # another thread did
                    break
        return found
