"""Master keys, and the keys of logs that they wrap.

    master key    the operator's: from a file or a command; wraps
    log key       random, one for each log on each disk; in its file `keys`, wrapped
    message key   HKDF of a log key, a random salt and the log's name; encrypts messages and state files

V1  No key that is not wrapped is ever written, logged or sent.
V2  A log key is wrapped for one log: stream, incarnation, partition and number are authenticated with it.
V3  New keys are wrapped by the first master key. All of them unwrap: whoever exchanges the master key puts the new one
    first, and every log is wrapped anew when it is opened.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from broker.api.errors import InvalidSetting, KeyMissing, WrongKeys
from broker.storage.encrypted.message import KEY_BYTES
from broker.storage.segments.checkpoint import LogIdentity

_NONCE_BYTES: Final = 12
_WRAPPED_BYTES: Final = _NONCE_BYTES + KEY_BYTES + 16


class MasterKey:
    """A key that wraps others. `id` names it in files, logs and errors, and tells nothing of it."""

    __slots__ = ("_aes", "id")

    def __init__(self, key: bytes) -> None:
        assert len(key) == KEY_BYTES
        self.id = hashlib.sha256(b"liftlog master key\0" + key).hexdigest()[:16]
        self._aes = AESGCM(key)

    @classmethod
    def parse(cls, text: bytes, *, where: str) -> MasterKey:
        """The key that a file holds, or a command prints: 32 bytes in base64, and white space around them.

        Raises:
            InvalidSetting: it is something else. What it is, is not said.
        """
        try:
            key = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if len(key) != KEY_BYTES:
            raise InvalidSetting(
                f"{where}: a master key is {KEY_BYTES} random bytes in base64; `liftlog secret master-key` makes one",
                key=where,
            )
        return cls(key)

    def __repr__(self) -> str:
        return f"MasterKey({self.id})"

    def wrap(self, key: bytes, context: bytes, nonce: bytes) -> bytes:
        return nonce + self._aes.encrypt(nonce, key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes | None:
        """The key; None: it was not wrapped by this one, or not for that."""
        try:
            return self._aes.decrypt(wrapped[:_NONCE_BYTES], wrapped[_NONCE_BYTES:], context)
        except InvalidTag:
            return None


class Keyring:
    """The master keys of a broker (V3).

    Args:
        masters: n >= 1, that of now first.
        random: Gives so many random bytes.
    """

    def __init__(self, masters: Sequence[MasterKey], *, random: Callable[[int], bytes] = os.urandom) -> None:
        assert masters
        self.masters = tuple(masters)
        self.random = random

    @property
    def current(self) -> str:
        """The id of the master key that wraps."""
        return self.masters[0].id

    def wrap(self, key: bytes, number: int, identity: LogIdentity) -> tuple[str, str]:
        """The id of the master key, and the wrapped key as text."""
        wrapped = self.masters[0].wrap(key, _context(number, identity), self.random(_NONCE_BYTES))
        return self.current, base64.b64encode(wrapped).decode()

    def unwrap(self, master: str, wrapped: str, number: int, identity: LogIdentity, *, where: str) -> bytes:
        """The key of a log.

        Raises:
            KeyMissing: the master key is not among these.
            WrongKeys: it is, and does not unwrap this.
        """
        found = next((each for each in self.masters if each.id == master), None)
        if found is None:
            there = ", ".join(each.id for each in self.masters)
            raise KeyMissing(
                f"{where}: the log's key is wrapped by master key {master}; this process has {there}", master=master
            )
        try:
            data = base64.b64decode(wrapped, validate=True)
        except (binascii.Error, ValueError):
            data = b""
        key = found.unwrap(data, _context(number, identity)) if len(data) == _WRAPPED_BYTES else None
        if key is None:
            raise WrongKeys(f"{where}: the wrapped key is damaged, or it is that of another log", path=where)
        return key


def name_of(identity: LogIdentity) -> bytes:
    """A log, for what is bound to it: stream, incarnation, partition. Not the cluster, which may be founded anew."""
    return json.dumps([identity.stream, identity.incarnation, identity.partition], separators=(",", ":")).encode()


def _context(number: int, identity: LogIdentity) -> bytes:
    return b"liftlog log key\0%d\0" % number + name_of(identity)
