"""The catalog: which streams exist, with which settings, and who keeps and leads their partitions.

A deterministic state machine. `apply` takes one command, a JSON object, and returns a JSON result;
it never raises and reads no clock and no random source: ids and times are in the command. The same
commands in the same order give the same catalog on every broker, so it can be replicated as is.

A command is judged before it is written to a journal: one that would be refused is not written. `apply`
judges it again, so a journal that holds a refused one all the same gives everybody the same catalog.

Commands (`"v": 1`, `"kind"`, `"request_id"`, and; those of `broker_commands.py`, `partition_commands.py`, `rescue.py`):
    create_stream    name, incarnation, created_us, settings, internal
                     replication_factor, min_insync_replicas  (optional) its partitions are placed on so many brokers
                     beside (optional)                        of its queue group there may be these, and no others
    alter_stream     name, settings
    set_state        name, paused and/or read_only
    raise_fence      name, incarnation, partition, after      the number of the fence that this one replaces
                     above (optional)                         M12 in full: journals of before do not say it
    add_partitions   name, partitions                         the new count; of a placed stream once it is confirmed:
    confirm_partitions  name, incarnation, partitions, broker_id, registration, leaders [[partition, leader epoch]],
                     as_of, is_stopped (optional), gives_up (optional)      (`growth.py`)
    raise_replication   name, replication_factor, min_insync_replicas (optional)
    delete_stream    name, incarnation (optional)             with the stream of its stages (M9)
    forget_deleted   incarnations                             of deleted streams whose folders are gone
    register_producer  name, at_ms, forget_before_ms, tag (all optional)   an idempotent producer begins: id and epoch
    note_producers   names, at_ms                             they are used
    forget_producer  name
    put_token, drop_token, put_grants, require_auth           who may do what (`access.py`)
    join_group, release_partitions, end_members, fence_group  consumer groups (`group_commands.py`)
    forget_activity  through                                  events up to this id stand in `__activity`

Results: {"ok": ...} or {"error": problem}.

Invariants
M1  A name has at most one live incarnation; a re-created stream gets another.
M2  Leader epochs only grow: each registration of a broker takes the next one, and all partitions that
    it leads by it have it. (So a broker's start is one command, not one per partition.) It is above any epoch in the
    broker's logs, also where the catalog is an older one than they, restored from a backup. A stream without a
    replication factor is not placed: it belongs to the one broker that there is, and its epoch is the registration.
M3  At most one of the streams whose subjects overlap sends acks, or a publisher would read the answer
    of whichever is first; members of one queue group share messages and may all send them.
M4  A command with a request id that was applied already returns the first result, also after a restore. (One that
    was refused was not applied: it is judged again.)
M5  Producer ids are never given out twice, and a name fences its former epochs (`producers.py`).
M6  A deleted incarnation is remembered, also in snapshots, until its folders are known to be gone, on every broker.
M7  A command takes effect as a whole or is refused, and then changes nothing. `judge` says beforehand which.
M8  A command has effect only where the cluster has its feature level, and that of the settings it names, at its place
    in the journal: every broker knows it there, and a journal that holds one from before gives everybody the same
    catalog, after an upgrade too. A broker that is alone, without a Raft group, need not ask others about settings,
    tokens, grants, fences and consumer groups.
M9  The stream of a stream's stages goes with it, in the same command: stages without a stream are for nobody.
M10  A command whose fields do not have their shapes (`shapes.py`) has no effect, wherever it comes from.
M11  `check` refuses what `judge` refuses, for the same reason.
M12  The fences of a partition have growing numbers: each is given out once, to who knew the one before. They are above
    all that streams which are gone had, so a number of a stream is none of one that is made anew under its name.
M13  Consumer groups go by the streams and partitions that there are: the command that changes these fits them.
M14  Whether envelopes are opened is one thing for all messages of a stream in which that decides partitions. For a
    command comes to one broker after the other.
M15  While there is `__activity`, what changes streams, or members of groups, leaves an event (`activity.py`).

Design: docs/explain/architecture.md, docs/explain/metadata.md.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from broker.api.errors import (
    ExpectationFailed,
    InvalidRequest,
    InvalidSetting,
    LiftlogError,
    NotReady,
    StreamExists,
    UnknownPartition,
    UnknownStream,
)
from broker.api.stream import (
    ACTIVITY_STREAM,
    STAGES_PREFIX,
    UNALTERABLE,
    StreamSettings,
    check_name,
    settings_from,
    stages_of,
)
from broker.api.stream import SINCE as SETTINGS_SINCE
from broker.metadata import access, broker_commands, fields, group_commands, growth, partition_commands, rescue, shapes
from broker.metadata import activity as events
from broker.metadata.access import Access
from broker.metadata.activity import Activity
from broker.metadata.cluster import ACTIVE, ADDED_TO_GROUPS, FENCES_ABOVE, Cluster, Touched
from broker.metadata.group_commands import EPOCH_BITS, Counts
from broker.metadata.groups import ConsumerGroup, Groups
from broker.metadata.info import BrokerInfo, StreamInfo, acks_off, advice_on, differing, growth_of, info_from
from broker.metadata.overlap import SubjectTree, subjects_of
from broker.metadata.producers import NamedProducer, Producers

__all__ = ["COMMAND_VERSION", "BrokerInfo", "Catalog", "StreamInfo", "differing", "info_from"]

COMMAND_VERSION: Final = 1
SNAPSHOT_VERSION: Final = 2
REQUESTS_REMEMBERED: Final = 1024
MODES_SINCE: Final = 6
"""The feature level at which brokers say their `auth.mode` (M8)."""
SINCE: Final[dict[str, int]] = {
    "alter_isrs": 2,
    **dict.fromkeys(access.KINDS, 5),
    **dict.fromkeys(("require_auth", "tell_auth_mode"), MODES_SINCE),
    "raise_fence": 10,
    **dict.fromkeys(group_commands.KINDS, 11),
    "forget_activity": ACTIVE,
}
"""Commands by the feature level that they came with; those that are not here have the first (M8)."""
BESIDE_SINCE: Final = 6
"""The feature level from which on `beside` in `create_stream` has effect (M8)."""
TAG_SINCE: Final = 5
"""The feature level of `tag` in `register_producer` (M8)."""
_OF_USERS: Final = frozenset(
    {"put_token", "drop_token", "put_grants", "require_auth", "raise_fence", *group_commands.KINDS}
)
"""Commands of people, who ask a cluster that has just begun. What brokers ask by themselves they ask at their level."""
_OF_ONE: Final = frozenset({*access.KINDS, *group_commands.KINDS, "raise_fence", "forget_activity"})
"""Commands that a broker which is alone asks nobody about."""
_CLUSTER_KINDS: Final = {**broker_commands.KINDS, **partition_commands.KINDS, **rescue.KINDS}
_CHECKS: Final = {**broker_commands.CHECKS, **partition_commands.CHECKS}
_MOVED: Final = (
    "from {before} to {after} partitions: a key that was in one partition may be in another from now on, so its order"
    " across the change is not kept"
)


@dataclass(slots=True)
class Catalog:
    """The state. Read it freely; only `apply` and `restore` change it."""

    streams: dict[str, StreamInfo] = field(default_factory=dict)
    cluster: Cluster = field(default_factory=Cluster)
    producer_names: Producers = field(default_factory=Producers)
    access: Access = field(default_factory=Access)
    groups: Groups = field(default_factory=Groups)
    activity: Activity = field(default_factory=Activity)
    deleted: dict[str, str] = field(default_factory=dict)  # incarnation -> name of the stream (M6)
    fence_floor: int = 0  # the highest fence of streams that are gone (M12)
    _requests: OrderedDict[str, dict[str, Any]] = field(default_factory=OrderedDict)
    _subjects: SubjectTree = field(default_factory=SubjectTree)  # of the streams that send acks (M3)
    _is_trial: bool = False  # `_subjects` is another catalog's

    def __post_init__(self) -> None:
        if not self._is_trial:
            for info in self.streams.values():
                self._note_subjects(None, info)

    @property
    def brokers(self) -> dict[str, BrokerInfo]:
        """The registered brokers."""
        return self.cluster.brokers

    @property
    def epoch_last(self) -> int:
        """The last number that was given to a registration or a leader epoch."""
        return self.cluster.epoch_last

    def apply(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Apply one command and return its result. Never raises."""
        known = self.answered(command)
        if known is not None:
            return known
        try:
            result = {"ok": self._judged(command)}
        except LiftlogError as error:
            return {"error": error.to_problem()}
        if request_id := _request_id(command):
            self._requests[request_id] = result
            while len(self._requests) > REQUESTS_REMEMBERED:
                self._requests.popitem(last=False)
        return result

    def take_touched(self) -> Touched:
        """What was changed since the last call."""
        touched, self.cluster.touched = self.cluster.touched, Touched()
        return touched

    def answered(self, command: Mapping[str, Any]) -> dict[str, Any] | None:
        """The result of a command that was applied under the same request id (M4); None: it is new."""
        return self._requests.get(_request_id(command))

    def judge(self, command: Mapping[str, Any]) -> Any:
        """Foretell the answer of `apply` to a command that is new. Changes nothing; costs a copy of a few tables, and
        what the command costs.

        Raises:
            LiftlogError: `apply` would answer this error.
        """
        trial = Catalog(
            streams=dict(self.streams),
            cluster=self.cluster.copy(),
            producer_names=self.producer_names.copy() if _is_of_producers(command) else self.producer_names,
            access=self.access.copy(),
            groups=self.groups.copy(),
            activity=self.activity,
            deleted=dict(self.deleted),
            fence_floor=self.fence_floor,
            _subjects=self._subjects,
            _is_trial=True,
        )
        return trial._judged(command)

    def check(self, command: Mapping[str, Any]) -> None:
        """As `judge`, for one who needs no answer. What may end a broker's leaderships is looked at, and not carried
        out: that is done for all of its partitions, and several of one meaning may come at once (M11).

        Raises:
            LiftlogError: `apply` would answer this error.
        """
        check = _CHECKS.get(str(command.get("kind")))
        if check is None:
            self.judge(command)
            return
        try:
            check(self.cluster, self._known(command)[1])
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(f"malformed command: {error!r}") from error

    def _judged(self, command: Mapping[str, Any]) -> Any:
        try:
            return self._dispatch(command)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InvalidRequest(f"malformed command: {error!r}") from error

    def _known(self, command: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
        """Its kind, and its fields in their shapes."""
        fields.check_depth(command)  # first: an error shows what it refuses
        if command.get("v") != COMMAND_VERSION:
            raise InvalidRequest(f"command version {command.get('v')!r:.100}, this release knows {COMMAND_VERSION}")
        kind = fields.text(command, "kind")
        command = shapes.checked(command, kind)
        needs_others = kind not in _OF_ONE or not self.cluster.is_alone
        if (level := SINCE.get(kind, 0)) > self.cluster.feature_level and needs_others:
            why = f"{kind} needs feature level {level}, the cluster has {self.cluster.feature_level}"
            if kind in _OF_USERS:
                raise NotReady(f"{why}; it rises a moment after the last broker of an earlier release is gone")
            raise InvalidRequest(why)
        self._check_settings(command.get("settings", ()))
        rescue.check_kind(self.cluster, kind)
        return kind, command

    def _check_settings(self, keys: Iterable[str]) -> None:
        """M8."""
        for key in keys:
            if SETTINGS_SINCE.get(key, 0) > self.cluster.feature_level and not self.cluster.is_alone:
                raise NotReady(
                    f"{key} needs feature level {SETTINGS_SINCE[key]}, the cluster has {self.cluster.feature_level}; it"
                    " rises a moment after the last broker of an earlier release is gone",
                    key=key,
                )

    def _dispatch(self, command: Mapping[str, Any]) -> Any:
        kind, command = self._known(command)
        self.groups.floor = self.cluster.epoch_last << EPOCH_BITS
        match kind:
            case kind if kind in _CLUSTER_KINDS:
                if kind == "reassign":
                    self._check_target(command)
                known = self.cluster.epoch_last
                result = _CLUSTER_KINDS[kind](self.cluster, command)
                if kind == "begin_rescue" or command.get("epoch_seen", -1) > known:  # it has lost commands
                    self.groups.floor = self.cluster.epoch_last << EPOCH_BITS
                    before = self.groups.named
                    self.groups.end_all()
                    self._note_members(before, before, expired=True)
                for incarnation in result.get("forgotten", ()):
                    self.deleted.pop(incarnation, None)
                return result
            case "create_stream":
                return self._create(command)
            case "alter_stream":
                return self._alter(command)
            case "set_state":
                return self._set_state(command)
            case "raise_fence":
                return self._raise_fence(command)
            case "add_partitions":
                return self._add_partitions(command)
            case "confirm_partitions":
                return self._confirm_partitions(command)
            case "raise_replication":
                return self._raise_replication(command)
            case "delete_stream":
                return self._delete(command)
            case "forget_deleted":
                return self._forget_deleted(command)
            case "register_producer":
                return self._register_producer(command)
            case "note_producers":
                return self._note_producers(command)
            case "forget_producer":
                return self._forget_producer(command)
            case kind if kind in access.KINDS:
                if kind == "require_auth" and command["required"]:
                    self.cluster.check_enforcing()
                return access.KINDS[kind](self.access, command)
            case kind if kind in group_commands.KINDS:
                before = self.groups.named
                result = group_commands.apply(self.groups, self.streams, command, kind)
                self._note_members(before, (command["name"],), expired=bool(command.get("expired", False)))
                return result
            case "forget_activity":
                self.activity = self.activity.forgotten(command["through"])
                return {}
            case kind:
                raise AssertionError(f"{kind} has shapes and is no command")

    def _create(self, command: Mapping[str, Any]) -> dict[str, Any]:
        name, internal = command["name"], bool(command.get("internal", False))
        check_name(name, internal=internal)
        settings = settings_from(command["settings"])
        if existing := self.streams.get(name):
            if differences := differing(existing.settings, settings):
                raise StreamExists(
                    f"stream {name!r} exists with other settings: "
                    + ", ".join(f"{k} is {a!r}, asked for {b!r}" for k, (a, b) in differences.items()),
                    stream=name,
                    differences={k: list(pair) for k, pair in differences.items()},
                )
            return {"stream": existing.as_dict(), "created": False}
        if "beside" in command:
            self._check_beside(settings, command["beside"])
        effective, warnings = self._acks(name, settings)
        incarnation, factor = fields.text(command, "incarnation"), fields.whole(command, "replication_factor", 0)
        if incarnation in self.deleted:
            raise InvalidRequest(f"incarnation {incarnation} of a stream is being deleted", incarnation=incarnation)
        info = StreamInfo(
            name=name,
            incarnation=incarnation,
            created_us=fields.whole(command, "created_us"),
            settings=settings,
            internal=internal,
            reply_acks_effective=effective,
            warnings=tuple(warnings + advice_on(settings)),
        )
        if factor:
            least = fields.whole(command, "min_insync_replicas", 2 if factor >= 3 else 1, least=1)
            if least > factor:
                raise InvalidSetting(f"min_insync_replicas={least}: only {factor} replicas", key="min_insync_replicas")
            _check_fsync(settings, factor)
            places = self.cluster.place_replicas(settings.partitions, factor)
            self.cluster.add_stream(incarnation, places, first=0, min_insync=least)
        self._set(info)
        self._fit(name)
        if not internal:
            self._note(events.CREATE_STREAM, name=name, partitions=settings.partitions)
        return {"stream": info.as_dict(), "created": True}

    def _check_beside(self, settings: StreamSettings, known: Iterable[str]) -> None:
        """Whoever creates a stream was judged by the streams of its group that were known then. Raises NotReady: there
        are others by now, so it has to be judged again."""
        if settings.group is None or not self.cluster.knows(BESIDE_SINCE):
            return
        names = {*known}
        others = (info for name, info in self.streams.items() if name not in names)
        if any(info.settings.group == settings.group and not info.internal for info in others):
            raise NotReady("its group has another stream by now: ask again", key="group")

    def _alter(self, command: Mapping[str, Any]) -> dict[str, Any]:
        existing = self._live(command["name"])
        settings = settings_from(command["settings"], base=existing.settings)
        for key, (old, new) in differing(existing.settings, settings).items():
            if key in UNALTERABLE:
                way = "; partitions are added by a call of their own" if key == "partitions" else ""
                raise InvalidSetting(
                    f"{key} of stream {existing.name!r} cannot be altered (it is {old!r}, asked for {new!r}){way}",
                    key=key,
                    value=new,
                )
        self._check_envelopes(existing, settings)
        states = [self.cluster.partitions[at] for at in self.cluster.places_of(existing.incarnation)]
        _check_fsync(settings, max((len({*s.replicas, *(s.target or ())}) for s in states), default=0))
        return self._put(existing, settings)

    def _check_envelopes(self, existing: StreamInfo, settings: StreamSettings) -> None:
        """M14."""
        count = max(settings.partitions, existing.partitions_next)
        is_sorted = replace(settings, partitions=count).sorts_by_envelopes
        if is_sorted and settings.opens_envelopes != existing.settings.opens_envelopes:
            raise InvalidSetting(
                f"envelopes of stream {existing.name!r} cannot be altered (it is {existing.settings.envelopes!r}, asked"
                f" for {settings.envelopes!r}): keys decide its partitions, and brokers that open envelopes see others"
                " than those that do not. Make a stream beside it",
                key="envelopes",
                value=settings.envelopes,
            )

    def _factor(self, info: StreamInfo) -> int:
        """How many replicas its first partition has; 0: it is not placed."""
        first = self.cluster.partitions.get((info.incarnation, 0))
        return 0 if first is None else len(first.target or first.replicas)

    def _put(self, existing: StreamInfo, settings: StreamSettings, *extra: str) -> dict[str, Any]:
        effective, warnings = self._acks(existing.name, settings)
        info = replace(
            existing,
            settings=settings,
            reply_acks_effective=effective,
            warnings=(*extra, *warnings, *advice_on(settings)),
        )
        self._set(info)
        return {"stream": info.as_dict()}

    def _set(self, info: StreamInfo) -> None:
        before = self.streams.get(info.name)
        self.streams[info.name] = self.cluster.touched.streams[info.incarnation] = info
        self._note_subjects(before, info)

    def _note_subjects(self, before: StreamInfo | None, after: StreamInfo | None) -> None:
        if self._is_trial:
            return
        if before is not None and before.reply_acks_effective:
            self._subjects.remove(before.name, subjects_of(before.settings))
        if after is not None and after.reply_acks_effective:
            self._subjects.add(after.name, subjects_of(after.settings))

    def _set_state(self, command: Mapping[str, Any]) -> dict[str, Any]:
        existing = self._outer(command["name"], "pause or make read-only")
        info = replace(
            existing,
            paused=bool(command.get("paused", existing.paused)),
            read_only=bool(command.get("read_only", existing.read_only)),
        )
        said: dict[str, Any] = {"name": info.name, "partitions": info.settings.partitions}
        if info.paused != existing.paused:
            self._note(events.PAUSE_STREAM if info.paused else events.RESUME_STREAM, **said)
        if info.read_only != existing.read_only:
            self._note(events.SET_STREAM_READ_ONLY, **said, read_only=info.read_only)
        self.streams[info.name] = self.cluster.touched.streams[info.incarnation] = info
        return {"stream": info.as_dict()}

    def _raise_fence(self, command: Mapping[str, Any]) -> dict[str, Any]:
        existing, partition, after = self._outer(command["name"], "fence"), command["partition"], command["after"]
        existing.check_incarnation(command["incarnation"])
        if partition >= existing.settings.partitions:
            count = existing.settings.partitions
            raise UnknownPartition(f"stream {existing.name!r} has {count} partitions", partitions=count)
        if (now := existing.fence_of(partition)) != after:
            raise ExpectationFailed(
                f"{existing.name}/{partition}: fence {after} was to be replaced, and it has {now} by now", fence=now
            )
        above = max(after, self.fence_floor if command.get("above") and self._has_fences_above else 0)  # M12
        fences = {**dict(existing.fences), partition: above + 1}
        info = replace(existing, fences=tuple(sorted(fences.items())))
        self.streams[info.name] = self.cluster.touched.streams[info.incarnation] = info
        return {"fence": above + 1}

    @property
    def _has_fences_above(self) -> bool:
        """M8."""
        return self.cluster.knows(FENCES_ABOVE)

    def _add_partitions(self, command: Mapping[str, Any]) -> dict[str, Any]:
        existing = self._live(command["name"])
        if not existing.name.startswith(STAGES_PREFIX):  # that grows with its stream
            self._outer(existing.name, "add partitions to")
        before, after = existing.settings.partitions, command["partitions"]
        if isinstance(after, int) and after < before:
            raise InvalidSetting(
                f"stream {existing.name!r} has {before} partitions; {after} would lose records",
                key="partitions",
                value=after,
            )
        settings = settings_from({"partitions": after}, base=existing.settings)
        if after == (existing.partitions_next or before):
            return {"stream": existing.as_dict()}
        if after < existing.partitions_next:
            raise InvalidSetting(
                f"stream {existing.name!r} is about to have {existing.partitions_next} partitions",
                key="partitions",
                value=after,
            )
        if not self._factor(existing):
            return self._grown(existing, settings)
        growth.place_partitions(self.cluster, existing, after)
        growing = replace(existing, partitions_next=after)
        return self._put(growing, existing.settings, *growth_of(growing))

    def _confirm_partitions(self, command: Mapping[str, Any]) -> dict[str, Any]:
        existing = self._live(command["name"])
        result = growth.confirm(self.cluster, existing, command)
        if result["waiting"]:
            return {"stream": existing.as_dict(), **result}
        settings = settings_from({"partitions": existing.partitions_next}, base=existing.settings)
        return {**self._grown(replace(existing, partitions_next=0), settings), **result}

    def _grown(self, existing: StreamInfo, settings: StreamSettings) -> dict[str, Any]:
        before, after = existing.settings.partitions, settings.partitions
        moved = settings.partition_by != "subject_suffix"
        result = self._put(existing, settings, *([_MOVED.format(before=before, after=after)] if moved else []))
        self._fit(existing.name)
        return result

    def _note(self, op: str, **said: Any) -> None:
        """M15."""
        if ACTIVITY_STREAM in self.streams:
            self.activity = self.activity.noted(op, floor=self.cluster.epoch_last << EPOCH_BITS, **said)

    def _note_members(self, before: Mapping[str, ConsumerGroup], names: Iterable[str], *, expired: bool) -> None:
        """Who has left these groups, and who has joined them, or reads other streams."""
        if ACTIVITY_STREAM not in self.streams:
            return
        nobody = ConsumerGroup()
        for name in sorted(names):
            were, are = before.get(name, nobody).members, self.groups.named.get(name, nobody).members
            for member in sorted(were.keys() - are.keys()):
                self._note(events.LEAVE_GROUP, group=name, consumer=member, expired=expired)
            for member, kept in sorted(are.items()):
                if (known := were.get(member)) is None or known.streams != kept.streams:
                    self._note(events.JOIN_GROUP, group=name, consumer=member, streams=[*kept.streams])

    def _fit(self, name: str) -> None:
        """M13."""
        self.groups.fit(Counts(self.streams), name, notes_added=self.cluster.knows(ADDED_TO_GROUPS))

    def _raise_replication(self, command: Mapping[str, Any]) -> dict[str, Any]:
        existing = self._live(command["name"])
        if not self._factor(existing):
            raise InvalidRequest(f"stream {existing.name!r} is not placed: it has no replicas", stream=existing.name)
        _check_fsync(existing.settings, fields.whole(command, "replication_factor", least=1))
        return growth.raise_replication(self.cluster, existing, command)

    def _check_target(self, command: Mapping[str, Any]) -> None:
        incarnation, _ = fields.place(command)
        for info in self.streams.values():
            if info.incarnation == incarnation:
                _check_fsync(info.settings, len(fields.names(command, "replicas")))

    def _outer(self, name: str, verb: str) -> StreamInfo:
        info = self._live(name)
        if info.internal:
            raise InvalidRequest(f"stream {name!r} is internal: you cannot {verb} it", stream=name)
        return info

    def _delete(self, command: Mapping[str, Any]) -> dict[str, Any]:
        info = self._outer(command["name"], "delete")
        info.check_incarnation(fields.text(command, "incarnation", info.incarnation))
        for each in (info, self.streams.get(stages_of(info.incarnation))):  # M9
            if each is not None:
                del self.streams[each.name]
                self.cluster.touched.streams[each.incarnation] = None
                self.deleted[each.incarnation] = each.name
                self.cluster.drop_stream(each.incarnation)
        if self._has_fences_above:
            self.fence_floor = max([self.fence_floor, *(number for _, number in info.fences)])
        self._fit(info.name)
        self._note(events.DELETE_STREAM, name=info.name)
        self._note_subjects(info, None)
        return {"stream": info.as_dict()}

    def _forget_deleted(self, command: Mapping[str, Any]) -> dict[str, Any]:
        gone = set(command["incarnations"])
        for left in self.cluster.leftovers.values():
            gone -= {incarnation for incarnation, _ in left}
        self.deleted = {incarnation: name for incarnation, name in self.deleted.items() if incarnation not in gone}
        return {}

    def _register_producer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        name = command.get("name")
        if name is not None:
            check_name(name, what="producer")
        at_ms, before_ms = fields.whole(command, "at_ms", 0), fields.whole(command, "forget_before_ms", 0)
        tag, level = command.get("tag"), self.cluster.feature_level
        if tag is not None and level < TAG_SINCE and not self.cluster.is_alone:
            raise InvalidRequest(f"tag needs feature level {TAG_SINCE}, the cluster has {level}")
        producer_id, epoch = self.producer_names.register(name, at_ms=at_ms, forget_before_ms=before_ms, tag=tag)
        return {"producer_id": producer_id, "epoch": epoch}

    def _note_producers(self, command: Mapping[str, Any]) -> dict[str, Any]:
        self.producer_names.note(command["names"], at_ms=fields.whole(command, "at_ms"))
        return {}

    def _forget_producer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        self.producer_names.forget(fields.text(command, "name"))
        return {}

    @property
    def producers(self) -> Mapping[str, NamedProducer]:
        """Those that have names."""
        return self.producer_names.named

    def _live(self, name: str) -> StreamInfo:
        if name not in self.streams:
            raise UnknownStream(f"no stream {name!r}", stream=name)
        return self.streams[name]

    def _acks(self, name: str, settings: StreamSettings) -> tuple[bool, list[str]]:
        """Whether the stream may send acks (M3), and what to say if not."""
        if not settings.reply_acks or settings.subject is None:
            return settings.reply_acks and settings.subject is not None, []
        for other_name in sorted(self._subjects.overlapping(subjects_of(settings))):
            other = self.streams.get(other_name)
            if other is None or other.name == name:
                continue
            if settings.group is not None and settings.group == other.settings.group:
                continue
            return False, [acks_off(other.name, other.settings.subject)]
        return True, []

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON values."""
        return {
            "v": SNAPSHOT_VERSION,
            "epoch_last": self.epoch_last,
            "streams": [info.as_dict() for _, info in sorted(self.streams.items())],
            "cluster": self.cluster.snapshot(),
            **self.producer_names.snapshot(),
            **self.access.snapshot(),
            **self.groups.snapshot(),
            **self.activity.snapshot(),
            **({"fence_floor": self.fence_floor} if self.fence_floor else {}),
            "deleted": dict(self.deleted),
            "requests": [[request_id, result] for request_id, result in self._requests.items()],
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Catalog:
        """The state that `snapshot` described."""
        if snapshot["v"] != SNAPSHOT_VERSION:
            raise InvalidRequest(f"catalog version {snapshot['v']!r}, this release knows {SNAPSHOT_VERSION}")
        streams = {value["name"]: info_from(value) for value in snapshot["streams"]}
        return cls(
            streams=streams,
            cluster=Cluster.restore(snapshot["cluster"], epoch_last=snapshot["epoch_last"]),
            producer_names=Producers.restore(snapshot),
            access=Access.restore(snapshot),
            groups=Groups.restore(snapshot),
            activity=Activity.restore(snapshot),
            deleted=dict(snapshot["deleted"]),
            fence_floor=int(snapshot.get("fence_floor", 0)),
            _requests=OrderedDict(snapshot["requests"]),
        )


def _check_fsync(settings: StreamSettings, factor: int) -> None:
    if factor > 1 and settings.fsync != "batch":
        raise InvalidSetting(f"fsync={settings.fsync} with {factor} replicas is not supported yet", key="fsync")


def _is_of_producers(command: Mapping[str, Any]) -> bool:
    kind = command.get("kind")
    return isinstance(kind, str) and kind.endswith(("_producer", "_producers"))


def _request_id(command: Mapping[str, Any]) -> str:
    value = command.get("request_id", "")
    return value if isinstance(value, str) else ""
