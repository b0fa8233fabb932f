# Acks of envelopes: those of envelope.py, written without the GIL to the ack inbox that the publisher has named.
#
# A record that is told at an inbox has an entry in `enveloped` of its columns, which stands for its reply subject.

cdef enum:
    WIRE_STREAM = 0x0a          # the tags of `Ack`
    WIRE_PARTITION_SUBJECT = 0x12
    WIRE_MESSAGE_SUBJECT = 0x1a
    WIRE_OFFSET = 0x20
    WIRE_INBOX = 0x2a
    WIRE_CORRELATION_ID = 0x32
    WIRE_POLICY = 0x38
    WIRE_RECEIVED = 0x40
    WIRE_COMMITTED = 0x48
    WIRE_ERROR = 0x50

cdef bytes ACK_HEADER = envelope.ACK_HEADER
cdef const char* ACK_HEADER_DATA = ACK_HEADER
cdef Py_ssize_t ACK_HEADER_SIZE = len(ACK_HEADER)


cdef struct Ack:
    Text stream
    Text partition_subject
    Text subject
    Text inbox
    Text correlation_id
    uint64_t offset
    uint32_t policy
    uint64_t received_ns
    uint64_t committed_ns
    uint64_t error


cdef inline Py_ssize_t varint_size(uint64_t value) noexcept nogil:
    cdef Py_ssize_t size = 1
    while value >= 0x80:
        value >>= 7
        size += 1
    return size


cdef inline char* put_varint(char* to, uint64_t value) noexcept nogil:
    while value >= 0x80:
        to[0] = <char>(value & 0x7f | 0x80)
        to += 1
        value >>= 7
    to[0] = <char>value
    return to + 1


cdef inline Py_ssize_t text_field_size(const Text* text) noexcept nogil:
    return 1 + varint_size(text.size) + text.size if text.size else 0


cdef inline char* put_text_field(char* to, int tag, const Text* text) noexcept nogil:
    if text.size == 0:
        return to
    to[0] = <char>tag
    return put_bytes(put_varint(to + 1, text.size), text.data, text.size)


cdef inline Py_ssize_t number_field_size(uint64_t value) noexcept nogil:
    return 1 + varint_size(value) if value else 0


cdef inline char* put_number_field(char* to, int tag, uint64_t value) noexcept nogil:
    if value == 0:
        return to
    to[0] = <char>tag
    return put_varint(to + 1, value)


cdef inline uint64_t enum_value(uint32_t value) noexcept nogil:
    return <uint64_t><int64_t><int32_t>value


cdef Py_ssize_t ack_size(const Ack* ack) noexcept nogil:
    return (
        ACK_HEADER_SIZE + text_field_size(&ack.stream) + text_field_size(&ack.partition_subject)
        + text_field_size(&ack.subject) + number_field_size(ack.offset) + text_field_size(&ack.inbox)
        + text_field_size(&ack.correlation_id) + number_field_size(enum_value(ack.policy))
        + number_field_size(ack.received_ns) + number_field_size(ack.committed_ns) + number_field_size(ack.error)
    )


cdef Py_ssize_t ack_pub_size(const Ack* ack) noexcept nogil:
    cdef Py_ssize_t size = ack_size(ack)
    return 4 + ack.inbox.size + 1 + digits_of(size) + 2 + size + 2


