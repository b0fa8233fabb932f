"""The verbs of the scripts in tests/golden/replication/following: one for each event of a follower's core.

holds end=3 durable=3 last=1 hw=2 group=3 start=0       what the log holds: unless said, as before; `refused` by
                                                        the disk; `lacks` or `has` a state file; `no-room`
room                                                    there is room again
state 5 at=0 length=10 size=30, taken lacks, taken      a piece of one; what became of it
followed 2 b incarnation=1 end=3 ...                    the leader of epoch 2 is b; the log as in `holds`
end 1 at=4 own=3 request=1 start=0 start-epoch=-1       the leader's epoch 1 ends at 4, the follower's own at 3
records 3 hw=3 start=0 rewritten=0 state=5, diverged, starts-above 9 last=1, fenced 3
                                                        superseded=5 superseded-epoch=1: as in `holds`;
                                                        below=2 compact-to=3: of tombstones; number=1: of the
                                                        fetch that is answered, else the latest
inside 3 from=1 last=1                                  3 is in a batch from 1 on, after epoch 1
compacted 3 waits=2                                     a pass has ended; mark=, waits= in `holds` too
synced 3 generation=1, sync-failed generation=1, tick 500, unreachable, unfollowed
epoch=, incarnation=                                    of an answer; unless given, those that are followed
"""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

from broker.replication import following as f
from broker.replication.events import Commit, StepOut, Sync, Synced, SyncFailed, Tick
from broker.replication.messages import Diverged, End, Fenced, Inside, Records, StartsAbove, State
from tests.unit.replication.scenario import incarnation_of, message_line, plain

SHORT = {"log_start": "start", "log_end": "end", "durable_end": "durable", "last_epoch": "last", "high_watermark": "hw"}
SHORT |= {"compacted_to": "mark", "waits_to": "waits", "group_end": "group"}
SHORT |= {"superseded_to": "superseded", "superseded_epoch": "superseded-epoch"}


def effect_line(effect: f.Effect) -> str:
    match effect:
        case f.Ask(to, message):
            return f"-> {to} {message_line(message)}"
        case f.Append(epoch, is_rewritten, to, of):
            mark = f" superseded={to} of={of}" if to else ""
            return f"append epoch={epoch}" + (" rewritten" if is_rewritten else "") + mark
        case f.TakeState(offset, at, size):
            return f"take state {offset} from byte {at} of {size}"
        case f.Truncate(to, is_copied_again):
            return f"truncate {to}" + (" and copy again" if is_copied_again else "")
        case f.Reset(to, last_epoch):
            return f"reset {to} last={last_epoch}"
        case f.StartAt(start):
            return f"start-at {start}"
        case f.Report():
            return f"report {effect.leader} epoch={effect.epoch}"
        case Commit(high_watermark):
            return f"commit {high_watermark}"
        case Sync(generation):
            return f"sync generation={generation}"
        case StepOut():
            return "step-out"


class Following:
    """A core and the verbs that drive it. `follower`: the module that has it."""

    def __init__(self, follower: ModuleType) -> None:
        self.core = follower.Follower("a")

    def run(self, verb: str, words: list[str], values: dict[str, str]) -> list[str]:
        return [effect_line(effect) for effect in self.core.step(self.event(verb, words, values))]

    def holds(self, words: list[str], values: dict[str, str]) -> f.Holds:
        log = self.core.log
        told: dict[str, Any] = {name: int(values[short]) for name, short in SHORT.items() if short in values}
        if "end" in values and "group" not in values:
            told["group_end"] = told["log_end"]
        lacks = "lacks" in words or (log.lacks_state and "has" not in words)
        full = "no-room" in words
        return replace(log, **told, is_refused="refused" in words, lacks_state=lacks, lacks_room=full)

    def event(self, verb: str, words: list[str], values: dict[str, str]) -> f.Event:
        core = self.core
        epoch = int(values.get("epoch", core.epoch))
        incarnation = incarnation_of(values["incarnation"]) if "incarnation" in values else core.incarnation
        who: dict[str, Any] = {"epoch": epoch, "incarnation": incarnation}
        start, start_epoch = int(values.get("start", 0)), int(values.get("start-epoch", -1))
        number = int(values.get("number", core.number))
        match verb:
            case "followed":
                incarnation = incarnation_of(values.get("incarnation", "1"))
                log = self.holds(words, values)
                return f.Followed(epoch=int(words[0]), leader=words[1], incarnation=incarnation, log=log)
            case "holds":
                return self.holds(words, values)
            case "end":
                message = End(
                    **who,
                    request=int(values.get("request", 1)),
                    found_epoch=int(words[0]),
                    end=int(values["at"]),
                    log_start=start,
                    start_epoch=start_epoch,
                )
                return f.Replied(message, int(values.get("own", 0)))
            case "records":
                hw = int(values.get("hw", 0))
                more = {"rewritten_to": int(values.get("rewritten", 0)), "state_offset": int(values.get("state", -1))}
                more |= {"number": number, "tombstones_below": int(values.get("below", 0))}
                more |= {"compact_to": int(values.get("compact-to", 0))}
                more |= {"superseded_to": int(values.get("superseded", 0))}
                more |= {"superseded_epoch": int(values.get("superseded-epoch", -1))}
                return f.Replied(Records(**who, offset=int(words[0]), high_watermark=hw, log_start=start, **more))
            case "state":
                at, length, size = (int(values[name]) for name in ("at", "length", "size"))
                return f.Replied(State(**who, offset=int(words[0]), at=at, length=length, size=size))
            case "inside":
                begins = {"batch_start": int(values["from"]), "start_epoch": int(values["last"])}
                return f.Replied(Inside(**who, offset=int(words[0]), number=number, **begins))
            case "room":
                return f.RoomFound()
            case "compacted":
                return f.Compacted(int(words[0]), int(values.get("waits", 0)))
            case "taken":
                return f.StateTaken("lacks" in words)
            case "diverged":
                return f.Replied(Diverged(**who))
            case "starts-above":
                return f.Replied(StartsAbove(**who, log_start=int(words[0]), start_epoch=int(values["last"])))
            case "fenced":
                return f.Replied(Fenced(epoch=int(words[0]), incarnation=incarnation))
            case "synced":
                return Synced(int(values.get("generation", core.generation)), int(words[0]))
            case "sync-failed":
                return SyncFailed(int(values.get("generation", core.generation)), "EIO")
            case "tick":
                return Tick(now_ms=int(words[0]))
            case "unreachable":
                return f.Unreachable()
            case "unfollowed":
                return f.Unfollowed()
        raise ValueError(f"no verb {verb!r}")

    def state(self) -> str:
        core, log = self.core, self.core.log
        line = (
            f"{core.phase.value} epoch={core.epoch} leader={core.leader or '-'} incarnation={plain(core.incarnation)}"
        )
        line += f" log=[{log.log_start}, {log.log_end}) last={log.last_epoch} durable={log.durable_end}"
        line += f" hw={log.high_watermark}" + (" syncing" if core.is_syncing else "")
        return line + (f" tombstones-below={core.tombstones_below}" if core.tombstones_below else "")
