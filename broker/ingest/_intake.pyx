"""NATS bytes to record batches, compiled: the fast twin of pure.py.

    chunk of bytes --feed--> control line -> header block -> fate (rules.py) -> columns of a Builder
    Builder --take--> PendingBatch --compose--> one Arrow IPC message, sealed
                                   --acks-----> one blob of PUBs

The idea: a message is looked at where it lies. If all of it is in the fed chunk, which is nearly always,
its parts are copied once, from the chunk into columns, and compose copies each column once more into the
message. If it is split, its control line and header block wait in buffers of the Intake, and its payload
goes to the end of the builder's value column as it arrives, behind what counts; it counts once complete.
Nothing is scanned twice, and no Python object is made per message.

I1  Columns change only when a message is complete, its closing CRLF included.
I2  Without the GIL only C memory is touched: the Intake's, its routes', and the slots of routed builders.
I3  Every slot that a route, the dirty list or a message in part points to belongs to a Builder that the
    Intake holds a reference to.

Files: _columns.pxi (buffers, columns, pool), _message.pxi (parsing of one message), _batch.pxi (Builder,
PendingBatch). The same vectors run against both twins: tests/unit/ingest.
"""

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
from broker.ingest import answers, partitioning, rules
from broker.ingest.answers import ack_tail, error_body, json_text
from broker.ingest.errors import EXCERPT_BYTES_MAX, IntakeProtocolError
from broker.ingest.settings import check_builder, check_intake, check_place, check_route

IMPLEMENTATION = "compiled"
BATCH_BYTES_HARD = rules.BATCH_BYTES_HARD

# Less work than this is done with the GIL held: getting it back would take longer.
cdef Py_ssize_t NOGIL_BYTES_MIN = 8192
cdef Py_ssize_t NOGIL_ANSWERS_MIN = 128
cdef bytes TEMPLATE_BYTES = TEMPLATE
cdef Py_ssize_t HEADER_SIZE = HEADER_BYTES
cdef Py_ssize_t BODY_LENGTH_POSITION = BODY_LENGTH_AT
cdef Py_ssize_t ROWS_POSITION = ROWS_AT
cdef Py_ssize_t BUFFERS_POSITION = BUFFERS_AT
cdef Py_ssize_t NODES_POSITION = NODES_AT
cdef Py_ssize_t VALUE_POSITION = VALUE_AT
cdef uint64_t FORMAT_VERSION_NUMBER = FORMAT_VERSION
assert BUFFER_COUNT == 25 and NODE_COUNT == 10

cdef Py_ssize_t HEADER_PEEK_BYTES_MAX = rules.HEADER_PEEK_BYTES_MAX
cdef Py_ssize_t CONTROL_LINE_SLACK = rules.CONTROL_LINE_SLACK
cdef Py_ssize_t INFO_LINE_BYTES_MAX = rules.INFO_LINE_BYTES_MAX
cdef Py_ssize_t ANSWER_ARGUMENT_BYTES = rules.ANSWER_ARGUMENT_BYTES
cdef Py_ssize_t RECORD_WEIGHT_BYTES = rules.RECORD_WEIGHT_BYTES
cdef Py_ssize_t HEADER_WEIGHT_BYTES = rules.HEADER_WEIGHT_BYTES
cdef Py_ssize_t SCRATCH_BYTES_KEPT = 64 << 10

include "_columns.pxi"
include "_message.pxi"
include "_batch.pxi"
include "_routes.pxi"
include "_refusals.pxi"

make_crc_table()

cdef uint64_t intake_number = 0


cdef enum State:
    AT_LINE                     # a control line is next, or has come in part
    IN_HEADERS
    IN_VALUE                    # of a record that will be stored
    IN_SKIPPED                  # payload of any other
    AT_END                      # CR LF, or LF, is next


