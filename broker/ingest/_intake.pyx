"""NATS bytes to record batches, compiled: the fast twin of pure.py.

    chunk of bytes --feed--> control line -> header block -> fate (rules.py) -> columns of a Builder
    Builder --take--> PendingBatch --compose--> one Arrow IPC message, sealed
                                   --acks-----> one blob of PUBs

The idea: a message is read in place. Nearly always the fed chunk has all of it. Then its parts are copied once,
from the chunk into columns, and compose copies each column once more, into the Arrow message. If the message is
split, its control line and header block wait in buffers of the Intake. Its payload is written behind the builder's
value column as it arrives, and becomes part of the column when the message is complete. Nothing is scanned twice,
and no Python object is made per message.

I1  Columns change only when a message is complete, its closing CRLF included.
I2  Without the GIL only C memory is touched: the Intake's, its routes', and the slots of routed builders.
I3  Every slot that a route, the dirty list or a message in part points to belongs to a Builder that the
    Intake holds a reference to.

Files, each for one idea, included in this order: _columns.pxi (buffers, columns, pool), _message.pxi (reading
one message), _envelope.pxi (Liftbridge's envelope), _ids.pxi (the table of message ids), _subjects.pxi (the last records of subjects), _settle.pxi
(settling.py), _compose.pxi (columns to bytes), _acks.pxi (acks of envelopes), _batch.pxi (Builder, PendingBatch), _routes.pxi (subscriptions),
_refusals.pxi (fates and answers), _fate.pxi (rules.py), _connection.pxi (the state machine). This one is Intake.
"""

import sys

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawCalloc, PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memset

from crc32c import crc32c

from broker.api.batch import (
    BODY_LENGTH_AT,
    BUFFER_COUNT,
    BUFFERS_AT,
    FORMAT_VERSION,
    HEADER_BYTES,
    NODE_COUNT,
    NODES_AT,
    ROWS_AT,
    TEMPLATE,
    VALUE_AT,
)
from broker.api import partitioning
from broker.ingest import answers, envelope, rules
from broker.ingest.answers import IDS_FULL, IDS_OFF, SUBJECTS_FULL, SUBJECTS_NOT_READY, SUBJECTS_OFF, WRONG_MSG_ID
from broker.ingest.answers import WRONG_FENCE as WRONG_FENCE_ERROR
from broker.ingest.answers import WRONG_SEQUENCE as WRONG_SEQUENCE_ERROR
from broker.ingest.answers import ack_head, ack_tail, error_body, json_text, publish
from broker.ingest.errors import EXCERPT_BYTES_MAX, IntakeProtocolError
from broker.ingest.settings import check_builder, check_intake, check_place, check_route

cdef extern from *:
    """
    #ifndef LIFTLOG_SOURCES
    #define LIFTLOG_SOURCES ""
    #endif
    """
    const char *LIFTLOG_SOURCES  # set by setup.py; compared by broker/api/compiled.py

SOURCES = LIFTLOG_SOURCES.decode()
IMPLEMENTATION = "compiled"
BATCH_BYTES_HARD = rules.BATCH_BYTES_HARD

# Less work than this is done with the GIL held: to let it go and get it back would take longer.
cdef Py_ssize_t NOGIL_BYTES_MIN = 8192
cdef Py_ssize_t NOGIL_ANSWERS_MIN = 128
cdef bytes TEMPLATE_BYTES = TEMPLATE
cdef bytes NO_DECISION = b"0" * 32
cdef Py_ssize_t ACK_HEAD_BEFORE = len(b'{"stream":'), ACK_HEAD_BEHIND = len(b',"seq":')  # the name of the stream
assert ack_head("s") == b'{"stream":"s","seq":'
cdef Py_ssize_t HEADER_SIZE = HEADER_BYTES
cdef Py_ssize_t BODY_LENGTH_POSITION = BODY_LENGTH_AT
cdef Py_ssize_t ROWS_POSITION = ROWS_AT
cdef Py_ssize_t BUFFERS_POSITION = BUFFERS_AT
cdef Py_ssize_t NODES_POSITION = NODES_AT
cdef Py_ssize_t VALUE_POSITION = VALUE_AT
cdef uint64_t FORMAT_VERSION_NUMBER = FORMAT_VERSION
assert BUFFER_COUNT == 25 and NODE_COUNT == 10

