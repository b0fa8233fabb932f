# Liftbridge's envelope: envelope.py on bytes in place. Nothing is copied; what is found points into the payload.

cdef enum:
    FIELD_OFFSET = 1
    FIELD_KEY = 2
    FIELD_VALUE = 3
    FIELD_STREAM = 5
    FIELD_SUBJECT = 7
    FIELD_REPLY = 8
    FIELD_HEADERS = 9
    FIELD_ACK_INBOX = 10
    FIELD_CORRELATION_ID = 11
    FIELD_ACK_POLICY = 12
    FIELD_HEADER_NAME = 1
    FIELD_HEADER_VALUE = 2
    WIRE_VARINT = 0
    WIRE_EIGHT_BYTES = 1
    WIRE_BYTES = 2
    WIRE_GROUP = 3
    WIRE_GROUP_END = 4
    WIRE_FOUR_BYTES = 5
    GROUPS_DEPTH = 100
    HEADERS = 32767

assert envelope.GROUPS_DEPTH_MAX == GROUPS_DEPTH and envelope.HEADERS_MAX == HEADERS and len(envelope.COOKIE) == 4
cdef uint32_t COOKIE_WORD = int.from_bytes(envelope.COOKIE, sys.byteorder)
cdef Py_ssize_t COOKIE_BYTES = 4
cdef Py_ssize_t ENVELOPE_HEADER_BYTES = envelope.HEADER_BYTES
cdef Py_ssize_t ENVELOPE_HEADER_WITH_CRC_BYTES = envelope.HEADER_WITH_CRC_BYTES


cdef struct Envelope:
    const char* base            # the payload
    Text key
    Text value
    Text ack_inbox
    Text correlation_id
    uint32_t ack_policy
    int64_t offset
    Py_ssize_t header_count


cdef struct Reader:
    const unsigned char* p
    const unsigned char* end


cdef struct Field:
    uint64_t number
    bint is_bytes               # else a number
    Text text
    uint64_t value


cdef inline bint is_cookie(const char* payload) noexcept nogil:
    cdef uint32_t word
    memcpy(&word, payload, 4)
    return word == COOKIE_WORD


cdef bint read_varint(Reader* reader, uint64_t* value) noexcept nogil:
    """Read a number of at most 64 bits. Returns whether there is one."""
    cdef uint64_t found = 0
    cdef unsigned char c
    cdef int shift = 0
    while shift < 70:
        if reader.p == reader.end:
            return False
        c = reader.p[0]
        reader.p += 1
        if shift == 63 and c > 1:
            return False
        found |= <uint64_t>(c & 0x7f) << shift
        if c < 0x80:
            value[0] = found
            return True
        shift += 7
    return False


cdef int read_field(Reader* reader, Field* field) noexcept nogil:
    """Read the next field that is a number or bytes, and in no group. Returns 1; 0: the end; -1: malformed."""
    cdef uint64_t[GROUPS_DEPTH] groups
    cdef int depth = 0
    cdef uint64_t tag, size
    cdef int kind
    while reader.p < reader.end:
        if not read_varint(reader, &tag):
            return -1
        field.number = tag >> 3
        if field.number == 0 or field.number > 0x1FFFFFFF:
            return -1
        kind = tag & 7
        if kind == WIRE_VARINT:
            if not read_varint(reader, &field.value):
                return -1
            field.is_bytes = False
            if depth == 0:
                return 1
        elif kind == WIRE_BYTES:
            if not read_varint(reader, &size) or size > <uint64_t>(reader.end - reader.p):
                return -1
            field.is_bytes = True
            field.text.data, field.text.size = <const char*>reader.p, <Py_ssize_t>size
            reader.p += size
            if depth == 0:
                return 1
        elif kind == WIRE_EIGHT_BYTES or kind == WIRE_FOUR_BYTES:
            size = 8 if kind == WIRE_EIGHT_BYTES else 4
            if size > <uint64_t>(reader.end - reader.p):
                return -1
            reader.p += size
        elif kind == WIRE_GROUP and depth < GROUPS_DEPTH:
            groups[depth] = field.number
            depth += 1
        elif kind == WIRE_GROUP_END and depth > 0 and groups[depth - 1] == field.number:
            depth -= 1
        else:
            return -1
    return -1 if depth else 0


