"""Decoders of what strangers and issuers say of who asks: JWTs, and sets of keys.

Half of the changed tokens are signed again, so that they reach what is behind the signature.
"""

from __future__ import annotations

import base64
import importlib.util
import json
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ed25519

from broker.api.errors import InvalidRequest, InvalidSetting
from broker.api.principals import is_named
from tests.fuzz.decoder import Decoder

_SIGNER: Final = ed25519.Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_IS_THERE: Final = importlib.util.find_spec("jwt") is not None
"""It is a dependency of brokers alone: where it is not installed there is nothing to be met."""
NOW_MS: Final = 1_800_000_000_000.0


def part(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def public() -> dict[str, str]:
    return {"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": part(_SIGNER.public_key().public_bytes_raw()).decode()}


def signed(claims: bytes) -> bytes:
    said = part(b'{"alg":"EdDSA","kid":"k"}') + b"." + part(claims)
    return said + b"." + part(_SIGNER.sign(said))


def claims_in(data: bytes) -> bytes:
    """What a token says, if it is one."""
    try:
        return base64.urlsafe_b64decode(data.split(b".")[1] + b"==")
    except (IndexError, ValueError):
        return data


def check_token(data: bytes) -> None:
    if not _IS_THERE:
        return
    from broker.serving.http.jwts import JwtRules, chosen, judged, keys_of

    keys = keys_of(json.dumps({"keys": [public()]}).encode())
    rules = JwtRules(
        issuer="i",
        audience="a",
        algorithms=("EdDSA", "RS256"),
        claim="sub",
        principal="user",
        ttl_ms_max=86_400_000,
        keys=lambda: keys,
    )
    text = data.decode("latin-1")
    found = judged(text, *chosen(text, rules, keys), rules, NOW_MS)
    assert is_named(found.principal)
    assert NOW_MS < found.until_ms <= NOW_MS + rules.ttl_ms_max + 60_000
    assert json.loads(claims_in(data))["iss"] == "i"


def check_keys(data: bytes) -> None:
    if not _IS_THERE:
        return
    from broker.serving.http.jwts import KINDS, keys_of

    keys = keys_of(data)
    assert all(key.kind in KINDS.values() and hasattr(key.key, "public_bytes") for key in keys)


TOKENS: Final = (
    Decoder(
        name="jwt",
        modules=("broker/serving/http/jwts.py",),
        check=check_token,
        errors=(InvalidRequest,),
        form="json",
        words=(b".", b'"exp":', b'"aud":[', b'{"alg":"none"}', b"eyJhbGciOiJub25lIn0", b"1e999", b"NaN"),
        unseal=claims_in,
        seal=signed,
        weight=2,
    ),
    Decoder(
        name="jwks",
        modules=("broker/serving/http/jwts.py", "broker/config/jwks.py"),
        check=check_keys,
        errors=(InvalidSetting,),
        form="json",
        words=(b'"kty":"oct"', b'"kty":"RSA"', b'"crv":"P-256"', b'"d":', b'"AQAB"', b'"n":""', b"[" * 3000),
    ),
)
