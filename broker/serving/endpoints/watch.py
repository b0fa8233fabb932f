"""One long poll over many partitions: what a reader of hundreds of them waits on instead of hundreds of polls.

The version is a digest of what is told; the client hands back the one it saw. So changes of streams that are not
selected neither end the wait nor prevent it, and brokers that would tell the same have the same version. A broker
without a session is not ready: another one knows. Who is nobody, and may read nothing, is answered at once: strangers
would hold connections for nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any, Final

from aiohttp import web

from broker.api.errors import InvalidRequest, LiftlogError, UnknownStream
from broker.api.permissions import of_answer
from broker.api.stream import INTERNAL_PREFIX, NAME_BYTES_MAX
from broker.metadata.catalog import StreamInfo
from broker.serving.contract.acts import NO_ACT
from broker.serving.contract.backend import Backend
from broker.serving.contract.endpoint import (
    MAX_WAIT,
    OFFSET_MAX,
    Endpoints,
    Query,
    Serving,
    answer,
    integer,
    text,
    wait_seconds,
)
from broker.serving.endpoints.heads import PolledHeads
from broker.serving.endpoints.streams import leader_of
from broker.serving.http.access import Asking, access_now
from broker.serving.http.peers import is_from_peer
from broker.serving.http.waiting import either

PATTERNS_MAX: Final = 256
STARS_MAX: Final = 8
"""`*` in one pattern."""
QUIET_S: Final = 0.005
"""The selection may change a thousand times a second: it is looked at no more often than this."""


ENDPOINTS: Final = Endpoints()


@ENDPOINTS.add(
    "GET",
    "/v1/watch",
    "watch",
    answer("The state now, and its version.", "Watch"),
    permission=of_answer("stream:read"),
    act=NO_ACT,
    query=(
        integer(
            "since",
            "The version that the client has seen. Any other than that of the present state is answered at once.",
            least=0,
            greatest=OFFSET_MAX,
        ),
        MAX_WAIT,
        text(
            "streams",
            "Only these: names separated by commas, `*` for any characters.",
            length_max=PATTERNS_MAX * 129,
        ),
    ),
)
async def watch(serving: Serving, request: web.Request, query: Query) -> web.StreamResponse:
    """Wait until a high watermark, a log start offset or the set of streams changes."""
    backend = serving.backend
    patterns = Patterns.of(query["streams"])
    if patterns is not None and patterns.wild:
        names = [info.name for info in backend.streams(internal=True)]
        await serving.in_worker(lambda: [patterns.selects(name) for name in names])
    since = query["since"]
    heads = None if is_from_peer(request) else serving.heads
    access, loop = access_now.get(), asyncio.get_running_loop()
    deadline = loop.time() + (0 if access.is_strangers("stream:read") else wait_seconds(query))
    with serving.watching() as watcher, serving.callers.polling() if query["max_wait_ms"] else nullcontext():
        while True:
            if heads is not None:
                await _look_elsewhere(backend, heads, patterns, access)
            seen = state(backend, patterns, heads, access)
            watcher.streams = set(seen)
            version, left = _version_of(seen), deadline - loop.time()
            if version != since or left <= 0 or serving.draining.is_set():
                return web.json_response({"version": version, "streams": seen})
            waiting = watcher.wait(left)
            if access.is_refused:
                waiting = either(waiting, access.gate.until_changed())
            await waiting
            await asyncio.sleep(QUIET_S)


def _version_of(seen: dict[str, Any]) -> int:
    """A digest. 48 bits: some readers of JSON take no more than 53."""
    text = json.dumps(seen, sort_keys=True).encode()
    return 1 + int.from_bytes(hashlib.blake2b(text, digest_size=6).digest())  # 0 is nobody's


class Patterns:
    """`a,b*`: names of streams, and names with `*` for any characters.

    Whether a name is selected is found out once: hundreds of patterns over thousands of streams take long.

    Attributes:
        names: Those without `*`.
        wild: The others.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.names = {pattern for pattern in patterns if "*" not in pattern}
        self.wild = [pattern for pattern in patterns if "*" in pattern]
        self._selected: dict[str, bool] = {}

    @staticmethod
    def of(value: str | None) -> Patterns | None:
        """None: all streams are meant.

        Raises:
            InvalidRequest: an empty or overlong pattern, one with too many `*`, or too many.
        """
        if value is None:
            return None
        patterns = value.split(",")
        for pattern in patterns:
            is_name = pattern and len(pattern) <= NAME_BYTES_MAX and not any(c in pattern for c in "?[]")
            if not is_name or pattern.count("*") > STARS_MAX:
                raise InvalidRequest(
                    f"query parameter streams: {pattern[:NAME_BYTES_MAX]!r} is not a stream name; * means any"
                    f" characters, at most {STARS_MAX} times",
                    parameter="streams",
                    value=pattern[:NAME_BYTES_MAX],
                )
        if len(patterns) > PATTERNS_MAX:
            raise InvalidRequest(
                f"query parameter streams: {len(patterns)} names, at most {PATTERNS_MAX} are accepted",
                parameter="streams",
                limit=PATTERNS_MAX,
            )
        return Patterns(patterns)

    def selects(self, name: str) -> bool:
        """Whether one of those with `*` fits. Internal streams only by a pattern that begins like them."""
        known = self._selected.get(name)
        if known is None:
            is_internal = name.startswith(INTERNAL_PREFIX)
            known = self._selected[name] = any(
                fnmatchcase(name, pattern)
                for pattern in self.wild
                if not is_internal or pattern.startswith(INTERNAL_PREFIX)
            )
        return known


