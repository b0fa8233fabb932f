"""The catalog's entries for one stream, one broker and a rescue: values, as JSON and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, get_type_hints

from broker.api.errors import StaleIncarnation, UnknownPartition
from broker.api.stream import StreamSettings, settings_from
from broker.metadata.partition import Place
from broker.metadata.session import SESSION_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """One live stream.

    Attributes:
        settings: As asked for.
        reply_acks_effective: Whether it sends acks (`catalog.M3`); may be off though asked for.
        warnings: Advice for its creator, one sentence each.
        paused: Captures nothing and takes no appends until it is resumed; reads go on.
        read_only: Answers every record with an error; reads go on.
        partitions_next: So many there will be once every leader has confirmed it (`growth.G1`); 0: as `settings` say.
        fences: (partition, number of its newest fence), of those that have one (`catalog.M12`). Nothing is captured or
            served in another way by it, so a stream that differs in this alone is equal.
    """

    name: str
    incarnation: str
    created_us: int
    settings: StreamSettings
    internal: bool = False
    reply_acks_effective: bool = True
    warnings: tuple[str, ...] = ()
    paused: bool = False
    read_only: bool = False
    partitions_next: int = 0
    fences: tuple[tuple[int, int], ...] = field(default=(), compare=False)

    def fence_of(self, partition: int) -> int:
        """The number of its newest fence; 0: it never had one."""
        return next((number for at, number in self.fences if at == partition), 0)

    def fenced_since(self, before: StreamInfo) -> set[int]:
        """The partitions that have another fence than they had."""
        return {partition for partition, _ in {*self.fences} ^ {*before.fences}}

    def check_partition(self, partition: int) -> None:
        """Raise UnknownPartition unless it has this one."""
        count = self.settings.partitions
        if not 0 <= partition < count:
            raise UnknownPartition(f"stream {self.name!r} has {count} partitions", partitions=count)

    def check_incarnation(self, asked: str) -> None:
        """Raise StaleIncarnation unless this is the stream that was asked for."""
        if asked != self.incarnation:
            raise StaleIncarnation(
                f"stream {self.name!r} has incarnation {self.incarnation}, not {asked}: it was deleted and re-created",
                stream=self.name,
                incarnation=self.incarnation,
                asked=asked,
            )

    def as_dict(self) -> dict[str, Any]:
        """As JSON values; `info_from` reads it back."""
        return {
            "name": self.name,
            "incarnation": self.incarnation,
            "created_us": self.created_us,
            "settings": self.settings.as_stored(),
            "internal": self.internal,
            "reply_acks_effective": self.reply_acks_effective,
            "warnings": list(self.warnings),
            "paused": self.paused,
            "read_only": self.read_only,
            **({"partitions_next": self.partitions_next} if self.partitions_next else {}),
            **({"fences": [list(each) for each in self.fences]} if self.fences else {}),
        }


def info_from(value: Mapping[str, Any]) -> StreamInfo:
    """Read what `StreamInfo.as_dict` wrote. Raises TypeError, ValueError: its fences are none."""
    fences = tuple((partition, number) for partition, number in value.get("fences", ()))
    if any(type(each) is not int for pair in fences for each in pair):
        raise TypeError("fences of a stream are no numbers")
    return StreamInfo(
        **{
            **value,
            "settings": settings_from(value["settings"]),
            "warnings": tuple(value["warnings"]),
            "fences": fences,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerInfo:
    """One registered broker.

    Attributes:
        incarnation: The name that its process gave itself, by which it finds out that a registration is its own.
        registration: The number of its present registration, and the leader epoch of what it led by that.
        rack: Empty: none.
        raft: Its id in the Raft group, which is its folder's: another one if the folder was lost. Empty: it has none.
        is_live: It has a session. `is_stopping`: it is about to end it. `has_left`: it has ended it itself, for good.
        auth_mode: What it does with callers (`principals.MODES`), as it says. Empty: it has not said it yet.
        renewal: So often its session was renewed. `session_ms`: how long it is by that renewal (`session.S5`).
    """

    broker_id: str
    incarnation: str
    http: str
    grpc: str
    registration: int
    rack: str = ""
    feature_level_max: int = 1
    is_live: bool = True
    is_stopping: bool = False
    renewal: int = 0
    raft: str = ""
    has_left: bool = False
    session_ms: int = SESSION_MS
    auth_mode: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON values: the fields. Those that came later stand there only if they say something."""
        return {k: v for k in _OF_BROKER if (v := getattr(self, k)) != _UNSAID.get(k)}


