# The check that `verify_batch` makes, for the usual message: uncompressed, of this format version, and right.

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


def verified(message, where=""):
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
    cdef uint8_t[HEAD_BYTES_MAX] head
    cdef uint64_t[FIELD_COUNT] values
    cdef uint64_t upper = 0
    cdef const uint8_t* at = message + VALUE_POSITION
    cdef int64_t body
    cdef Py_ssize_t behind = CRC_POSITION + 8
    cdef int i, digits
    if size < HEADER_SIZE or memcmp(message, <const uint8_t*>TEMPLATE_BYTES, 8) != 0:
        return None
    memcpy(&body, message + BODY_LENGTH_POSITION, 8)
    if body != size - HEADER_SIZE or body % 8:
        return None
    for i in range(FIELD_COUNT):
        digits = FIELD_DIGITS[i]
        if digits > 16:
            if not read_hex(at, digits - 16, &upper):
                return None
            at += digits - 16
            digits = 16
        if not read_hex(at, digits, &values[i]):
            return None
        at += digits
    memcpy(head, message, CRC_POSITION)
    memset(head + CRC_POSITION, c"0", 8)
    crc = crc32c(PyMemoryView_FromMemory(<char*>head, behind, PyBUF_READ))
    crc = crc32c(PyMemoryView_FromMemory(<char*>message + behind, size - behind, PyBUF_READ), crc)
    if values[FIELD_COUNT - 1] != <uint64_t>crc or values[0] != FORMAT or values[3] < values[2]:
        return None
    header = BatchHeader.__new__(BatchHeader)
    for i in range(FIELD_COUNT):
        value = values[i]
        if i == TIMESTAMP_FIELD:
            value = <int64_t>values[i]
        elif i == DECISION_FIELD and upper:
            value = (<object>upper << 64) | value
        PyObject_GenericSetAttr(header, FIELD_NAMES[i], value)  # the class is frozen
    return header
