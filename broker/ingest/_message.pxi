# Reads the bytes of one message without copying them: control line, header block, UTF-8, hash.
#
# Everything here is a function of bytes; nothing is kept. Positions are relative to the bytes that were given,
# so that a control line may move (from the fed chunk into a buffer) while its payload arrives.

cdef enum:
    OPTION_ABSENT = -1


cdef struct Span:
    Py_ssize_t at
    Py_ssize_t size


cdef struct Text:
    const char* data
    Py_ssize_t size             # OPTION_ABSENT: the message does not have it


cdef struct HeaderSpan:
    int32_t name_at
    int32_t name_size
    int32_t value_at
    int32_t value_size


cdef struct Options:
    bint malformed
    bint names_utf8
    bint expects_last           # there is a Nats-Expected-Last-*
    bint expects_unknown        # there is one that is not known here
    Text expected_sequence
    Text expected_subject_sequence
    Text expected_subject
    Text expected_id
    Py_ssize_t expected_id_at   # its place among the headers, from 0
    Text msg_id
    Py_ssize_t msg_id_at
    Text key
    Text ack
    Text fence
    Text tombstone
    Text expected_stream
    Py_ssize_t count            # number of headers


cdef inline bint is_blank(char c) noexcept nogil:
    return c == c' ' or c == c'\t'


cdef inline bint text_is(const Text* text, const char* other, Py_ssize_t size) noexcept nogil:
    return text.size == size and memcmp(text.data, other, size) == 0


cdef bint utf8_rest(const unsigned char* p, const unsigned char* end) noexcept nogil:
    cdef unsigned char c
    while p < end:
        c = p[0]
        if c < 0x80:
            p += 1
        elif c < 0xC2:
            return False
        elif c < 0xE0:
            if end - p < 2 or (p[1] & 0xC0) != 0x80:
                return False
            p += 2
        elif c < 0xF0:
            if end - p < 3 or (p[1] & 0xC0) != 0x80 or (p[2] & 0xC0) != 0x80:
                return False
            if (c == 0xE0 and p[1] < 0xA0) or (c == 0xED and p[1] > 0x9F):  # overlong; surrogates
                return False
            p += 3
        elif c < 0xF5:
            if end - p < 4 or (p[1] & 0xC0) != 0x80 or (p[2] & 0xC0) != 0x80 or (p[3] & 0xC0) != 0x80:
                return False
            if (c == 0xF0 and p[1] < 0x90) or (c == 0xF4 and p[1] > 0x8F):  # overlong; above U+10FFFF
                return False
            p += 4
        else:
            return False
    return True


cdef inline bint is_utf8(const char* data, Py_ssize_t size) noexcept nogil:
    """Whether bytes are UTF-8. Eight ASCII bytes are checked at a time, then the rest byte by byte."""
    cdef const char* end = data + size
    cdef uint64_t word
    while end - data >= 8:
        memcpy(&word, data, 8)
        if word & <uint64_t>0x8080808080808080:
            break
        data += 8
    return utf8_rest(<const unsigned char*>data, <const unsigned char*>end)


cdef uint32_t[1024] crc_table   # CRC-32 IEEE; four tables, so that each step takes four bytes
cdef uint32_t[1024] crc32c_table


cdef void make_crc_table(uint32_t* table, uint32_t polynomial) noexcept nogil:
    """Make the tables of a CRC with this reflected polynomial."""
    cdef uint32_t value
    cdef int i, bit
    for i in range(256):
        value = i
        for bit in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        table[i] = value
    for i in range(256, 1024):
        value = table[i - 256]
        table[i] = table[value & 0xff] ^ (value >> 8)


cdef inline uint32_t crc_of(const uint32_t* table, const char* data, Py_ssize_t size) noexcept nogil:
    cdef const unsigned char* p = <const unsigned char*>data
    cdef uint32_t value = 0xFFFFFFFF
    while size >= 4:
        value ^= p[0] | (<uint32_t>p[1] << 8) | (<uint32_t>p[2] << 16) | (<uint32_t>p[3] << 24)
        value = (
            table[768 + (value & 0xff)] ^ table[512 + ((value >> 8) & 0xff)]
            ^ table[256 + ((value >> 16) & 0xff)] ^ table[value >> 24]
        )
        p += 4
        size -= 4
    while size > 0:
        value = table[(value ^ p[0]) & 0xff] ^ (value >> 8)
        p += 1
        size -= 1
    return value ^ <uint32_t>0xFFFFFFFF


