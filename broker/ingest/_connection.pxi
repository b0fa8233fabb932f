# The state machine that takes the bytes of one connection apart. It keeps the part of a message that has arrived.
#
#   AT_LINE --MSG--> whole message in the chunk? decide, finish, AT_LINE
#      |                no: --> IN_HEADERS --> IN_COOKIE --> IN_VALUE or IN_SKIPPED --> AT_END --> finish, AT_LINE
#      |                                        `--> IN_ENVELOPE --> AT_END --> finish, AT_LINE
#      +--PING, INFO...--> noted for the caller
#
# N1  In states other than AT_LINE, `line` holds the control line and `line_data` points into it.
# N2  In IN_COOKIE and IN_ENVELOPE, `payload` holds what has arrived, and the fate is not decided. In IN_VALUE, `slot.arrived` bytes of the value lie behind the value column's size, and all `arriving`
#     have room there.
# N3  After `fail` nothing is parsed until the connection is reset.
# N4  A subscription that ends amid a message, or amid a control line, ends behind it: the message is still stored or
#     answered. Until then its sid is in `ending`, and its route is in the table.

cdef void forget_value(Connection* self) noexcept nogil:
    """Drop the part of the current message's value that has arrived, if it lies in a slot that is still ours."""
    if self.slot != NULL and self.slot.owner == self.number:
        forget_arrived(self.slot)


cdef void drop_message(Connection* self) noexcept nogil:
    """Skip the rest of the current message, and count it as unrouted."""
    forget_value(self)
    self.slot = NULL
    self.fate = UNROUTED
    if self.state == IN_VALUE:
        self.state = IN_SKIPPED


