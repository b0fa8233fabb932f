"""The shape of every field of every command: what a value must be before anything is made of it.

A command may come from whoever reaches the Raft port. Its fields become folders, addresses in HTTP headers, lines of
files and labels, so each is of an alphabet in which none of these can be left:

    WORD       an incarnation of a stream or of a process: one part of a path, one word of a line
    NAME       a broker, a stream, a producer, a cluster
    ADDRESS    host:port as it stands in headers: no white space, no control character, no end of a part of a URL

D1  `checked` passes on only what stands in the table. A field without a shape does not reach the command.
D2  Patterns name their characters: what `\\s` or `isprintable` means depends on the Unicode tables of a Python, and a
    command has to be judged alike on every broker.
D3  Every value that a release of liftlog has written fits. A journal of before replays to the same catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from broker.api.errors import InvalidRequest
from broker.api.misfit import Misfit
from broker.api.principals import (
    CALLER_PATTERN,
    GRANT_NAME_PATTERN,
    MODES,
    PRINCIPAL_PATTERN,
    SHA256_PATTERN,
    TOKEN_ID_PATTERN,
)
from broker.api.stream import NAME_BYTES_MAX, REPLICAS_MAX, check_name
from broker.api.validation import Rule, ValueShape, shape_of
from broker.metadata.groups import TIMEOUT_MS_LEAST, TIMEOUT_MS_MAX
from broker.metadata.producers import TAG_BITS

WORD_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
NAME_PATTERN: Final = f"(__)?[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_BYTES_MAX - 1}}}"
ADDRESS_PATTERN: Final = "[^\\x00-\\x20\\x7f-\\xa0,/@\"'<>\\\\?#\u2028\u2029]{1,300}"
LINE_PATTERN: Final = "[^\\x00-\\x1f\\x7f-\\x9f\u2028\u2029]{0,128}"
_PARTITION_LAST: Final = 1023
_NUMBER_GREATEST: Final = 1 << 62

_WORD = Rule(pattern=WORD_PATTERN, says="must be 1 to 64 of A-Z a-z 0-9 _ -, the first a letter or digit")
_NAME = Rule(pattern=NAME_PATTERN, says=f"must be a name: 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 _ . -")
Word = Annotated[str, _WORD]
Name = Annotated[str, _NAME]
StreamName = Annotated[str, Rule(read=lambda name: check_name(name, internal=True))]
Address = Annotated[str, Rule(pattern=ADDRESS_PATTERN, says="must be an address: host:port")]
Line = Annotated[str, Rule(pattern=LINE_PATTERN, says="must be a line of 0 to 128 characters")]
RequestId = Annotated[str, Rule(pattern="[ -~]{0,256}", says="must be 0 to 256 printable characters of ASCII")]
VoterId = Annotated[
    str, Rule(pattern=f"|[A-Za-z0-9_.-]{{1,256}}@{ADDRESS_PATTERN}", says="must be like broker.random@host:port")
]
Number = Annotated[int, Rule(limit=(0, _NUMBER_GREATEST))]
NumberOrNone = Annotated[int, Rule(limit=(-1, _NUMBER_GREATEST))]  # -1: there is none
PartitionNumber = Annotated[int, Rule(limit=(0, _PARTITION_LAST))]
Factor = Annotated[int, Rule(limit=(0, REPLICAS_MAX))]
Level = Annotated[int, Rule(limit=(0, 1 << 16))]
Why = Annotated[str, Rule(limit=("fsync", "damage", "lost"))]
Places = Annotated[Mapping[str, tuple[PartitionNumber, ...]], _WORD]
Names = tuple[Name, ...]
Replicas = tuple[tuple[Word, PartitionNumber, Number], ...]

TokenId = Annotated[str, Rule(pattern=TOKEN_ID_PATTERN, says="must be the id of a token")]
Principal = Annotated[str, Rule(pattern=PRINCIPAL_PATTERN, says="must be user:NAME, svc:NAME or anonymous")]
By = Annotated[str, Rule(pattern=f"broker:{NAME_PATTERN}|{CALLER_PATTERN}", says="must be a principal")]
GrantText = Annotated[str, Rule(pattern=GRANT_NAME_PATTERN, says="must be 0 to 512 of printable ASCII")]
Grants = tuple[tuple[GrantText, GrantText], ...]
Mode = Annotated[str, Rule(limit=MODES)]

GroupName = Annotated[str, Rule(read=lambda name: check_name(name, what="group"))]

_SESSION: Final[Mapping[str, Any]] = {"broker_id": Name, "registration": Number}
_PLACE: Final[Mapping[str, Any]] = {"stream": Word, "partition": PartitionNumber}
FIELDS: Final[Mapping[str, Mapping[str, Any]]] = {
    "create_stream": {
        "name": StreamName,
        "incarnation": Word,
        "created_us": Number,
        "settings": Mapping[str, Any],  # `settings_from` knows their shapes
        "internal": bool,
        "replication_factor": Factor,
        "min_insync_replicas": Factor,
        "beside": Names,
    },
    "alter_stream": {"name": StreamName, "settings": Mapping[str, Any]},
    "set_state": {"name": StreamName, "paused": bool, "read_only": bool},
    "raise_fence": {
        "name": StreamName,
        "incarnation": Word,
        "partition": PartitionNumber,
        "after": Number,
        "above": bool,
    },
    "add_partitions": {"name": StreamName, "partitions": int},  # `settings_from` has its limit
    "confirm_partitions": {
        **_SESSION,
        "name": StreamName,
        "incarnation": Word,
        "partitions": Number,
        "leaders": tuple[tuple[PartitionNumber, Number], ...],
        "as_of": Number,
        "is_stopped": bool,
        "gives_up": bool,
    },
    "raise_replication": {"name": StreamName, "replication_factor": Factor, "min_insync_replicas": Factor},
    "delete_stream": {"name": StreamName, "incarnation": Word},
    "forget_deleted": {"incarnations": tuple[Word, ...]},
    "register_producer": {
        "name": Annotated[str, Rule(read=lambda name: check_name(name, what="producer"))] | None,
        "at_ms": Number,
        "forget_before_ms": Number,
        "tag": Annotated[int, Rule(limit=(0, (1 << TAG_BITS) - 1))] | None,
    },
    "note_producers": {"names": Names, "at_ms": Number},
    "forget_producer": {"name": Name},
    "put_token": {
        "token_id": TokenId,
        "sha256": Annotated[str, Rule(pattern=SHA256_PATTERN, says="must be 64 hex digits")],
        "principal": Principal,
        "expires_ms": Number,
        "at_ms": Number,
        "by": By,
    },
    "drop_token": {"token_id": TokenId, "by": By},
    "put_grants": {"principal": Principal, "add": Grants, "remove": Grants, "by": By},
    "require_auth": {"required": bool, "by": By},
    "join_group": {
        "name": GroupName,
        "member": Word,
        "streams": tuple[StreamName, ...],
        "timeout_ms": Annotated[int, Rule(limit=(TIMEOUT_MS_LEAST, TIMEOUT_MS_MAX))],
        "instance": Annotated[str, Rule(pattern=f"|{NAME_PATTERN}", says="must be a name, or empty")],
    },
    "release_partitions": {
        "name": GroupName,
        "member": Word,
        "partitions": tuple[tuple[StreamName, PartitionNumber, Number], ...],
    },
    "end_members": {"name": GroupName, "members": Annotated[Mapping[str, Number], _WORD], "expired": bool},
    "fence_group": {"name": GroupName, "forget": bool},
    "forget_activity": {"through": Number},
    "form_cluster": {"cluster_id": Name, "feature_level": Level},
    "register_broker": {
        "broker_id": Name,
        "incarnation": Word,
        "http": Address,
        "grpc": Address,
        "rack": Line,
        "after": Number,
        "feature_level_max": Level,
        "raft": VoterId,
        "epoch_seen": NumberOrNone,
        "sound": Places,
        "behind": Places,
    },
    "renew_sessions": {"renewals": Annotated[Mapping[str, Number], _NAME]},
    "fail_broker": {**_SESSION, "renewal": Number},
    "stop_broker": _SESSION,
    "tell_auth_mode": {**_SESSION, "mode": Mode},
    "remove_broker": {"broker_id": Name},
    "confirm_deleted": {"broker_id": Name, "partitions": Places},
    "set_feature_level": {"level": Level},
    "report_opened": {**_SESSION, "replicas": Replicas},
    "elect_first": {"partitions": Places},
    "alter_isr": {
        **_PLACE,
        "broker_id": Name,
        "leader_epoch": Number,
        "partition_epoch": Number,
        "add": tuple[Name, Number, Number],
        "remove": Name,
    },
    "alter_isrs": {
        "broker_id": Name,
        "add": tuple[tuple[Word, PartitionNumber, Number, Number, Name, Number, Number], ...],
        "remove": tuple[tuple[Word, PartitionNumber, Number, Number, Name], ...],
    },
    "report_leader": {**_SESSION, **_PLACE, "leader_epoch": Number, "at_ms": Number, "window_ms": Number},
    "step_out": {**_SESSION, "replicas": Replicas, "why": Why},
    "elect_preferred": {"partitions": Places},
    "elect_unclean": {**_PLACE, "broker_id": Name, "epoch_seen": NumberOrNone},
    "reassign": {**_PLACE, "replicas": Names, "min_insync_replicas": Factor},
    "set_min_insync": {"stream": Word, "min_insync_replicas": Factor},
    "begin_rescue": {"cluster_id": Name, "epoch_last": Number},
    "report_logs": {
        **_SESSION,
        "rescue": Number,
        "epoch_seen": NumberOrNone,
        "logs": tuple[tuple[Word, PartitionNumber, NumberOrNone, Number], ...],
    },
    "excuse_replicas": {"broker_id": Name, "rescue": Number, "partitions": Places},
    "end_rescue": {"rescue": Number, "brokers": Names},
}
"""By kind of command; `v`, `kind` and `request_id` are of all."""

SHAPES: Final[Mapping[str, Mapping[str, ValueShape]]] = {
    kind: {key: shape_of(hint) for key, hint in {**hints, "request_id": RequestId}.items()}
    for kind, hints in FIELDS.items()
}


def checked(command: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The fields of a command that its kind has (D1).

    Raises:
        InvalidRequest: there is no such command, or a field is not what it has to be. InvalidName.
    """
    shapes = SHAPES.get(kind)
    if shapes is None:
        raise InvalidRequest(f"unknown command {kind[:100]!r}")
    found = {key: command[key] for key in shapes if key in command}
    for key, value in found.items():
        try:
            shapes[key].take(value)
        except Misfit as misfit:
            where = misfit.where
            name = key + (where if where.startswith("[") else f".{where}" if where else "")
            misfit.path.clear()
            raise InvalidRequest(f"malformed command: {misfit.text(name)}", key=key) from None
    return found