cdef class Intake:
    """Parses the bytes of one NATS connection into the builders that its subscriptions are routed to.

    Belongs to one thread, with all builders routed to it. `feed` releases the GIL.

    Args:
        control_line_max: The server's `max_control_line`, bytes.
        payload_max: A message over this is a protocol error; the server's `max_payload` is below it.
    """

    cdef Guard guard
    cdef uint64_t number        # no other Intake of this process has it
    cdef Py_ssize_t line_max, payload_max, reply_size_max
    cdef RouteTable table
    cdef dict routes            # sid -> RouteHolder
    cdef dict orphans           # id -> Builder: no route any more, but records or half a message (I3)
    # The connection
    cdef int64_t position       # of the byte after everything fed
    cdef State state
    cdef Buffer line            # a control line in part; the line of a message in part
    cdef const char* line_data  # where the control line of the current message is
    cdef ControlLine message
    cdef Buffer header          # header block of a message in part
    cdef const char* header_data
    cdef Buffer spans           # headers of the current message
    cdef Options options
    cdef int fate
    cdef Slot* slot
    cdef bint oversize
    cdef bint tombstone
    cdef bint awaits
    cdef Py_ssize_t missing     # bytes still to come in this state
    # What came of it
    cdef Buffer operations      # struct Operation
    cdef Buffer operation_text
    cdef Buffer answers
    cdef Buffer dirty_slots     # Slot*, in the order of their first record; NULL where one came again
    cdef int64_t[FATE_COUNT] fates
    cdef int64_t byte_count
    cdef int64_t unanswerable
    # Failure
    cdef const char* problem    # NULL while all is well
    cdef int64_t problem_position
    cdef char[64] problem_excerpt
    cdef Py_ssize_t problem_excerpt_size

    def __cinit__(self, *, Py_ssize_t control_line_max=4096, Py_ssize_t payload_max=64 << 20):
        global intake_number
        check_intake(control_line_max, payload_max)
        intake_number += 1
        self.number = intake_number
        self.guard = Guard()
        self.line_max = control_line_max + CONTROL_LINE_SLACK
        self.reply_size_max = control_line_max - ANSWER_ARGUMENT_BYTES
        self.payload_max = payload_max
        self.routes = {}
        self.orphans = {}
        self.state = AT_LINE
        make_table(&self.table)

    def __dealloc__(self):
        PyMem_RawFree(self.table.entries)
        release(&self.line)
        release(&self.header)
        release(&self.spans)
        release(&self.operations)
        release(&self.operation_text)
        release(&self.answers)
        release(&self.dirty_slots)

    # ---- routes

    def route(self, uint64_t sid, builders, *, str partition_by):
        """Send the messages of a subscription to builders of one stream.

        Args:
            sid: Subscription id; routed before: the new builders replace the old.
            builders: With `partition_by="subject_suffix"` exactly one, which gets everything. Otherwise
                those partitions of the stream that are led here; a message is kept if it hashes to one.
        Raises:
            ValueError: the builders are not of one stream, or do not fit `partition_by`.
        """
        cdef RouteHolder holder
        cdef Builder builder
        cdef list held = list(builders)
        self.guard.check()
        by, token = check_route(held, partition_by)
        holder = RouteHolder(held, by, token)
        if put_route(&self.table, sid, holder.route) < 0:
            raise MemoryError()
        self.orphan(self.routes.get(sid))
        self.routes[sid] = holder
        for builder in held:
            builder.guard = self.guard
            self.adopt(builder)

    cdef int adopt(self, Builder builder) except -1:
        """List a builder that comes with records, be it from another Intake."""
        cdef Slot* slot = &builder.slot
        if slot.owner != self.number:
            slot.owner = self.number
            slot.listed = False
            slot.arriving = slot.arrived = 0
        if slot.columns != NULL and slot.columns.rows and not slot.listed and self.touch(slot) < 0:
            raise MemoryError()
        return 0

    def unroute(self, uint64_t sid):
        """Forget a subscription. A message of it that is half read is dropped; `dirty` still lists its builders."""
        self.guard.check()
        if self.state != AT_LINE and self.message.sid == sid:
            self.drop_message()
        drop_route(&self.table, sid)
        self.orphan(self.routes.pop(sid, None))

    cdef void drop_message(self):
        """The rest of the current message is skipped, and counts as unrouted."""
        self.fate = UNROUTED
        self.forget_value()
        if self.state == IN_VALUE:
            self.state = IN_SKIPPED

    cdef void forget_value(self) noexcept nogil:
        """A value that has arrived in part is not wanted any more, nor its room if nothing else is there."""
        if self.slot == NULL:
            return
        self.slot.arrived = self.slot.arriving = 0
        if self.slot.columns != NULL and self.slot.columns.rows == 0:
            give_columns(self.slot.columns)
            self.slot.columns = NULL

    cdef int orphan(self, RouteHolder holder) except -1:
        if holder is not None:
            for builder in holder.builders:
                self.orphans[id(builder)] = builder
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
            IntakeProtocolError: not the NATS protocol; again at every feed until `reset`.
        """
        cdef const unsigned char[::1] view = data
        cdef const char* start
        cdef Py_ssize_t size = view.shape[0]
        cdef int result
        self.guard.check()
        if self.problem == NULL and size:
            start = <const char*>&view[0]
            if size >= NOGIL_BYTES_MIN:
                self.guard.busy = True
                with nogil:
                    result = self.parse(start, size, now_us)
                self.guard.busy = False
            else:
                result = self.parse(start, size, now_us)
            self.position += size
            if result < 0:
                self.fail(NO_MEMORY, self.position, NULL, 0)
                raise MemoryError("no memory for the records of a feed; those before it are kept")
        if self.problem != NULL:
            raise IntakeProtocolError(
                self.problem.decode(), self.problem_position,
                self.problem_excerpt[:self.problem_excerpt_size], self.take_operations()
            )
        return self.take_operations() if self.operations.size else []

    def reset(self):
        """A new connection begins: drop a half-read message and a protocol error. Records stay."""
        self.guard.check()
        self.forget_value()
        self.state = AT_LINE
        self.slot = NULL
        self.line.size = self.header.size = 0
        self.operations.size = self.operation_text.size = 0
        self.problem = NULL
        self.position = 0

    cdef int parse(self, const char* start, Py_ssize_t size, int64_t now_us) noexcept nogil:
        """Returns 0 (with `problem` set if the bytes are no protocol) or -1: no memory."""
        cdef const char* p = start
        cdef const char* end = start + size
        cdef const char* newline
        cdef const char* line
        cdef Py_ssize_t line_size, got, line_max
        while p < end:
            if self.state == AT_LINE:
                if self.line.size == 0:
                    if not begins_operation(p[0]):
                        return self.fail(b"an unknown operation", self.position + (p - start), p, end - p)
                    line_max = self.line_max_of(p[0])
                    newline = <const char*>memchr(p, c'\n', end - p)
                    if newline == NULL:
                        if end - p > line_max + 1:
                            return self.fail(b"a control line too long", self.position + (p - start), p, end - p)
                        return append(&self.line, p, end - p)
                    line = p
                    line_size = newline - p
                    p = newline + 1
                else:
                    line_max = self.line_max_of(self.line.data[0])
                    newline = <const char*>memchr(p, c'\n', end - p)
                    got = (newline if newline != NULL else end) - p
                    if self.line.size + got > line_max + 1:
                        return self.fail_line(b"a control line too long", p - start)
                    if append(&self.line, p, got) < 0:
                        return -1
                    p += got
                    if newline == NULL:
                        return 0
                    line = self.line.data
                    line_size = self.line.size
                    p += 1
                if line_size > line_max + 1:
                    return self.fail(b"a control line too long", self.position + (p - start) - line_size - 1, line, line_size)
                if line[line_size - 1] != c'\r':
                    return self.fail(b"a control line that does not end in CR LF",
                                     self.position + (p - start) - line_size - 1, line, line_size)
                self.problem = self.read_line(line, line_size - 1)
                if self.problem != NULL:
                    if self.problem == NO_MEMORY:
                        self.problem = NULL
                        return -1
                    return self.fail(self.problem, self.position + (p - start) - line_size - 1, line, line_size)
                if self.state == AT_LINE:
                    self.line.size = 0
                    continue
                # A message. All of it here: look at it where it lies.
                if end - p >= self.message.size + 2:
                    self.line.size = 0
                    self.line_data = line
                    self.header_data = p
                    if self.decide() < 0:
                        return -1
                    p += self.message.size
                    if p[0] != c'\r' or p[1] != c'\n':
                        if p[0] == c'\r':
                            p += 1
                        return self.fail(MISSING_END, self.position + (p - start), p, end - p)
                    if self.finish(p - (self.message.size - self.message.header_size), now_us) < 0:
                        return -1
                    p += 2
                    self.state = AT_LINE
                    continue
                if self.line.size == 0 and append(&self.line, line, line_size) < 0:
                    return -1
                self.line_data = self.line.data
                if self.begin_split() < 0:
                    return -1
            elif self.state == IN_HEADERS:
                got = min(end - p, self.missing)
                if append(&self.header, p, got) < 0:
                    return -1
                p += got
                self.missing -= got
                if self.missing == 0 and self.begin_payload() < 0:
                    return -1
            elif self.state == IN_VALUE:
                got = min(end - p, self.missing)
                memcpy(self.slot.columns.value.data.data + self.slot.columns.value.data.size + self.slot.arrived, p, got)
                self.slot.arrived += got
                p += got
                self.missing -= got
                if self.missing == 0:
                    self.state = AT_END
                    self.missing = 2
            elif self.state == IN_SKIPPED:
                got = min(end - p, self.missing)
                p += got
                self.missing -= got
                if self.missing == 0:
                    self.state = AT_END
                    self.missing = 2
            else:
                if p[0] != (c'\r' if self.missing == 2 else c'\n'):
                    return self.fail(MISSING_END, self.position + (p - start), p, end - p)
                p += 1
                self.missing -= 1
                if self.missing == 0:
                    if self.finish(NULL, now_us) < 0:
                        return -1
                    self.state = AT_LINE
                    self.line.size = 0
                    self.header.size = 0
                    if self.header.capacity > SCRATCH_BYTES_KEPT:
                        release(&self.header)
        return 0

    cdef inline Py_ssize_t line_max_of(self, char first) noexcept nogil:
        return INFO_LINE_BYTES_MAX if first == c'I' or first == c'i' else self.line_max

    cdef int fail(self, const char* problem, int64_t position, const char* excerpt, Py_ssize_t size) noexcept nogil:
        self.problem = problem
        self.problem_position = position
        self.problem_excerpt_size = min(size, <Py_ssize_t>sizeof(self.problem_excerpt))
        memcpy(self.problem_excerpt, excerpt, self.problem_excerpt_size)
        self.forget_value()
        return 0

    cdef int fail_line(self, const char* problem, Py_ssize_t at) noexcept nogil:
        return self.fail(problem, self.position + at - self.line.size, self.line.data, self.line.size)

    cdef const char* read_line(self, const char* line, Py_ssize_t size) noexcept nogil:
        """Act on a control line without its CR LF. Returns NULL or what is wrong with it."""
        cdef const char* problem
        cdef Py_ssize_t at
        if size >= 4 and line[0] == c'M' and line[1] == c'S' and line[2] == c'G' and is_blank(line[3]):
            self.message.has_headers = False
            at = 4
        elif size >= 5 and memcmp(line, b"HMSG", 4) == 0 and is_blank(line[4]):
            self.message.has_headers = True
            at = 5
        else:
            at = operation_size(line, size)
            if same_word(line, at, b"MSG", 3) or same_word(line, at, b"HMSG", 4):
                self.message.has_headers = at == 4
            else:
                return self.note_operation(line, size, at)
        problem = read_control_line(&self.message, line, size, at, self.payload_max)
        if problem == NULL:
            self.state = IN_SKIPPED
        return problem

    cdef const char* note_operation(self, const char* line, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
        cdef Operation operation
        cdef Py_ssize_t text = at
        while text < size and is_blank(line[text]):
            text += 1
        while size > text and is_blank(line[size - 1]):
            size -= 1
        if same_word(line, at, b"PING", 4):
            operation.kind = PING
        elif same_word(line, at, b"PONG", 4):
            operation.kind = PONG
        elif same_word(line, at, b"+OK", 3):
            operation.kind = OK
        elif same_word(line, at, b"-ERR", 4):
            operation.kind = ERR
        elif same_word(line, at, b"INFO", 4):
            operation.kind = INFO
        else:
            return b"an unknown operation"
        if operation.kind <= OK and text < size:
            return b"an operation that takes no argument has one"
        if operation.kind == ERR and size - text >= 2 and line[text] == c'\'' and line[size - 1] == c'\'':
            text += 1
            size -= 1
        operation.at = self.operation_text.size
        operation.size = size - text
        if (
            append(&self.operation_text, line + text, operation.size) < 0
            or append(&self.operations, <const char*>&operation, sizeof(Operation)) < 0
        ):
            return NO_MEMORY
        return NULL

    cdef list take_operations(self):
        cdef list events = []
        cdef Operation* operation = <Operation*>self.operations.data
        cdef Py_ssize_t i
        cdef bytes text
        for i in range(self.operations.size // <Py_ssize_t>sizeof(Operation)):
            text = self.operation_text.data[operation[i].at:operation[i].at + operation[i].size]
            if operation[i].kind == ERR:
                events.append(("ERR", text.decode("utf-8", "replace")))
            elif operation[i].kind == INFO:
                events.append(("INFO", text))
            else:
                events.append((OPERATION_NAMES[operation[i].kind],))
        self.operations.size = self.operation_text.size = 0
        return events

    # ---- one message

    cdef int begin_split(self) noexcept nogil:
        """A message of which only the beginning is here: where do its bytes go?"""
        cdef Route* route = find_route(&self.table, self.message.sid)
        self.header.size = 0
        self.slot = NULL
        self.missing = self.message.header_size
        if self.message.has_headers and route != NULL and (
            not is_oversize(route.lead, &self.message) or self.message.header_size <= HEADER_PEEK_BYTES_MAX
        ):
            self.state = IN_HEADERS
            if self.missing:
                return reserve(&self.header, self.missing)
        return self.begin_payload()

    cdef int begin_payload(self) noexcept nogil:
        """The header block is here, or is not looked at: the fate can be decided."""
        cdef Py_ssize_t value_size = self.message.size - self.message.header_size
        cdef Columns* columns
        if self.state == IN_HEADERS:
            self.header_data = self.header.data
            if self.header_data == NULL:  # a block of no bytes, which is not the same as none
                self.header_data = self.line_data
        else:
            self.header_data = NULL
            value_size = self.message.size
        if self.decide() < 0:
            return -1
        self.missing = value_size
        self.state = IN_SKIPPED
        if self.fate == STORED and not self.tombstone:
            if self.slot.columns == NULL:
                self.slot.columns = take_columns()
                if self.slot.columns == NULL:
                    return -1
            columns = self.slot.columns
            if reserve(&columns.value.data, value_size) < 0:
                return -1
            self.slot.arrived = 0
            self.slot.arriving = value_size
            self.state = IN_VALUE
        if value_size == 0:
            self.state = AT_END
            self.missing = 2
        return 0

    cdef int decide(self) noexcept nogil:
        """Apply rules.py to the current message: sets fate, slot, options, tombstone, awaits."""
        cdef const char* subject = self.line_data + self.message.subject_at
        cdef Py_ssize_t subject_size = self.message.subject_size
        cdef Route* route = find_route(&self.table, self.message.sid)
        cdef Options* options = &self.options
        cdef Slot* slot
        self.tombstone = False
        self.slot = NULL
        if route == NULL:
            self.fate = UNROUTED
            return 0
        slot = route.lead
        if subject_size >= 7 and memcmp(subject, b"_INBOX.", 7) == 0:
            self.fate = SKIPPED_INBOX
            return 0
        self.oversize = is_oversize(slot, &self.message)
        if not self.message.has_headers:
            no_options(options)
        elif self.header_data == NULL or (
            self.oversize and self.message.header_size > HEADER_PEEK_BYTES_MAX
        ):
            no_options(options)
        elif read_headers(options, self.header_data, self.message.header_size, &self.spans) < 0:
            return -1
        if (
            slot.reply_acks and options.expected_stream.size != OPTION_ABSENT
            and not span_is(self.header_data, &options.expected_stream, slot.stream, slot.stream_size)
        ):
            self.fate = SKIPPED_EXPECTED_STREAM
            return 0
        if route.by != BY_FIXED:
            slot = route.slots[self.partition_of(route)]
            if slot == NULL:
                self.fate = SKIPPED_OTHER_PARTITION
                return 0
        self.slot = slot
        self.fate = self.judge(slot, subject, subject_size)
        return 0

    cdef int partition_of(self, const Route* route) noexcept nogil:
        cdef Span span
        cdef const char* base = self.line_data + self.message.subject_at
        span.at, span.size = 0, self.message.subject_size
        if route.by == BY_TOKEN:
            span = token_of(base, span.size, route.token)
        elif route.by == BY_KEY and self.options.key.size != OPTION_ABSENT:
            base = self.header_data
            span = self.options.key
        return crc32_of(base + span.at, span.size) % <uint32_t>route.count

    cdef int judge(self, Slot* slot, const char* subject, Py_ssize_t subject_size) noexcept nogil:
        """Stored or refused, and whether an ack is awaited: rules 4 to 10."""
        cdef Options* options = &self.options
        cdef const char* block = self.header_data
        if options.malformed:
            return REFUSED_BAD_HEADER
        if not (
            is_utf8(subject, subject_size) and options.names_utf8
            and is_utf8(self.line_data + self.message.reply_at, self.message.reply_size)
        ):
            return REFUSED_BAD_UTF8
        if options.expected_last and slot.reply_acks:
            return REFUSED_EXPECTED_LAST_SEQUENCE if options.expected_last == 1 else REFUSED_EXPECTED_LAST_MSG_ID
        self.awaits = slot.awaits_by_default
        if options.ack.size != OPTION_ABSENT:
            if span_is(block, &options.ack, b"all", 3) or span_is(block, &options.ack, b"leader", 6):
                self.awaits = True
            elif span_is(block, &options.ack, b"none", 4):
                self.awaits = False
            else:
                return REFUSED_BAD_ACK
        if options.tombstone.size != OPTION_ABSENT:
            if span_is(block, &options.tombstone, b"1", 1) or span_is(block, &options.tombstone, b"true", 4):
                if options.key.size == OPTION_ABSENT:
                    return REFUSED_TOMBSTONE_WITHOUT_KEY
                self.tombstone = True
            elif not (span_is(block, &options.tombstone, b"0", 1) or span_is(block, &options.tombstone, b"false", 5)):
                return REFUSED_BAD_TOMBSTONE
        if self.oversize:
            return REFUSED_TOO_LARGE
        if slot.columns != NULL and slot.columns.weight + self.weight() > slot.batch_bytes_hard and slot.columns.rows:
            return REFUSED_BATCH_FULL
        self.awaits = self.awaits and slot.reply_acks and self.message.reply_size > 0
        return STORED

    cdef inline Py_ssize_t weight(self) noexcept nogil:
        return (
            self.message.subject_size + self.message.reply_size + self.message.size
            + RECORD_WEIGHT_BYTES + HEADER_WEIGHT_BYTES * self.options.count
        )

    cdef int finish(self, const char* value, int64_t now_us) noexcept nogil:
        """The message is complete: count it and store or answer it. `value` NULL: it is in its column already."""
        cdef int fate = self.fate
        if fate == STORED and self.add_record(value, now_us) < 0:
            if self.slot.columns != NULL:
                roll_back(self.slot.columns)
            return -1
        self.fates[fate] += 1
        self.byte_count += self.message.size
        if fate >= FIRST_REFUSAL and self.slot.reply_acks and self.message.reply_size:
            if self.message.reply_size > self.reply_size_max:
                self.unanswerable += 1
            elif write_refusal(
                &self.answers, self.slot, fate, self.line_data + self.message.reply_at, self.message.reply_size,
                self.message.subject_size + self.message.reply_size + self.message.size
            ) < 0:
                return -1
        self.slot = NULL
        return 0

    cdef int add_record(self, const char* value, int64_t now_us) noexcept nogil:
        cdef Slot* slot = self.slot
        cdef ControlLine* message = &self.message
        cdef Options* options = &self.options
        cdef Columns* columns = slot.columns
        cdef Py_ssize_t row, size, value_size = message.size - message.header_size
        cdef int32_t row_number
        if columns == NULL:
            columns = slot.columns = take_columns()
            if columns == NULL:
                return -1
        row = columns.rows
        if row == 0 and self.touch(slot) < 0:
            return -1
        if reserve(&columns.timestamps, sizeof(int64_t)) < 0:
            return -1
        (<int64_t*>(columns.timestamps.data + columns.timestamps.size))[0] = now_us
        columns.timestamps.size += sizeof(int64_t)
        size = message.subject_size + message.reply_size
        if (
            append(&columns.subject.data, self.line_data + message.subject_at, message.subject_size) < 0
            or mark(&columns.subject, row, True, columns.subject.data.size) < 0
        ):
            return -1
        if self.tombstone:
            if mark(&columns.value, row, False, columns.value.data.size) < 0:
                return -1
        else:
            if value != NULL:
                if append(&columns.value.data, value, value_size) < 0:
                    return -1
            else:
                columns.value.data.size += value_size
            if mark(&columns.value, row, True, columns.value.data.size) < 0:
                return -1
            size += value_size
        if options.key.size != OPTION_ABSENT:
            if append(&columns.key.data, self.header_data + options.key.at, options.key.size) < 0:
                return -1
            size += options.key.size
        if mark(&columns.key, row, options.key.size != OPTION_ABSENT, columns.key.data.size) < 0:
            return -1
        if message.reply_size and append(&columns.reply.data, self.line_data + message.reply_at, message.reply_size) < 0:
            return -1
        if mark(&columns.reply, row, message.reply_size > 0, columns.reply.data.size) < 0:
            return -1
        if message.has_headers:
            size -= columns.header_key.data.size + columns.header_value.data.size
            if add_headers(columns, self.header_data, &self.spans) < 0:
                return -1
            size += columns.header_key.data.size + columns.header_value.data.size
        elif mark(&columns.headers, row, False, columns.header_rows) < 0:
            return -1
        if self.awaits:
            if message.reply_size > self.reply_size_max:
                self.unanswerable += 1
            else:
                row_number = <int32_t>row
                if append(&columns.awaited, <const char*>&row_number, sizeof(int32_t)) < 0:
                    return -1
        if message.has_headers:
            columns.header_rows += options.count
        columns.rows = row + 1
        columns.byte_count += size
        columns.weight += self.weight()
        if now_us > columns.max_timestamp_us:
            columns.max_timestamp_us = now_us
        slot.arrived = slot.arriving = 0
        return 0

    # ---- results

    cdef int touch(self, Slot* slot) noexcept nogil:
        """The slot gets its first record: it is dirty from now on, behind all others."""
        cdef Py_ssize_t place = self.dirty_slots.size
        if append(&self.dirty_slots, <const char*>&slot, sizeof(Slot*)) < 0:
            return -1
        if slot.listed:
            (<Slot**>(self.dirty_slots.data + slot.listed_at))[0] = NULL
        slot.listed = True
        slot.listed_at = place
        return 0

    def dirty(self):
        """Builders with records, in the order in which their first record came."""
        cdef Slot** slots = <Slot**>self.dirty_slots.data
        cdef Slot* slot
        cdef Py_ssize_t i, kept = 0
        cdef list found = []
        self.guard.check()
        for i in range(self.dirty_slots.size // <Py_ssize_t>sizeof(Slot*)):
            slot = slots[i]
            if slot == NULL or slot.owner != self.number:
                continue
            if slot.columns != NULL and slot.columns.rows:
                slot.listed_at = kept * sizeof(Slot*)
                slots[kept] = slot
                kept += 1
                found.append(<object>slot.builder)
            else:
                slot.listed = False
        self.dirty_slots.size = kept * sizeof(Slot*)
        self.forget_orphans()
        return found

    cdef int forget_orphans(self) except -1:
        cdef Builder builder
        for builder in list(self.orphans.values()) if self.orphans else ():
            if builder.slot.owner != self.number or not (builder.slot.listed or self.slot == &builder.slot):
                del self.orphans[id(builder)]
        return 0

    def full(self):
        """Is some builder full? Then flush now; feeding may go on."""
        cdef Slot** slots = <Slot**>self.dirty_slots.data
        cdef Py_ssize_t i
        self.guard.check()
        for i in range(self.dirty_slots.size // <Py_ssize_t>sizeof(Slot*)):
            if slots[i] != NULL and slots[i].owner == self.number and is_full(slots[i]):
                return True
        return False

    def refusals(self):
        """Answers to messages refused since the last call, as one blob of PUBs; b"" if none."""
        cdef bytes blob
        self.guard.check()
        if self.answers.size == 0:
            return b""
        blob = self.answers.data[:self.answers.size]
        self.answers.size = 0
        if self.answers.capacity > SCRATCH_BYTES_KEPT:
            release(&self.answers)
        return blob

    @property
    def counters(self):
        """What became of the messages: see COUNTERS of rules.py."""
        cdef dict counts = dict.fromkeys(rules.COUNTERS, 0)
        cdef int i
        for i in range(FATE_COUNT):
            counts[FATE_COUNTERS[i]] += self.fates[i]
            counts["messages"] += self.fates[i]
        counts["bytes"] = self.byte_count
        counts["unanswerable"] = self.unanswerable
        return counts