cdef uint32_t crc32_of(const char* data, Py_ssize_t size) noexcept nogil:
    return crc_of(crc_table, data, size)


cdef uint32_t crc32c_of(const char* data, Py_ssize_t size) noexcept nogil:
    return crc_of(crc32c_table, data, size)


cdef Span token_of(const char* subject, Py_ssize_t size, int number) noexcept nogil:
    """Token `number` of a subject, counted from 1, or the whole subject if it has fewer."""
    cdef Span span
    cdef Py_ssize_t at = 0, i
    cdef const char* dot
    for i in range(number - 1):
        dot = <const char*>memchr(subject + at, c'.', size - at)
        if dot == NULL:
            span.at, span.size = 0, size
            return span
        at = dot - subject + 1
    dot = <const char*>memchr(subject + at, c'.', size - at)
    span.at = at
    span.size = (dot - subject if dot != NULL else size) - at
    return span


cdef inline const char* find_crlf(const char* p, const char* end) noexcept nogil:
    while True:
        p = <const char*>memchr(p, c'\r', end - p)
        if p == NULL or end - p < 2:
            return NULL
        if p[1] == c'\n':
            return p
        p += 1


cdef void note_option(Options* options, const char* block, const HeaderSpan* header) noexcept nogil:
    """Note a header that is an option, and was counted. If one is repeated, the first counts (`rules.R1`)."""
    cdef const char* name = block + header.name_at
    cdef Py_ssize_t size = header.name_size
    cdef Text* text = NULL
    if size < 11:
        return
    if name[0] == c'L':
        if size == 11 and memcmp(name, b"Liftlog-Key", 11) == 0:
            text = &options.key
        elif size == 11 and memcmp(name, b"Liftlog-Ack", 11) == 0:
            text = &options.ack
        elif size == 13 and memcmp(name, b"Liftlog-Fence", 13) == 0:
            text = &options.fence
        elif size == 17 and memcmp(name, b"Liftlog-Tombstone", 17) == 0:
            text = &options.tombstone
    elif name[0] == c'N':
        if size == 20 and memcmp(name, b"Nats-Expected-Stream", 20) == 0:
            text = &options.expected_stream
        elif size == 11 and memcmp(name, b"Nats-Msg-Id", 11) == 0:
            text = &options.msg_id
            if text.size == OPTION_ABSENT:
                options.msg_id_at = options.count - 1
        elif size >= 19 and memcmp(name, b"Nats-Expected-Last-", 19) == 0:
            options.expects_last = True
            if size == 27 and memcmp(name + 19, b"Sequence", 8) == 0:
                text = &options.expected_sequence
            elif size == 35 and memcmp(name + 19, b"Subject-Sequence", 16) == 0:
                text = &options.expected_subject_sequence
            elif size == 43 and memcmp(name + 19, b"Subject-Sequence-Subject", 24) == 0:
                text = &options.expected_subject
            elif size == 25 and memcmp(name + 19, b"Msg-Id", 6) == 0:
                text = &options.expected_id
                if text.size == OPTION_ABSENT:
                    options.expected_id_at = options.count - 1
            else:
                options.expects_unknown = True
    if text != NULL and text.size == OPTION_ABSENT:
        text.data = block + header.value_at
        text.size = header.value_size


cdef void no_options(Options* options) noexcept nogil:
    options.malformed = False
    options.names_utf8 = True
    options.expects_last = options.expects_unknown = False
    options.count = 0
    options.expected_sequence.size = options.expected_id.size = options.msg_id.size = OPTION_ABSENT
    options.expected_subject_sequence.size = options.expected_subject.size = OPTION_ABSENT
    options.key.size = options.ack.size = options.fence.size = OPTION_ABSENT
    options.tombstone.size = options.expected_stream.size = OPTION_ABSENT


