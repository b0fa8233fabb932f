"""Goal: a JWT is somebody if the issuer of the configuration has signed just that; any other is nobody, and why is said
in the log alone.

Method: tokens of real keys, changed one thing at a time: algorithm, key, claims, times, encoding. Then a server that
takes them, with keys that change.
"""

from __future__ import annotations

import base64
import hmac
import io
import json
import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jwt", reason="make install")

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from broker.api.errors import InvalidRequest, InvalidSetting
from broker.api.principals import is_jwt, is_secret, shown
from broker.config.settings import JWT_ALGORITHMS
from broker.runtime.logs import JsonFormatter
from broker.serving.http import access, jwts
from broker.serving.http.jwts import KINDS, Bearer, JwtRules, Jwts, Keys, chosen, judged, keys_of
from tests.support.processes import eventually
from tests.unit.serving.test_access import ADMIN, Enforced, enforcing
from tests.unit.serving.test_audit import records

NOW_S = 1_800_000_000
RSA = rsa.generate_private_key(65_537, 2048)
OTHER = rsa.generate_private_key(65_537, 2048)
EC = ec.generate_private_key(ec.SECP256R1())
ED = ed25519.Ed25519PrivateKey.generate()
OF: dict[str, Any] = {
    **{"issuer": "https://id.example", "audience": "liftlog", "algorithms": ("RS256", "ES256", "EdDSA")},
    **{"claim": "sub", "principal": "user", "ttl_ms_max": 3_600_000},
}
GOOD: dict[str, Any] = {"iss": "https://id.example", "aud": "liftlog", "sub": "ana", "exp": NOW_S + 600}


def public(key: Any, kid: str | None = "k", **more: Any) -> dict[str, Any]:
    of = {rsa.RSAPrivateKey: RSAAlgorithm, ed25519.Ed25519PrivateKey: OKPAlgorithm}
    algorithm: Any = next((found for kind, found in of.items() if isinstance(key, kind)), ECAlgorithm)
    return {**algorithm.to_jwk(key.public_key(), as_dict=True), **({"kid": kid} if kid else {}), **more}


