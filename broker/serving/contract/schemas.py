"""The shapes of JSON bodies, as JSON Schema (2020-12): part of the contract, see `openapi.py`.

Answers may get further keys in later releases, so clients must ignore what they do not know; what
clients send is closed: an unknown key is an error.
"""

from __future__ import annotations

from typing import Any, Final

from broker.api.errors import BY_REASON
from broker.api.stream import CHOICES, LIMITS, NAME_BYTES_MAX, NULLABLE, SUBJECT_BYTES_MAX, UNALTERABLE, StreamSettings
from broker.serving.contract.fields import LEADER_EPOCH_MAX

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    """A reference to a component schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"oneOf": [schema, {"type": "null"}]}


def listing(items: Schema, **more: Any) -> Schema:
    """An array."""
    return {"type": "array", "items": items, **more}


def answer(**properties: Schema) -> Schema:
    """An object of an answer: all of these keys are there, others may be."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def asked(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object of a request: no other keys."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


STRING: Final[Schema] = {"type": "string"}
INTEGER: Final[Schema] = {"type": "integer"}
BOOLEAN: Final[Schema] = {"type": "boolean"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
OFFSET: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": (1 << 63) - 1}
TIMESTAMP_US: Final[Schema] = {"type": "integer", "minimum": -(1 << 63) + 1, "maximum": (1 << 63) - 1}
LEADER_EPOCH: Final[Schema] = {
    "type": "integer",
    "minimum": -1,
    "maximum": LEADER_EPOCH_MAX,
    "description": "-1: unknown or none",
}
NAME: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX}
PARTITION: Final[Schema] = {"type": "integer", "minimum": 0, "maximum": (1 << 31) - 1}
METADATA_LENGTH_MAX: Final = 4096
INCARNATION_LENGTH_MAX: Final = 128
INCARNATION: Final[Schema] = {"type": "string", "maxLength": INCARNATION_LENGTH_MAX}
ITEMS_MAX: Final = 10_000
"""Most positions, offsets or partitions in one request."""
PARTS_MAX: Final = 1 << 20
"""Most parts of one stage."""
ATTRIBUTES_MAX: Final = 32
STAGES_MAX: Final = 50_000
"""Most stages of one commit: 200 tasks that write to 64 partitions make 12,800."""
ON_REPEAT: Final = ("refuse", "keep_first")


def _settings() -> dict[str, Schema]:
    """Each stream setting, with the limits of `broker.api.stream`."""
    found: dict[str, Schema] = {}
    for key, default in StreamSettings().as_dict().items():
        schema: Schema
        if key in LIMITS:
            schema = {"type": "integer", "minimum": LIMITS[key][0], "maximum": LIMITS[key][1]}
        elif isinstance(default, bool):
            schema = dict(BOOLEAN)
        elif key in CHOICES:
            schema = {"type": "string", "enum": list(CHOICES[key])}
        elif key == "partition_by":
            schema = {"type": "string", "pattern": "^(subject_suffix|key|subject|token:[1-9][0-9]{0,2})$"}
        else:
            schema = {"type": "string", "maxLength": SUBJECT_BYTES_MAX}
        if key in NULLABLE:
            schema = {**schema, "type": [schema["type"], "null"]}
        found[key] = schema
    return found


_SETTINGS: Final = _settings()
_BROKER: Final = answer(id=STRING, http=STRING)

_AT: Final[Schema] = {
    "description": "For a timestamp: the first record that is not older. For an epoch: its end.",
    "oneOf": [
        {"enum": ["earliest", "latest"]},
        asked(("timestamp_us",), timestamp_us=TIMESTAMP_US),
        asked(("offset",), offset=OFFSET),
        asked(("epoch",), epoch={"type": "integer", "minimum": 0, "maximum": LEADER_EPOCH_MAX}),
    ],
}

_STAGE: Final = asked(
    ("stream", "partition", "stage"),
    stream=NAME,
    partition=PARTITION,
    stage={"type": "string", "pattern": "^[0-9a-f]{32}$"},
    parts={"type": "integer", "minimum": 1, "maximum": PARTS_MAX},
)
_SINK: Final[Schema] = {
    "sink": NAME,
    "current_epoch": {
        **OFFSET,
        "description": "Of the owner who committed last, or of a reset: lower ones decide nothing more. 0: none yet",
    },
    "checkpoint": {**nullable(STRING), "description": "Commits of another one are `sink_forked`. null: not told yet"},
    "one_shot": {**BOOLEAN, "description": "It vanishes when its one batch is done, or never came"},
    "least_batch_id": {**OFFSET, "description": "Set by a reset: nothing below is decided"},
    "changed_ms": INTEGER,
    "last": {
        "description": "The last decision; null: none since the sink was made or reset",
        **nullable(
            answer(
                batch_id=OFFSET,
                decision={"type": "string", "description": "In the header of its batches"},
                owner=STRING,
                epoch=OFFSET,
                rows=COUNT,
                digest=STRING,
                attributes={"type": "object", "additionalProperties": STRING},
                decided_ms=INTEGER,
                complete={**BOOLEAN, "description": "false: being finished"},
                stages=listing(answer(stream=NAME, partition=PARTITION, stage=STRING, parts=COUNT, rows=COUNT)),
            )
        ),
    },
}
_OWNER: Final[Schema] = {
    "type": "string",
    "minLength": 1,
    "maxLength": NAME_BYTES_MAX,
    "description": "Names the run that writes: the same for all of its tasks, and for no other run",
}
_CHECKPOINT: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": METADATA_LENGTH_MAX}