cdef void end_routes(Connection* self) noexcept nogil:
    cdef const uint64_t* sids = <const uint64_t*>self.ending.data
    cdef Py_ssize_t i
    for i in range(self.ending.size // <Py_ssize_t>sizeof(uint64_t)):
        drop_route(&self.table, sids[i])
    self.ending.size = 0


cdef int end_route(Connection* self, uint64_t sid) noexcept nogil:
    """End a subscription, behind the message that is half read (N4). Returns 0; -1: no memory."""
    if (self.state == AT_LINE and self.line.size) or (self.state != AT_LINE and self.message.sid == sid):
        keep_route(self, sid)
        return append(&self.ending, <const char*>&sid, sizeof(uint64_t))
    drop_route(&self.table, sid)
    return 0


cdef void keep_route(Connection* self, uint64_t sid) noexcept nogil:
    """Take a subscription off the list of those that end: it stays, or is there again."""
    cdef uint64_t* sids = <uint64_t*>self.ending.data
    cdef Py_ssize_t i, kept = 0
    for i in range(self.ending.size // <Py_ssize_t>sizeof(uint64_t)):
        if sids[i] != sid:
            sids[kept] = sids[i]
            kept += 1
    self.ending.size = kept * sizeof(uint64_t)


cdef void begin_anew(Connection* self) noexcept nogil:
    end_routes(self)
    forget_value(self)
    self.slot = NULL
    self.state = AT_LINE
    self.line.size = self.header.size = self.payload.size = 0
    self.operations.size = self.operation_text.size = 0
    self.problem = NULL
    self.position = 0


cdef void free_connection(Connection* self) noexcept nogil:
    PyMem_RawFree(self.table.entries)
    release(&self.ending)
    release(&self.line)
    release(&self.header)
    release(&self.payload)
    release(&self.spans)
    release(&self.envelope_spans)
    release(&self.operations)
    release(&self.operation_text)
    release(&self.answers)
    release(&self.dirty_slots)


cdef int parse(Connection* self, const char* start, Py_ssize_t size, int64_t now_us) noexcept nogil:
    """Parse bytes. Returns 0, with `problem` set if they are not the NATS protocol; -1: no memory."""
    cdef const char* p = start
    cdef const char* end = start + size
    cdef const char* newline
    cdef const char* line
    cdef const char* payload
    cdef Buffer* values
    cdef Py_ssize_t line_size, got, line_max
    cdef int64_t line_at
    if self.slot != NULL and self.slot.owner != self.number:
        drop_message(self)
    while p < end:
        if self.state == AT_LINE:
            if self.line.size == 0:
                if self.ending.size:
                    end_routes(self)
                if not begins_operation(p[0]):
                    return fail(self, b"an unknown operation", self.position + (p - start), p, end - p)
                line_max = line_max_of(self, p[0])
                newline = <const char*>memchr(p, c'\n', end - p)
                if newline == NULL:
                    if end - p > line_max + 1:
                        return fail(self, b"a control line too long", self.position + (p - start), p, end - p)
                    return append(&self.line, p, end - p)
                line = p
                line_size = newline - p
                p = newline + 1
            else:
                line_max = line_max_of(self, self.line.data[0])
                newline = <const char*>memchr(p, c'\n', end - p)
                got = (newline if newline != NULL else end) - p
                if self.line.size + got > line_max + 1:
                    return fail_line(self, b"a control line too long", p - start)
                if append(&self.line, p, got) < 0:
                    return -1
                p += got
                if newline == NULL:
                    return 0
                line = self.line.data
                line_size = self.line.size
                p += 1
            line_at = self.position + (p - start) - line_size - 1
            if line_size > line_max + 1:
                return fail(self, b"a control line too long", line_at, line, line_size)
            if line[line_size - 1] != c'\r':
                return fail(self, b"a control line that does not end in CR LF", line_at, line, line_size)
            self.problem = read_line(self, line, line_size - 1)
            if self.problem != NULL:
                if self.problem == NO_MEMORY:
                    self.problem = NULL
                    return -1
                return fail(self, self.problem, line_at, line, line_size)
            if self.state == AT_LINE:
                self.line.size = 0
                continue
            # If all of the message is here, it is read in place.
            if end - p >= self.message.size + 2:
                self.line.size = 0
                self.line_data = line
                self.header_data = p
                payload = p + self.message.header_size
                p += self.message.size
                self.has_envelope = False
                if p - payload >= ENVELOPE_HEADER_BYTES and is_cookie(payload) and open_envelope(self, payload) < 0:
                    return -1
                if decide(self) < 0:
                    return -1
                if p[0] != c'\r' or p[1] != c'\n':
                    if p[0] == c'\r':
                        p += 1
                    return fail(self, MISSING_END, self.position + (p - start), p, end - p)
                if finish(self, self.envelope.value.data if self.has_envelope else payload, now_us) < 0:
                    return -1
                p += 2
                self.state = AT_LINE
                continue
            if self.line.size == 0 and append(&self.line, line, line_size) < 0:
                return -1
            self.line_data = self.line.data
            if begin_split(self) < 0:
                return -1
        elif self.state == IN_HEADERS:
            got = min(end - p, self.missing)
            if append(&self.header, p, got) < 0:
                return -1
            p += got
            self.missing -= got
            if self.missing == 0 and begin_payload(self) < 0:
                return -1
        elif self.state == IN_COOKIE or self.state == IN_ENVELOPE:
            got = min(end - p, self.missing if self.state == IN_ENVELOPE else COOKIE_BYTES - self.payload.size)
            if append(&self.payload, p, got) < 0:
                return -1
            p += got
            self.missing -= got
            if self.state == IN_ENVELOPE:
                if self.missing == 0 and end_envelope(self) < 0:
                    return -1
            elif self.payload.size == COOKIE_BYTES and end_cookie(self) < 0:
                return -1
        elif self.state == IN_VALUE:
            got = min(end - p, self.missing)
            values = &self.slot.columns.value.data
            memcpy(values.data + values.size + self.slot.arrived, p, got)
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
                return fail(self, MISSING_END, self.position + (p - start), p, end - p)
            p += 1
            self.missing -= 1
            if self.missing == 0:
                if finish(self, self.value, now_us) < 0:
                    return -1
                self.state = AT_LINE
                self.line.size = 0
                self.header.size = 0
                self.payload.size = 0
    return 0


cdef void trim(Connection* self) noexcept nogil:
    """Free the buffers that one unusual line or message has made large."""
    if self.state != AT_LINE:
        return
    trim_buffer(&self.line)
    trim_buffer(&self.header)
    trim_buffer(&self.payload)
    self.spans.size = self.envelope_spans.size = 0
    trim_buffer(&self.spans)
    trim_buffer(&self.envelope_spans)


cdef inline void trim_buffer(Buffer* buffer) noexcept nogil:
    if buffer.size == 0 and buffer.capacity > SCRATCH_BYTES_KEPT:
        release(buffer)


cdef inline Py_ssize_t line_max_of(Connection* self, char first) noexcept nogil:
    return INFO_LINE_BYTES_MAX if first == c'I' or first == c'i' else self.line_max


cdef int fail(Connection* self, const char* problem, int64_t position, const char* excerpt,
              Py_ssize_t size) noexcept nogil:
    self.problem = problem
    self.problem_position = position
    self.problem_excerpt_size = min(size, <Py_ssize_t>sizeof(self.problem_excerpt))
    memcpy(self.problem_excerpt, excerpt, self.problem_excerpt_size)
    forget_value(self)
    return 0


cdef int fail_line(Connection* self, const char* problem, Py_ssize_t at) noexcept nogil:
    return fail(self, problem, self.position + at - self.line.size, self.line.data, self.line.size)


cdef const char* read_line(Connection* self, const char* line, Py_ssize_t size) noexcept nogil:
    """Act on a control line, which is given without its CR LF. Returns NULL, or a text that says what is wrong."""
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
            return note_operation(self, line, size, at)
    problem = read_control_line(&self.message, line, size, at, self.payload_max)
    if problem == NULL:
        self.state = IN_SKIPPED
    return problem


cdef const char* note_operation(Connection* self, const char* line, Py_ssize_t size, Py_ssize_t at) noexcept nogil:
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


cdef int begin_split(Connection* self) noexcept nogil:
    """Decide where the bytes of a message go, if only its beginning is here. Returns 0; -1: no memory."""
    cdef Route* route = find_route(&self.table, self.message.sid)
    self.header.size = self.payload.size = 0
    self.slot = NULL
    self.value = NULL
    self.has_envelope = False
    self.missing = self.message.header_size
    if self.message.has_headers and route != NULL and (
        not is_oversize(route.lead, &self.message) or self.message.header_size <= HEADER_PEEK_BYTES_MAX
    ):
        self.state = IN_HEADERS
        if self.missing:
            return reserve(&self.header, self.missing)
    return begin_payload(self)


cdef int begin_payload(Connection* self) noexcept nogil:
    """The header block is here, or is not read: get ready for the payload. Returns 0; -1: no memory."""
    cdef Py_ssize_t value_size = self.message.size - self.message.header_size
    if self.state == IN_HEADERS:
        self.header_data = self.header.data
        if self.header_data == NULL:  # the block is empty, which is not the same as no block
            self.header_data = self.line_data
    else:
        self.header_data = NULL
        value_size = self.message.size
    self.missing = value_size
    if may_have_envelope(self):
        self.state = IN_COOKIE
        return 0
    return begin_value(self, value_size)


cdef bint may_have_envelope(Connection* self) noexcept nogil:
    """Whether the payload of a message is looked into (`rules.R8`)."""
    cdef Py_ssize_t size = self.message.size - self.message.header_size
    cdef Route* route
    if size < ENVELOPE_HEADER_BYTES:
        return False
    route = find_route(&self.table, self.message.sid)
    return route != NULL and route.opens_envelopes and (
        not is_oversize(route.lead, &self.message)
        or (size <= ENVELOPE_PEEK_BYTES and self.message.header_size <= HEADER_PEEK_BYTES_MAX)
    )


cdef int open_envelope(Connection* self, const char* payload) noexcept nogil:
    """Open the envelope of a message, whose payload begins with the cookie. Returns 0; -1: no memory."""
    cdef int found
    if not may_have_envelope(self):
        return 0
    found = read_envelope(
        &self.envelope, payload, self.message.size - self.message.header_size, &self.envelope_spans
    )
    self.has_envelope = found > 0
    return -1 if found < 0 else 0


cdef int end_cookie(Connection* self) noexcept nogil:
    """The bytes that tell an envelope are here. Returns 0; -1: no memory."""
    cdef Buffer* values
    if is_cookie(self.payload.data):
        self.state = IN_ENVELOPE
        return reserve(&self.payload, self.missing)
    if begin_value(self, self.missing + COOKIE_BYTES) < 0:
        return -1
    self.missing -= COOKIE_BYTES
    if self.state == IN_VALUE:
        values = &self.slot.columns.value.data
        memcpy(values.data + values.size, self.payload.data, COOKIE_BYTES)
        self.slot.arrived = COOKIE_BYTES
    return 0


cdef int end_envelope(Connection* self) noexcept nogil:
    """A payload that begins with the cookie is here: decide the fate. Returns 0; -1: no memory."""
    cdef int found = read_envelope(&self.envelope, self.payload.data, self.payload.size, &self.envelope_spans)
    if found < 0:
        return -1
    self.has_envelope = found > 0
    self.value = self.envelope.value.data if self.has_envelope else self.payload.data
    self.state = AT_END
    self.missing = 2
    return decide(self)


cdef int begin_value(Connection* self, Py_ssize_t value_size) noexcept nogil:
    """Decide the fate of a message without an envelope, and where its payload goes. Returns 0; -1: no memory."""
    cdef Columns* columns
    if decide(self) < 0:
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