def as_set(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": keys}).encode()


def rules(keys: Keys | None = None, **more: Any) -> JwtRules:
    found = keys_of(as_set(public(RSA), public(EC, "e"), public(ED, "d"))) if keys is None else keys
    return JwtRules(**{**OF, "keys": lambda: found, **more})


def signed(key: Any = RSA, algorithm: str = "RS256", kid: str | None = "k", /, **claims: Any) -> str:
    said = {key: value for key, value in {**GOOD, **claims}.items() if value is not ...}
    return jwt.PyJWS().encode(json.dumps(said).encode(), key, algorithm, headers={"kid": kid} if kid else {})


def taken(text: str, by: JwtRules | None = None, now_s: float = NOW_S) -> Bearer:
    by = by or rules()
    return judged(text, *chosen(text, by, by.keys()), by, now_s * 1000)


def part(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def test_whom_a_token_names() -> None:
    ends = (NOW_S + 600 + jwts.LEEWAY_S) * 1000
    for key in ((), (EC, "ES256", "e"), (ED, "EdDSA", "d")):
        assert taken(signed(*key))[:2] == ("user:ana", ends)
    assert taken(signed(name="etl"), rules(principal="svc", claim="name")).principal == "svc:etl"
    assert taken(signed(aud=["other", "liftlog"])).principal == "user:ana"
    one = keys_of(as_set(public(RSA, None)))
    assert taken(signed(RSA, "RS256", None), rules(one)).principal == "user:ana", "it is the only key"
    assert taken(signed(nbf=NOW_S + 20, exp=NOW_S - 20)).principal == "user:ana", "clocks differ"


@pytest.mark.parametrize(
    ("claims", "says"),
    [
        ({"exp": NOW_S - 31}, "expired 31 s ago"),
        ({"exp": ...}, "exp"),
        ({"exp": "soon"}, "whose exp is no time"),
        ({"exp": True}, "whose exp is no time"),
        ({"exp": 1e300}, "whose exp is no time"),
        ({"exp": float("inf")}, "whose exp is no time"),
        ({"exp": float("nan")}, "whose exp is no time"),
        ({"exp": NOW_S + 4_000}, "ttl_ms_max"),
        ({"nbf": NOW_S + 31}, "not valid yet, for 31 s"),
        ({"iat": NOW_S + 31}, "not valid yet"),
        ({"nbf": []}, "whose nbf is no time"),
        ({"iss": "https://elsewhere.example"}, "of another issuer"),
        ({"iss": ...}, "iss"),
        ({"iss": ["https://id.example"]}, "ssuer|iss"),
        ({"aud": "other"}, "for another audience"),
        ({"aud": ...}, "aud"),
        ({"aud": []}, "aud"),
        ({"aud": {"liftlog": 1}}, "aud|cannot be taken"),
        ({"sub": ...}, "whose claim sub is no name"),
        ({"sub": ""}, "whose claim sub is no name"),
        ({"sub": 7}, "whose claim sub is no name"),
        ({"sub": "ana\n"}, "whose claim sub is no name"),
        ({"sub": "broker:b"}, "whose claim sub is no name"),
        ({"sub": "a" * 200}, "whose claim sub is no name"),
        ({"sub": ["ana"]}, "whose claim sub is no name"),
        ({"sub": "*"}, "whose claim sub is no name"),
        ({"sub": "system:serviceaccount:ns:etl"}, "whose claim sub is no name"),
        ({"cnf": {"jkt": "x"}}, "bound to a key of its bearer"),
    ],
)
def test_a_token_that_is_signed_well_and_says_something_else_is_refused(claims: dict[str, Any], says: str) -> None:
    """J2, J3. The log says why."""
    with pytest.raises(InvalidRequest, match=says):
        taken(signed(**claims))


def test_a_name_of_two_keys_says_by_neither_of_them_who_it_is() -> None:
    """J1. Seen before: the first one of the set counted, and tokens of the other were refused as forged."""
    for first, second in ((RSA, OTHER), (OTHER, RSA)):
        with pytest.raises(InvalidRequest, match=r"whose key 'k' for RS256 is 2 keys of the issuer"):
            taken(signed(), rules(keys_of(as_set(public(first), public(second)))))
    assert taken(signed(), rules(keys_of(as_set(public(RSA), public(RSA, use="sig"))))).principal == "user:ana"


def test_nobody_is_admin_or_a_broker_by_what_a_token_says() -> None:
    """J3: a name that is one of these is a user's, of that name."""
    for name in ("admin", "anonymous", "broker"):
        assert taken(signed(sub=name)).principal == f"user:{name}"


def test_who_signs_with_what_everybody_knows_is_nobody() -> None:
    """J1: the public key as the secret of HMAC, no signature at all, a key that the token brings along."""
    pem = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for algorithm, secret in (("HS256", pem), ("HS256", json.dumps(public(RSA)).encode()), ("HS256", b"")):
        said = f"{part({'alg': algorithm, 'kid': 'k'})}.{part(GOOD)}"
        forged = f"{said}.{part(hmac.digest(secret, said.encode(), 'sha256'))}"
        with pytest.raises(InvalidRequest, match="by algorithm 'HS256', and not by"):
            taken(forged)
    for name in ("none", "None", "NONE", "", None, ["RS256"], "rs256", "RS512"):
        for signature in ("", part(b"x")):
            with pytest.raises(InvalidRequest):
                taken(f"{part({'alg': name, 'kid': 'k'})}.{part(GOOD)}.{signature}")
    brings = {"jwk": public(OTHER), "jku": "https://elsewhere.example/", "x5u": "https://elsewhere.example/"}
    with pytest.raises(InvalidRequest, match="forged"):
        taken(jwt.encode(GOOD, OTHER, "RS256", headers={"kid": "k", **brings}))
    with pytest.raises(InvalidRequest, match="crit"):
        taken(jwt.encode(GOOD, RSA, "RS256", headers={"kid": "k", "crit": ["exp"]}))


def test_a_token_of_the_issuer_for_something_else_is_refused() -> None:
    """J2. Logout tokens name the user, too, and whoever receives one could show it."""
    for name in ("JWT", "at+jwt", "application/at+jwt"):
        assert taken(jwt.encode(GOOD, RSA, "RS256", headers={"kid": "k", "typ": name})).principal == "user:ana"
    for other in ("logout+jwt", "secevent+jwt", "", ["JWT"]):
        with pytest.raises(InvalidRequest, match="which is for something else"):
            chosen(f"{part({'alg': 'RS256', 'kid': 'k', 'typ': other})}.{part(GOOD)}.c2ln", rules(), rules().keys())


def test_a_key_is_for_the_algorithms_of_its_kind() -> None:
    """J1."""
    for kid in ("e", "d"):
        with pytest.raises(jwts.UnknownKey):
            taken(signed(RSA, "RS256", kid))
    only = keys_of(as_set(public(RSA, alg="RS512")))
    with pytest.raises(jwts.UnknownKey):
        taken(signed(), rules(only))
    with pytest.raises(InvalidRequest, match="does not say by which of the 2 keys"):
        taken(signed(RSA, "RS256", None), rules(keys_of(as_set(public(RSA), public(OTHER, "o")))))
    assert {each[:2] for each in JWT_ALGORITHMS} == KINDS.keys()


def test_a_set_of_keys_is_read_and_what_cannot_sign_is_passed_over() -> None:
    small = rsa.generate_private_key(65_537, 1024)
    useless = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "k"},
        public(OTHER, use="enc"),
        public(OTHER, key_ops=["encrypt"]),
        public(OTHER, key_ops=7),
        public(small),
        public(EC, alg="ES384"),
        public(RSA, alg="HS256"),
        public(RSA, kid=None) | {"kid": 7},
        {"kty": "RSA", "n": "!", "e": "AQAB"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "OKP", "crv": "X25519", "x": part(bytes(32))},
        {"kty": ["RSA"]},
        {},
        7,
    ]
    assert [key.kid for key in keys_of(as_set(*useless, public(RSA)))] == ["k"]  # type: ignore[arg-type]
    for data in (as_set(*useless), as_set(), b"", b"[]", b"{}", b'{"keys": 7}', as_set(*[public(RSA)] * 101)):  # type: ignore[arg-type]
        with pytest.raises(InvalidSetting):
            keys_of(data)
    with pytest.raises(InvalidSetting, match="private key"):
        keys_of(as_set(RSAAlgorithm.to_jwk(RSA, as_dict=True)))