cdef char* put_ack_pub(char* to, const Ack* ack) noexcept nogil:
    """Write the PUB of an ack, `ack_pub_size` bytes of it."""
    cdef Py_ssize_t size = ack_size(ack)
    to = put_bytes(to, b"PUB ", 4)
    to = put_bytes(to, ack.inbox.data, ack.inbox.size)
    to = put_bytes(to, b" ", 1)
    to = put_number(to, size, digits_of(size))
    to = put_bytes(to, b"\r\n", 2)
    to = put_bytes(to, ACK_HEADER_DATA, ACK_HEADER_SIZE)
    to = put_text_field(to, WIRE_STREAM, &ack.stream)
    to = put_text_field(to, WIRE_PARTITION_SUBJECT, &ack.partition_subject)
    to = put_text_field(to, WIRE_MESSAGE_SUBJECT, &ack.subject)
    to = put_number_field(to, WIRE_OFFSET, ack.offset)
    to = put_text_field(to, WIRE_INBOX, &ack.inbox)
    to = put_text_field(to, WIRE_CORRELATION_ID, &ack.correlation_id)
    to = put_number_field(to, WIRE_POLICY, enum_value(ack.policy))
    to = put_number_field(to, WIRE_RECEIVED, ack.received_ns)
    to = put_number_field(to, WIRE_COMMITTED, ack.committed_ns)
    to = put_number_field(to, WIRE_ERROR, ack.error)
    return put_bytes(to, b"\r\n", 2)


cdef bint is_publishable(const Text* subject) noexcept nogil:
    """Whether a message may be published on a subject: `is_publishable` of envelope.py."""
    cdef Py_ssize_t i, token_at = 0
    cdef unsigned char c
    for i in range(subject.size + 1):
        c = <unsigned char>subject.data[i] if i < subject.size else <unsigned char>c'.'
        if c <= 0x20 or c == 0x7f:
            return False
        if c == c'.':
            if i == token_at:
                return False
            if i == token_at + 1 and (subject.data[token_at] == c'*' or subject.data[token_at] == c'>'):
                return False
            token_at = i + 1
    return True


cdef int add_enveloped(Columns* columns, const Envelope* found, Py_ssize_t row, int awaits) noexcept nogil:
    """Note that a row is told at the ack inbox of its envelope. Returns 0; -1: no memory."""
    cdef Enveloped entry
    entry.row = <int32_t>row
    entry.awaits = awaits
    entry.policy = found.ack_policy
    entry.inbox_size, entry.correlation_size = <int32_t>found.ack_inbox.size, <int32_t>found.correlation_id.size
    entry.at = columns.enveloped_text.size
    if (
        append(&columns.enveloped_text, found.ack_inbox.data, found.ack_inbox.size) < 0
        or append(&columns.enveloped_text, found.correlation_id.data, found.correlation_id.size) < 0
    ):
        return -1
    return append_enveloped(columns, &entry)


cdef void begin_ack(Ack* ack, const Columns* columns, const Enveloped* entry) noexcept nogil:
    """Set what an ack has of a record and its envelope."""
    cdef const int32_t* ends = <const int32_t*>columns.subject.ends.data
    ack.inbox.data, ack.inbox.size = columns.enveloped_text.data + entry.at, entry.inbox_size
    ack.correlation_id.data, ack.correlation_id.size = ack.inbox.data + entry.inbox_size, entry.correlation_size
    ack.policy = entry.policy
    ack.subject.data = columns.subject.data.data + ends[entry.row]
    ack.subject.size = ends[entry.row + 1] - ends[entry.row]
    ack.received_ns = <uint64_t>((<const int64_t*>columns.timestamps.data)[entry.row] * 1000)


cdef Py_ssize_t write_acks(char* to, const Columns* columns, int awaits, Ack* ack, int64_t first_offset) noexcept nogil:
    """Write an ack for each record whose envelope awaits this kind. With `to` NULL only the size is counted.

    `ack`: what all of them have; with an error, none has an offset.
    """
    cdef const Enveloped* entry = <const Enveloped*>columns.enveloped.data
    cdef Py_ssize_t i, total = 0
    for i in range(count_enveloped(columns)):
        if entry[i].awaits != awaits:
            continue
        begin_ack(ack, columns, &entry[i])
        ack.offset = 0 if ack.error else <uint64_t>(first_offset + entry[i].row)
        if to == NULL:
            total += ack_pub_size(ack)
        else:
            to = put_ack_pub(to, ack)
    return total
