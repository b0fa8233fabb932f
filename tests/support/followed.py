"""A log that follows another through the core of a follower, without a network: questions are answered at once."""

from __future__ import annotations

from collections.abc import Callable

from broker.api.errors import OffsetOutOfRange
from broker.replication import following as f
from broker.replication.follower import Follower, Phase
from broker.replication.messages import AskEnd, End, Fetch, Inside, Records
from broker.storage.log import PartitionLog


def holds(log: PartitionLog, *, is_refused: bool = False) -> f.Holds:
    return f.Holds(
        log_start=log.checkpoints.kept_start_offset,
        log_end=log.state.log_end_offset,
        durable_end=log.state.durable_end,
        last_epoch=log.epochs.latest,
        high_watermark=log.state.high_watermark,
        group_end=log.state.log_end_offset,
        is_refused=is_refused,
        lacks_state=False,
        superseded_to=log.state.superseded[0],
        superseded_epoch=log.state.superseded[1],
    )


def follow(
    log: PartitionLog,
    leader: PartitionLog,
    epoch: int,
    *,
    before: Callable[[f.Effect], None] = lambda _: None,
    upto: int | None = None,
) -> list[f.Effect]:
    """Follow until there is nothing more to copy. Returns what was cut, reset and appended.

    Args:
        before: Called before an effect is done.
        upto: Copy message by message, and stop when the log ends there or beyond.
    """
    log.follow(epoch)
    core, done = Follower("a"), list[f.Effect]()
    queue = list(core.step(f.Followed(epoch=epoch, leader="b", incarnation=(1, 0), log=holds(log))))
    data = b""
    while queue:
        effect = queue.pop(0)
        before(effect)
        match effect:
            case f.Ask(_, AskEnd() as ask):
                found = leader.epochs.end_of(ask.last_epoch)
                own = log.epochs.end_of(found.epoch).end_offset
                end = End(
                    epoch=epoch,
                    incarnation=(1, 0),
                    request=ask.request,
                    found_epoch=found.epoch,
                    end=found.end_offset,
                    log_start=leader.state.log_start_offset,
                    start_epoch=-1,
                )
                queue += core.step(f.Replied(end, own))
            case f.Ask(_, Fetch() as fetch):
                if (
                    fetch.offset >= min(leader.state.log_end_offset, upto or 1 << 30)
                    or core.phase is not Phase.FETCHING
                ):
                    continue
                begins = (
                    leader.reader.batch_start(fetch.offset)
                    if fetch.offset < leader.state.high_watermark
                    else fetch.offset
                )
                if begins < fetch.offset:
                    inside = Inside(
                        epoch=epoch,
                        incarnation=(1, 0),
                        offset=fetch.offset,
                        number=fetch.number,
                        batch_start=begins,
                        start_epoch=leader.epochs.epoch_of(begins - 1) if begins else -1,
                    )
                    queue += core.step(f.Replied(inside))
                    continue
                with leader.reader.read(fetch.offset, stored=True, max_bytes=1 << 20 if upto is None else 1) as plan:
                    parts = zip(plan.ranges, plan.sources, strict=True)
                    data = b"".join(bytes(file.pread(place.length, place.position)) for place, (_, file) in parts)
                to, of = leader.epochs.superseded_there
                records = Records(
                    epoch=epoch,
                    incarnation=(1, 0),
                    offset=fetch.offset,
                    number=fetch.number,
                    high_watermark=leader.state.high_watermark,
                    log_start=leader.state.log_start_offset,
                    superseded_to=to,
                    superseded_epoch=of,
                )
                queue += core.step(f.Replied(records))
            case f.Append(_, _, to, of):
                done.append(effect)
                log.append_stored(data, leader_epoch=epoch, now_us=1, superseded=(to, of))
                log.syncer.sync()
                queue += core.step(holds(log))
            case f.Truncate(to, is_copied_again):
                done.append(effect)
                try:
                    log.truncate(to, is_copied_again=is_copied_again)
                except OffsetOutOfRange:
                    core.step(holds(log, is_refused=True))
                    queue += core._ask()  # as at the next tick
                else:
                    queue += core.step(holds(log))
            case f.Reset(to, last_epoch):
                done.append(effect)
                log.reset(to, last_epoch=last_epoch)
                queue += core.step(holds(log))
            case f.Commit(to):
                log.state.advance_high_watermark(to)
    return done
