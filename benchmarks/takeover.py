"""Taking over: from the epoch of a new leader to its first stored message, with four million message ids.

No broker: two logs in this process, on the disk that `--data` names. One leads and takes in messages with ids; the
other follows: it copies them as they are, and writes a checkpoint after each `CHECKPOINT_IDS`, as a broker does every
few seconds. When it begins to lead, it reads the records since the last checkpoint. `keep_up_s` is the time of all its
checkpoints together, which a broker spends on a thread beside. `lost` counts ids that it does not know, and stores.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Case, Measures, Side, Target
from broker.storage import LogIdentity, LogSettings, OsDisk, PartitionLog
from tests.support.logs import plan_bytes
from tests.support.published import batch_from_nats, with_id

BATCH_IDS = 4_000
CHECKPOINT_IDS = 200_000
NOW_US = 1 << 50
VALUE = b"v" * 100
SETTINGS = LogSettings(is_sole_replica=False, dedup_window_ms=3_600_000)


def cases(*, tiny: bool) -> Sequence[Case]:
    ids = 64_000 if tiny else 4_000_000
    return [
        Case(
            name="takeover-tiny" if tiny else "takeover-4M-ids",
            metric="takeover_s",
            unit="s",
            parameters={"ids": ids, "ids_since_checkpoint": _rest(ids), "value_bytes": 100},
            open=lambda folder: _sides(folder, ids),
            targets=(Target(of="takeover_s", most=0.5),),
        )
    ]


def _rest(ids: int) -> int:
    """The worst: a leader that dies right before the checkpoint."""
    return min(CHECKPOINT_IDS, ids // 4)


@contextmanager
def _sides(folder: Path, ids: int) -> Iterator[Mapping[str, Side]]:
    def turn() -> Measures:
        leader, follower = _log(folder / "leader"), _log(folder / "follower")
        leader.lead(1)
        follower.follow(1)
        keep_up_s = 0.0
        for first in range(0, ids, BATCH_IDS):
            _publish(leader, first, BATCH_IDS, epoch=1)
            _copy(leader, follower)
            end = first + BATCH_IDS
            if end % _rest(ids) == 0 and end < ids:
                begun_s = time.monotonic()
                follower.remembered.keep_up()
                follower.checkpoint()
                keep_up_s += time.monotonic() - begun_s
        memory = follower.remembered.memory
        assert memory is not None
        rest = follower.state.log_end_offset - memory.end
        begun_s = time.monotonic()
        follower.lead(2)
        _publish(follower, ids, 1, epoch=2)
        took_s, end = time.monotonic() - begun_s, follower.state.log_end_offset
        again = sum(_publish(follower, first, 1, epoch=2) for first in (0, ids // 2, ids - 1, ids))
        assert end == ids + 1
        for log in (leader, follower):
            log.close(clean=False)
        shutil.rmtree(folder)
        return {"takeover_s": took_s, "keep_up_s": keep_up_s, "ids_read": rest, "lost": again}

    yield {"liftlog": turn}


def _log(folder: Path) -> PartitionLog:
    identity = LogIdentity(cluster_id="c", stream="s", incarnation="i", partition=0)
    return PartitionLog.create(OsDisk(), str(folder), identity, SETTINGS, now_us=0)


def _publish(log: PartitionLog, first: int, count: int, *, epoch: int) -> int:
    """Messages `first` and so on, each with its id. Returns how many were stored."""
    messages = [(VALUE, with_id(f"{number:010d}")) for number in range(first, first + count)]
    result = log.append([batch_from_nats(messages, NOW_US)], leader_epoch=epoch, now_us=NOW_US)
    return result.next_offset - result.first_offset


def _copy(leader: PartitionLog, follower: PartitionLog) -> None:
    with leader.reader.read(follower.state.log_end_offset, stored=True, max_bytes=1 << 30) as plan:
        follower.append_stored(plan_bytes(plan), leader_epoch=1, now_us=NOW_US)
