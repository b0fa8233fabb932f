"""gRPC's status codes, and the one that each error has here.

Where Liftbridge has a code for a case, it is that one: its clients decide by it. Two rules follow from that. The end of
a subscription is RESOURCE_EXHAUSTED, so nothing else is: who is at a limit gets UNAVAILABLE, and its client tries
again. A broker that does not lead a partition says FAILED_PRECONDITION: its client looks up the metadata, and goes to
the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final

from broker.api.errors import (
    DeadlineExceeded,
    ExpectationFailed,
    GroupFenced,
    GroupInUse,
    InvalidRequest,
    KeyMissing,
    LiftlogError,
    NotLeader,
    NotSupported,
    OffsetOutOfRange,
    ReadOnly,
    Retryable,
    StaleIncarnation,
    StreamExists,
    StreamPaused,
    Unauthenticated,
    Unauthorized,
    UnknownConsumer,
    UnknownGroup,
    UnknownMember,
    UnknownPartition,
    UnknownStream,
)


class Code(IntEnum):
    """Those that are used here."""

    OK = 0
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


CODES: Final[Mapping[type[LiftlogError], Code]] = {
    UnknownStream: Code.NOT_FOUND,
    UnknownPartition: Code.NOT_FOUND,
    UnknownConsumer: Code.NOT_FOUND,
    UnknownGroup: Code.NOT_FOUND,
    StaleIncarnation: Code.NOT_FOUND,
    StreamExists: Code.ALREADY_EXISTS,
    ReadOnly: Code.FAILED_PRECONDITION,
    StreamPaused: Code.FAILED_PRECONDITION,
    NotLeader: Code.FAILED_PRECONDITION,
    UnknownMember: Code.FAILED_PRECONDITION,
    GroupFenced: Code.FAILED_PRECONDITION,
    GroupInUse: Code.FAILED_PRECONDITION,
    Unauthenticated: Code.UNAUTHENTICATED,
    Unauthorized: Code.PERMISSION_DENIED,
    OffsetOutOfRange: Code.OUT_OF_RANGE,
    NotSupported: Code.UNIMPLEMENTED,
    DeadlineExceeded: Code.DEADLINE_EXCEEDED,
    KeyMissing: Code.FAILED_PRECONDITION,
    ExpectationFailed: Code.UNKNOWN,
    InvalidRequest: Code.INVALID_ARGUMENT,
    Retryable: Code.UNAVAILABLE,
    LiftlogError: Code.INTERNAL,
}
"""By class: the nearest one counts, up the tree of errors."""


class StatusError(Exception):
    """A call ends with this status.

    Attributes:
        reason: Of the error, as over HTTP, for the trailer `liftlog-reason`; empty: there is none.
        fields: The facts behind its text, as over HTTP, for the trailer `liftlog-fields`.
    """

    def __init__(
        self, code: Code, message: str, reason: str = "", fields: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        super().__init__(code, message, reason)
        self.code, self.message, self.reason, self.fields = code, message, reason, fields

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


def code_of(error: LiftlogError) -> Code:
    """Its status code."""
    return next(CODES[cls] for cls in type(error).__mro__ if cls in CODES)


def refused(error: LiftlogError) -> StatusError:
    """The status that stands for an error."""
    return StatusError(code_of(error), error.message, error.reason, error.fields)
