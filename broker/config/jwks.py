"""The keys of the issuer of JWTs: from a file, or fetched over https; read again and again.

    file ─► each LOOK_S, if it has changed ─┐
    url ──► each REFRESH_S, and soon after ─┼─► good: these from now on
            a token that names another key  └─► wrong, or nobody answers: those of before, `KEPT_S` at most

V1  A broker does not wait for the issuer: it starts without keys, and takes no JWT until it has them.
V2  Keys that were fetched are kept for `KEPT_S` when the issuer does not answer. After that there are none: it may have
    taken one back.
V3  Who sends tokens with unknown keys has the set fetched once in `MISSED_S` at most.
V4  A file that everybody may write is refused: whoever writes it is whom he likes.
V5  Of an issuer whose certificate is not believed it is told at each try, for the audit (`audit.U9`).
"""

from __future__ import annotations

import http.client
import logging
import os
import ssl
import stat
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from broker.api.certificate_faults import Tell, tell_nobody
from broker.api.errors import InvalidSetting
from broker.api.tls_files import load_ca, read, said, unbelieved_in, unusable
from broker.common.looping import ThreadLoop
from broker.common.metrics import Sample
from broker.config.settings import JwtConfig

if TYPE_CHECKING:
    from broker.serving.http.jwts import JwtRules, Keys

LOOK_S: Final = 2.0
REFRESH_S: Final = 300.0
RETRY_S: Final = 10.0
MISSED_S: Final = 10.0
KEPT_S: Final = 24 * 3_600.0
TIMEOUT_S: Final = 10.0
JWKS_BYTES_MAX: Final = 1 << 20
SETTING: Final = "jwt.keys"

log = logging.getLogger(__name__)


def jwks_of(config: JwtConfig, tell: Tell = tell_nobody) -> Jwks | None:
    """The issuer's keys; None: no JWT is believed. Raises InvalidSetting: a file cannot be used."""
    return None if config.issuer is None else Jwks(config, tell=tell)