cdef Py_ssize_t HEADER_PEEK_BYTES_MAX = rules.HEADER_PEEK_BYTES_MAX
cdef Py_ssize_t ENVELOPE_PEEK_BYTES = rules.ENVELOPE_PEEK_BYTES_MAX
cdef Py_ssize_t ACK_TEXTS_BYTES = rules.ACK_TEXTS_BYTES_MAX
cdef int ACK_UNKNOWN = envelope.UNKNOWN
cdef int ACK_INCORRECT_OFFSET = envelope.INCORRECT_OFFSET
cdef Py_ssize_t CONTROL_LINE_SLACK = rules.CONTROL_LINE_SLACK
cdef Py_ssize_t INFO_LINE_BYTES_MAX = rules.INFO_LINE_BYTES_MAX
cdef Py_ssize_t ANSWER_ARGUMENT_BYTES = rules.ANSWER_ARGUMENT_BYTES
cdef Py_ssize_t RECORD_WEIGHT_BYTES = rules.RECORD_WEIGHT_BYTES
cdef Py_ssize_t HEADER_WEIGHT_BYTES = rules.HEADER_WEIGHT_BYTES
cdef int64_t NO_SEQUENCE = rules.NO_SEQUENCE
cdef int AWAITS_NONE = rules.AWAITS_NONE
cdef int AWAITS_ALL = rules.AWAITS_ALL
cdef int AWAITS_LEADER = rules.AWAITS_LEADER
cdef dict ACK_VALUES = rules.ACK_VALUES
assert rules.SEQUENCE_DIGITS_MAX == 18  # as read_number has it
cdef Py_ssize_t SCRATCH_BYTES_KEPT = 64 << 10

include "_columns.pxi"
include "_message.pxi"
include "_envelope.pxi"
include "_ids.pxi"
include "_subjects.pxi"
include "_settle.pxi"
include "_compose.pxi"
include "_acks.pxi"
include "_batch.pxi"
include "_routes.pxi"
include "_refusals.pxi"
include "_fate.pxi"
include "_connection.pxi"

make_crc_table(crc_table, 0xEDB88320)
make_crc_table(crc32c_table, 0x82F63B78)

cdef uint64_t intake_number = 0


