"""The verbs of the scripts in tests/golden/replication: one for each event of the core.

led epoch=1 replicas=a,b,c isr=a,b,c pe=1 end=0 durable=0 hw=0 groups=    the leader is `a`
appended 0 2 x=all y=leader groups=1,2     tickets x and y; without groups: one group; groups=-: a repeat
synced 2 generation=1                      without a generation: of the present one
sync-failed EIO, recovered durable=2 end=2
follower b 2 end=3 epoch=1 incarnation=1 last=1 before=1 start=0 from=0    a fetch: 2 is durable, 3 its log end
                                           `lacks` a state file; state=5 is one that it may have, rewritten=4 in Records
                                           `no-room`: its disk has none for records
                                           mark=2 waits=2: of compaction; own=2 own-waits=2: this log's; number=7: of
                                           the fetch, else the next; within=1/0: in a batch from 1 on, after epoch 0
follower-asks-state b 5 at=0 length=10 size=30
follower-asks b last=1 found=1 end=3       where does epoch 1 end?
trim 2 x, starts 2                         a trim is asked for; the leader's checkpoint says so
isr a,b pe=2 request=1 epoch=1 min=2
altered min=2 fsync=interval interval=1000
tick 500, deposed, closed
"""

from __future__ import annotations

from types import ModuleType

import broker.replication.events as events
from broker.replication.events import Acks, AskIsr, Effect
from broker.replication.messages import (
    AskEnd,
    AskRange,
    AskState,
    Diverged,
    End,
    Fenced,
    Fetch,
    Incarnation,
    Inside,
    Message,
    Records,
    StartsAbove,
    State,
)


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name not in ("", "-"))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, names(text)))


def incarnation_of(text: str) -> Incarnation:
    broker, _, steps = text.partition(".")
    return int(broker), int(steps or 0)


def plain(incarnation: Incarnation) -> str:
    return ".".join(map(str, incarnation)) if incarnation[1] else str(incarnation[0])


def message_line(message: Message) -> str:
    match message:
        case Records():
            start = f" start={message.log_start}" if message.log_start else ""
            more = f" rewritten={message.rewritten_to}" if message.rewritten_to else ""
            more += f" state={message.state_offset}" if message.state_offset >= 0 else ""
            more += f" tombstones-below={message.tombstones_below}" if message.tombstones_below else ""
            more += f" compact-to={message.compact_to}" if message.compact_to else ""
            return f"records {message.offset} hw={message.high_watermark}{start}{more}"
        case Inside():
            begins = f"{message.batch_start} on, after epoch {message.start_epoch}"
            return f"{message.offset} is within a batch from {begins}"
        case State():
            return f"state {message.offset} bytes {message.at} + {message.length} of {message.size}"
        case End():
            start = f" start={message.log_start}/{message.start_epoch}" if message.log_start else ""
            return f"epoch {message.found_epoch} ends at {message.end}{start}"
        case Diverged():
            return "diverged"
        case StartsAbove():
            return f"starts at {message.log_start} after epoch {message.start_epoch}"
        case Fenced():
            return f"fenced by epoch {message.epoch}"
        case Fetch():
            start = f" start={message.log_start}" if message.log_start else ""
            more = " lacks state" if message.lacks_state else ""
            more += f" mark={message.compacted_to}" if message.compacted_to else ""
            more += f" waits={message.waits_to}" if message.waits_to else ""
            more += " no room" if message.lacks_room else ""
            return f"fetch {message.offset} last={message.last_epoch} durable={message.durable_end}{start}{more}"
        case AskState():
            return f"ask state {message.offset} from byte {message.at}"
        case AskEnd():
            return f"ask end of {message.last_epoch} request={message.request}"


def effect_line(effect: Effect) -> str:
    match effect:
        case events.Send(to, message):
            return f"{to} <- {message_line(message)}"
        case events.Trim(start):
            return f"trim {start}"
        case events.Sync(generation):
            return f"sync generation={generation}"
        case events.Commit(high_watermark):
            return f"commit {high_watermark}"
        case events.Wake():
            return "wake"
        case events.Answer(ticket, outcome, error):
            return f"answer {ticket} {outcome.name.lower()}" + (f" {error}" if error else "")
        case AskIsr():
            who = (
                f"add={effect.add} incarnation={plain(effect.incarnation)}" if effect.add else f"remove={effect.remove}"
            )
            return f"ask-isr {who} request={effect.request} epoch={effect.epoch} pe={effect.partition_epoch}"
        case events.StepOut():
            return "step-out"


