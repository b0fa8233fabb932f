"""The page docs/reference/limits.md, written from the code: `python -m tests.pages` after a limit has changed.

Configuration keys and stream settings come from their own tables; of the other limits, the constants, each has a row
in `FIXED`, with what meets who goes beyond it. `tests/unit/test_limits.py` holds page, tables and code together.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import fields
from pathlib import Path
from typing import Final, NamedTuple

from broker.api.stream import LIMITS, StreamSettings
from broker.config.table import SETTINGS, Setting
from tests.support.writers import rows as of_writers

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "reference" / "limits.md"


LIMIT_NAME: Final = re.compile(r"^(_?[A-Z0-9_]+_MAX(?:_S)?|MAX_[A-Z_]+(?:MS|BYTES))\b.*=", re.MULTILINE)


MEASURES: Final = ("bytes", "characters", "milliseconds", "s")


class Row(NamedTuple):
    """A limit that is not configured: `module:NAME`, its unit, what it bounds, what happens beyond it."""

    place: str
    unit: str
    what: str
    beyond: str


FIXED: Final = (
    Row("broker.metadata.groups:GROUPS_MAX", "", "consumer groups", "`invalid_request`"),
    Row("broker.metadata.groups:MEMBERS_MAX", "", "members of a consumer group", "`invalid_request`"),
    Row("broker.metadata.groups:MEMBERS_ALL_MAX", "", "members of all consumer groups", "`invalid_request`"),
    Row("broker.metadata.groups:MEMBER_STREAMS_MAX", "", "streams that one member reads", "`invalid_request`"),
    Row("broker.metadata.groups:GROUP_PARTITIONS_ALL_MAX", "", "partitions of all groups", "`invalid_request`"),
    Row(
        "broker.metadata.groups:GROUP_PARTITIONS_MAX",
        "",
        "partitions of a consumer group when a member joins",
        "`invalid_request`",
    ),
    Row("broker.metadata.activity:PENDING_MAX", "", "events that wait for `__activity`", "the oldest are lost"),
    Row("broker.metadata.activity:PENDING_BYTES_MAX", "bytes", "all of them, as JSON", "the oldest are lost"),
    Row("broker.api.group_polls:GROUP_WAIT_MS_MAX", "milliseconds", "a member's poll", "`invalid_request`"),
    Row(
        "broker.runtime.samples:GROUP_SERIES_MAX",
        "partitions",
        "whose lag of a consumer group /metrics has",
        "counted in `liftlog_group_partitions_untold`",
    ),
    Row("broker.metadata.groups:TIMEOUT_MS_MAX", "milliseconds", "silence of a member", "`invalid_request`"),
    Row("broker.api.payload_schema:LEVELS_MAX", "levels", "schema of a JSON payload", "`invalid_request`"),
    Row(
        "broker.client.payload.json_columns:ROW_BYTES_MAX",
        "bytes",
        "lists and maps of one JSON value, in columns",
        "the row is `_corrupt`",
    ),
    Row(
        "broker.client.payload.json_columns:BATCH_BYTES_MAX",
        "bytes",
        "columns of JSON values in one batch, but for strings",
        "several batches",
    ),
    Row("broker.api.payload_schema:LENGTH_MAX", "characters", "schema that a stream keeps", "`invalid_setting`"),
    Row("broker.api.payload_schema:GIVEN_MAX", "characters", "such a schema with its comments", "`invalid_setting`"),
    Row("broker.client.nats_publish:AWAITED_BYTES_MAX", "bytes", "published messages that await an ack", "it waits"),
    Row("broker.api.stream:NAME_BYTES_MAX", "bytes", "name of a stream, consumer, group, sink", "`invalid_name`"),
    Row("broker.api.conditions:SUBJECTS_LENGTH_MAX", "characters", "all subjects of a read", "`invalid_request`"),
    Row("broker.api.conditions:KEY_LENGTH_MAX", "characters", "key of a read, also as base64", "`invalid_request`"),
    Row(
        "broker.storage.select:JUDGED_BYTES_MAX",
        "bytes",
        "looked at for one answer with conditions, 8 KiB more for each batch",
        "go on behind",
    ),
    Row("broker.storage.select:MADE_BYTES_MAX", "bytes", "made anew for one answer with conditions", "go on behind"),
    Row("broker.serving.endpoints.records:COLUMNS_LENGTH_MAX", "characters", "columns of a read", "`invalid_request`"),
    Row(
        "broker.storage.encrypted.plans:OPENED_BYTES_MAX",
        "bytes",
        "an answer with encrypted batches; one alone may be larger",
        "go on behind",
    ),
    Row(
        "broker.storage.encrypted.vault:KEYS_REMEMBERED_MAX",
        "keys",
        "of batches of an encrypted log, kept in memory",
        "derived again",
    ),
    Row(
        "broker.storage.writing.state:TAMPERED_RANGES_MAX",
        "ranges",
        "of an encrypted log, changed by somebody, that are told apart",
        "the last ones count as one",
    ),
    Row(
        "broker.config.master_keys:KEY_FILE_BYTES_MAX",
        "bytes",
        "read of a file with a master key",
        "`invalid_setting`",
    ),
    Row("broker.storage.project:HELD_BYTES_MAX", "bytes", "an answer with some columns only", "go on behind"),
    Row("broker.storage.project:WHOLE_BYTES_MAX", "bytes", "read as a whole for such an answer", "go on behind"),
    Row(
        "broker.storage.column_crcs:REMEMBERED_BATCHES_MAX",
        "batches",
        "whose columns' checksums are remembered",
        "forgotten",
    ),
    Row("broker.api.http:LOST_RANGES_MAX", "ranges", "that an answer says are lost", "the last one has the others"),
    Row(
        "broker.storage.blooms:BLOOMS_BYTES_MAX",
        "bytes",
        "what is remembered of batches' subjects and keys",
        "forgotten",
    ),
    Row("broker.api.stream:SUBJECT_BYTES_MAX", "bytes", "subject", "`invalid_subject`"),
    Row("broker.ingest.rules:INFO_LINE_BYTES_MAX", "bytes", "INFO line of nats-server", "the connection is made anew"),
    Row("broker.ingest.rules:HEADER_PEEK_BYTES_MAX", "bytes", "headers read of a record that is too large", "no ack"),
    Row("broker.ingest.rules:ENVELOPE_PEEK_BYTES_MAX", "bytes", "envelope read of a record too large", "no ack of it"),
    Row("broker.ingest.rules:ACK_TEXTS_BYTES_MAX", "bytes", "texts in the ack of an envelope", "stored, no ack"),
    Row("broker.ingest.envelope:FIELD_NUMBER_MAX", "fields", "number of a field in an envelope", "it is none"),
    Row("broker.ingest.envelope:HEADERS_MAX", "headers", "of an envelope", "it is none"),
    Row("broker.ingest.envelope:GROUPS_DEPTH_MAX", "groups", "within each other in an envelope", "it is none"),
    Row("broker.runtime.logs:FIELD_CHARS_MAX", "characters", "one field of a log line", "cut there"),
    Row("broker.runtime.logs:LINE_CHARS_MAX", "characters", "a log line", "cut there"),
    Row("broker.runtime.logs:TRACEBACK_CHARS_MAX", "characters", "a traceback in the log", "its end is kept"),
    Row("broker.ingest.rules:REPLY_PREFIX_BYTES_MAX", "bytes", "one of `nats.reply_prefixes`", "`invalid_setting`"),
    Row("broker.ingest.rules:BATCH_BYTES_HARD", "bytes", "one batch in memory, whatever its settings", "closed before"),
    Row("broker.storage.segments.scan:MESSAGE_BYTES_MAX", "bytes", "one batch on disk", "counts as damage"),
    Row("broker.api.compression:DECODED_BYTES_MAX", "bytes", "one batch once decompressed", "`bad_batch`"),
    Row(
        "broker.storage.memory.producers:WINDOW_GROUPS",
        "requests",
        "of an idempotent producer that may be repeated",
        "`out_of_sequence`",
    ),
    Row("broker.raft.core:COMMAND_BYTES_MAX", "bytes", "one command of the catalog, in a cluster", "`internal`"),
    Row("broker.metadata.partition_commands:ISR_CHANGES_MAX", "partitions", "one `alter_isrs`", "`invalid_request`"),
    Row("broker.raft.snapshots:SNAPSHOT_BYTES_MAX", "bytes", "a snapshot that a broker is sent", "it is dropped"),
    Row(
        "broker.storage.memory.handover:STATE_BYTES_MAX",
        "bytes",
        "a state file that a replica is sent",
        "it is dropped",
    ),
    Row(
        "broker.link.handshake:GREETING_BYTES_MAX",
        "bytes",
        "a greeting of another broker",
        "its stream is refused",
    ),
    Row(
        "broker.link.connection:ANSWER_BYTES_MAX",
        "bytes",
        "an answer of another broker",
        "the stream begins anew",
    ),
    Row(
        "broker.link.server:QUESTION_BYTES_MAX",
        "bytes",
        "a question of another broker",
        "its stream ends",
    ),
    Row(
        "broker.link.server:EARLY_MAX",
        "questions",
        "of another broker about partitions that are not open here",
        "asked again",
    ),
    Row(
        "broker.link.server:STREAMS_EACH_MAX",
        "connections",
        "of another broker that have not ended",
        "it is not let in",
    ),
    Row(
        "broker.link.door:STRANGERS_MAX",
        "connections",
        "at the port for other brokers that have not proven who they are",
        "the oldest ends",
    ),
    Row(
        "broker.link.framed:KEPT_BYTES_MAX",
        "bytes",
        "of memory that a connection of another broker keeps for large frames",
        "a larger frame has memory of its own",
    ),
    Row(
        "broker.link.codec:BULK_BYTES_MAX",
        "bytes",
        "an answer of another broker in bulk",
        "goes on the stream",
    ),
    Row(
        "broker.link.bulk:TRANSFERS_MAX",
        "transfers",
        "in bulk to one broker at a time",
        "others go on the stream",
    ),
    Row("broker.link.codec:PLACE_BYTES_MAX", "bytes", "a name that another broker says", "it is not heard"),
    Row(
        "broker.control.thread:CALLS_MAX",
        "commands",
        "that wait for the catalog, in a cluster",
        "`overloaded`",
    ),
    Row("broker.raft.secured:HANDSHAKE_BYTES_MAX", "bytes", "a handshake of TLS at the Raft port", "it is cut"),
    Row("broker.raft.secured:UNSENT_BYTES_MAX", "bytes", "made by TLS there, and not taken", "it is cut"),
    Row("broker.raft.wire:GREETING_BYTES_MAX", "bytes", "at the Raft port, before the secret is known", "it is cut"),
    Row("broker.raft.wire:MESSAGE_BYTES_MAX", "bytes", "one message between voters", "it is cut"),
    Row(
        "broker.raft.wire:STRANGERS_MAX",
        "connections",
        "at the Raft port that have not said who is there",
        "the oldest is closed",
    ),
    Row("broker.api.stream:REPLICAS_MAX", "replicas", "of a partition", "`invalid_setting`"),
    Row("broker.serving.contract.schemas:BROKERS_NAMED_MAX", "brokers", "named in a rescue's end", "`invalid_request`"),
    Row("broker.metadata.voting:VOTERS_MAX", "brokers", "with a vote in a cluster", "`invalid_request`"),
    Row("broker.serving.endpoints.auth:TTL_MS_MAX", "milliseconds", "life of a token", "`invalid_request`"),
    Row("broker.metadata.access:TOKENS_MAX", "tokens", "that are kept", "`invalid_request`"),
    Row("broker.metadata.access:REVOKED_MAX", "tokens", "that are known to be revoked", "the oldest are not known"),
    Row("broker.api.principals:JWT_LENGTH_MAX", "characters", "a JWT", "`unauthenticated`"),
    Row("broker.serving.http.jwts:KEYS_MAX", "keys", "of the issuer of JWTs", "the set is not taken"),
    Row("broker.serving.http.jwts:KNOWN_MAX", "JWTs", "that need not be judged again", "the least used are"),
    Row("broker.config.jwks:JWKS_BYTES_MAX", "bytes", "set of keys that is fetched", "it is not taken"),
    Row("broker.metadata.access:PRINCIPALS_MAX", "principals", "that have grants", "`invalid_request`"),
    Row("broker.metadata.access:GRANTS_MAX", "grants", "of one principal", "`invalid_request`"),
    Row("broker.serving.contract.schemas:AUDIT_RECORDS_MAX", "records", "of the audit in one request", "another one"),
    Row("broker.serving.contract.schemas:AUDIT_LENGTH_MAX", "characters", "such a record", "`invalid_request`"),
    Row("broker.serving.http.audit:NAME_LENGTH_MAX", "characters", "a name in a record of the audit", "cut there"),
    Row(
        "broker.serving.http.audit:TOLD_LENGTH_MAX",
        "characters",
        "what an act asks for, as JSON, where it is audited",
        "`invalid_request`",
    ),
    Row(
        "broker.serving.http.audit:FAILED_LENGTH_MAX",
        "characters",
        "likewise, in the record of one that failed",
        "its fields are cut as names are",
    ),
    Row("broker.serving.http.audit:POLLED_MAX", "acts", "that clients poll, told apart", "recorded once more"),
    Row("broker.serving.http.audit:SUMMARY_CALLERS_MAX", "callers", "named in a summary of refusals", "in its sum"),
    Row(
        "broker.serving.http.allowance:CALLERS_MAX",
        "callers",
        "whose refusals are limited each by itself",
        "the oldest is forgotten",
    ),
    Row("broker.serving.http.meters:REFUSED_MAX", "principals", "whose refusals are counted apart", "`other`"),
    Row("broker.serving.http.trail:PENDING_MAX", "records", "that wait for `__audit`", "lost: the log has them"),
    Row(
        "broker.node.partitions.consumers:WAITING_BYTES_MAX",
        "bytes",
        "commits of consumer offsets that wait for one on its way",
        "`overloaded`",
    ),
    Row("broker.runtime.audit_log:KNOWN_MAX", "ids", "of records of `__audit` that are taken once", "may be twice"),
    Row(
        "broker.metadata.producers:FORGOTTEN_MAX",
        "ids",
        "of forgotten producers that are refused by name",
        "the oldest is not refused",
    ),
    Row(
        "broker.metadata.producers:PRODUCER_NAMES_MAX",
        "names",
        "of idempotent producers, per cluster",
        "`invalid_request`",
    ),
    Row(
        "broker.node.partitions.queued_appends:APPENDS_WAITING_MAX",
        "requests",
        "HTTP appends that wait for one partition",
        "`overloaded`",
    ),
    Row(
        "broker.intake.driver:WRITE_PENDING_BYTES_MAX",
        "bytes",
        "acks not yet taken by NATS",
        "reading from NATS pauses",
    ),
    Row(
        "broker.serving.http.connections:ROOM_MAX",
        "connections",
        "beyond `http.connections_max`, for health and other brokers",
        "`overloaded`",
    ),
    Row(
        "broker.serving.http.connections:PEERS_MAX",
        "requests",
        "of other brokers on those at a time",
        "`overloaded`",
    ),
    Row(
        "broker.serving.http.connections:TARGET_BYTES_MAX",
        "bytes",
        "path and query of a request",
        "`request_too_large`",
    ),
    Row(
        "broker.serving.liftbridge.to_subject:CAPTURES_MAX",
        "",
        "partitions that a record of Liftbridge's `PublishToSubject` goes to",
        "INVALID_ARGUMENT",
    ),
    Row(
        "broker.serving.liftbridge.shares:SHARES_MAX",
        "",
        "consumers of Liftbridge's groups whose last assignments a broker remembers",
        "the one that asked longest ago begins its partitions anew",
    ),
    Row(
        "broker.serving.liftbridge.shares:READERS_MAX",
        "",
        "partitions of Liftbridge's groups whose last subscription a broker remembers; whose consumers heard of a loss",
        "a former subscription goes on beside a later one; a consumer is told of the loss again",
    ),
    Row("broker.serving.liftbridge.call:FIELDS_LENGTH_MAX", "characters", "facts behind an error", "left out"),
    Row(
        "broker.serving.liftbridge.call:STATUS_LENGTH_MAX",
        "characters",
        "text of a status over Liftbridge's API",
        "cut",
    ),
    Row(
        "broker.serving.liftbridge.call:TIMEOUT_S_MAX",
        "s",
        "deadline of a call of Liftbridge's",
        "it counts as that",
    ),
    Row(
        "broker.serving.liftbridge.call:ASKED_BYTES_MAX",
        "bytes",
        "a message of a call of Liftbridge's that is no record",
        "INVALID_ARGUMENT",
    ),
    Row(
        "broker.serving.liftbridge.call:AT_ONCE_MAX",
        "messages",
        "a call of Liftbridge's works on at once",
        "the others wait",
    ),
    Row(
        "broker.serving.liftbridge.door:ANSWER_BYTES_MAX",
        "bytes",
        "answer of HTTP that a call of Liftbridge's is made of",
        "`request_too_large`",
    ),
    Row(
        "broker.serving.liftbridge.frames:STREAMS_MAX",
        "calls",
        "under way on a connection of Liftbridge's",
        "the client waits",
    ),
    Row(
        "broker.serving.liftbridge.frames:TASKS_MAX",
        "calls",
        "those that were reset and have not ended among them",
        "the connection is cut",
    ),
    Row(
        "broker.serving.liftbridge.frames:HEADERS_BYTES_MAX",
        "bytes",
        "headers of a call of Liftbridge's",
        "the connection is cut",
    ),
    Row(
        "broker.serving.liftbridge.frames:FRAME_BYTES_MAX",
        "bytes",
        "one frame of HTTP/2",
        "the connection is cut",
    ),
    Row(
        "broker.serving.liftbridge.frames:HELD_BYTES_MAX",
        "bytes",
        "sent by all clients of Liftbridge and not done with",
        "UNAVAILABLE, for the longest call of the connection that holds most",
    ),
    Row(
        "broker.serving.liftbridge.frames:SETTINGS_MAX",
        "settings",
        "of HTTP/2 that a client has made",
        "the connection is cut",
    ),
    Row(
        "broker.serving.liftbridge.records:APPENDED_MAX",
        "records",
        "one append of `PublishAsync`",
        "several appends",
    ),
    Row(
        "broker.serving.liftbridge.messages:MESSAGE_BYTES_MAX",
        "bytes",
        "one message of a call of Liftbridge's",
        "INVALID_ARGUMENT",
    ),
    Row("broker.serving.http.connections:HEADER_BYTES_MAX", "bytes", "one header of a request", "`request_too_large`"),
    Row(
        "broker.serving.http.connections:CLOSING_MAX",
        "connections",
        "that are being told why they are cut",
        "cut without a word",
    ),
    Row(
        "broker.serving.http.callers:HEALTH_ROOM",
        "requests",
        "of one caller beyond `limits.caller_requests_max`, for health",
        "`limit_reached`",
    ),
    Row(
        "broker.serving.http.new_names:REMEMBERED_MAX",
        "names",
        "of a kind that are remembered with who has made them",
        "the oldest counts for nobody",
    ),
    Row(
        "broker.serving.http.paces:CALLERS_MAX",
        "callers",
        "that have taken a part of what they may, remembered at least",
        "who has all of it is forgotten",
    ),
    Row("broker.serving.http.body:MEMBERS_MAX", "members", "a request body in gzip", "`invalid_request`"),
    Row("broker.serving.http.body:JSON_BYTES_MAX", "bytes", "JSON request body", "`request_too_large`"),
    Row(
        "broker.serving.http.app:JSON_BUDGET_BYTES_MAX",
        "bytes",
        "all JSON bodies at once, with what is made of them",
        "`overloaded`",
    ),
    Row(
        "broker.serving.http.app:LINES_BUDGET_BYTES_MAX",
        "bytes",
        "all answers of JSON lines at once (8 x `http.body_bytes_max` if that is more)",
        "`overloaded`; a reader that takes nothing for 10 s is cut",
    ),
    Row("broker.serving.http.json_text:DEPTH_MAX", "levels", "of nesting in a JSON request body", "`invalid_request`"),
    Row(
        "broker.serving.http.json_text:ITEMS_MAX",
        "items",
        "in a JSON request body, if it is no commit or abort",
        "`request_too_large`",
    ),
    Row(
        "broker.serving.endpoints.streams:SETTINGS_BYTES_MAX",
        "bytes",
        "JSON with the settings of a stream",
        "`request_too_large`",
    ),
    Row("broker.serving.endpoints.watch:STARS_MAX", "", "`*` in one name of a watch", "`invalid_request`"),
    Row("broker.serving.payload.framing:BATCHES_MAX", "batches", "in one appended Arrow stream", "`request_too_large`"),
    Row("broker.serving.payload.framing:RECORDS_MAX", "records", "in one appended Arrow stream", "`request_too_large`"),
    Row(
        "broker.serving.payload.framing:SCHEMA_BYTES_MAX",
        "bytes",
        "schema of an appended Arrow stream",
        "`request_too_large`",
    ),
    Row(
        "broker.serving.endpoints.append:DECODED_FACTOR",
        "x `http.body_bytes_max`",
        "an appended stream once decompressed",
        "`request_too_large`",
    ),
    Row(
        "broker.serving.contract.schemas:ITEMS_MAX",
        "items",
        "positions, offsets or partitions of one request",
        "`invalid_request`",
    ),
    Row("broker.serving.contract.schemas:STAGES_MAX", "stages", "of one commit or abort", "`invalid_request`"),
    Row(
        "broker.serving.endpoints.sinks:STAGES_BYTES_MAX",
        "bytes",
        "JSON body of a commit or abort",
        "`request_too_large`",
    ),
    Row("broker.serving.endpoints.sinks:STAGES_ITEMS_MAX", "JSON items", "of such a body", "`request_too_large`"),
    Row("broker.serving.endpoints.bundles:HEAD_BYTES_MAX", "bytes", "of the JSON of a bundle", "`invalid_request`"),
    Row("broker.sinks.destinations:FORMER_MAX", "streams", "of earlier batches of a sink", "the oldest are forgotten"),
    Row("broker.sinks.ledger:OWNERS_MAX", "owners", "of a sink", "the oldest has to open anew"),
    Row("broker.serving.contract.schemas:PARTS_MAX", "parts", "of one stage", "`invalid_request`"),
    Row(
        "broker.serving.contract.schemas:ATTRIBUTES_MAX",
        "entries",
        "attributes of a sink's commit",
        "`invalid_request`",
    ),
    Row("broker.api.answers:PIN_LENGTH_MAX", "characters", "the text of a pin", "`invalid_request`"),
    Row(
        "broker.serving.contract.schemas:METADATA_LENGTH_MAX",
        "characters",
        "metadata of a committed offset",
        "`invalid_request`",
    ),
    Row(
        "broker.serving.contract.schemas:INCARNATION_LENGTH_MAX",
        "characters",
        "incarnation that a request names",
        "`invalid_request`",
    ),
    Row("broker.serving.endpoints.watch:PATTERNS_MAX", "names", "in one watch", "`invalid_request`"),
    Row(
        "broker.metadata.session:SESSION_MS_MAX", "ms", "session of a broker, with thousands of partitions", "it lapses"
    ),
    Row("broker.serving.contract.endpoint:WAIT_MS_MAX", "ms", "`max_wait_ms` of a read", "`invalid_request`"),
    Row("broker.serving.contract.endpoint:TIMEOUT_MS_MAX", "ms", "`timeout_ms` of a request", "`invalid_request`"),
    Row("broker.serving.endpoints.append:PRODUCER_EPOCH_MAX", "", "epoch of a producer", "`invalid_request`"),
    Row(
        "broker.serving.http.sending:STALLED_S",
        "s",
        "an answer of which the client takes nothing",
        "the connection is cut",
    ),
    Row(
        "broker.client.http.calls:ANSWER_BYTES_MAX",
        "bytes",
        "JSON answer that the Python client takes",
        "an error, no JSON",
    ),
    Row(
        "broker.storage.disk.unreadable:UNREADABLE_BYTES_MAX",
        "bytes",
        "of one segment that the disk cannot read, marked as lost",
        "none of it is marked: the disk counts as away",
    ),
    Row(
        "broker.client.http.brokers:PROBLEM_BYTES_MAX",
        "bytes",
        "error answer that the Python client takes",
        "cut there",
    ),
    Row(
        "broker.client.http.brokers:OTHERS_MAX",
        "brokers",
        "that answers name beside those that were given",
        "the rest is not remembered",
    ),
    Row(
        "broker.serving.http.peers:ANSWER_BYTES_MAX",
        "bytes",
        "answer of another broker to one that asks it",
        "its partitions are unknown",
    ),
    Row(
        "broker.serving.http.peers:CONNECTIONS_MAX",
        "connections",
        "to one other broker, for what is asked there",
        "a question waits for one, as long as for an answer",
    ),
    Row(
        "broker.serving.endpoints.heads:NAMES_MAX",
        "streams",
        "that are watched here and led elsewhere, asked for by name",
        "all streams of that broker are asked for",
    ),
    Row("broker.client.http.brokers:REDIRECTS_MAX", "redirects", "to a leader, of one call", "`not_leader`"),
    Row("broker.client.producer:BATCH_BYTES_MAX", "bytes", "one request of a Python producer", "sent in several"),
    Row(
        "broker.cli.local.nats_server:PAYLOAD_BYTES_MAX",
        "bytes",
        "message to the NATS of `liftlog up`",
        "NATS refuses it",
    ),
    Row(
        "broker.replication.leader:REPLICA_LAG_MS_MAX",
        "ms",
        "time that a replica may be behind and still count",
        "it leaves the in-sync replicas",
    ),
    Row(
        "broker.cli.commands.publish:TIMEOUT_S_MAX",
        "s",
        "`--timeout-s` of `liftlog publish`",
        "wrong usage, exit code 2",
    ),
    Row("spark_liftlog.options:PARTITIONS_MAX", "partitions", "`minPartitions`, `maxPartitions`", "`invalid_setting`"),
    Row("spark_liftlog.options:STREAMS_MAX", "streams", "names in `streams` or `partitions`", "`invalid_setting`"),
    Row(
        "spark_liftlog.reading.query.changes:TEXT_MAX",
        "characters",
        "filter of a query, or names, that Spark's driver keeps or logs",
        "cut there",
    ),
    Row("spark_liftlog.options:BATCH_ROWS_MAX", "rows", "`batchRows`", "`invalid_setting`"),
    Row(
        "spark_liftlog.parsing:TIMEOUT_MS_MAX",
        "milliseconds",
        "`deliveryTimeoutMs`, `truncationTimeoutMs` in Spark",
        "`invalid_setting`",
    ),
    Row(
        "spark_liftlog.writing.sink_options:TXN_APP_ID_MAX",
        "characters",
        "`txnAppId` of Spark's sink",
        "`invalid_setting`",
    ),
    Row(
        "spark_liftlog.reading.batch_reader:PINNED_PARTITIONS_MAX",
        "partitions",
        "of a frame that a micro-batch pins",
        "it is not pinned",
    ),
    Row(
        "spark_liftlog.reading.pins:LOADS_MAX", "loads", "of equal frames in one micro-batch that it pins", "not pinned"
    ),
    Row("spark_liftlog.session:ROWS_MAX", "rows", "shown of a stream in a notebook", "cut there"),
)

NO_LIMIT: Final = frozenset(
    {
        # sizes of windows, pauses and texts; the type of a field; what something is made of
        "OFFSET_MAX INT64_MAX INT32_MAX LEADER_EPOCH_MAX TIMESTAMP_US_MAX VALUE_SHOWN_MAX _SHOWN_MAX SHOWN_MAX",
        "INLINE_BYTES_MAX IN_TURN_BYTES_MAX SMALL_BYTES_MAX RETRY_S_MAX PAUSE_S_MAX IDLE_S_MAX IDLE_PER_ADDRESS_MAX",
        "EXCERPT_BYTES_MAX HORIZONS_MAX REPAIRS_PER_CALL_MAX DEPTH_MAX SEGMENTS_PER_PLAN_MAX SHORT_BYTES_MAX",
        "LOOKED_AT_BYTES_MAX SKEW_MAX_S GREETING_BYTES_MAX PENDING_BYTES_MAX JOINED_BYTES_MAX DESCRIPTION_AGE_S_MAX",
        "SEQUENCE_DIGITS_MAX MAX_WAIT_MS PLAIN_BODY_BYTES_MAX UNREADABLE_BYTES_MAX OVERHEAD_BYTES_MAX AHEAD_MAX",
        "ERRORS_MAX ERROR_SHOWN_MAX KEPT_MAX REASONS_MAX EXAMPLE_CHARS_MAX TEXT_CHARS_MAX KINDS_MAX ASKED_MAX",
        "ROWS_AT_ONCE_MAX IN_FLIGHT_MAX EPOCHS_MAX ERROR_LENGTH_MAX OFFSET_MAX CALM_MS_MAX EPOCH_MAX NUMBER_MAX",
        "SLOWER_MAX SILENT_S_MAX WAIT_MS_MAX HERE_BYTES_MAX MARKS_MAX REPORTS_MAX PLAIN_CHARS_MAX WAITING_BATCHES_MAX",
    }
)


def constants() -> dict[str, str]:
    """Every constant of the code whose name ends like a limit: `module:NAME` -> NAME."""
    found = {}
    for folder in ("broker", "spark_liftlog"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for name in re.findall(
                r"^(_?[A-Z0-9_]+_MAX(?:_S)?|MAX_[A-Z_]+(?:MS|BYTES))\b.*=", path.read_text(), re.MULTILINE
            ):
                found[f"{module}:{name}"] = name
    return found


def value_of(place: str) -> int | float:
    module, _, name = place.partition(":")
    found: int | float = getattr(importlib.import_module(module), name)
    return found


def number(value: float | None, unit: str | None) -> str:
    """As people write it: 8 MiB, 7 days, 65,536."""
    if value is None:
        return "none"
    if value >= 1 << 50 and unit != "bytes":
        return f"2^{int(value).bit_length() - 1}{f' {unit}' if unit else ''}"
    if unit == "bytes":
        for power, name in ((60, "EiB"), (50, "PiB"), (40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
            if value >= 1 << power and value % (1 << power) == 0:
                return f"{int(value) >> power} {name}"
    if unit == "ms":
        for size, name in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
            if value >= size and value % size == 0:
                return f"{int(value) // size:,} {'day' if value == size == 86_400_000 else name}"
    if value == 1 and unit in ("bytes", "records"):
        unit = unit.removesuffix("s")
    return f"{value:,.0f} {unit}" if unit else f"{value:,.0f}"


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def configured() -> list[tuple[str, ...]]:
    """Keys of the broker that are numbers with limits; the defaults of streams come in their own table."""

    def row(setting: Setting) -> tuple[str, ...]:
        assert setting.limit is not None
        least, greatest = (number(float(bound), setting.unit) for bound in setting.limit)
        default = str(setting.default) if setting.key.endswith("port") else number(setting.default, setting.unit)
        return f"`{setting.key}`", default, f"{least} to {greatest}", setting.doc

    wanted = [s for s in SETTINGS if s.kind == "int" and s.limit and not s.key.startswith("defaults.")]
    return [row(setting) for setting in wanted]


def of_streams() -> list[tuple[str, ...]]:
    """Settings of a stream that are numbers."""
    units = {setting.key.removeprefix("defaults."): setting.unit for setting in SETTINGS}
    rows = []
    for field in fields(StreamSettings):
        if field.name in LIMITS:
            unit = units.get(field.name)
            least, greatest = (number(bound, unit) for bound in LIMITS[field.name])
            rows.append((f"`{field.name}`", number(field.default, unit), f"{least} to {greatest}"))  # type: ignore[arg-type]
    return rows


def fixed() -> list[tuple[str, ...]]:
    """A row that only says where things are counted begins with the name of these things, its unit."""

    def row(limit: Row) -> tuple[str, ...]:
        what, unit = limit.what, limit.unit or None
        if unit and what.split()[0] in ("of", "in", "to", "from", "that", "with", "at", "named", "shown"):
            what, unit = f"{unit} {what}", unit if unit in MEASURES else None
        return what, number(value_of(limit.place), unit), limit.beyond, f"`{limit.place.partition(':')[0]}`"

    return [row(limit) for limit in FIXED]


def page() -> str:
    """All of docs/reference/limits.md."""
    return HEAD.format(
        configured=table(("key", "default", "may be", "what it bounds"), configured()),
        streams=table(("setting", "default", "may be"), of_streams()),
        writers=table(("what is written", "as the disk fills"), of_writers()),
        fixed=table(("what", "at most", "beyond it", "where"), fixed()),
    )


HEAD: Final = """# Limits

