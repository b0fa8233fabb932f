"""A connection to NATS that says soon, and without secrets, why there is none. nats-py is loaded when it opens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import InvalidRequest, LiftlogError, NatsRefused, Unavailable
from broker.api.nats_url import shown_urls, split_url, without_credentials

if TYPE_CHECKING:
    from nats.aio.client import Client

CONNECT_TIMEOUT_S: Final = 5.0
TEXT_CHARS_MAX: Final = 300


class NatsConnection:
    """A connection attempt, and its last error. Shows no password."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self.last_error = ""

    def __str__(self) -> str:
        return ",".join(shown_urls(self._urls))

    async def open(self, options: Mapping[str, Any]) -> Client:
        """Connect; every server is tried once, not for two minutes as nats-py would.

        Once more if the connection was reset: a server that refuses a password may do so before its reason is read.
        """
        self._check()
        for is_last in (False, True):
            try:
                return await self._connect(options)
            except (ConnectionResetError, BrokenPipeError) as error:
                if is_last:
                    raise self._refused(str(error)) from error
            except ValueError as error:
                raise InvalidRequest(
                    f"NATS address {self}: {without_credentials(str(error))}", address=str(self)
                ) from error
            except Exception as error:  # also those of its transports, which nats-py lets through
                raise self._refused(_text_of(error)) from error
        raise AssertionError("unreachable")

    def _check(self) -> None:
        """Raise InvalidRequest unless each URL names a server. nats-py would leave a client that cannot be closed."""
        for url in self._urls:
            try:
                split_url(url if "://" in url else f"nats://{url}")
            except ValueError as error:
                raise InvalidRequest(f"NATS address {str(self)!r} {error}", address=str(self)) from None

    async def _connect(self, options: Mapping[str, Any]) -> Client:
        from nats.aio.client import Client

        from broker.client.nats_tls import insist_on_tls

        failures: asyncio.Queue[Exception] = asyncio.Queue()

        async def note(error: Exception) -> None:
            self.last_error = _text_of(error)
            failures.put_nowait(error)

        async def all_failed() -> Exception:
            return [await failures.get() for _ in self._urls][-1]

        client = insist_on_tls(Client())
        connecting = asyncio.ensure_future(
            client.connect(self._urls, error_cb=note, **{"name": "liftlog publish", **options})
        )
        failing = asyncio.ensure_future(all_failed())
        await asyncio.wait({connecting, failing}, timeout=CONNECT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if connecting.done() and connecting.exception() is None:
            failing.cancel()
            self.last_error = ""
            return client
        for task in (connecting, failing):
            task.cancel()
        outcome = await asyncio.gather(connecting, failing, return_exceptions=True)
        await close(client)
        why = next((e for e in outcome if isinstance(e, Exception)), None)
        raise why or TimeoutError(self.last_error or f"no connection within {CONNECT_TIMEOUT_S:g} s")

    def _refused(self, why: str) -> LiftlogError:
        kind = NatsRefused if "authoriz" in why.lower() or "authentic" in why.lower() else Unavailable
        return kind(f"{self}: {why}", address=str(self))


def _text_of(error: Exception) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "connected, and no NATS server answered in time"
    return without_credentials(str(error))[:TEXT_CHARS_MAX] or type(error).__name__


async def flush(client: Client, timeout_s: float) -> None:
    """Return when the server has taken in all that was published and subscribed.

    Raises:
        nats.errors.Error, TimeoutError: it did not answer.
    """
    await client._flush_pending(force_flush=True)  # nats-py writes a PING at once, ahead of what waits to be written
    await client.flush(timeout=max(1, round(timeout_s)))


async def close(client: Client) -> None:
    """Close a connection that may be broken."""
    with contextlib.suppress(OSError):
        await client.close()