_STREAM: Final[dict[str, Schema]] = {
    "name": NAME,
    "incarnation": STRING,
    "created_ms": INTEGER,
    "internal": BOOLEAN,
    "paused": {**BOOLEAN, "description": "It captures nothing and takes no appends until it is resumed"},
    "read_only": {**BOOLEAN, "description": "It answers every record with an error"},
    "settings": ref("StreamSettings"),
    "reply_acks_effective": BOOLEAN,
    "warnings": listing(STRING),
    "partitions": listing(ref("Partition")),
}
COMPONENTS: Final[dict[str, Schema]] = {
    "Problem": {
        "description": "An RFC 9457 problem. Further keys hold the facts: parameter, value, limit, and others.",
        **answer(
            type=STRING,
            title=STRING,
            status={"type": "integer", "minimum": 400, "maximum": 599},
            detail=STRING,
            reason={"type": "string", "enum": sorted(BY_REASON)},
        ),
    },
    "StreamSettings": answer(**_SETTINGS),
    "NewStream": asked(("name",), name=NAME, **_SETTINGS),
    "AlteredSettings": {
        **asked((), **{key: schema for key, schema in _SETTINGS.items() if key not in UNALTERABLE}),
        "additionalProperties": True,
        "description": "Settings that cannot be altered may be repeated with the value that they have.",
        "minProperties": 1,
    },
    "Partition": answer(
        partition=PARTITION,
        leader=_BROKER,
        replicas=listing(STRING),
        isr=listing(STRING),
        leader_epoch=LEADER_EPOCH,
        log_start_offset=OFFSET,
        high_watermark=OFFSET,
        log_end_offset=OFFSET,
        bytes=COUNT,
        segments=COUNT,
        lost_ranges=listing(listing(OFFSET, minItems=2, maxItems=2)),
    ),
    "Stream": answer(**_STREAM),
    "CreatedStream": answer(**_STREAM, created={**BOOLEAN, "description": "False: it existed, with the same settings"}),
    "Streams": answer(streams=listing(ref("Stream"))),
    "ReadOnlyState": asked(("read_only",), read_only=BOOLEAN),
    "Trim": asked(
        ("before",),
        before={
            "description": "For a timestamp: the first record that is not older, or the high watermark.",
            "oneOf": [
                {"const": "latest"},
                asked(("offset",), offset=OFFSET),
                asked(("timestamp_us",), timestamp_us=TIMESTAMP_US),
            ],
        },
        partitions=listing(PARTITION, minItems=1, maxItems=ITEMS_MAX),
    ),
    "Trimmed": answer(partitions=listing(answer(partition=PARTITION, log_start_offset=OFFSET))),
    "PartitionCount": asked(
        ("partitions",),
        partitions={"type": "integer", "minimum": LIMITS["partitions"][0], "maximum": LIMITS["partitions"][1]},
    ),
    "Appended": answer(
        first_offset=OFFSET,
        next_offset=OFFSET,
        record_count=COUNT,
        leader_epoch=LEADER_EPOCH,
        duplicate={**BOOLEAN, "description": "It was appended before, by the same producer as the same sequence"},
    ),
    "ProducerName": asked(name=NAME),
    "Producer": answer(
        producer_id={"type": "integer", "minimum": 1, "maximum": (1 << 63) - 1},
        epoch={"type": "integer", "minimum": 0, "maximum": (1 << 32) - 1},
    ),
    "Watch": answer(
        version=INTEGER,
        streams={
            "type": "object",
            "additionalProperties": answer(
                incarnation=STRING,
                partitions={
                    "type": "object",
                    "additionalProperties": answer(
                        log_start_offset=OFFSET, high_watermark=OFFSET, leader_epoch=LEADER_EPOCH, leader=_BROKER
                    ),
                },
            ),
        },
    ),
    "Positions": asked(
        ("positions",),
        positions=listing(
            asked(("stream", "partition", "at"), stream=NAME, partition=PARTITION, at=_AT, incarnation=INCARNATION),
            minItems=1,
            maxItems=ITEMS_MAX,
        ),
    ),
    "Resolved": answer(
        positions=listing(
            {
                **answer(
                    stream=STRING,
                    partition=INTEGER,
                    incarnation=nullable(STRING),
                    offset={**nullable(OFFSET), "description": "null: no record that late, or an error"},
                    leader_epoch={**LEADER_EPOCH, "description": "Of the record before the offset; -1: none"},
                    log_start_offset=nullable(OFFSET),
                    high_watermark=nullable(OFFSET),
                    bytes_ahead={**nullable(COUNT), "description": "Up to the high watermark, roughly"},
                )
            }
        )
    ),
    "Consumer": answer(
        consumer=NAME,
        partitions=listing(
            answer(
                stream=NAME,
                partition=PARTITION,
                offset=OFFSET,
                high_watermark={**nullable(OFFSET), "description": "null: the partition that was read is gone"},
                lag={**nullable(COUNT), "description": "High watermark - offset, in records"},
                leader_epoch=LEADER_EPOCH,
                incarnation=STRING,
                committed_ms=INTEGER,
                metadata=STRING,
            )
        ),
        lag={**COUNT, "description": "Of all partitions together, in records"},
    ),
    "Consumers": answer(consumers=listing(ref("Consumer"))),
    "Commit": asked(
        ("offsets",),
        offsets=listing(
            asked(
                ("stream", "partition", "offset"),
                stream=NAME,
                partition=PARTITION,
                offset=OFFSET,
                leader_epoch=LEADER_EPOCH,
                incarnation=INCARNATION,
                metadata={"type": "string", "maxLength": METADATA_LENGTH_MAX},
            ),
            minItems=1,
            maxItems=ITEMS_MAX,
        ),
    ),
    "Committed": answer(committed=COUNT),
    "Reset": asked(
        ("stream", "to"),
        stream=NAME,
        partitions=listing(PARTITION, minItems=1, maxItems=ITEMS_MAX),
        to={
            "oneOf": [
                {"enum": ["earliest", "latest"]},
                asked(("offset",), offset=OFFSET),
                asked(("timestamp_us",), timestamp_us=TIMESTAMP_US),
            ]
        },
    ),
    "SinkOpen": asked(
        ("owner",),
        owner=_OWNER,
        one_shot={**BOOLEAN, "description": "If the sink is made: it is for one batch, and vanishes with it"},
    ),
    "SinkOpened": answer(owner=STRING, epoch={**OFFSET, "description": "The owner's, for stages and commits"}, **_SINK),
    "Sink": answer(**_SINK),
    "Sinks": answer(sinks=listing(ref("Sink"))),
    "Staged": answer(
        stage=STRING, part=COUNT, record_count=COUNT, stored={**BOOLEAN, "description": "false: it was there"}
    ),
    "SinkCommit": asked(
        ("owner", "epoch", "batch_id", "stages", "rows"),
        owner=_OWNER,
        epoch=OFFSET,
        batch_id=OFFSET,
        stages=listing(_STAGE, maxItems=STAGES_MAX),
        rows={**OFFSET, "description": "Refused unless the stages hold so many"},
        digest={"type": "string", "maxLength": METADATA_LENGTH_MAX},
        attributes={
            "type": "object",
            "maxProperties": ATTRIBUTES_MAX,
            "additionalProperties": {"type": "string", "maxLength": METADATA_LENGTH_MAX},
            "description": "Kept with the decision. Another `checkpoint` than the sink's is `sink_forked`",
        },
        on_repeat_with_other_rows={
            "enum": list(ON_REPEAT),
            "description": "If this batch id was decided with another number of rows: `refuse` (the default) with"
            " `sink_rows_differ`, or `keep_first`, drop these and answer what was decided",
        },
    ),
    "SinkCommitted": answer(outcome={"enum": ["committed", "already_done"]}, **_SINK),
    "SinkAbort": asked(("stages",), stages=listing(_STAGE, maxItems=STAGES_MAX)),
    "SinkAborted": answer(dropped=COUNT),
    "SinkReset": asked(("next_batch_id",), next_batch_id=OFFSET),
    "SinkAdopt": asked(("checkpoint",), checkpoint=_CHECKPOINT),
    "Cluster": answer(
        cluster_id=STRING,
        feature_level=INTEGER,
        controller=STRING,
        version=STRING,
        brokers=listing(answer(id=STRING, http=STRING, grpc=STRING)),
    ),
    "Live": answer(status={"const": "live"}),
    "Ready": answer(ready=BOOLEAN, missing={"type": "object", "additionalProperties": STRING}),
}
APPENDED: Final = ref("Appended")
