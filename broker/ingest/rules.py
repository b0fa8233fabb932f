"""Rules that decide the fate of a message: names, limits and the order of the checks, for both twins.

A message is stored, skipped in silence, or refused (counted, and answered with an error if it has a
reply subject and the stream answers). The first rule that applies decides:

    1  subject under `_INBOX.`; subject that begins with `$`        skipped   skipped_inbox, skipped_system
    2  its partition is led elsewhere                               skipped   skipped_other_partition
    3  header block malformed                                       refused   refused_bad_header
    4  subject, reply or a header name is not UTF-8                 refused   refused_bad_utf8
    5  `Nats-Expected-Stream` names another stream, reply_acks on   refused   refused_expected_stream
    6  a `Nats-Expected-Last-*` that cannot be checked here, ditto  refused   refused_expected_last: of several
       partitions, of another name, of another subject, a subject without a sequence, in this order
    7  `Liftlog-Ack`, `-Fence` or `-Tombstone` of unknown value     refused   refused_bad_option
    8  a tombstone without `Liftlog-Key`                            refused   refused_tombstone_without_key
    9  larger than record_bytes_max                                 refused   refused_too_large
    10 the partition's batch is as large as a batch may be          refused   refused_batch_full

A message for a subscription that is gone is `unrouted`. Every message is counted once: messages = stored + unrouted +
everything skipped_ or refused_. Its id and its expectations are settled later, when its batch is appended
(settling.py): until then it counts as stored.

R1  Header names are compared exactly, case included, as NATS does. If an option is repeated, the first counts.
R2  A record's size is subject + reply + header block + payload, as they came, so it is known before the
    header block or payload has arrived, and a record that is too large is never buffered.
R3  Without the header block (malformed, or too large to look into) a message has no options: it is
    hashed by its subject.
R4  `Liftlog-Ack: none` silences the ack of a stored record, not a refusal.
R5  A reply subject is answered if it begins with one of `nats.reply_prefixes`. The broker publishes for whoever may
    publish a record: to any other subject it would say what the publisher itself may not. One that begins with `$` (the
    server's own: $JS, $SYS, $KV) or is so long that the server would cut us off is never answered.
R6  A stream that sends no acks is a silent copy: expectations speak of another stream's numbers, and are not minded.
    Ids are: a repeat is stored nowhere.
R7  An empty id or expectation is none, as in JetStream.
R8  A payload of eight bytes or more that begins with Liftbridge's cookie is opened, if its route says so, and is
    the value of a plain record if it is no envelope (envelope.py). That of a record that is too large is opened up to
    `ENVELOPE_PEEK_BYTES_MAX`, so that its publisher can be told. The record has its value; its key, if it has one that
    is not empty, else that of `Liftlog-Key`; the headers of NATS, and its own behind them, where an option counts as
    among those of NATS. Its ack policy stands in for the stream's `acks`. Its size is as R2 has it.
R9  Who names an ack inbox in an envelope is told there and nowhere else, also by a stream that sends no acks: no
    reply subject is meant. It is not acked by such a stream if it expects something (R6). R4 and R5 hold for the
    inbox. Of a refusal it is told what Liftbridge has a code for, and else nothing (`envelope.UNKNOWN`). It has to be
    a subject to publish on (it comes from a payload, and goes into a line of the protocol), and the texts of an ack
    no longer than `ACK_TEXTS_BYTES_MAX`: the server would cut us off for one that is larger than its messages may be.
    So it is with the inbox of who publishes over Liftbridge's API (`answers.addressed`).
R10  `Liftlog-Fence` is a number, and its record is stored if that is the partition's fence when it is appended. As with
    other expectations, a silent copy does not look at it (R6).
R11  Where the stream counts offsets (`concurrency_control`), the `offset` of an envelope is what its record expects to
    get, unless `Nats-Expected-Last-Sequence` says it; -1: any. In Liftbridge, too, 0 is what nobody says. The stream
    asks for it, so it is looked at in a silent copy, and with several partitions.
"""

from __future__ import annotations

from typing import Final

