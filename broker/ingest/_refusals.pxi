# The fates of a message, and the answers to refused ones.
#
# A fate is a number. The refusals come in the order of REFUSALS in answers.py. Their texts are cut here,
# once, into pieces between which numbers go.

cdef enum:
    UNROUTED = 0
    STORED
    SKIPPED_INBOX
    SKIPPED_SYSTEM
    SKIPPED_OTHER_PARTITION
    FIRST_REFUSAL
    REFUSED_BAD_HEADER = FIRST_REFUSAL
    REFUSED_BAD_UTF8
    REFUSED_EXPECTED_STREAM
    REFUSED_EXPECTED_LAST_PARTITIONS
    REFUSED_EXPECTED_LAST_UNKNOWN
    REFUSED_EXPECTED_LAST_OTHER_SUBJECT
    REFUSED_EXPECTED_LAST_NO_SEQUENCE
    REFUSED_BAD_ACK
    REFUSED_BAD_FENCE
    REFUSED_BAD_TOMBSTONE
    REFUSED_TOMBSTONE_WITHOUT_KEY
    REFUSED_TOO_LARGE
    REFUSED_BATCH_FULL
    FATE_COUNT

cdef enum:
    PING
    PONG
    OK
    ERR
    INFO


cdef struct Operation:
    int kind
    Py_ssize_t at
    Py_ssize_t size


cdef struct Template:
    # An answer is: head, size, middle, limit, tail, stream, end. Without numbers the head has all of the text.
    const char* head
    Py_ssize_t head_size
    const char* middle
    Py_ssize_t middle_size
    const char* tail
    Py_ssize_t tail_size
    bint numbers


OPERATION_NAMES = ("PING", "PONG", "OK", "ERR", "INFO")
FATE_COUNTERS = (
    "unrouted", "stored", "skipped_inbox", "skipped_system", "skipped_other_partition",
    *(refusal.counter for refusal in answers.REFUSALS),
)
assert len(FATE_COUNTERS) == FATE_COUNT
cdef const char* MISSING_END = b"a message that does not end in CR LF where it should"
cdef const char* NO_MEMORY = b"no memory"
cdef Template[FATE_COUNT] templates
cdef uint64_t[FATE_COUNT] ack_errors    # of acks of envelopes
cdef list template_texts = []   # keeps alive the bytes that `templates` points into


cdef int make_templates() except -1:
    cdef bytes head, middle, tail
    cdef int fate = FIRST_REFUSAL
    for refusal in answers.REFUSALS:
        text, numbers, rest = refusal.description.partition("{size}")
        between, _, after = rest.partition("{limit}")
        head = b'{"error":{"code":%d,"err_code":%d,"description":"%b' % (
            refusal.code, refusal.err_code, json_text(text)[1:-1]
        )
        middle = json_text(between)[1:-1]
        tail = json_text(after)[1:-1] + b'"},"stream":'
        template_texts.extend((head, middle, tail))
        templates[fate].head, templates[fate].head_size = head, len(head)
        templates[fate].middle, templates[fate].middle_size = middle, len(middle)
        templates[fate].tail, templates[fate].tail_size = tail, len(tail)
        templates[fate].numbers = bool(numbers)
        ack_errors[fate] = refusal.ack_error
        fate += 1
    return 0


make_templates()


cdef int write_refusal(Buffer* to, const Slot* slot, int fate, const char* reply, Py_ssize_t reply_size,
                       Py_ssize_t record_size, uint64_t limit) noexcept nogil:
    """Append the PUB that answers a refused message."""
    cdef const Template* text = &templates[fate]
    cdef Py_ssize_t size = text.head_size + text.tail_size + slot.stream_json_size + 9
    cdef char* p
    if text.numbers:
        size += digits_of(record_size) + text.middle_size + digits_of(limit)
    if reserve(to, 4 + reply_size + 1 + digits_of(size) + 2 + size + 2) < 0:
        return -1
    p = to.data + to.size
    p = put_bytes(p, b"PUB ", 4)
    p = put_bytes(p, reply, reply_size)
    p = put_bytes(p, b" ", 1)
    p = put_number(p, size, digits_of(size))
    p = put_bytes(p, b"\r\n", 2)
    p = put_bytes(p, text.head, text.head_size)
    if text.numbers:
        p = put_number(p, record_size, digits_of(record_size))
        p = put_bytes(p, text.middle, text.middle_size)
        p = put_number(p, limit, digits_of(limit))
    p = put_bytes(p, text.tail, text.tail_size)
    p = put_bytes(p, slot.stream_json, slot.stream_json_size)
    p = put_bytes(p, b',"seq":0}\r\n', 11)
    to.size = p - to.data
    return 0


cdef inline bint begins_operation(char c) noexcept nogil:
    return (
        c == c'M' or c == c'H' or c == c'P' or c == c'+' or c == c'-' or c == c'I'
        or c == c'm' or c == c'h' or c == c'p' or c == c'i'
    )


cdef Py_ssize_t operation_size(const char* line, Py_ssize_t size) noexcept nogil:
    cdef Py_ssize_t at = 0
    while at < size and not is_blank(line[at]):
        at += 1
    return at


cdef bint same_word(const char* word, Py_ssize_t size, const char* upper, Py_ssize_t upper_size) noexcept nogil:
    """Whether two operations are the same, whatever their case."""
    cdef Py_ssize_t i
    cdef char c
    if size != upper_size:
        return False
    for i in range(size):
        c = word[i]
        if c'a' <= c <= c'z':
            c -= 32
        if c != upper[i]:
            return False
    return True