cdef class Intake:
    """Parses the bytes of one NATS connection into the builders that its subscriptions are routed to.

    Belongs to one thread, with all builders routed to it. `feed` releases the GIL.

    Args:
        control_line_max: The server's `max_control_line`, bytes.
        payload_max: A message over this is a protocol error; the server's `max_payload` is below it.
        reply_prefixes: Only reply subjects that begin with one of these are answered.
    """

    cdef Guard guard
    cdef Connection connection
    cdef dict routes            # sid -> RouteHolder
    cdef dict orphans           # id -> Builder: has no route any more, but records or half a message (I3)
    cdef bytes prefixes         # of reply subjects, as `connection` has them
    cdef list ended             # RouteHolder: its subscription ends behind the message that is half read (I3)

    def __cinit__(self, *, Py_ssize_t control_line_max=4096, Py_ssize_t payload_max=64 << 20,
                  reply_prefixes=(b"",)):
        global intake_number
        check_intake(control_line_max, payload_max, reply_prefixes)
        intake_number += 1
        self.guard = Guard()
        self.routes = {}
        self.orphans = {}
        self.ended = []
        self.connection.number = intake_number
        self.connection.line_max = control_line_max + CONTROL_LINE_SLACK
        self.connection.reply_size_max = control_line_max - ANSWER_ARGUMENT_BYTES
        self.connection.payload_max = payload_max
        self.prefixes = b"".join(bytes([len(prefix)]) + prefix for prefix in reply_prefixes)
        self.connection.reply_prefixes = self.prefixes
        self.connection.reply_prefixes_size = len(self.prefixes)
        self.connection.state = AT_LINE
        make_table(&self.connection.table)

    def __dealloc__(self):
        free_connection(&self.connection)

    # ---- routes

    def route(self, uint64_t sid, builders, *, str partition_by, bint envelopes=True):
        """Send the messages of a subscription to builders of one stream.

        Args:
            sid: Subscription id. If it has a route already, the new builders replace the old ones.
            builders: With `partition_by="subject_suffix"` exactly one, which gets everything. Otherwise
                one for each partition of the stream that is led here; a message is kept if it hashes to one.
                From now on they belong to this Intake, with the records that are in them.
            envelopes: Liftbridge's envelopes are opened (`rules.R8`).
        Raises:
            ValueError: the builders are not of one stream, or do not fit `partition_by`.
        """
        cdef RouteHolder holder
        cdef Builder builder
        cdef list held = list(builders)
        self.guard.check()
        by, token = check_route(held, partition_by)
        for builder in held:
            if builder.guard is not None:
                builder.guard.check()
        holder = RouteHolder(held, by, token, envelopes)
        if put_route(&self.connection.table, sid, holder.route) < 0:
            raise MemoryError()
        keep_route(&self.connection, sid)
        self.orphan(self.routes.get(sid))
        self.routes[sid] = holder
        for builder in held:
            builder.guard = self.guard
            if adopt(&self.connection, &builder.slot) < 0:
                raise MemoryError()

    def unroute(self, uint64_t sid):
        """Forget a subscription, once the message that is half read is over (`_connection.N4`).

        `dirty` still lists its builders.
        """
        cdef RouteHolder holder
        self.guard.check()
        holder = self.routes.get(sid)
        if holder is None:
            return
        self.ended.append(holder)
        if end_route(&self.connection, sid) < 0:
            raise MemoryError()
        self.orphan(self.routes.pop(sid))

    cdef int orphan(self, RouteHolder holder) except -1:
        if holder is not None:
            for builder in holder.builders:
                self.orphans[id(builder)] = builder
        return 0

    cdef int forget_orphans(self) except -1:
        """Let go of unrouted builders that nothing points to any more."""
        cdef Builder builder
        if self.connection.ending.size:
            return 0
        if self.ended:
            self.ended.clear()
        for builder in list(self.orphans.values()) if self.orphans else ():
            if self.connection.slot == &builder.slot:
                continue
            if builder.slot.owner == self.connection.number and builder.slot.listed:
                continue
            del self.orphans[id(builder)]
        return 0

    # ---- feeding

    def feed(self, data, int64_t now_us):
        """Parse the next bytes of the connection.

        Args:
            data: Any buffer of bytes; it is not kept.
            now_us: Timestamp of the records that are complete now, microseconds since 1970.
        Returns:
            Control operations in order: ("PING",), ("PONG",), ("OK",), ("ERR", text), ("INFO", JSON bytes).
        Raises:
            IntakeProtocolError: the bytes are not the NATS protocol. Every feed raises it again until `reset`.
            MemoryError: there is no memory. Every later feed raises IntakeProtocolError until `reset`. Records that
                were parsed before are kept.
        """
        cdef const unsigned char[::1] view = data
        cdef Connection* connection = &self.connection
        cdef const char* start
        cdef Py_ssize_t size = view.shape[0]
        cdef int result
        self.guard.check()
        if connection.problem == NULL and size:
            start = <const char*>&view[0]
            if size >= NOGIL_BYTES_MIN:
                self.guard.busy = True
                with nogil:
                    result = parse(connection, start, size, now_us)
                self.guard.busy = False
            else:
                result = parse(connection, start, size, now_us)
            connection.position += size
            trim(connection)
            if result < 0:
                fail(connection, NO_MEMORY, connection.position, b"", 0)
                raise MemoryError("no memory for the records of a feed; those before it are kept")
        if connection.problem != NULL:
            raise IntakeProtocolError(
                connection.problem.decode(), connection.problem_position,
                connection.problem_excerpt[:connection.problem_excerpt_size], self.take_operations()
            )
        return self.take_operations() if connection.operations.size else []

    cdef list take_operations(self):
        cdef list events = []
        cdef const Operation* operation = <const Operation*>self.connection.operations.data
        cdef Py_ssize_t i
        cdef bytes text
        for i in range(self.connection.operations.size // <Py_ssize_t>sizeof(Operation)):
            text = self.connection.operation_text.data[operation[i].at:operation[i].at + operation[i].size]
            if operation[i].kind == ERR:
                events.append(("ERR", text.decode("utf-8", "replace")))
            elif operation[i].kind == INFO:
                events.append(("INFO", text))
            else:
                events.append((OPERATION_NAMES[operation[i].kind],))
        self.connection.operations.size = self.connection.operation_text.size = 0
        trim_buffer(&self.connection.operations)
        trim_buffer(&self.connection.operation_text)
        return events

    def reset(self):
        """Begin a new connection: drop a half-read message and a protocol error. Records stay."""
        self.guard.check()
        begin_anew(&self.connection)

    # ---- results

    def dirty(self):
        """Builders with records, in the order in which their first record came."""
        cdef Buffer* listed = &self.connection.dirty_slots
        cdef Slot** slots = <Slot**>listed.data
        cdef Slot* slot
        cdef Py_ssize_t i, kept = 0
        cdef list found = []
        self.guard.check()
        for i in range(listed.size // <Py_ssize_t>sizeof(Slot*)):
            slot = slots[i]
            if slot.owner != self.connection.number or slot.listed_at != i * <Py_ssize_t>sizeof(Slot*):
                continue  # another Intake has it, or it was emptied since and is listed once more further on
            if slot.columns != NULL and slot.columns.rows:
                slot.listed_at = kept * sizeof(Slot*)
                slots[kept] = slot
                kept += 1
                found.append(<object>slot.builder)
            else:
                slot.listed = False
        listed.size = kept * sizeof(Slot*)
        self.forget_orphans()
        return found

    def full(self):
        """Whether some builder is full. Then the driver should flush now; feeding may go on."""
        cdef Slot** slots = <Slot**>self.connection.dirty_slots.data
        cdef Py_ssize_t i
        self.guard.check()
        for i in range(self.connection.dirty_slots.size // <Py_ssize_t>sizeof(Slot*)):
            if slots[i].owner == self.connection.number and is_full(slots[i]):
                return True
        return False

    def refusals(self):
        """Answers to the messages that were refused since the last call, as one blob of PUBs; b"" if there are none."""
        cdef Buffer* answers = &self.connection.answers
        cdef bytes blob
        self.guard.check()
        if answers.size == 0:
            return b""
        blob = answers.data[:answers.size]
        answers.size = 0
        trim_buffer(answers)
        return blob

    @property
    def counters(self):
        """Counts of messages, by their fate: see COUNTERS of rules.py."""
        cdef dict counts = dict.fromkeys(rules.COUNTERS, 0)
        cdef int i
        for i in range(FATE_COUNT):
            counts[FATE_COUNTERS[i]] += self.connection.fates[i]
            counts["messages"] += self.connection.fates[i]
        counts["bytes"] = self.connection.byte_count
        counts["unanswerable"] = self.connection.unanswerable
        return counts