This page lists every limit, its default, and what happens beyond it. An error has a reason code
such as `invalid_setting`. It names what was wrong, where, and the limit, and carries the limit as a
field. This page is written from the code by `python -m tests.pages`.

## Of a broker

These are keys of the configuration ([conf/liftlog.toml](../../conf/liftlog.toml)). In the
environment the name is `LIFTLOG_` and the key in capitals. A value outside of its limits stops the
start with `invalid_setting`. While the broker runs, this happens at a limit:

- Beyond `limits.streams_max` and `limits.partitions_max`, creating is refused: `invalid_request`.
- Records that would use up `limits.disk_reserve_bytes` are refused: `disk_full`. Followers, and the
  broker's own streams, stop at a part of it ([operations.md](../guides/operations.md), "Room").
- A body over `http.body_bytes_max` is refused: `request_too_large`. All bodies of records that are
  being taken in have 8 times as much memory together, counted by their decoded length and with all
  copies; more are refused before they are read: `overloaded`.
- A connection beyond `http.connections_max` closes the one that has been idle for longest. If all of
  them have requests under way, some more are taken for `/livez`, `/readyz`, `/metrics` and other
  brokers; any other request gets `overloaded`.
- One caller has a part of all this, so that others have the rest: `limits.caller_*` of requests, long
  polls, memory for bodies and names, `limits.address_connections_max` of connections. A request too many
  waits a second for one of the same caller. Beyond that the answer is `limit_reached` (429). It names
  the limit (`key`, `limit`) and whom it counts for (`caller`), and says when to come again
  (`Retry-After`, `retry_after_s`). A caller is a principal, or an address from which nobody says who he is
  ([security.md](../guides/security.md), "Limits per caller"). Each broker counts for itself.
