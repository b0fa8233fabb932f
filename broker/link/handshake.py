"""The handshake: a follower's broker and a leader's broker prove first who they are. Frames in, frames out.

    Caller (follower)                             Doorkeeper (leader)
       | -- Hello: who I am, whom I want, nonce -----> |
       | <-- Challenge: nonce ------------------------ |   the same to anybody
       | -- Proof -----------------------------------> |   the follower knows the secret; this is the broker and the
       |                                               |   cluster that it wants, and the catalog knows its process
       | <-- Welcome: proof -------------------------- |   the leader knows the secret

A proof is an HMAC-SHA-256 over both nonces, both names, the registration, the cluster and the side that gives it, each
with its length. The secret itself does not travel.

K1  A side believes nothing before the other one's proof. A proof holds for one side, one pair of nonces and one pair of
    names: what was heard, or said by ourselves, opens no other stream.
K2  A leader lets in the present process of a broker that its catalog knows, and nobody else: what an earlier one says
    may not be so any more.
K3  The follower proves itself first: to anybody else the leader says its version and a nonce, whatever was asked. A
    caller that knows the secret, and is refused, hears why.

There is no encryption here, and what follows on the stream is not authenticated: that is what TLS is for (`tls.py`).
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.link.codec import (
    BadFrame,
    Challenge,
    Ended,
    Hello,
    LinkFrame,
    Proof,
    Said,
    Welcome,
    decode,
    encode,
)

VERSION: Final = 3
NONCE_BYTES: Final = 32
GREETING_BYTES_MAX: Final = 4_096
"""Most bytes of each message before the welcome: so much is read from a stranger."""


class Refused(Exception):
    """The other side is not let in, or does not let us in.

    Attributes:
        status: Whose fault it is, in one word, as gRPC calls it.
        reason: One word, for counters and logs.
    """

    def __init__(self, status: str, reason: str, text: str) -> None:
        super().__init__(status, reason, text)
        self.status, self.reason, self.text = status, reason, text

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}"


class SentAway(Refused):
    """The other side says that it ends the connection, and why."""


class Peer(NamedTuple):
    """A broker that has proven that it belongs here: its name, and which of its processes."""

    broker_id: str
    registration: int


def key_of(secret: bytes) -> bytes:
    """The key of proofs, made of the cluster's secret for this alone."""
    return hmac.new(secret, b"liftlog.v1.Replica", hashlib.sha256).digest()


class Doorkeeper:
    """The leader's side of one handshake.

    Args:
        registration_of: Gives a broker's registration by the applied catalog; None: it knows no such broker.
        nonce: Fresh for each.
    """

    def __init__(
        self, me: str, cluster_id: str, key: bytes, registration_of: Callable[[str], int | None], nonce: bytes
    ) -> None:
        self._me = me
        self._cluster_id = cluster_id
        self._key = key
        self._registration_of = registration_of
        self._nonce = nonce
        self._hello: Hello | None = None

    def hello(self, frame: LinkFrame) -> LinkFrame:
        """Take the first message. Returns the challenge. Raises Refused."""
        said = _said(frame)
        if not isinstance(said, Hello):
            raise Refused("INVALID_ARGUMENT", "bad_greeting", "the first message of a stream is a hello")
        if said.version != VERSION:
            raise Refused("FAILED_PRECONDITION", "version", f"this broker speaks version {VERSION} of the replica link")
        if len(said.nonce) != NONCE_BYTES:
            raise Refused("INVALID_ARGUMENT", "bad_greeting", f"a nonce has {NONCE_BYTES} bytes, not {len(said.nonce)}")
        self._hello = said
        return encode(Challenge(self._nonce))

    def proof(self, frame: LinkFrame) -> tuple[Peer, LinkFrame]:
        """Take the second message. Returns who is there, and the welcome. Raises Refused."""
        said, hello = _said(frame), self._hello
        assert hello is not None, "a hello comes first"
        if not isinstance(said, Proof):
            raise Refused("INVALID_ARGUMENT", "bad_greeting", "the second message of a stream is a proof")
        if not hmac.compare_digest(said.proof, _proof(self._key, b"follower", hello, self._nonce)):  # K1
            raise Refused("UNAUTHENTICATED", "secret", "the secret of the cluster is another one")
        if hello.cluster_id != self._cluster_id:
            raise Refused("FAILED_PRECONDITION", "cluster", "this broker belongs to another cluster")
        if hello.to != self._me:
            raise Refused("FAILED_PRECONDITION", "address", "another broker answers at this address")
        if hello.broker_id == self._me:
            raise Refused("FAILED_PRECONDITION", "own_name", f"two brokers are called {self._me}")
        known = self._registration_of(hello.broker_id)  # K2
        if known is None:
            raise Refused("PERMISSION_DENIED", "unknown_broker", f"the catalog knows no broker {hello.broker_id}")
        if hello.registration != known:
            says = f"{hello.broker_id} is registered as {known} here, not as {hello.registration}"
            raise Refused("PERMISSION_DENIED", "registration", says)
        welcome = Welcome(_proof(self._key, b"leader", hello, self._nonce), answers_ranges=True)
        return Peer(hello.broker_id, hello.registration), encode(welcome)


class Caller:
    """The follower's side of one handshake. Raises Refused where the other side is not whom we want."""

    def __init__(self, me: Peer, cluster_id: str, to: str, key: bytes, nonce: bytes) -> None:
        self._hello = Hello(VERSION, cluster_id, me.broker_id, me.registration, to, nonce)
        self._key = key
        self._leaders_nonce = b""

    def hello(self) -> LinkFrame:
        """The first message."""
        return encode(self._hello)

    def challenge(self, frame: LinkFrame) -> LinkFrame:
        """Take the answer to it. Returns the proof."""
        said = _answer(frame)
        if not isinstance(said, Challenge) or len(said.nonce) != NONCE_BYTES:
            raise Refused("INVALID_ARGUMENT", "bad_greeting", f"{self._hello.to} does not answer with a challenge")
        self._leaders_nonce = said.nonce
        return encode(Proof(_proof(self._key, b"follower", self._hello, said.nonce)))

    def welcome(self, frame: LinkFrame) -> Welcome:
        """Take the answer to that. Only now is the other side believed."""
        said = _answer(frame)
        if not isinstance(said, Welcome):
            raise Refused("INVALID_ARGUMENT", "bad_greeting", f"{self._hello.to} does not answer with a welcome")
        if not hmac.compare_digest(said.proof, _proof(self._key, b"leader", self._hello, self._leaders_nonce)):  # K1
            raise Refused("UNAUTHENTICATED", "secret", f"{self._hello.to} has another secret")
        return said


def _said(frame: LinkFrame) -> Said:
    try:
        return decode(frame)
    except BadFrame as error:
        raise Refused("INVALID_ARGUMENT", "bad_greeting", error.message) from error


def _answer(frame: LinkFrame) -> Said:
    """To a caller, who may be told why it is not let in. From a stranger a word would make up a reason."""
    said = _said(frame)
    if isinstance(said, Ended):
        raise SentAway(said.status, said.status.lower(), said.text)
    return said


def _proof(key: bytes, side: bytes, hello: Hello, leaders_nonce: bytes) -> bytes:
    parts = (
        side,
        str(hello.version).encode(),
        hello.cluster_id.encode(),
        hello.broker_id.encode(),
        str(hello.registration).encode(),
        hello.to.encode(),
        hello.nonce,
        leaders_nonce,
    )
    text = b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return hmac.new(key, text, hashlib.sha256).digest()