cdef int read_entry(const Envelope* self, const Text* entry, Buffer* spans) noexcept nogil:
    """Read a header, and note it as a HeaderSpan from the payload on. Returns 1; 0: malformed; -1: no memory."""
    cdef Reader reader
    cdef Field field
    cdef HeaderSpan* header
    cdef int found
    if spans.size == HEADERS * <Py_ssize_t>sizeof(HeaderSpan):
        return 0
    if reserve(spans, sizeof(HeaderSpan)) < 0:
        return -1
    header = <HeaderSpan*>(spans.data + spans.size)
    header.name_at = header.name_size = header.value_at = header.value_size = 0
    reader.p = <const unsigned char*>entry.data
    reader.end = reader.p + entry.size
    while True:
        found = read_field(&reader, &field)
        if found < 0:
            return 0
        if found == 0:
            spans.size += sizeof(HeaderSpan)
            return 1
        if not field.is_bytes:
            continue
        if field.number == FIELD_HEADER_NAME:
            if not is_utf8(field.text.data, field.text.size):
                return 0
            header.name_at = <int32_t>(field.text.data - self.base)
            header.name_size = <int32_t>field.text.size
        elif field.number == FIELD_HEADER_VALUE:
            header.value_at = <int32_t>(field.text.data - self.base)
            header.value_size = <int32_t>field.text.size


cdef int read_envelope(Envelope* self, const char* payload, Py_ssize_t size, Buffer* spans) noexcept nogil:
    """Read a payload that begins with the cookie, as `open_envelope` of envelope.py does.

    Returns 1; 0: it is no envelope; -1: no memory. `spans` gets its headers, as HeaderSpan.
    """
    cdef const unsigned char* header = <const unsigned char*>payload
    cdef Reader reader
    cdef Field field
    cdef Py_ssize_t header_size
    cdef uint32_t crc
    cdef int found
    spans.size = 0
    if size < ENVELOPE_HEADER_BYTES or header[4] != 0 or header[7] != 0:
        return 0
    header_size = header[5]
    if header_size < ENVELOPE_HEADER_BYTES or header_size > size:
        return 0
    if header[6] & 1:
        if header_size != ENVELOPE_HEADER_WITH_CRC_BYTES:
            return 0
        crc = (<uint32_t>header[8] << 24) | (<uint32_t>header[9] << 16) | (<uint32_t>header[10] << 8) | header[11]
        if crc32c_of(payload + header_size, size - header_size) != crc:
            return 0
    self.base = payload
    self.key.size = self.value.size = self.ack_inbox.size = self.correlation_id.size = 0
    self.key.data = self.value.data = self.ack_inbox.data = self.correlation_id.data = payload
    self.ack_policy = 0
    self.offset = 0
    reader.p = header + header_size
    reader.end = header + size
    while True:
        found = read_field(&reader, &field)
        if found <= 0:
            self.header_count = spans.size // <Py_ssize_t>sizeof(HeaderSpan)
            return 1 if found == 0 else 0
        if not field.is_bytes:
            if field.number == FIELD_ACK_POLICY:
                self.ack_policy = <uint32_t>field.value
            elif field.number == FIELD_OFFSET:
                self.offset = <int64_t>field.value
            continue
        if field.number == FIELD_KEY:
            self.key = field.text
        elif field.number == FIELD_VALUE:
            self.value = field.text
        elif field.number == FIELD_HEADERS:
            found = read_entry(self, &field.text, spans)
            if found <= 0:
                return found
        elif (
            field.number == FIELD_ACK_INBOX or field.number == FIELD_CORRELATION_ID or field.number == FIELD_STREAM
            or field.number == FIELD_SUBJECT or field.number == FIELD_REPLY
        ):
            if not is_utf8(field.text.data, field.text.size):
                return 0
            if field.number == FIELD_ACK_INBOX:
                self.ack_inbox = field.text
            elif field.number == FIELD_CORRELATION_ID:
                self.correlation_id = field.text