- A request that stops half-way is cut: `request_timed_out`.
- A request by a name that is not in `http.hosts` (nor an address, localhost, or the advertised host)
  is refused: `foreign_request`.
- At `intake.pending_bytes_max` that is not fsynced, reading from NATS pauses. Where a partition
  waits for its followers, as many bytes again may wait for those, of all partitions together; of
  one that has as much as is left, more is refused: `overloaded`.
- Beyond `sinks.stage_bytes_max`, staging is refused: `stages_full`. A stage or a commit over
  `sinks.group_bytes_max` is refused: `request_too_large`.

The other keys are rates and times.

{configured}
## Of a stream

These settings are given when a stream is created, or by `liftlog stream alter`. The section
`[defaults]` of the configuration has the defaults of new streams. A value outside of its limits is
`invalid_setting`. A record over `record_bytes_max` is refused with `record_too_large`. Over NATS
the other records of its batch are stored; over HTTP the whole request is refused. [cli.md](cli.md)
and `broker/api/stream.py` explain each setting.

{streams}
## Fixed

{fixed}
## Who writes to a data folder

As a disk fills, writers stop one after the other, and who makes room goes on to the last. The
reserve is `limits.disk_reserve_bytes`. What is about to be written counts.

{writers}
## What has no limit of its own

- Consumers and their offsets: each is one record in `__offsets`.
- Keys of a compacted stream: more keys than `compaction.map_bytes` holds take more passes.
- Segments of a partition. Offsets have 63 bits.
- The size of a partition. A partition is on one disk; without space an append is `disk_full`.
"""