def test_changed_tokens_are_refused_and_nothing_else_happens() -> None:
    by, rng, text = rules(), random.Random(1), signed()
    for _ in range(300):
        data = bytearray(text.encode())
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        changed = data.decode("latin-1")
        if _decoded(changed) != _decoded(text):  # the last character of a part has bits that mean nothing
            with pytest.raises(InvalidRequest):
                taken(changed, by)


def _decoded(text: str) -> list[bytes] | None:
    if not is_jwt(text):
        return None
    try:
        return [base64.urlsafe_b64decode(each + "=" * (-len(each) % 4)) for each in text.split(".")]
    except ValueError:
        return None


# -- a server ------------------------------------------------------------------------------------------------------


class Issuer:
    """Keys that change."""

    def __init__(self) -> None:
        self.keys = keys_of(as_set(public(RSA)))
        self.missed = 0

    def rules(self) -> JwtRules:
        def miss() -> None:
            self.missed += 1

        return JwtRules(**{**OF, "keys": lambda: self.keys, "missed": miss, "ttl_ms_max": 1 << 50})


@contextmanager
def believing(folder: Path, issuer: Issuer) -> Iterator[Enforced]:
    with enforcing(folder, jwt=issuer.rules()) as server:
        yield server


LONG: dict[str, Any] = {"exp": 8_000_000_000}


