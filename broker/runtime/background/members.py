"""Which members of consumer groups live, where one broker is alone: it does itself what a controller does.

a poll is served ─► heard ─► every half second: who was silent for too long ─► end_members
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from broker.api.errors import LiftlogError
from broker.metadata.groups import Groups
from broker.metadata.member_lives import MemberLives
from broker.runtime.elapsed import elapsed_us

log = logging.getLogger(__name__)

LOOK_MS: Final = 500


class Members:
    """See the module. Used on the control loop, but for `heard`.

    Args:
        groups: As they are now.
        change: Carries out a command of `group_commands`.
    """

    def __init__(
        self,
        groups: Callable[[], Groups],
        change: Callable[[str, Mapping[str, Any]], Awaitable[Any]],
        *,
        now_ms: Callable[[], int] = lambda: elapsed_us() // 1000,
    ) -> None:
        self._groups, self._change, self._now_ms = groups, change, now_ms
        self._lives = MemberLives()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._looked_ms = now_ms()

    def begin(self) -> None:
        """Look from now on."""
        self._looked_ms = self._now_ms()
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Look no more. From any thread."""
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)

    def heard(self, group: str, member: str, session: int) -> None:
        """A member has polled. From any thread."""
        self._loop.call_soon_threadsafe(self._heard, group, member, session)

    def _heard(self, group: str, member: str, session: int) -> None:
        self._lives.heard(group, member, session, self._now_ms())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            try:
                await self.look()
            except LiftlogError as error:
                log.warning("groups.not_ended error=%s", error)

    async def look(self) -> None:
        """End those that were silent for too long."""
        now_ms = self._now_ms()
        if (hung_ms := now_ms - self._looked_ms - 2 * LOOK_MS) > 0:
            self._lives.hung(hung_ms, now_ms)
        self._looked_ms = now_ms
        for group, members in self._lives.lapsed(self._groups(), now_ms).items():
            await self._change("end_members", {"name": group, "members": members, "expired": True})
            log.info("groups.ended group=%s members=%s", group, ",".join(sorted(members)))