class Jwks:
    """See the module. Owns a thread.

    Args:
        fetch: Gets what is at the URL. Raises OSError, or InvalidSetting: it is no answer.
        tell: V5.
        clock_s: Never goes back.
        wall_s: The time of day.
    Raises:
        InvalidSetting: a file cannot be used.
    """

    def __init__(
        self,
        config: JwtConfig,
        *,
        fetch: Callable[[JwtConfig], bytes] | None = None,
        tell: Tell = tell_nobody,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        assert config.keys is not None, "checked with the issuer"
        self._config, self._from = config, config.keys
        self._fetch, self._tell = fetch or fetched, tell
        self._clock_s, self._wall_s = clock_s, wall_s
        self._is_url = is_url(config.keys)
        self._keys: Keys = ()
        self._text = b""
        self._read_s: float | None = None
        self._read_wall_s = 0.0
        self._tried_s = -MISSED_S
        self._mark: tuple[int, ...] | None = None
        self._error = ""
        self._loop = ThreadLoop(self._step, "jwks")
        if self._is_url:
            place_of(config.keys)
            context_of(config)
        else:
            self._look()

    @property
    def rules(self) -> JwtRules:
        """For who judges tokens."""
        from broker.serving.http.jwts import JwtRules

        config = self._config
        assert config.issuer is not None, "or there were none of these"
        assert config.audience is not None, "checked together"
        return JwtRules(
            issuer=config.issuer,
            audience=config.audience,
            algorithms=config.algorithms,
            claim=config.claim,
            principal=config.principal,
            ttl_ms_max=config.ttl_ms_max,
            keys=self.keys,
            missed=self.missed,
        )

    def start(self) -> None:
        """Start the thread."""
        self._loop.start()

    def stop(self) -> None:
        """Stop the thread. It is not waited for: the issuer may take its time."""
        self._loop.stop(waits=False)

    def keys(self) -> Keys:
        """As they are now. From any thread."""
        if self._is_url and self._read_s is not None and self._clock_s() - self._read_s > KEPT_S:
            return ()  # V2
        return self._keys

    def missed(self) -> None:
        """A token names a key that is not there (V3). From any thread."""
        if self._is_url and self._clock_s() - self._tried_s >= MISSED_S:
            self._loop.wake()

    def samples(self) -> Iterator[Sample]:
        """For /metrics."""
        text = "When the keys of the issuer of JWTs were read last: seconds since 1970 UTC; 0: never"
        yield "liftlog_jwt_keys_read_timestamp_seconds", text, (), (), self._read_wall_s

    def _step(self) -> float:
        self._tried_s = self._clock_s()
        try:
            if self._is_url:
                self._take(self._fetch(self._config))
            else:
                self._look()
        except (OSError, InvalidSetting, http.client.HTTPException) as error:
            if self._is_url and (found := unbelieved_in(error, is_called=True)):
                self._tell(place_of(self._from)[0], found)  # V5
            why = said(error) if isinstance(error, OSError) else str(error)
            if why != self._error:
                log.error("jwt.keys_refused from=%s error=%s", self._from, why or type(error).__name__)
            self._error = why
            return RETRY_S if self._is_url else LOOK_S
        except Exception:  # or those of before would be kept for good, and no new key be known
            log.exception("jwt.bug")
            return RETRY_S
        self._error = ""
        return REFRESH_S if self._is_url else LOOK_S

    def _look(self) -> None:
        """Read the file, if it is another one. Raises InvalidSetting."""
        try:
            found = os.stat(self._from)
        except (OSError, ValueError) as error:
            raise unusable(SETTING, self._from, f"cannot be read: {error}") from error
        mark = found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino
        if mark == self._mark:
            return
        if found.st_mode & stat.S_IWOTH:  # V4
            raise unusable(SETTING, self._from, "can be written by every user of this machine: chmod o-w")
        self._take(read(SETTING, self._from))
        self._mark = mark

    def _take(self, data: bytes) -> None:
        from broker.serving.http.jwts import keys_of

        if data != self._text or not self.keys():
            keys = keys_of(data)
            self._keys, self._text = keys, data
            log.info("jwt.keys_taken from=%s keys=%d", self._from, len(keys))
        self._read_s, self._read_wall_s = self._clock_s(), self._wall_s()


def is_url(text: str) -> bool:
    """Whether keys are fetched from there, and not read from a file."""
    return text.startswith("https://")


def place_of(url: str) -> tuple[str, int, str]:
    """Host, port and what is asked for there. Raises InvalidSetting: it is no address."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or 443
        (parts.path + parts.query).encode("ascii")
    except ValueError:
        host, port = "", 0
    if not host or " " in url or "\x7f" in url:
        raise InvalidSetting(f"{SETTING} = {url!r}: is no address of the form https://host:port/path", key=SETTING)
    return host, port, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")


def context_of(config: JwtConfig) -> ssl.SSLContext:
    """By which the issuer is believed. Raises InvalidSetting."""
    if config.tls_ca is None:
        return ssl.create_default_context()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    load_ca(context, "jwt.tls_ca", config.tls_ca)
    return context


def fetched(config: JwtConfig) -> bytes:
    """What is at the URL. Redirects are not followed: they may lead to somebody else.

    Raises:
        OSError, HTTPException: nobody answers. InvalidSetting: it is no answer.
    """
    assert config.keys is not None
    host, port, target = place_of(config.keys)
    until_s = time.monotonic() + TIMEOUT_S
    connection = http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context_of(config))
    try:
        connection.request("GET", target, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise InvalidSetting(f"it answers with status {answer.status}", key=SETTING)
        data = b""
        while piece := answer.read1(JWKS_BYTES_MAX):
            data += piece
            if len(data) > JWKS_BYTES_MAX:
                raise InvalidSetting(f"it answers with more than {JWKS_BYTES_MAX} bytes", key=SETTING)
            if time.monotonic() > until_s:
                raise TimeoutError(f"its answer took more than {TIMEOUT_S:.0f} s")
        return data
    finally:
        connection.close()
