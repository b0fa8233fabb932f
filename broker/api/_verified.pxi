# A header's fields, and the check of a whole message.

cdef enum:
    FIELD_COUNT = 14
    HEAD_BYTES_MAX = 512

cdef list FIELD_NAMES = list(FIELDS)
cdef int[FIELD_COUNT] FIELD_DIGITS = list(FIELDS.values())
cdef int TIMESTAMP_FIELD = FIELD_NAMES.index("max_timestamp_us")
cdef int DECISION_FIELD = FIELD_NAMES.index("decision")
cdef Py_ssize_t CRC_POSITION = CRC_AT
cdef uint64_t FORMAT = FORMAT_VERSION
assert len(FIELDS) == FIELD_COUNT and CRC_AT + 8 <= HEAD_BYTES_MAX
assert [(name, digits) for name, digits in FIELDS.items() if digits > 16] == [("decision", 32)]
assert FIELD_NAMES[0] == "format_version" and FIELD_NAMES[2:4] == ["first_offset", "last_offset"]
assert FIELD_NAMES[FIELD_COUNT - 1] == "crc"
cdef const char* TEMPLATE_START = PyBytes_AS_STRING(TEMPLATE_BYTES)


cdef struct Fields:
    uint64_t values[FIELD_COUNT]
    uint64_t upper              # of the decision


cdef int nibble(uint8_t digit) noexcept nogil:
    if c"0" <= digit <= c"9":
        return digit - c"0"
    return digit - c"a" + 10 if c"a" <= digit <= c"f" else -1


cdef bint read_hex(const uint8_t* digits, int count, uint64_t* value) noexcept nogil:
    """Whether up to 16 digits are lower-case hex. `value` gets their number."""
    cdef uint64_t found = 0
    cdef int i, part, wrong = 0
    for i in range(count):
        part = nibble(digits[i])
        wrong |= part
        found = found << 4 | <uint64_t>(part & 15)
    value[0] = found
    return wrong >= 0


cdef bint read_fields(const uint8_t* head, Fields* fields) noexcept nogil:
    """Whether a header's value is hex, of this format version, and of a range of offsets."""
    cdef const uint8_t* at = head + VALUE_POSITION
    cdef int i, digits
    fields.upper = 0
    for i in range(FIELD_COUNT):
        digits = FIELD_DIGITS[i]
        if digits > 16:
            if not read_hex(at, digits - 16, &fields.upper):
                return False
            at += digits - 16
            digits = 16
        if not read_hex(at, digits, &fields.values[i]):
            return False
        at += digits
    return fields.values[0] == FORMAT and fields.values[3] >= fields.values[2]


cdef object header_of(const Fields* fields):
    cdef int i
    header = BatchHeader.__new__(BatchHeader)
    for i in range(FIELD_COUNT):
        value = fields.values[i]
        if i == TIMESTAMP_FIELD:
            value = <int64_t>fields.values[i]
        elif i == DECISION_FIELD and fields.upper:
            value = (<object>fields.upper << 64) | value
        PyObject_GenericSetAttr(header, FIELD_NAMES[i], value)  # the class is frozen
    return header


cdef bint begins_plain(const uint8_t* head) noexcept nogil:
    return memcmp(head, TEMPLATE_START, 8) == 0


cdef uint32_t crc_from(const uint8_t* data, Py_ssize_t size, uint32_t crc) except? 0:
    return crc32c(PyMemoryView_FromMemory(<char*>data, size, PyBUF_READ), crc)


cdef uint32_t crc_of_head(const uint8_t* message, Py_ssize_t size) except? 0:
    """The CRC of the beginning of a message, a header at least, its own digits read as zeros (`batch.B1`)."""
    cdef uint8_t[HEAD_BYTES_MAX] head
    cdef Py_ssize_t behind = CRC_POSITION + 8
    memcpy(head, message, CRC_POSITION)
    memset(head + CRC_POSITION, c"0", 8)
    return crc_from(message + behind, size - behind, crc_from(head, behind, 0))


def verified(message, *, where=""):
    """Check a whole message and return its header. If it is bad, `broker.api.batch.verify_batch` says why."""
    cdef Py_buffer view
    PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
    try:
        header = plain_header(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return verify_batch(message, where=where) if header is None else header


cdef object plain_header(const uint8_t* message, Py_ssize_t size):
    """The header of a message if all in it is usual and right, else None."""
    cdef Fields fields
    cdef int64_t body
    if size < HEADER_SIZE or not begins_plain(message):
        return None
    memcpy(&body, message + BODY_LENGTH_POSITION, 8)
    if body != size - HEADER_SIZE or body % 8 or not read_fields(message, &fields):
        return None
    if fields.values[FIELD_COUNT - 1] != <uint64_t>crc_of_head(message, size):
        return None
    return header_of(&fields)
