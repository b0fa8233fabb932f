"""Only a broker of the cluster gets in, and only to the broker that it wants. Each attack is one that this code met."""

from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from broker.link.codec import Challenge, Hello, LinkFrame, Proof, Welcome, decode, encode
from broker.link.handshake import NONCE_BYTES, Caller, Doorkeeper, Peer, Refused, key_of

SECRET = b"a secret of sixteen"
KNOWN = {"a": 1, "b": 7, "c": 9}


def nonce(seed: int) -> bytes:
    return random.Random(seed).randbytes(NONCE_BYTES)


def doorkeeper(secret: bytes = SECRET, seed: int = 1, me: str = "a") -> Doorkeeper:
    return Doorkeeper(me, "cluster", key_of(secret), KNOWN.get, nonce(seed))


def caller(
    name: str = "b",
    registration: int = 7,
    *,
    cluster: str = "cluster",
    to: str = "a",
    secret: bytes = SECRET,
    seed: int = 2,
) -> Caller:
    return Caller(Peer(name, registration), cluster, to, key_of(secret), nonce(seed))


def meet(caller: Caller, door: Doorkeeper) -> Peer:
    peer, welcome = door.proof(caller.challenge(door.hello(caller.hello())))
    caller.welcome(welcome)
    return peer


def refusal(caller: Caller, door: Doorkeeper) -> tuple[str, str]:
    with pytest.raises(Refused) as found:
        meet(caller, door)
    return found.value.status, found.value.reason


def test_two_brokers_of_one_cluster_meet() -> None:
    assert meet(caller(), doorkeeper()) == Peer("b", 7)


def test_who_does_not_belong_here_is_told_why() -> None:
    denied = "PERMISSION_DENIED"
    assert refusal(caller(cluster="another"), doorkeeper()) == ("FAILED_PRECONDITION", "cluster")
    assert refusal(caller(to="c"), doorkeeper()) == ("FAILED_PRECONDITION", "address")
    assert refusal(caller("a", 1), doorkeeper()) == ("FAILED_PRECONDITION", "own_name")
    assert refusal(caller("d", 7), doorkeeper()) == (denied, "unknown_broker")
    assert refusal(caller(registration=6), doorkeeper()) == (denied, "registration")
    assert refusal(caller(registration=8), doorkeeper()) == (denied, "registration")


def test_a_follower_does_not_go_on_with_a_leader_that_lacks_the_secret() -> None:
    """It would store what anybody says."""
    assert refusal(caller(), doorkeeper(b"another secret ....")) == ("UNAUTHENTICATED", "secret")
    follower, door = caller(), doorkeeper()
    proof = follower.challenge(door.hello(follower.hello()))
    said = decode(proof)
    assert isinstance(said, Proof)
    for words in (b"", bytes(32), said.proof, nonce(1), nonce(2)):  # its own words prove nothing
        with pytest.raises(Refused, match="has another secret"):
            follower.welcome(encode(Welcome(words)))
    follower.welcome(door.proof(proof)[1])


def test_a_leader_says_the_same_to_anybody_before_it_knows_the_secret() -> None:
    """K3. Seen before: it proved itself to strangers, and told them whether they had its name and cluster right."""
    said = [
        doorkeeper().hello(stranger.hello())
        for stranger in (caller(), caller(cluster="x"), caller(to="c"), caller("a", 1), caller("d"), caller(secret=b""))
    ]
    assert set(said) == {encode(Challenge(nonce(1)))}
    for stranger in (caller(cluster="x", secret=b""), caller(to="c", secret=b""), caller("a", 1, secret=b"")):
        assert refusal(stranger, doorkeeper()) == ("UNAUTHENTICATED", "secret")


def test_a_proof_without_the_secret_is_refused() -> None:
    door, stranger = doorkeeper(), caller(secret=b"guessed")
    challenge = decode(door.hello(stranger.hello()))
    assert isinstance(challenge, Challenge)
    for proof in (b"", bytes(32), challenge.nonce, nonce(2)):
        with pytest.raises(Refused, match="secret"):
            door.proof(encode(Proof(proof)))


def test_what_was_heard_opens_no_other_stream() -> None:
    first, one = doorkeeper(seed=1), caller()
    heard = one.challenge(first.hello(one.hello()))
    later = doorkeeper(seed=3)
    later.hello(one.hello())
    with pytest.raises(Refused, match="secret"):
        later.proof(heard)
    friend, door = caller(), doorkeeper(seed=3)
    welcome = door.proof(friend.challenge(door.hello(friend.hello())))[1]
    other = caller(seed=4)
    other.challenge(door.hello(other.hello()))
    with pytest.raises(Refused, match="secret"):  # an old welcome, to a caller with another nonce
        other.welcome(welcome)


def test_names_cannot_be_moved_into_one_another() -> None:
    """`bc` to `a` is not `b` to `ca`: the lengths are part of the proof."""
    KNOWN["bc"] = 7
    try:
        door, said = doorkeeper(), caller("bc", cluster="cluster")
        proof = said.challenge(door.hello(said.hello()))
        other = doorkeeper()
        other.hello(encode(Hello(3, "cluster", "b", 7, "a", nonce(2))))
        with pytest.raises(Refused, match="secret"):
            other.proof(proof)
    finally:
        del KNOWN["bc"]


@pytest.mark.parametrize(
    "data",
    [
        LinkFrame(b"x", 0),
        LinkFrame(b"\xff" * 40, crc32c(b"\xff" * 40)),
        encode(Welcome(bytes(32))),
        encode(Proof(bytes(32))),
        encode(Hello(3, "cluster", "b", 7, "a", b"short")),
        encode(Hello(3, "cluster", "b", 7, "a", bytes(5_000))),
        LinkFrame(b"", 0),
    ],
)
def test_what_is_no_greeting_is_refused(data: LinkFrame) -> None:
    with pytest.raises(Refused) as found:
        doorkeeper().hello(data)
    assert (found.value.status, found.value.reason) == ("INVALID_ARGUMENT", "bad_greeting")
    door = doorkeeper()
    door.hello(caller().hello())
    if not isinstance(_maybe(data), Proof):
        with pytest.raises(Refused, match="bad_greeting"):
            door.proof(data)
    with pytest.raises(Refused, match="bad_greeting"):
        caller().challenge(data)
    if not isinstance(_maybe(data), Welcome):
        with pytest.raises(Refused, match="bad_greeting"):
            caller().welcome(data)


def _maybe(data: LinkFrame) -> object:
    try:
        return decode(data)
    except Exception:
        return None


def test_another_version_is_told_so() -> None:
    with pytest.raises(Refused, match="speaks version 3") as found:
        doorkeeper().hello(encode(Hello(1, "cluster", "b", 7, "a", nonce(2))))
    assert found.value.reason == "version"