class Scenario:
    """A core and the verbs that drive it. `leader`: the module that has it."""

    def __init__(self, leader: ModuleType) -> None:
        self.core = leader.Leader("a", replica_lag_ms_max=1000)
        self.number = 0

    def run(self, verb: str, words: list[str], values: dict[str, str]) -> list[str]:
        return [effect_line(effect) for effect in self.core.step(self.event(verb, words, values))]

    def event(self, verb: str, words: list[str], values: dict[str, str]) -> events.Event:
        core = self.core
        generation = int(values.get("generation", core.generation))
        match verb:
            case "led":
                end = int(values.get("end", 0))
                replicas = names(values.get("replicas", "a"))
                return events.Led(
                    epoch=int(values["epoch"]),
                    replicas=replicas,
                    isr=names(values["isr"]) if "isr" in values else replicas,
                    partition_epoch=int(values.get("pe", 1)),
                    high_watermark=int(values.get("hw", end)),
                    durable_end=int(values.get("durable", end)),
                    log_end=end,
                    group_ends=numbers(values.get("groups", "")),
                    log_start=int(values.get("start", 0)),
                    min_insync_replicas=int(values["min"]) if "min" in values else None,
                )
            case "appended":
                first, end = int(words[0]), int(words[1])
                groups = numbers(values.pop("groups", str(end)))
                durable_end = int(values.pop("durable", -1))
                awaited = tuple((ticket, Acks[acks.upper()]) for ticket, acks in values.items())
                return events.Appended(first, end, groups, awaited, durable_end)
            case "synced":
                return events.Synced(generation, int(words[0]))
            case "sync-failed":
                return events.SyncFailed(generation, words[0])
            case "recovered":
                return events.Recovered(durable_end=int(values["durable"]), log_end=int(values["end"]))
            case "follower":
                durable_end = int(words[1])
                last = int(values.get("last", core.epoch))
                self.number += 1
                within, _, before_it = values.get("within", "-1/-1").partition("/")
                return events.FetchArrived(
                    fetch=Fetch(
                        follower=words[0],
                        incarnation=incarnation_of(values.get("incarnation", "1")),
                        epoch=int(values.get("epoch", core.epoch)),
                        offset=int(values.get("end", durable_end)),
                        last_epoch=last,
                        durable_end=durable_end,
                        log_start=int(values.get("start", 0)),
                        lacks_state="lacks" in words,
                        number=int(values.get("number", self.number)),
                        compacted_to=int(values.get("mark", 0)),
                        waits_to=int(values.get("waits", 0)),
                        lacks_room="no-room" in words,
                    ),
                    batch_start=int(within),
                    batch_epoch=int(before_it),
                    compacted_to=int(values.get("own", 0)),
                    waits_to=int(values.get("own-waits", 0)),
                    rewritten_to=int(values.get("rewritten", 0)),
                    state_offset=int(values.get("state", -1)),
                    epoch_before=int(values.get("before", last)),
                    log_start=int(values.get("from", 0)),
                    start_epoch=int(values.get("start-epoch", -1)),
                )
            case "follower-asks-state":
                return events.StateAsked(
                    ask=AskState(
                        follower=words[0],
                        incarnation=incarnation_of(values.get("incarnation", "1")),
                        epoch=int(values.get("epoch", core.epoch)),
                        offset=int(words[1]),
                        at=int(values.get("at", 0)),
                    ),
                    length=int(values.get("length", 0)),
                    size=int(values.get("size", 0)),
                )
            case "follower-asks-range":
                return events.RangeAsked(
                    AskRange(
                        follower=words[0],
                        incarnation=incarnation_of(values.get("incarnation", "1")),
                        epoch=int(values.get("epoch", core.epoch)),
                        request=1,
                        start=int(values["mark"]),
                        end=int(values["mark"]) + 1,
                        compacted_to=int(values["mark"]),
                        takes_aside=False,
                        number=int(values.get("number", 0)),
                    )
                )
            case "follower-asks":
                return events.EndAsked(
                    ask=AskEnd(
                        follower=words[0],
                        incarnation=incarnation_of(values.get("incarnation", "1")),
                        epoch=int(values.get("epoch", core.epoch)),
                        request=int(values.get("request", 1)),
                        last_epoch=int(values["last"]),
                    ),
                    found_epoch=int(values["found"]),
                    end=int(values["end"]),
                    log_start=int(values.get("from", 0)),
                    start_epoch=int(values.get("start-epoch", -1)),
                )
            case "trim":
                return events.TrimAsked(int(words[0]), words[1])
            case "trim-refused":
                return events.TrimRefused(" ".join(words))
            case "starts":
                return events.StartMoved(int(words[0]))
            case "isr":
                request = values.get("request")
                return events.IsrAnswered(
                    epoch=int(values.get("epoch", core.epoch)),
                    partition_epoch=int(values["pe"]),
                    isr=names(words[0]),
                    request=None if request is None else int(request),
                    min_insync_replicas=int(values["min"]) if "min" in values else None,
                )
            case "altered":
                return events.Altered(
                    min_insync_replicas=int(values.get("min", core.min_insync_replicas)),
                    fsync_each_batch=values.get("fsync", "batch") == "batch",
                    fsync_interval_ms=int(values.get("interval", 1000)),
                )
            case "tick":
                return events.Tick(now_ms=int(words[0]))
            case "deposed":
                return events.Deposed()
            case "closed":
                return events.Closed()
        raise ValueError(f"no verb {verb!r}")

    def state(self) -> str:
        core = self.core
        line = (
            f"{core.role.value} epoch={core.epoch} hw={core.high_watermark} durable={core.durable_end}"
            f" end={core.log_end} waiting={core.waiting_count}"
        )
        if core.in_sync is not None:
            pending = core.in_sync.pending
            line += f" isr={','.join(core.in_sync.members)} pe={core.in_sync.partition_epoch}"
            line += f" counting={','.join(core.in_sync.counting()) or '-'}" + (" asked" if pending else "")
        return (
            line
            + (" syncing" if core.is_syncing else "")
            + ("" if core.may_tell_end(core.high_watermark) else " end-unknown")
        )
