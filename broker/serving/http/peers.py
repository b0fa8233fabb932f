"""Other brokers of the cluster, asked over their HTTP API for what this one does not know.

    client ─► this broker ─┬─► what is led here
                           └─► the leaders of the rest, at the same time ─► one answer

E1  One hop: who is asked by a broker (header `Liftlog-Asked-By`) answers what it knows, and asks nobody.
E2  A broker that does not answer in time is unknown, and says nothing about what it leads.
E3  Where the cluster has a secret, each question carries a proof of who asks, and what changes something for whom it is
    asked (`access.A6`).
E4  A broker with TLS asks over TLS alone, shows its own certificate, and believes those of `http.tls_ca`. Only while
    `http.tls` is `accept` it asks in plain text: others may not speak TLS yet.
E5  A question may name how far the catalog is applied where it is asked. Who is not that far refuses it: its words
    would be of an earlier time.
E6  Who is refused where this broker asks for itself is this broker, and so is who is not known where it asks for its
    client: that one has shown nothing there. For the client the other one does not answer: he may do what he asks for,
    and the audit must not say that he was refused.
E7  A broker that takes TLS alone, where this one asks in plain text, does not answer either: its words are for clients.
E8  One whose certificate this broker does not believe gets no question. That is told, as of one that calls here.
E9  Connections are counted for each broker: questions to one that hangs keep nobody from asking the others.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp import web
from yarl import URL

from broker.api import http
from broker.api.certificate_faults import Tell, tell_nobody
from broker.api.errors import LiftlogError, NotReady, Unauthenticated, Unauthorized, Unavailable, from_problem
from broker.api.plain import parse_json
from broker.api.tls_files import unbelieved_in
from broker.serving.contract.done import change_now
from broker.serving.http.access import access_now, proof_of

if TYPE_CHECKING:
    from broker.serving.contract.backend import Backend
    from broker.serving.http.tls import TlsContexts

log = logging.getLogger(__name__)

ASK_S: Final = 3.0
"""A broker that is gone costs a client so long at most."""
ANSWER_BYTES_MAX: Final = 64 << 20
CONNECTIONS_MAX: Final = 100
"""To one broker (E9)."""
PARSED_INLINE_BYTES: Final = 32 << 10
"""A longer answer is parsed off the loop."""
_POSITION: Final = re.compile(r"[0-9]{1,18}")


def is_from_peer(request: web.Request) -> bool:
    """E1. Where callers are judged, one that has proven it."""
    if http.ASKED_BY not in request.headers:
        return False
    access = access_now.get(None)
    return access is None or not access.gate.is_enforced or access.caller.is_peer


async def check_position(backend: Backend, request: web.Request) -> None:
    """E5. Raises NotReady: this broker's catalog is not that far. A broker of before names none; nonsense is none."""
    text = request.headers.get(http.POSITION, "")
    if not _POSITION.fullmatch(text) or not is_from_peer(request):
        return
    if (position := await backend.position()) < int(text):
        raise NotReady(f"the catalog is applied here up to {position}, and not to {text} yet")


class Peers:
    """See the module. On the data plane's loop.

    Args:
        me: The id of this broker.
        tls: The others speak TLS, as this one does. None: none of them does.
        key: Of proofs (E3). None: none are given.
        tell: E8.
    """

    def __init__(
        self, me: str, tls: TlsContexts | None = None, key: bytes | None = None, tell: Tell = tell_nobody
    ) -> None:
        self._me = me
        self._key = key
        self._tell = tell
        self._headers = {http.ASKED_BY: me}
        self._tls = tls if tls is not None and tls.dials else None
        self._session: aiohttp.ClientSession | None = None

    async def ask(
        self,
        address: str,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content: bytes | None = None,
        media: str = "",
        timeout_s: float = ASK_S,
        behalf: str | None = None,
        position: int = 0,
    ) -> Any:
        """The JSON answer of one broker.

        Args:
            content: A body that is not JSON, of type `media`.
            behalf: The principal for whom something is changed; None: this broker asks for itself.
            position: E5. 0: what it knows is asked for.
        Raises:
            Unavailable: it does not answer (E2). LiftlogError: what it answered.
        """
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, limit_per_host=CONNECTIONS_MAX)
            self._session = aiohttp.ClientSession(headers=self._headers, connector=connector)
        if behalf is not None and (change := change_now.get()) is not None:
            change.has_begun = True
        try:
            url = URL(f"{'http' if self._tls is None else 'https'}://{address}{path}").with_query(query)
            async with self._session.request(
                method,
                url,
                ssl=True if self._tls is None else self._tls.client(),
                headers=self._proof(address, method, url, behalf)
                | {http.POSITION: f"{position}"}
                | ({} if content is None else {"Content-Type": media}),
                json=body,
                data=content,
                allow_redirects=False,  # a proof is for one address
                timeout=aiohttp.ClientTimeout(total=timeout_s),
            ) as answer:
                data = bytearray()
                async for piece in answer.content.iter_any():
                    data += piece
                    if len(data) > ANSWER_BYTES_MAX:
                        raise Unavailable(f"{address}: more than {ANSWER_BYTES_MAX} bytes", address=address, sent=True)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._note_certificate(address, error)
            raise Unavailable(f"{address}: {error or type(error).__name__}", address=address, sent=True) from error
        try:
            if len(data) > PARSED_INLINE_BYTES:
                value = await asyncio.to_thread(parse_json, data)
            else:
                value = parse_json(data) if data else None
        except ValueError as error:
            raise Unavailable(f"{address}: not a broker's answer", address=address, sent=True) from error
        if answer.status >= 300:
            if isinstance(value, dict) and "reason" in value:
                problem = from_problem(value)
                if self._tls is None and problem.fields.get("tls") is True:  # E7
                    raise Unavailable(f"{address} is asked in plain text, and {problem}", address=address, sent=False)
                is_own = isinstance(problem, Unauthenticated) or (behalf is None and isinstance(problem, Unauthorized))
                if is_own:  # E6
                    sent = bool(problem.fields.get("sent"))
                    raise Unavailable(f"{address} refuses this broker: {problem}", address=address, sent=sent)
                raise problem
            raise Unavailable(f"{address}: HTTP status {answer.status}", address=address, sent=True)
        return value

    def _note_certificate(self, address: str, error: Exception) -> None:
        """E8."""
        if found := unbelieved_in(error, is_called=True):
            self._tell(str(URL(f"//{address}").host), found)

    def _proof(self, address: str, method: str, url: URL, behalf: str | None) -> dict[str, str]:
        """E3."""
        if self._key is None:
            return {}
        of = {} if behalf is None else {http.BEHALF: behalf}
        target, now_ms = url.raw_path_qs, time.time_ns() // 1_000_000
        return {
            "Host": address,
            http.PROOF: proof_of(self._key, self._me, address, method, target, now_ms, behalf or ""),
            **of,
        }

    async def ask_all(
        self,
        addresses: Iterable[str],
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        position: int = 0,
    ) -> list[Any]:
        """The answers of those that give one."""
        asked = [self.ask(address, method, path, query=query, position=position) for address in sorted(set(addresses))]
        found = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, LiftlogError):
                log.info("http.peer_silent path=%s error=%s", path, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found.append(answer)
        return found

    async def close(self) -> None:
        """Close idle connections."""
        if self._session is not None:
            await self._session.close()
