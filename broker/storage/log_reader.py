"""Read a log: plans of what to send, verified messages, times. A part of the log; `read.py` has the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from broker.api.errors import BadBatch, CorruptLog
from broker.storage.blooms import Questions
from broker.storage.read import (
    InOrder,
    LogView,
    ReadPlan,
    batch_start,
    bytes_between,
    find_time,
    plan_read,
    timestamp_at,
    verified_messages,
)
from broker.storage.rewrite.reused_blocks import Turn, messages_in_turn
from broker.storage.segments.segment import Segment
from broker.storage.writing.state import LogState

if TYPE_CHECKING:
    from broker.storage.encrypted.vault import Vault

BATCHES_READ_BYTES: Final = 4 << 20


class LogReader:
    """See the module."""

    __slots__ = ("_state",)

    def __init__(self, state: LogState) -> None:
        self._state = state

    def read(
        self,
        offset: int,
        *,
        end: int | None = None,
        max_bytes: int | None = None,
        stored: bool = False,
        questions: Questions | None = None,
        reserve: Callable[[int], None] = lambda byte_count: None,
        repairs: bool = True,
    ) -> ReadPlan:
        """Find the batches that hold [offset, min(end, high watermark)).

        The only replica skips a lost range. Where there are others, the plan ends before the range.

        Args:
            offset: In [log start, high watermark]; at the high watermark the plan is empty.
            end: Exclusive; the last batch may go past it.
            max_bytes: At least one batch comes, if there is any; further ones while they fit.
            stored: Up to the log end, committed or not: for a follower.
            questions: Leave out batches that are known to hold nothing of this (`blooms.questions_of`); not of an
                encrypted log (`blooms.F5`).
            reserve: Takes so many bytes of memory in all, for encrypted batches that are opened (`encrypted/plans.py`).
            repairs: Have a segment scanned anew that has an encrypted batch which cannot be opened, and look again.
        Returns:
            A plan; close it. Where it stops short, `next_offset` says where to go on.
        Raises:
            OffsetOutOfRange: with `log_start_offset` and `high_watermark`.
            CorruptLog: the files change while they are read; or `offset` is damaged, and other replicas may have it.
            BadBatch: an encrypted batch cannot be opened. With `repairs` it is whole: somebody has changed it, or moved
                it there.
        """
        skips, vault = self._state.settings.is_sole_replica, self._state.vault

        def question(view: LogView) -> ReadPlan:
            return plan_read(
                view.stored() if stored else view,
                offset,
                end=end,
                max_bytes=max_bytes,
                skips_lost=skips,
                questions=None if vault is not None else questions,
            )

        plan = self._state.ask(question)
        return plan if vault is None else self._opened(plan, vault, question if repairs else None, reserve)

    def _opened(
        self,
        plan: ReadPlan,
        vault: Vault,
        question: Callable[[LogView], ReadPlan] | None,
        reserve: Callable[[int], None],
    ) -> ReadPlan:
        """The plan with its messages opened. A segment with a damaged one is scanned, and the question asked again, if
        there is one."""
        from broker.storage.encrypted.plans import open_plan

        for left in (1, 0):
            segment = plan.sources[0][0] if plan.sources else None
            try:
                open_plan(plan, vault, reserve)
                return plan
            except BadBatch:
                plan.close()
                if not left or segment is None or question is None:
                    raise
            except BaseException:
                plan.close()
                raise
            assert question is not None
            self._state.repair(segment)
            plan = self._state.ask(question)
        raise AssertionError("unreachable")

    def batches(self, offset: int, end: int | None = None) -> Iterator[memoryview]:
        """The verified messages that hold [offset, min(end, high watermark)), in order.

        Damaged ones are not yielded: they are noted in `lost_ranges`.

        Raises:
            OffsetOutOfRange: as `read`.
        """
        return self.messages(offset, end)

    def batches_in_turn(self, offset: int, end: int) -> Iterator[Turn]:
        """As `batches`, with their headers: each in the memory of the one before, and the caller's to change."""
        return messages_in_turn(self._state.ask, self._state.repair, offset, end, self._state.vault)

    def messages(self, offset: int, end: int | None, *, whole: bool = False) -> Iterator[memoryview]:
        """Verified messages of [offset, min(end, high watermark)); `whole`: of all that is stored, committed or not,
        also below the log start."""

        def seen(view: LogView) -> LogView:
            return replace(view.stored(), log_start_offset=0) if whole else view

        repaired = -1
        while True:
            messages: list[memoryview] = []
            damaged: Segment | None = None
            with self._state.ask(
                lambda view, at=offset: plan_read(seen(view), at, end=end, max_bytes=BATCHES_READ_BYTES)  # type: ignore[misc]
            ) as plan:
                next_offset, is_empty = plan.next_offset, not plan.ranges
                vault, below = self._state.vault, ((0, self._state.log_start_offset),) if whole else ()
                order = None if vault is None else InOrder(plan, below)
                for place, (segment, file) in zip(plan.ranges, plan.sources, strict=True):
                    try:
                        for message, after in verified_messages(file, place, vault, order):
                            messages.append(message)
                            offset = after
                        if order is not None and place is plan.ranges[-1]:
                            order.check_end(f"{place.path}: ")
                    except BadBatch:
                        damaged = segment
                        break
            yield from messages
            if is_empty and next_offset <= offset:
                return
            if damaged is None:
                offset = next_offset
            elif repaired == offset:
                raise CorruptLog(f"{damaged.path}: damaged, and a second scan did not help", path=damaged.path)
            else:
                repaired = offset
                self._state.repair(damaged)

    def batch_start(self, offset: int) -> int:
        """Where the stored batch begins that `offset` lies within; `offset` itself where one begins, or none is."""
        return self._state.ask(lambda view: batch_start(view, offset))

    def offset_for_time(self, timestamp_us: int) -> int | None:
        """The earliest committed offset whose timestamp is at or after `timestamp_us`, exactly; None when none is."""
        return self._state.ask(lambda view: find_time(view, timestamp_us))

    def bytes_between(self, start: int, end: int) -> int:
        """Stored bytes of [start, end), to whole batches."""
        return self._state.ask(lambda view: bytes_between(view, start, end))

    def timestamp_at(self, offset: int) -> int | None:
        """As `read.timestamp_at`."""
        return self._state.ask(lambda view: timestamp_at(view, offset))
