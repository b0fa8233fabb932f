"""The intake thread: keeps a NATS connection and one subscription per stream (per partition with suffixes).

    socket ─► nats-py ─► Intake.feed (compiled, no GIL) ─► flush.py ─► log, acks ─► socket

I1  Subscriptions are made, and confirmed by the server, before `begin` returns.
I2  A lost connection is made again for ever; when nats-py gives one up (most `-ERR`), a new client is made.
I3  Messages that may have been missed while away are estimated, labelled so, and counted; nothing is hidden.
I4  One stream's subject keeps no other stream from being captured. nats-py raises for subjects that the server takes
    (`orders.**`, without a wildcard in it); our own rule is the catalog's, and the server has the last word.
I5  Of a server whose certificate is not believed it is told at each try, for the audit (`audit.U9`).
I6  Nothing of ours is sent before nats-py has done its handshake: a server takes no message before CONNECT, and ends
    the connection. What it does not take from us is bounded: messages are not read meanwhile, and of records that came
    otherwise no inbox is told.
I7  What the server does not let this user do is told as long as it is so (rights.py): in the log, and by `warnings`. It
    names none of those that are more than it takes: they are the newest ones, as they are made in the order of their
    numbers.

Everything but `begin`, `end`, `stop`, `tell_inbox` and reading counters runs on the thread's own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from types import ModuleType
from typing import Any, TypeVar

import nats.aio.client
import nats.errors

from broker import ingest
from broker.api.certificate_faults import Tell, tell_nobody
from broker.api.errors import InvalidSetting
from broker.api.nats_url import shown_urls
from broker.common.elapsed import MACHINE, Clocks
from broker.config.configuration import Config
from broker.config.nats_options import connect_options
from broker.ingest.answers import addressed
from broker.intake.beginnings import Beginnings
from broker.intake.captures import Attachment, Captures
from broker.intake.flush import Flusher, FlushSlot
from broker.intake.nats_seam import WideTransport, barrier, make_client
from broker.intake.rights import MissingRight, TooManySubscriptions
from broker.intake.unbelieved import tell_of
from broker.intake.websocket import SendingWebSocket
from broker.metadata.catalog import StreamInfo
from broker.node.partitions.partition import Partition
from broker.node.partitions.sync import SyncExecutor

log = logging.getLogger(__name__)
T = TypeVar("T")

RETRY_S_MAX = 5.0
WRITE_PENDING_BYTES_MAX = 8 << 20
CONFIRM_TIMEOUT_S = 5.0
RATE_WINDOW_S = 1.0
REFUSED_INTERVAL_S = 1.0
"""So often at most it is logged that acks may not be published; all are counted."""
REFUSED_TOLD_S = 600.0
"""So long `warnings` tells of one."""
SUBSCRIBED_AT_ONCE = 256
"""So many subscriptions are made in one turn of the loop: it has messages to take in meanwhile."""
REFUSED_SHOWN = 3
"""So many subjects that may not be subscribed to are named by `warnings`; the log has all."""
DRAIN_GRACE_S = 5.0
"""Beyond its time-out a drain has so long to notice it; and then its tasks to end."""


class IntakeDriver:
    """Owns the intake thread.

    Args:
        loop: That thread's; None: a new one.
        clocks: Of this machine, if no others are handed in.
        tell: I5.
    """

    def __init__(
        self,
        config: Config,
        pool: SyncExecutor,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        tell: Tell = tell_nobody,
        clocks: Clocks = MACHINE,
        takes_all: bool = False,
    ) -> None:
        self._config = config
        self._clocks, self._tell = clocks, tell
        parser = _load(config.intake.implementation)
        self._prefixes = [prefix.encode() for prefix in config.nats.reply_prefixes]
        self.implementation: str = parser.IMPLEMENTATION
        self._intake: ingest.Intake = parser.Intake(
            reply_prefixes=self._prefixes,
        )
        self._streams: dict[str, Attachment] = {}
        self._missing: dict[Attachment, None] = {}  # those of which the connection may lack subscriptions
        self._client: nats.aio.client.Client | None = None
        self._stopping = False
        self._rate = 0.0
        self._unanswered = 0
        self._rate_from = (clocks.now_s(), 0)
        self._last_read = clocks.now_s()
        self._away_since: float | None = None
        self.state = "connecting"
        self.counts: dict[str, int] = dict.fromkeys(
            (
                "disconnects",
                "reconnects",
                "nats_errors",
                "missing_estimated_records",
                "inboxes_not_told",
                "acks_refused",
            ),
            0,
        )
        self._asked: dict[tuple[str, str], dict[int, str]] = {}  # subject, group -> number -> stream (I7)
        self._taken: dict[int, tuple[str, str, str]] = {}  # number -> these; not refused so far; newest last
        self._refused_sids: set[int] = set()  # I7
        self._refused_ack: tuple[float, MissingRight] | None = None  # the last one, and when
        self._acks_shown = (-REFUSED_INTERVAL_S, 0)  # when, and how many there were
        self._loop = loop or asyncio.new_event_loop()
        self._flusher = Flusher(
            self._intake,
            parser.Builder,
            self._send,
            loop=self._loop,
            pool=pool,
            pending_bytes_max=config.intake.pending_bytes_max,
            clocks=clocks,
        )
        self._captures = Captures(
            self._streams,
            self._flusher,
            renew=self._renew,
            subscribe=self._subscribe_missing,
            detach=self._detach,
            take_in_sent=self._take_in_sent,
            takes_all=takes_all,
        )
        self._beginnings = Beginnings(self._loop, self._captures)
        self._subscribing = asyncio.Lock()
        self._error_shown = ""
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._main: asyncio.Task[None] | None = None

    # -- from other threads ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread; it connects, and goes on trying, by itself."""
        self._thread.start()

    def begin(self, info: StreamInfo, partition: Partition) -> Future[None]:
        """Begin to capture one partition that is led here, or go on under altered settings (I1; captures.py)."""
        return self._beginnings.ask(info, partition)

    def end(self, partition: Partition, *, with_sent: bool = False) -> Future[None]:
        """Stop capturing it; done when all that was captured was given to it, and is durable here or refused.
        `with_sent`: what the server has sent by now is captured."""
        return self._beginnings.then(lambda: self._call(self._captures.end(partition, with_sent=with_sent)))

    def stop(self, timeout_s: float) -> None:
        """Unsubscribe, take in what the server has sent, make it durable, send the acks, close."""
        try:
            self._call(self._drain(timeout_s)).result(timeout_s + DRAIN_GRACE_S)
        except TimeoutError:
            log.error("intake.drain_timeout timeout_s=%.1f", timeout_s)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def message_counts(self) -> dict[str, int]:
        """Messages, bytes and refusals as the parser counts them."""
        return {**self._intake.counters, **self._flusher.counts}

    def not_captured(self, stream: str | None = None) -> list[str]:
        """A sentence for each subject, or each of one stream, that the server does not let us subscribe to (I7)."""
        refused = set(self._refused_sids)
        return [
            f"{MissingRight('subscribe', *_asked_for(each, subject))}: stream {each.info.name!r} captures nothing there"
            for each in (list(self._streams.values()) if refused else ())
            if stream in (None, each.info.name)
            for sid, (subject, _) in zip(list(each.sids), each.subscriptions, strict=False)
            if sid in refused
        ]

    def uncaptured(self, stream: str) -> list[str]:
        """As `Backend.uncaptured`."""
        if self.state != "connected":
            return [f"not connected to NATS ({self.state}): this broker captures nothing until it is"]
        return self.not_captured(stream)

    def warnings(self) -> dict[str, str]:
        """As `Backend.warnings`."""
        told, ack = self.not_captured(), self._refused_ack
        if len(told) > REFUSED_SHOWN:
            told[REFUSED_SHOWN:] = [f"and {len(told) - REFUSED_SHOWN} others"]
        if ack is not None and self._clocks.now_s() - ack[0] < REFUSED_TOLD_S:
            told.append(f"{ack[1]}: records are stored, and publishers get no ack")
        return {"nats": "; ".join(told)} if told else {}

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # it has stopped
            coroutine.close()
            raise

    # -- the thread --------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._main = self._loop.create_task(self._stay_connected())
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._end_tasks())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _end_tasks(self) -> None:
        """End the tasks that a slow drain has left. A task that outlives its loop may crash the interpreter's end."""
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=DRAIN_GRACE_S)

    async def _stay_connected(self) -> None:
        """Make a client; when nats-py closes it for good (most -ERR), make another."""
        wait_s = 0.1
        while not self._stopping:
            closed = asyncio.Event()
            wide = not any(url.startswith(("ws:", "wss:")) for url in self._config.nats.urls)
            client = make_client(
                self._intake,
                self._after_feed,
                self._is_held_up,
                self._may_read,
                wide=wide,
                clocks=self._clocks,
            )
            try:
                await client.connect(
                    **connect_options(self._config.nats),
                    allow_reconnect=True,
                    max_reconnect_attempts=-1,
                    reconnect_time_wait=0.25,  # type: ignore[arg-type]  # it sleeps for it; floats are fine
                    skip_subject_validation=True,  # I4
                    flusher_queue_size=0,  # any number: who waits for a place when a connection ends waits for ever
                    error_cb=functools.partial(self._on_error, client),
                    disconnected_cb=self._on_disconnected,
                    reconnected_cb=self._on_reconnected,
                    closed_cb=functools.partial(_set, closed),
                )
                if self._stopping:  # `wait_for` of Python 3.11 loses a cancellation that comes with the answer
                    await _close(client)
                    return
                self._client = client
                for attachment in self._streams.values():  # their numbers begin anew
                    self._unroute(attachment)
                self._asked.clear()  # also of those that have ended meanwhile
                self._taken.clear()
                await self._subscribe_missing()
            except Exception as error:  # whatever it is (nkeys has errors of its own): this task must not end
                self.state = f"cannot connect: {error or type(error).__name__}"
                log.warning("intake.connect_failed urls=%s error=%r retry_s=%.1f", self._urls(), error, wait_s)
                self._client = None
                await _close(client)
                await asyncio.sleep(wait_s)
                wait_s = min(wait_s * 2, RETRY_S_MAX)
                continue
            except asyncio.CancelledError:
                await _close(client)
                raise
            wait_s = 0.1
            if self.state.startswith("closed"):
                self._count_missing()
            self.state, self._error_shown = "connected", ""
            self._last_read = self._clocks.now_s()
            log.info("intake.connected url=%s streams=%d", _host(client), len(self._streams))
            await closed.wait()
            self._client = None
            if not self._stopping:
                self.state = f"closed by the server: {client.last_error}"
                self._note_away()
                self.counts["disconnects"] += 1
                log.error("intake.closed_by_server error=%r", client.last_error)
                self._intake.reset()

    def _urls(self) -> list[str]:
        return shown_urls(self._config.nats.urls)

    async def _on_error(self, client: nats.aio.client.Client, error: Exception) -> None:
        self.counts["nats_errors"] += 1
        if isinstance(error, MissingRight):
            self._note_refused(error)
            return
        text = repr(error)
        if isinstance(error, TooManySubscriptions):
            text = str(error)
            if self._taken:
                self._note_not_captured(next(reversed(self._taken)))
        if found := tell_of(client, error, self._tell):  # I5
            text = found.why
        if self.state != "connected":
            self.state = f"cannot connect: {text}"
        if text != self._error_shown:  # once, not at each of the tries
            self._error_shown = text
            log.warning("intake.nats_error error=%s", text)

    def _note_refused(self, refusal: MissingRight) -> None:
        """I7."""
        if refusal.does == "subscribe":  # there may be thousands: who is meant is not looked for among all
            for sid in self._asked.get((refusal.subject, refusal.group), ()):
                if sid not in self._refused_sids:
                    self._note_not_captured(sid)
            return
        self.counts["acks_refused"] += 1
        now_s, (shown_s, count) = self._clocks.now_s(), self._acks_shown
        self._refused_ack = now_s, refusal
        if now_s - shown_s >= REFUSED_INTERVAL_S:
            self._acks_shown = now_s, self.counts["acks_refused"]
            since = self.counts["acks_refused"] - count
            log.error("intake.acks_refused count=%d subject=%s", since, refusal.subject)

    def _note_not_captured(self, sid: int) -> None:
        self._refused_sids.add(sid)
        log.error("intake.not_captured stream=%s subject=%s group=%s", *self._taken.pop(sid))

    async def _on_disconnected(self) -> None:
        self._refused_sids.clear()  # the next connection asks anew, in the order of the numbers
        asked = sorted((sid, name, *what) for what, sids in self._asked.items() for sid, name in sids.items())
        self._taken = {sid: (name, subject, group) for sid, name, subject, group in asked}
        if self._stopping:
            return
        self.state = "disconnected"
        self._note_away()
        self.counts["disconnects"] += 1
        log.warning("intake.disconnected")

    async def _on_reconnected(self) -> None:
        self.state, self._error_shown = "connected", ""
        self._count_missing()
        await self._subscribe_missing()
        self.counts["reconnects"] += 1  # now everything is captured again

    def _note_away(self) -> None:
        """From now on messages may be missed. Not told by `_last_read` later: the new connection is read before
        `_on_reconnected` runs."""
        if self._away_since is None:
            self._away_since = self._last_read

    def _count_missing(self) -> None:
        since, self._away_since = self._away_since, None
        away_s = 0.0 if since is None else self._clocks.now_s() - since
        missing = round(self._rate * away_s)
        self.counts["missing_estimated_records"] += missing
        log.warning(
            "intake.reconnected away_s=%.3f missing_estimated_records=%d (recent rate x time away; publishers that "
            "wait for acks have repeated theirs)",
            away_s,
            missing,
        )

    # -- streams -----------------------------------------------------------------------------------

    async def _subscribe_missing(self, of: Sequence[Attachment] | None = None) -> None:
        """Make the subscriptions that the connection, if there is one, does not have yet; confirm them (I1).
        `of`: all others have theirs, or are known to lack some. None: any may."""
        async with self._subscribing:
            self._missing.update(dict.fromkeys(self._streams.values() if of is None else of))
            client = self._client
            if client is None or not client.is_connected:
                return  # `_stay_connected` and `_on_reconnected` come back here
            failed: list[Exception] = []
            for at, attachment in enumerate(list(self._missing)):
                if at % SUBSCRIBED_AT_ONCE == SUBSCRIBED_AT_ONCE - 1:
                    await asyncio.sleep(0)
                try:
                    await self._subscribe(client, attachment)
                    self._missing.pop(attachment, None)
                except (TimeoutError, OSError, nats.errors.Error) as error:  # it keeps no other from theirs (I4)
                    failed.append(error)
            try:
                await self._until_answered(client)
            except (TimeoutError, OSError, nats.errors.Error) as error:
                failed.append(error)
            if failed:
                log.warning("intake.subscribe_unconfirmed error=%r", failed[0])

    async def _subscribe(self, client: nats.aio.client.Client, attachment: Attachment) -> None:
        for subject, slots in attachment.subscriptions[len(attachment.sids) :]:
            if attachment.is_detached or client is not self._client:
                return  # while the last one was being sent
            sid = client._sid + 1  # routed before the server hears of it, so that nothing comes unrouted
            self._route(sid, slots, attachment.info)
            attachment.sids.append(sid)
            asked, name = _asked_for(attachment, subject), attachment.info.name
            self._asked.setdefault(asked, {})[sid] = name
            self._taken[sid] = (name, *asked)
            try:
                subscription = await client.subscribe(subject, queue=attachment.info.settings.group or "")
            except BaseException:
                if (
                    sid not in client._subs and sid in attachment.sids
                ):  # else it is made, or another connection is there
                    attachment.sids.remove(sid)
                    self._forget(sid, asked)
                raise
            assert subscription._id == sid, "nats-py counts subscriptions differently"

    async def _detach(self, *streams: str) -> None:
        leaving = [self._streams.pop(stream) for stream in streams if stream in self._streams]
        for attachment in leaving:
            attachment.is_detached = True
            self._missing.pop(attachment, None)
        await self._unsubscribe(leaving)
        removals = [self._flusher.remove(slot) for attachment in leaving for slot in attachment.slots]
        for found in await asyncio.gather(*removals, return_exceptions=True):  # one that fails ends no other
            if isinstance(found, BaseException):
                raise found

    def _renew(self, attachment: Attachment, info: StreamInfo) -> None:
        """Go on under these settings, with the slots that there are by now."""
        attachment.info = info
        for slot in attachment.slots:
            self._flusher.alter(slot, info)  # builders know how many partitions there are
        for sid, (_, slots) in zip(attachment.sids, attachment.subscriptions, strict=False):
            self._route(sid, slots, info)

    def _route(self, sid: int, slots: Sequence[FlushSlot], info: StreamInfo) -> None:
        self._intake.route(
            sid,
            [slot.builder for slot in slots],
            partition_by=info.settings.partition_by,
            envelopes=info.settings.opens_envelopes,
        )

    async def _unsubscribe(self, leaving: Sequence[Attachment]) -> None:
        """All at once, with one question to the server: one that has stopped answering is waited for once."""
        client = self._client
        if client is not None and leaving:
            try:
                for sid in (sid for attachment in leaving for sid in attachment.sids):
                    subscription = client._subs.get(sid)
                    if subscription is not None and client.is_connected:
                        await subscription.unsubscribe()
                    else:
                        client._subs.pop(sid, None)  # or a reconnect would bring it back
                if client.is_connected:
                    await self._until_answered(client)
            except (TimeoutError, OSError, nats.errors.Error) as error:
                which = f"{leaving[0].info.name} others={len(leaving) - 1}"
                log.warning("intake.unsubscribe_unconfirmed stream=%s error=%r", which, error)
        if client is self._client:  # else the numbers are the next one's, and of other streams
            for attachment in leaving:
                self._unroute(attachment)

    async def _take_in_sent(self) -> None:
        """Return when all that the server had sent was parsed; if it does not answer, after a while."""
        client = self._client
        if client is not None and client.is_connected:
            try:
                await self._until_answered(client)
            except (TimeoutError, OSError, nats.errors.Error) as error:
                log.warning("intake.unsubscribe_unconfirmed error=%r", error)

    async def _until_answered(self, client: nats.aio.client.Client) -> None:
        """All that the server had sent is parsed by then."""
        await barrier(client, CONFIRM_TIMEOUT_S)

    def _unroute(self, attachment: Attachment) -> None:
        for sid, (subject, _) in zip(attachment.sids, attachment.subscriptions, strict=False):
            self._forget(sid, _asked_for(attachment, subject))
        attachment.sids.clear()

    def _forget(self, sid: int, asked: tuple[str, str]) -> None:
        self._intake.unroute(sid)
        self._refused_sids.discard(sid)
        self._taken.pop(sid, None)
        others = self._asked.get(asked, {})
        others.pop(sid, None)
        if not others:
            self._asked.pop(asked, None)

    async def _drain(self, timeout_s: float) -> None:
        self._stopping = True
        try:
            async with asyncio.timeout(timeout_s):
                await self._detach(*self._streams)
                await self._flusher.uncommitted.none.wait()
        except TimeoutError:
            log.error("intake.drain_timeout timeout_s=%.1f", timeout_s)
        except Exception:
            log.exception("intake.drain_failed")
        if self._client is not None:
            await _close(self._client)
        assert self._main is not None
        self._main.cancel()

    # -- the connection's two ends -------------------------------------------------------------------

    def _after_feed(self, byte_count: int) -> None:
        self._last_read = self._clocks.now_s()
        self._flusher.after_feed()
        since, count = self._rate_from
        if self._last_read - since >= RATE_WINDOW_S:
            total = self._intake.counters["messages"]
            self._rate = 0.5 * self._rate + 0.5 * (total - count) / (self._last_read - since)
            self._rate_from = (self._last_read, total)
            self._note_unanswered()

    def _note_unanswered(self) -> None:
        """Say at a limited rate that publishers wait in vain for acks (`rules.R5`)."""
        count = self._intake.counters["unanswerable"]
        if count > self._unanswered:
            prefixes = self._config.nats.reply_prefixes
            log.warning(
                "intake.reply_not_answered count=%d reply_prefixes=%s", count - self._unanswered, list(prefixes)
            )
            self._unanswered = count

    def tell_inbox(self, inbox: str, ack: bytes) -> None:
        """Send the ack of a record that came otherwise (`rules.R9`), if NATS is there and takes what was sent before
        (I6); nobody waits for it. From any thread."""
        blob = addressed(inbox.encode(), ack, self._prefixes)
        with contextlib.suppress(RuntimeError):  # the thread has stopped
            self._loop.call_soon_threadsafe(self._tell_inbox, blob)

    def _tell_inbox(self, blob: bytes | None) -> None:
        if blob is None or not self._may_send() or self._sends_too_slowly():
            self.counts["inboxes_not_told"] += 1
        else:
            self._send(blob)

    def _send(self, blob: bytes) -> None:
        client = self._client
        if not blob or client is None or not self._may_send():
            return  # the connection is gone, and with it whoever waited on it
        try:
            client._transport.write(blob)  # type: ignore[union-attr]
        except (OSError, RuntimeError, AttributeError) as error:
            log.debug("intake.ack_unsent error=%r", error)

    def _may_send(self) -> bool:
        """I6. nats-py reads from the end of its handshake on, until it gives up a connection."""
        client = self._client
        if client is None or client.is_reconnecting or not client._transport:
            return False
        return client._reading_task is not None and not client._reading_task.done()

    def _is_held_up(self) -> bool:
        """Whether too much is on its way to the disk or to the server."""
        return self._flusher.is_held_up() or self._sends_too_slowly()

    async def _may_read(self) -> None:
        """Wait while too much is."""
        await self._flusher.may_read()
        if self._sends_too_slowly() and self._client is not None:
            await self._client._transport.drain()  # type: ignore[union-attr]

    def _sends_too_slowly(self) -> bool:
        transport = self._client._transport if self._client is not None else None
        if not isinstance(transport, WideTransport | SendingWebSocket):
            return False
        return transport.write_buffer_bytes() > WRITE_PENDING_BYTES_MAX


def _load(implementation: str) -> ModuleType:
    try:
        return ingest.load(implementation)
    except ImportError as error:
        raise InvalidSetting(
            f"intake.implementation={implementation!r}: it is not compiled here: {error}",
            key="intake.implementation",
            value=implementation,
        ) from error


def _asked_for(attachment: Attachment, subject: str) -> tuple[str, str]:
    """What the server names if it does not let us make this subscription: subject and queue group."""
    return subject, attachment.info.settings.group or ""


async def _set(event: asyncio.Event) -> None:
    event.set()


async def _close(client: nats.aio.client.Client) -> None:
    try:
        await client.close()
    except (TimeoutError, OSError, nats.errors.Error, AttributeError) as error:
        log.debug("intake.close_failed error=%r", error)


def _host(client: nats.aio.client.Client) -> str:
    url = client.connected_url
    return f"{url.hostname}:{url.port}" if url is not None else "?"