async def _look_elsewhere(backend: Backend, heads: PolledHeads, patterns: Patterns | None, access: Asking) -> None:
    """Have the leaders of what is selected and not led here say what moves there."""
    if len(backend.brokers()) < 2:
        return
    me = leader_of(backend)["http"]
    names, leaders = set(), set()
    for info in _selected(backend, patterns, access):
        with suppress(LiftlogError):
            elsewhere = {where.leader.http for where in backend.whereabouts(info.name) if where.leader is not None} - {
                me
            }
            if elsewhere:
                names.add(info.name)
                leaders |= elsewhere
    await heads.look(names, leaders)


def state(backend: Backend, patterns: Patterns | None, heads: PolledHeads | None, access: Asking) -> dict[str, Any]:
    """The watched numbers of the selected streams that the caller may read. Internal streams only by a pattern that
    begins like them."""
    backend.check_session()
    leader = leader_of(backend)
    found: dict[str, Any] = {}
    for info in _selected(backend, patterns, access):
        try:
            handles = backend.partitions(info.name)
        except UnknownStream:  # deleted meanwhile, or not open yet
            continue
        except LiftlogError:  # offline: it is there, and each of its partitions says why
            unknown = list(range(info.settings.partitions))
            found[info.name] = {"incarnation": info.incarnation, "partitions": {}, "unknown": unknown}
            continue
        told = {
            str(handle.partition): {
                "log_start_offset": handle.log.state.log_start_offset,
                "high_watermark": end,
                "leader_epoch": handle.leader_epoch,
                "leader": leader,
            }
            for handle in handles
            if (end := handle.end) is not None
        }
        if heads is not None and len(told) < info.settings.partitions:
            for where in backend.whereabouts(info.name):
                found_there = heads.of(info.name, info.incarnation, where)
                if found_there is not None:
                    told.setdefault(str(where.partition), found_there)
        unknown = [number for number in range(info.settings.partitions) if str(number) not in told]
        found[info.name] = {"incarnation": info.incarnation, "partitions": told, "unknown": unknown}
    return found


def _selected(backend: Backend, patterns: Patterns | None, access: Asking) -> list[StreamInfo]:
    """The streams that the patterns name, and the caller may read, by name. Plain names are looked up: there may be
    thousands of streams."""
    return access.seen("stream:read", _named(backend, patterns), attrgetter("name"))


def _named(backend: Backend, patterns: Patterns | None) -> list[StreamInfo]:
    if patterns is None:
        return backend.streams()
    found: dict[str, StreamInfo] = {}
    for name in patterns.names:
        with suppress(UnknownStream):
            found[name] = backend.stream(name)
    if patterns.wild:
        found |= {info.name: info for info in backend.streams(internal=True) if patterns.selects(info.name)}
    return [found[name] for name in sorted(found)]