KEY: Final = b"Liftlog-Key"
ACK: Final = b"Liftlog-Ack"
FENCE: Final = b"Liftlog-Fence"
TOMBSTONE: Final = b"Liftlog-Tombstone"
EXPECTED_STREAM: Final = b"Nats-Expected-Stream"
EXPECTED_LAST: Final = b"Nats-Expected-Last-"
EXPECTED_LAST_MSG_ID: Final = b"Nats-Expected-Last-Msg-Id"
EXPECTED_LAST_SEQUENCE: Final = b"Nats-Expected-Last-Sequence"
EXPECTED_LAST_SUBJECT: Final = b"Nats-Expected-Last-Subject-Sequence-Subject"
EXPECTED_LAST_SUBJECT_SEQUENCE: Final = b"Nats-Expected-Last-Subject-Sequence"
MSG_ID: Final = b"Nats-Msg-Id"
INBOX: Final = b"_INBOX."
SYSTEM: Final = b"$"
REPLY_PREFIX_BYTES_MAX: Final = 255

AWAITS_NONE: Final = 0
AWAITS_ALL: Final = 1
AWAITS_LEADER: Final = 2
"""A message waits for no ack, for one of a committed record, or for one of a record durable on the leader."""
ACK_VALUES: Final = {b"all": AWAITS_ALL, b"leader": AWAITS_LEADER, b"none": AWAITS_NONE}
"""Value of `Liftlog-Ack`, and of the setting `acks`."""
POLICIES: Final = {0: AWAITS_LEADER, 1: AWAITS_ALL}
"""Liftbridge's `AckPolicy`; 2, and a number that it does not have: no ack."""
SEQUENCE_DIGITS_MAX: Final = 18
NO_SEQUENCE: Final = (1 << 63) - 1
"""Stands for an expected sequence that is no number, or has too many digits: no log is that long."""
NO_OFFSET: Final = -1
"""The `offset` of an envelope that may get any (R11)."""
TOMBSTONE_VALUES: Final = {b"1": True, b"true": True, b"0": False, b"false": False}

HEADER_START: Final = b"NATS/1.0"
HEADER_PEEK_BYTES_MAX: Final = 64 << 10
"""The header block of a record that is too large is still read, for R3, up to this; JetStream allows no larger one."""
ENVELOPE_PEEK_BYTES_MAX: Final = 1 << 20
"""The payload of a record that is too large is still opened up to this, which is NATS's own limit by default (R8)."""
ACK_TEXTS_BYTES_MAX: Final = 4096
"""Of the stream's name, the subjects, the ack inbox and the correlation id in an ack of an envelope (R9)."""
CONTROL_LINE_BYTES_MIN: Final = 64
CONTROL_LINE_SLACK: Final = 64
"""A server's MSG line may be this much longer than the publisher's PUB line: operation, subscription id, sizes."""
INFO_LINE_BYTES_MAX: Final = 1 << 20
"""INFO lists every server of a cluster; it is not under the control line limit."""
ANSWER_ARGUMENT_BYTES: Final = 8
"""A reply subject this close to the control line limit cannot be answered: the server would cut us off."""
BATCH_BYTES_HARD: Final = 1 << 30
"""A batch never grows past this, whatever happens to its driver: Arrow's offsets are 32 bits."""
RECORD_WEIGHT_BYTES: Final = 40
HEADER_WEIGHT_BYTES: Final = 8
"""About the cost of a record and of a header in a batch, beyond their data; only the hard limit counts it."""

COUNTERS: Final = (
    "messages",
    "bytes",
    "stored",
    "unrouted",
    "unanswerable",
    "skipped_inbox",
    "skipped_system",
    "skipped_other_partition",
    "refused_bad_header",
    "refused_bad_utf8",
    "refused_expected_stream",
    "refused_expected_last",
    "refused_bad_option",
    "refused_tombstone_without_key",
    "refused_too_large",
    "refused_batch_full",
)
"""Counted since the Intake was made. `bytes` is header blocks and payloads of complete messages, whatever their
fate; `unanswerable` is records stored or refused that ask for an answer where none may go (R5)."""
