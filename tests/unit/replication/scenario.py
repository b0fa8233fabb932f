"""The verbs of the scripts in tests/golden/replication: one for each event of the core.

led epoch=1 replicas=a,b,c isr=a,b,c pe=1 end=0 durable=0 hw=0 groups=    the leader is `a`
appended 0 2 x=all y=leader groups=1,2     tickets x and y; without groups: one group; groups=-: a repeat
synced 2 generation=1                      without a generation: of the present one
sync-failed EIO, recovered durable=2 end=2
follower b 2 epoch=1 incarnation=1
isr a,b pe=2 request=1 epoch=1
altered min=2 fsync=interval interval=1000
tick 500, deposed, closed
"""

from __future__ import annotations

from types import ModuleType

import broker.replication.events as events
from broker.replication.events import Acks, AskIsr, Effect


def names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name not in ("", "-"))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, names(text)))


def effect_line(effect: Effect) -> str:
    match effect:
        case events.Sync(generation):
            return f"sync generation={generation}"
        case events.Commit(high_watermark):
            return f"commit {high_watermark}"
        case events.Wake():
            return "wake"
        case events.Answer(ticket, outcome, error):
            return f"answer {ticket} {outcome.name.lower()}" + (f" {error}" if error else "")
        case AskIsr():
            who = f"add={effect.add} incarnation={effect.incarnation}" if effect.add else f"remove={effect.remove}"
            return f"ask-isr {who} request={effect.request} epoch={effect.epoch} pe={effect.partition_epoch}"
        case events.StepOut():
            return "step-out"


class Scenario:
    """A core and the verbs that drive it. `leader`: the module that has it."""

    def __init__(self, leader: ModuleType) -> None:
        self.core = leader.Leader("a", replica_lag_ms_max=1000)

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
                return events.FollowerAt(
                    broker=words[0],
                    incarnation=int(values.get("incarnation", 1)),
                    epoch=int(values.get("epoch", core.epoch)),
                    durable_end=int(words[1]),
                )
            case "isr":
                request = values.get("request")
                return events.IsrAnswered(
                    epoch=int(values.get("epoch", core.epoch)),
                    partition_epoch=int(values["pe"]),
                    isr=names(words[0]),
                    request=None if request is None else int(request),
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
        return line + (" syncing" if core.is_syncing else "") + ("" if core.knows_end else " end-unknown")