cdef int read_headers(Options* options, const char* block, Py_ssize_t size, Buffer* spans) noexcept nogil:
    """Parse a header block, as `parse_headers` of control.py does, into `options` and `spans` (of HeaderSpan).

    Returns 0; -1: no memory. If the block is malformed, `options` says that and nothing else.
    """
    cdef const char* end = block + size
    cdef const char* p
    cdef const char* line_end
    cdef const char* colon
    cdef HeaderSpan* header
    no_options(options)
    spans.size = 0
    if size < 12 or memcmp(block, b"NATS/1.0", 8) != 0:
        options.malformed = True
        return 0
    p = block + 8
    line_end = find_crlf(p, end)
    if line_end == NULL or not (line_end == p or is_blank(p[0])):
        options.malformed = True
        return 0
    p = line_end + 2
    while True:
        line_end = find_crlf(p, end)
        if line_end == NULL:
            break
        if line_end == p:
            if p + 2 == end:
                return 0
            break
        colon = <const char*>memchr(p, c':', line_end - p)
        if colon == NULL or colon == p:
            break
        if reserve(spans, sizeof(HeaderSpan)) < 0:
            return -1
        header = <HeaderSpan*>(spans.data + spans.size)
        spans.size += sizeof(HeaderSpan)
        header.name_at = <int32_t>(p - block)
        header.name_size = <int32_t>(colon - p)
        colon += 1
        while colon < line_end and is_blank(colon[0]):
            colon += 1
        header.value_at = <int32_t>(colon - block)
        header.value_size = <int32_t>(line_end - colon)
        options.count += 1
        if not is_utf8(p, header.name_size):
            options.names_utf8 = False
        note_option(options, block, header)
        p = line_end + 2
    no_options(options)
    options.malformed = True
    return 0


cdef struct ControlLine:
    uint64_t sid
    Py_ssize_t subject_at
    Py_ssize_t subject_size
    Py_ssize_t reply_at
    Py_ssize_t reply_size       # 0: there is no reply
    bint has_headers
    Py_ssize_t header_size
    Py_ssize_t size             # bytes of header block and payload


cdef inline bint read_number(const char* p, Py_ssize_t size, uint64_t* number) noexcept nogil:
    cdef uint64_t value = 0
    cdef Py_ssize_t i
    cdef unsigned char digit
    if size < 1 or size > 18:
        return False
    for i in range(size):
        digit = <unsigned char>(p[i] - c'0')
        if digit > 9:
            return False
        value = value * 10 + digit
    number[0] = value
    return True


cdef const char* read_control_line(ControlLine* found, const char* line, Py_ssize_t size, Py_ssize_t at,
                                   Py_ssize_t payload_max) noexcept nogil:
    """Parse the fields of a MSG line, or of an HMSG line (`found.has_headers`). `at` is behind the operation.

    Returns NULL, or a text that says what is wrong.
    """
    cdef Span[6] fields
    cdef int count = 0, expected = 4 if found.has_headers else 3
    cdef uint64_t number
    while True:
        while at < size and is_blank(line[at]):
            at += 1
        if at == size:
            break
        if count == 6:
            return b"too many fields in a control line"
        fields[count].at = at
        while at < size and not is_blank(line[at]):
            at += 1
        fields[count].size = at - fields[count].at
        count += 1
    if count != expected and count != expected + 1:
        return b"wrong number of fields in a control line"
    found.subject_at = fields[0].at
    found.subject_size = fields[0].size
    if not read_number(line + fields[1].at, fields[1].size, &found.sid):
        return b"a subscription id that is no number"
    found.reply_at = found.reply_size = 0
    if count > expected:
        found.reply_at = fields[2].at
        found.reply_size = fields[2].size
    count -= 1
    if not read_number(line + fields[count].at, fields[count].size, &number):
        return b"a size that is no number"
    if number > <uint64_t>payload_max:
        return b"a message over payload_max"
    found.size = <Py_ssize_t>number
    found.header_size = 0
    if found.has_headers:
        count -= 1
        if not read_number(line + fields[count].at, fields[count].size, &number):
            return b"a header size that is no number"
        if number > <uint64_t>found.size:
            return b"a header size over the message size"
        found.header_size = <Py_ssize_t>number
    return NULL