def test_a_jwt_is_a_principal_with_the_grants_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    issuer, judged_count, real = Issuer(), [0], jwts.judged

    def counted(*given: Any) -> Bearer:
        assert threading.current_thread().name.startswith("http-worker"), "not on the loop"
        judged_count[0] += 1
        return real(*given)

    monkeypatch.setattr(jwts, "judged", counted)
    with believing(tmp_path, issuer) as server:
        assert server.call("POST", "/v1/streams", ADMIN, body={"name": "s"})[0] == 201
        token = signed(**LONG)
        assert server.call("GET", "/v1/streams/s", token)[:2] == (403, "unauthorized")
        server.grant("user:ana", ("stream:read", "s"))
        for _ in range(3):
            assert server.call("GET", "/v1/streams/s", token)[0] == 200
        assert judged_count[0] == 1, "it is known by now"
        said = server.call("GET", "/v1/auth/whoami", token)[2]
        assert (said["principal"], said["how"], said["expires_ms"]) == ("user:ana", "jwt", 8_000_000_030_000)
        for bad, says in (
            (signed(exp=1), "expired"),
            (signed(**LONG, nbf=7_000_000_000), "not valid yet"),
            (signed(OTHER, "RS256", "k", **LONG), "forged"),
            (signed(OTHER, "RS256", "o", **LONG), "key 'o'"),
            (signed(**LONG, aud="other"), "audience"),
            (signed(**LONG, sub="a b"), "claim sub"),
            ("a.b.c", "header"),
            ("a.b", "no token of this kind"),
        ):
            caplog.clear()
            status, reason, said = server.call("GET", "/v1/streams/s", bad)
            assert (status, reason, said["detail"]) == (401, "unauthenticated", "unauthenticated"), "no reason"
            lines = [each.getMessage() for each in caplog.records if "http.unauthenticated" in each.getMessage()]
            assert any(says in line for line in lines), lines
            assert not any(bad in line for line in lines if "." in bad and len(bad) > 5), "J6"
        assert issuer.missed == 1
        assert server.call("GET", "/v1/streams/s", ADMIN)[0] == 200, "other tokens are good as ever"
        issuer.keys = keys_of(as_set(public(OTHER, "o")))
        assert server.call("GET", "/v1/streams/s", token)[0] == 401, "the issuer has taken its key back"
        assert server.call("GET", "/v1/streams/s", signed(OTHER, "RS256", "o", **LONG))[0] == 200


def test_a_good_jwt_is_taken_though_the_keys_change_while_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J4. It was refused, by which an append ends that nobody tries again."""
    issuer, real = Issuer(), jwts.judged

    def changing(*given: Any) -> Bearer:
        monkeypatch.setattr(jwts, "judged", real)
        issuer.keys = keys_of(as_set(public(RSA), public(OTHER, "o")))
        return real(*given)

    monkeypatch.setattr(jwts, "judged", changing)
    with believing(tmp_path, issuer) as server:
        assert server.call("GET", "/v1/auth/whoami", signed(**LONG))[0] == 200
        issuer.keys = keys_of(as_set(public(OTHER, "o")))
        assert server.call("GET", "/v1/auth/whoami", signed(**LONG))[0] == 401


def test_a_jwt_that_ends_and_a_key_that_is_taken_back_end_what_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`access.A4`: a long poll that would go on for a minute."""
    monkeypatch.setattr(access, "LOOK_S", 0.02)
    issuer = Issuer()
    issuer.keys = keys_of(as_set(public(RSA), public(EC, "e")))
    with believing(tmp_path, issuer) as server:
        server.call("POST", "/v1/streams", ADMIN, body={"name": "s"})
        server.grant("user:ana", ("stream:read", "s"))
        under_way, found = server.server.serving.gate._under_way, list[tuple[int, str]]()

        def poll(token: str) -> threading.Thread:
            path, before = "/v1/streams/s/partitions/0/records?max_wait_ms=60000", len(under_way)
            thread = threading.Thread(target=lambda: found.append(server.call("GET", path, token)[:2]))
            thread.start()
            eventually(lambda: len(under_way) == before + 1 or not thread.is_alive())
            return thread

        goes_on = poll(signed(EC, "ES256", "e", **LONG))
        ends = poll(signed(**LONG))
        issuer.keys = keys_of(as_set(public(EC, "e")))
        ends.join(30)
        assert found == [(401, "unauthenticated")]
        assert goes_on.is_alive(), "its key is still there"
        poll(signed(EC, "ES256", "e", exp=time.time() - jwts.LEEWAY_S + 0.3)).join(30)
        assert found.pop() == (401, "unauthenticated")
        assert goes_on.is_alive()
        issuer.keys = ()
        goes_on.join(30)
        assert found.pop() == (401, "unauthenticated")


@pytest.mark.parametrize("sub", ["ana", "bo"])
def test_what_is_judged_while_auth_becomes_required_is_judged_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sub: str
) -> None:
    """`access.A4`: it is not under way yet when the gate looks, and went on for as long as it liked."""
    issuer, real = Issuer(), jwts.judged
    with enforcing(tmp_path, "permissive", jwt=issuer.rules()) as server:
        server.call("POST", "/v1/streams", body={"name": "s"})
        server.grant("user:ana", ("stream:read", "s"))
        gate = server.server.serving.gate

        def late(*given: Any) -> Bearer:
            server.server.backend._execute({"kind": "require_auth", "by": "admin", "required": True})
            server.server.call(_looked(gate))
            return real(*given)

        monkeypatch.setattr(jwts, "judged", late)
        path = "/v1/streams/s/partitions/0/records?max_wait_ms=1"
        assert server.call("GET", path, signed(**LONG, sub=sub))[0] == (200 if sub == "ana" else 403)