def broker_from(value: Mapping[str, Any]) -> BrokerInfo:
    """Read what `BrokerInfo.as_dict` wrote. Raises TypeError: a field is not of its kind."""
    info = BrokerInfo(**value)
    for name, kind in _KINDS.items():
        if type(getattr(info, name)) is not kind:
            raise TypeError(f"{name} of a broker is no {kind.__name__}")
    return info


_KINDS = get_type_hints(BrokerInfo)
_OF_BROKER = tuple(each.name for each in fields(BrokerInfo))
_UNSAID = {"raft": "", "has_left": False, "session_ms": SESSION_MS, "auth_mode": ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescue:
    """A rescue that is under way (`rescue.py`). Its tables are replaced, never changed.

    Attributes:
        number: Its commands name it by this.
        places: The partitions that there were at its beginning.
        logs: By broker, what it has reported: partition -> (greatest epoch, log end).
        excused: Replicas that the operator has given up, as (broker, *place); of a whole broker the place is ("", 0).
    """

    number: int
    places: tuple[Place, ...]
    logs: Mapping[str, Mapping[Place, tuple[int, int]]]
    excused: frozenset[tuple[str, str, int]] = frozenset()

    def is_excused(self, broker: str, at: Place = ("", 0)) -> bool:
        """Whether this replica, or all that the broker may have, is given up."""
        return not self.excused.isdisjoint({(broker, *at), (broker, "", 0)})

    def without(self, broker: str) -> Rescue:
        """A broker has to report anew."""
        return replace(self, logs={each: logs for each, logs in self.logs.items() if each != broker})

    def as_dict(self) -> dict[str, Any]:
        """As JSON values; `rescue_from` reads it back."""
        return {
            "number": self.number,
            "places": [[*at] for at in self.places],
            "logs": [[b, [[*at, *end] for at, end in sorted(self.logs[b].items())]] for b in sorted(self.logs)],
            "excused": sorted(map(list, self.excused)),
        }


def rescue_from(value: Mapping[str, Any]) -> Rescue:
    """Read what `Rescue.as_dict` wrote."""
    return Rescue(
        number=value["number"],
        places=tuple((stream, number) for stream, number in value["places"]),
        logs={broker: {(s, n): (epoch, end) for s, n, epoch, end in logs} for broker, logs in value["logs"]},
        excused=frozenset((broker, stream, number) for broker, stream, number in value["excused"]),
    )


def differing(left: StreamSettings, right: StreamSettings) -> dict[str, tuple[Any, Any]]:
    """The settings that differ: key -> (left, right)."""
    a, b = left.as_dict(), right.as_dict()
    return {key: (a[key], b[key]) for key in a if a[key] != b[key]}


_ACKS_OFF: Final = re.compile(r"acks are off: stream '([^']+)' on ")


def acks_off(name: str, subject: str | None) -> str:
    """Why a stream sends no acks: another one does. Catalogs keep the sentence, so all releases say the same."""
    return f"acks are off: stream {name!r} on {subject!r} answers the same subjects"


def answered_by(warning: str) -> str | None:
    """The other stream that such a sentence names; None: it is another sentence."""
    found = _ACKS_OFF.match(warning)
    return None if found is None else found[1]


def growth_of(info: StreamInfo) -> list[str]:
    """A sentence on partitions that are being added, if there are some."""
    if not info.partitions_next:
        return []
    present = info.settings.partitions
    return [
        f"{info.partitions_next} partitions are being made; until each leader has confirmed that, there are {present}"
    ]


def advice_on(settings: StreamSettings) -> list[str]:
    """Advice on its settings for the creator of a stream, one sentence each."""
    advice = []
    if settings.group is not None:
        advice.append(
            f"streams of group {settings.group!r} share messages at random: ids deduplicate only within one of them"
        )
    if settings.partitions > 1 and settings.partition_by != "subject_suffix":
        advice.append(f"partition_by={settings.partition_by}: every partition leader receives the whole subject")
    if settings.cleanup == "compact":
        advice.append(
            "cleanup=compact: records without a key (header Liftlog-Key, or the column key) are kept for ever, and"
            " retention_ms, retention_bytes and retention_records do nothing; cleanup=both applies them too"
        )
    return advice
