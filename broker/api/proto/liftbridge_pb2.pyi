from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AckPolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEADER: _ClassVar[AckPolicy]
    ALL: _ClassVar[AckPolicy]
    NONE: _ClassVar[AckPolicy]

class Start(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEW_ONLY: _ClassVar[Start]
    OFFSET: _ClassVar[Start]
    EARLIEST: _ClassVar[Start]
    LATEST: _ClassVar[Start]
    TIMESTAMP: _ClassVar[Start]

class Stop(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_CANCEL: _ClassVar[Stop]
    AT_OFFSET: _ClassVar[Stop]
    AT_LATEST: _ClassVar[Stop]
    AT_TIMESTAMP: _ClassVar[Stop]
LEADER: AckPolicy
ALL: AckPolicy
NONE: AckPolicy
NEW_ONLY: Start
OFFSET: Start
EARLIEST: Start
LATEST: Start
TIMESTAMP: Start
ON_CANCEL: Stop
AT_OFFSET: Stop
AT_LATEST: Stop
AT_TIMESTAMP: Stop

class Int64(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class Int32(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class Bool(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bool
    def __init__(self, value: _Optional[bool] = ...) -> None: ...

class CreateStream(_message.Message):
    __slots__ = ("subject", "name", "group", "replication_factor", "partitions", "retention_bytes", "retention_records", "retention_ms", "cleaner_interval_ms", "segment_bytes", "segment_ms", "compaction_threads", "compact", "auto_pause_ms", "auto_pause_spares_readers", "min_isr", "expects_offsets", "encryption")
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REPLICATION_FACTOR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_RECORDS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    CLEANER_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_MS_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_THREADS_FIELD_NUMBER: _ClassVar[int]
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    AUTO_PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    AUTO_PAUSE_SPARES_READERS_FIELD_NUMBER: _ClassVar[int]
    MIN_ISR_FIELD_NUMBER: _ClassVar[int]
    EXPECTS_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTION_FIELD_NUMBER: _ClassVar[int]
    subject: str
    name: str
    group: str
    replication_factor: int
    partitions: int
    retention_bytes: Int64
    retention_records: Int64
    retention_ms: Int64
    cleaner_interval_ms: Int64
    segment_bytes: Int64
    segment_ms: Int64
    compaction_threads: Int32
    compact: Bool
    auto_pause_ms: Int64
    auto_pause_spares_readers: Bool
    min_isr: Int32
    expects_offsets: Bool
    encryption: Bool
    def __init__(self, subject: _Optional[str] = ..., name: _Optional[str] = ..., group: _Optional[str] = ..., replication_factor: _Optional[int] = ..., partitions: _Optional[int] = ..., retention_bytes: _Optional[_Union[Int64, _Mapping]] = ..., retention_records: _Optional[_Union[Int64, _Mapping]] = ..., retention_ms: _Optional[_Union[Int64, _Mapping]] = ..., cleaner_interval_ms: _Optional[_Union[Int64, _Mapping]] = ..., segment_bytes: _Optional[_Union[Int64, _Mapping]] = ..., segment_ms: _Optional[_Union[Int64, _Mapping]] = ..., compaction_threads: _Optional[_Union[Int32, _Mapping]] = ..., compact: _Optional[_Union[Bool, _Mapping]] = ..., auto_pause_ms: _Optional[_Union[Int64, _Mapping]] = ..., auto_pause_spares_readers: _Optional[_Union[Bool, _Mapping]] = ..., min_isr: _Optional[_Union[Int32, _Mapping]] = ..., expects_offsets: _Optional[_Union[Bool, _Mapping]] = ..., encryption: _Optional[_Union[Bool, _Mapping]] = ...) -> None: ...

class DeleteStream(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class PauseStream(_message.Message):
    __slots__ = ("name", "partitions", "resume_all")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    RESUME_ALL_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    resume_all: bool
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., resume_all: _Optional[bool] = ...) -> None: ...

class SetStreamReadonly(_message.Message):
    __slots__ = ("name", "partitions", "readonly")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    READONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    readonly: bool
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., readonly: _Optional[bool] = ...) -> None: ...

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FetchMetadata(_message.Message):
    __slots__ = ("streams", "groups")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedScalarFieldContainer[str]
    groups: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, streams: _Optional[_Iterable[str]] = ..., groups: _Optional[_Iterable[str]] = ...) -> None: ...

class Metadata(_message.Message):
    __slots__ = ("brokers", "streams", "groups")
    BROKERS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    brokers: _containers.RepeatedCompositeFieldContainer[Broker]
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, brokers: _Optional[_Iterable[_Union[Broker, _Mapping]]] = ..., streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class Broker(_message.Message):
    __slots__ = ("id", "host", "port", "partitions", "leaders")
    ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    host: str
    port: int
    partitions: int
    leaders: int
    def __init__(self, id: _Optional[str] = ..., host: _Optional[str] = ..., port: _Optional[int] = ..., partitions: _Optional[int] = ..., leaders: _Optional[int] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("name", "subject", "error", "partitions", "created")
    class Error(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[Stream.Error]
        UNKNOWN_STREAM: _ClassVar[Stream.Error]
    OK: Stream.Error
    UNKNOWN_STREAM: Stream.Error
    class PartitionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: Partition
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    name: str
    subject: str
    error: Stream.Error
    partitions: _containers.MessageMap[int, Partition]
    created: int
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., error: _Optional[_Union[Stream.Error, str]] = ..., partitions: _Optional[_Mapping[int, Partition]] = ..., created: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("id", "error", "coordinator", "epoch")
    class Error(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[Group.Error]
        UNKNOWN_GROUP: _ClassVar[Group.Error]
    OK: Group.Error
    UNKNOWN_GROUP: Group.Error
    ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    id: str
    error: Group.Error
    coordinator: str
    epoch: int
    def __init__(self, id: _Optional[str] = ..., error: _Optional[_Union[Group.Error, str]] = ..., coordinator: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class FetchPartition(_message.Message):
    __slots__ = ("stream", "partition")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class PartitionAnswer(_message.Message):
    __slots__ = ("partition",)
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    partition: Partition
    def __init__(self, partition: _Optional[_Union[Partition, _Mapping]] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("id", "leader", "replicas", "isr", "high_watermark", "newest_offset", "paused", "readonly", "received", "paused_at", "readonly_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    ISR_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    NEWEST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    READONLY_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    PAUSED_AT_FIELD_NUMBER: _ClassVar[int]
    READONLY_AT_FIELD_NUMBER: _ClassVar[int]
    id: int
    leader: str
    replicas: _containers.RepeatedScalarFieldContainer[str]
    isr: _containers.RepeatedScalarFieldContainer[str]
    high_watermark: int
    newest_offset: int
    paused: bool
    readonly: bool
    received: Times
    paused_at: Times
    readonly_at: Times
    def __init__(self, id: _Optional[int] = ..., leader: _Optional[str] = ..., replicas: _Optional[_Iterable[str]] = ..., isr: _Optional[_Iterable[str]] = ..., high_watermark: _Optional[int] = ..., newest_offset: _Optional[int] = ..., paused: _Optional[bool] = ..., readonly: _Optional[bool] = ..., received: _Optional[_Union[Times, _Mapping]] = ..., paused_at: _Optional[_Union[Times, _Mapping]] = ..., readonly_at: _Optional[_Union[Times, _Mapping]] = ...) -> None: ...

class Times(_message.Message):
    __slots__ = ("first", "latest")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    first: int
    latest: int
    def __init__(self, first: _Optional[int] = ..., latest: _Optional[int] = ...) -> None: ...

class Publish(_message.Message):
    __slots__ = ("key", "value", "stream", "partition", "headers", "ack_inbox", "correlation_id", "ack_policy", "expected_offset")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_POLICY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    stream: str
    partition: int
    headers: _containers.ScalarMap[str, bytes]
    ack_inbox: str
    correlation_id: str
    ack_policy: AckPolicy
    expected_offset: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., ack_inbox: _Optional[str] = ..., correlation_id: _Optional[str] = ..., ack_policy: _Optional[_Union[AckPolicy, str]] = ..., expected_offset: _Optional[int] = ...) -> None: ...

class Published(_message.Message):
    __slots__ = ("ack", "error", "correlation_id")
    ACK_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ack: Ack
    error: AsyncError
    correlation_id: str
    def __init__(self, ack: _Optional[_Union[Ack, _Mapping]] = ..., error: _Optional[_Union[AsyncError, _Mapping]] = ..., correlation_id: _Optional[str] = ...) -> None: ...

class AsyncError(_message.Message):
    __slots__ = ("code", "message")
    class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[AsyncError.Code]
        BAD_REQUEST: _ClassVar[AsyncError.Code]
        NOT_FOUND: _ClassVar[AsyncError.Code]
        INTERNAL: _ClassVar[AsyncError.Code]
        READONLY: _ClassVar[AsyncError.Code]
        INCORRECT_OFFSET: _ClassVar[AsyncError.Code]
        ENCRYPTION_FAILED: _ClassVar[AsyncError.Code]
        PERMISSION_DENIED: _ClassVar[AsyncError.Code]
    UNKNOWN: AsyncError.Code
    BAD_REQUEST: AsyncError.Code
    NOT_FOUND: AsyncError.Code
    INTERNAL: AsyncError.Code
    READONLY: AsyncError.Code
    INCORRECT_OFFSET: AsyncError.Code
    ENCRYPTION_FAILED: AsyncError.Code
    PERMISSION_DENIED: AsyncError.Code
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    code: AsyncError.Code
    message: str
    def __init__(self, code: _Optional[_Union[AsyncError.Code, str]] = ..., message: _Optional[str] = ...) -> None: ...

class PublishToSubject(_message.Message):
    __slots__ = ("key", "value", "subject", "headers", "ack_inbox", "correlation_id", "ack_policy")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_POLICY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    subject: str
    headers: _containers.ScalarMap[str, bytes]
    ack_inbox: str
    correlation_id: str
    ack_policy: AckPolicy
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., subject: _Optional[str] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., ack_inbox: _Optional[str] = ..., correlation_id: _Optional[str] = ..., ack_policy: _Optional[_Union[AckPolicy, str]] = ...) -> None: ...

class PublishedToSubject(_message.Message):
    __slots__ = ("ack",)
    ACK_FIELD_NUMBER: _ClassVar[int]
    ack: Ack
    def __init__(self, ack: _Optional[_Union[Ack, _Mapping]] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("stream", "partition_subject", "subject", "offset", "ack_inbox", "correlation_id", "ack_policy", "received", "committed", "error")
    class Error(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OK: _ClassVar[Ack.Error]
        UNKNOWN: _ClassVar[Ack.Error]
        INCORRECT_OFFSET: _ClassVar[Ack.Error]
        TOO_LARGE: _ClassVar[Ack.Error]
        ENCRYPTION: _ClassVar[Ack.Error]
    OK: Ack.Error
    UNKNOWN: Ack.Error
    INCORRECT_OFFSET: Ack.Error
    TOO_LARGE: Ack.Error
    ENCRYPTION: Ack.Error
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_SUBJECT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_POLICY_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition_subject: str
    subject: str
    offset: int
    ack_inbox: str
    correlation_id: str
    ack_policy: AckPolicy
    received: int
    committed: int
    error: Ack.Error
    def __init__(self, stream: _Optional[str] = ..., partition_subject: _Optional[str] = ..., subject: _Optional[str] = ..., offset: _Optional[int] = ..., ack_inbox: _Optional[str] = ..., correlation_id: _Optional[str] = ..., ack_policy: _Optional[_Union[AckPolicy, str]] = ..., received: _Optional[int] = ..., committed: _Optional[int] = ..., error: _Optional[_Union[Ack.Error, str]] = ...) -> None: ...

class Subscribe(_message.Message):
    __slots__ = ("stream", "partition", "start", "start_offset", "start_timestamp", "from_replica", "resume", "stop", "stop_offset", "stop_timestamp", "consumer", "reverse")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    FROM_REPLICA_FIELD_NUMBER: _ClassVar[int]
    RESUME_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STOP_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    start: Start
    start_offset: int
    start_timestamp: int
    from_replica: bool
    resume: bool
    stop: Stop
    stop_offset: int
    stop_timestamp: int
    consumer: Member
    reverse: bool
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., start: _Optional[_Union[Start, str]] = ..., start_offset: _Optional[int] = ..., start_timestamp: _Optional[int] = ..., from_replica: _Optional[bool] = ..., resume: _Optional[bool] = ..., stop: _Optional[_Union[Stop, str]] = ..., stop_offset: _Optional[int] = ..., stop_timestamp: _Optional[int] = ..., consumer: _Optional[_Union[Member, _Mapping]] = ..., reverse: _Optional[bool] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("group_id", "group_epoch", "consumer_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    group_epoch: int
    consumer_id: str
    def __init__(self, group_id: _Optional[str] = ..., group_epoch: _Optional[int] = ..., consumer_id: _Optional[str] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("offset", "key", "value", "timestamp", "stream", "partition", "subject", "reply", "headers", "ack_inbox", "correlation_id", "ack_policy")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    REPLY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ACK_INBOX_FIELD_NUMBER: _ClassVar[int]
    CORRELATION_ID_FIELD_NUMBER: _ClassVar[int]
    ACK_POLICY_FIELD_NUMBER: _ClassVar[int]
    offset: int
    key: bytes
    value: bytes
    timestamp: int
    stream: str
    partition: int
    subject: str
    reply: str
    headers: _containers.ScalarMap[str, bytes]
    ack_inbox: str
    correlation_id: str
    ack_policy: AckPolicy
    def __init__(self, offset: _Optional[int] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., timestamp: _Optional[int] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., subject: _Optional[str] = ..., reply: _Optional[str] = ..., headers: _Optional[_Mapping[str, bytes]] = ..., ack_inbox: _Optional[str] = ..., correlation_id: _Optional[str] = ..., ack_policy: _Optional[_Union[AckPolicy, str]] = ...) -> None: ...

class JoinGroup(_message.Message):
    __slots__ = ("group_id", "consumer_id", "streams")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    consumer_id: str
    streams: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group_id: _Optional[str] = ..., consumer_id: _Optional[str] = ..., streams: _Optional[_Iterable[str]] = ...) -> None: ...

class JoinedGroup(_message.Message):
    __slots__ = ("coordinator", "epoch", "consumer_timeout", "coordinator_timeout")
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    coordinator: str
    epoch: int
    consumer_timeout: int
    coordinator_timeout: int
    def __init__(self, coordinator: _Optional[str] = ..., epoch: _Optional[int] = ..., consumer_timeout: _Optional[int] = ..., coordinator_timeout: _Optional[int] = ...) -> None: ...

class LeaveGroup(_message.Message):
    __slots__ = ("group_id", "consumer_id")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    consumer_id: str
    def __init__(self, group_id: _Optional[str] = ..., consumer_id: _Optional[str] = ...) -> None: ...

class FetchAssignments(_message.Message):
    __slots__ = ("group_id", "consumer_id", "epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    consumer_id: str
    epoch: int
    def __init__(self, group_id: _Optional[str] = ..., consumer_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("stream", "partitions")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class Assignments(_message.Message):
    __slots__ = ("epoch", "assignments")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    def __init__(self, epoch: _Optional[int] = ..., assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ...) -> None: ...

class ReportCoordinator(_message.Message):
    __slots__ = ("group_id", "consumer_id", "coordinator", "epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    consumer_id: str
    coordinator: str
    epoch: int
    def __init__(self, group_id: _Optional[str] = ..., consumer_id: _Optional[str] = ..., coordinator: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class SetCursor(_message.Message):
    __slots__ = ("stream", "partition", "cursor_id", "offset")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    cursor_id: str
    offset: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., cursor_id: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class FetchCursor(_message.Message):
    __slots__ = ("stream", "partition", "cursor_id")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    CURSOR_ID_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    cursor_id: str
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., cursor_id: _Optional[str] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("offset",)
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    offset: int
    def __init__(self, offset: _Optional[int] = ...) -> None: ...