async def _looked(gate: access.Gate) -> None:
    gate.look()


def test_who_shows_a_jwt_to_a_broker_without_any_key_asks_again(tmp_path: Path) -> None:
    """J7: one that has just begun, or whose issuer has been silent for a day."""
    issuer = Issuer()
    issuer.keys = ()
    with believing(tmp_path / "enforce", issuer) as server:
        assert server.call("GET", "/v1/streams", signed(**LONG))[:2] == (503, "not_ready")
        assert server.call("GET", "/v1/streams", f"{part({'alg': 'none'})}.{part(GOOD)}.c2ln")[0] == 401
        assert issuer.missed == 1
        issuer.keys = keys_of(as_set(public(RSA)))
        assert server.call("GET", "/v1/streams", signed(**LONG))[0] == 200
    issuer.keys = ()
    with enforcing(tmp_path / "permissive", "permissive", jwt=issuer.rules()) as server:
        assert server.call("GET", "/v1/streams", signed(**LONG))[0] == 200, "nobody is refused"


def test_no_record_of_the_audit_and_no_line_has_a_jwt_in_it(tmp_path: Path) -> None:
    """`audit.U5`, `logs.L2`: not even of one that stands where a name should be."""
    token, lines = signed(EC, "ES256", "e", **LONG), io.StringIO()
    logger = logging.getLogger("broker")
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    try:
        with believing(tmp_path, Issuer()) as server:
            server.call("DELETE", f"/v1/streams/{token}", ADMIN)
            server.call("POST", "/v1/streams", ADMIN, body={"name": token, "payload_schema": f"a {token}"})
            server.call("DELETE", f"/v1/streams/{token}", "llg_x")
            eventually(lambda: len(records(server.server)) == 3)
            text = json.dumps(records(server.server))
    finally:
        logger.removeHandler(handler)
    assert lines.getvalue()
    for part_of in (token, *token.split(".")):
        assert part_of not in text
        assert part_of not in lines.getvalue()
    assert shown(token).rstrip("…") in text, "which one it was can be told"


def test_what_looks_like_a_jwt_is_cut_out_and_names_with_dots_are_not() -> None:
    token = signed()
    head, claims, _ = token.split(".")
    for around in ("{}", "Bearer {}", '"{}"', "/v1/x/{}/y", "token-{}", "a.{}", "{}.more", "{} {}"):
        said = shown(around.format(token, token))
        assert not any(each in said for each in token.split(".")), said
    assert claims not in shown(f"{head}.{claims}") + shown(f"{head}.{claims}.")
    for name in ("orders.eu.new", "eyes.of.tiger", "monkeys.eyes.x", "eyJ", "a.b.c", "eyJx.orders.x"):
        assert shown(name) == name
    assert shown("eyJ" * 400_000) == "eyJ" * 400_000, "in a time that grows as the text does"
    assert is_secret(token)
    assert not is_secret("secrets.ana.jwt")


def test_without_an_issuer_no_jwt_is_good(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with enforcing(tmp_path) as server:
        assert server.call("GET", "/v1/streams", signed(**LONG))[:2] == (401, "unauthenticated")
    assert "no token of this kind" in caplog.text


async def test_a_table_of_tokens_is_bounded_and_holds_no_bad_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """J4."""
    monkeypatch.setattr(jwts, "KNOWN_MAX", 3)

    async def here(call: Any) -> Bearer:
        return call()  # type: ignore[no-any-return]

    issuer = Issuer()
    made = Jwts(issuer.rules(), lambda: NOW_S * 1000.0, here)
    tokens = {text.encode(): text for text in (signed(sub=f"u{n}") for n in range(5))}
    for mark, text in tokens.items():
        await made.judge(text, mark)
    assert [made.known(each) is not None for each in tokens] == [False, False, True, True, True]
    with pytest.raises(InvalidRequest):
        await made.judge(signed(exp=1), b"x")
    assert made.known(b"x") is None
    issuer.keys = keys_of(as_set(public(RSA)))
    assert not any(made.known(each) for each in tokens), "judged anew"
