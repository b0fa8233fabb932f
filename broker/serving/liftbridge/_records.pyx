# cython: boundscheck=False, wraparound=False, cdivision=True
"""Records of PublishAsync, compiled: from messages as they came to columns, and to the acks that go back. And records
of Subscribe, from columns to messages (_outgoing.pxi).

Each message is read in place, three times: for where it goes, for its columns, for its ack. That is cheaper than an
object of it, made once. A message that is not plain (a field that is not known or has another kind, names that are not
ASCII, a number of more than 64 bits, many headers) makes the functions give None: protobuf's own library has to say what it
means, or that it is none. records.py is the twin, on that library.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove, memset


cdef extern from *:
    """
    #ifndef LIFTLOG_SOURCES
    #define LIFTLOG_SOURCES ""
    #endif
    """
    const char* LIFTLOG_SOURCES

SOURCES = LIFTLOG_SOURCES.decode()
"""See broker/api/compiled.py."""

cdef enum:
    PLACES = 64
    HEADERS = 64                # of one record
    INT32_LARGEST = 2147483647
    # protobuf's tags: number of the field << 3 | kind
    KEY = 1 << 3 | 2
    VALUE = 2 << 3 | 2
    STREAM = 3 << 3 | 2
    PARTITION = 4 << 3
    HEADER = 5 << 3 | 2
    HEADER_NAME = 1 << 3 | 2
    HEADER_VALUE = 2 << 3 | 2
    ACK_INBOX = 6 << 3 | 2
    CORRELATION_ID = 7 << 3 | 2
    ACK_POLICY = 8 << 3
    EXPECTED_OFFSET = 9 << 3
    # of the answer
    ACK_OF_ANSWER = 1 << 3 | 2
    CORRELATION_ID_OF_ANSWER = 3 << 3 | 2
    OFFSET_OF_ACK = 4 << 3
    ACK_INBOX_OF_ACK = 5 << 3 | 2
    CORRELATION_ID_OF_ACK = 6 << 3 | 2
    ACK_POLICY_OF_ACK = 7 << 3


cdef struct Text:
    const uint8_t* data
    Py_ssize_t size


cdef struct Header:
    Text name
    Text value


cdef struct Record:
    Text key
    Text value
    Text stream
    Text ack_inbox
    Text correlation_id
    int32_t partition
    int32_t ack_policy
    int header_count
    Header[HEADERS] headers     # by name, each once; the last field, which is not cleared


cdef struct Place:
    Text stream
    int32_t partition
    int32_t ack_policy


# --- what came --------------------------------------------------------------------------------------------------------


cdef inline bint read_number(const uint8_t** at, const uint8_t* end, uint64_t* value) noexcept nogil:
    """A number in its fewest bytes or more, 64 bits at most. Returns whether there is one."""
    cdef uint64_t found = 0
    cdef uint8_t c
    cdef int shift = 0
    while at[0] < end and shift < 64:
        c = at[0][0]
        at[0] += 1
        if shift == 63 and c > 1:
            return False
        found |= <uint64_t>(c & 0x7F) << shift
        if c < 0x80:
            value[0] = found
            return True
        shift += 7
    return False


cdef inline bint read_text(const uint8_t** at, const uint8_t* end, Text* text) noexcept nogil:
    cdef uint64_t size
    if not read_number(at, end, &size) or size > <uint64_t>(end - at[0]):
        return False
    text.data = at[0]
    text.size = <Py_ssize_t>size
    at[0] += size
    return True


cdef inline bint is_ascii(const Text* text) noexcept nogil:
    cdef Py_ssize_t i
    cdef uint8_t every = 0
    for i in range(text.size):
        every |= text.data[i]
    return every < 0x80


cdef inline bint read_name(const uint8_t** at, const uint8_t* end, Text* text) noexcept nogil:
    """A text that is ASCII. Each is judged, also one that another of its field replaces."""
    return read_text(at, end, text) and is_ascii(text)


cdef inline int compared(const Text* self, const Text* other) noexcept nogil:
    cdef Py_ssize_t size = min(self.size, other.size)
    cdef int found = memcmp(self.data, other.data, size) if size else 0
    return found if found else (self.size > other.size) - (self.size < other.size)


cdef bint read_header(const Text* entry, Record* self) noexcept nogil:
    """Whether an entry of the headers is plain. It goes to its place among them; the last one of a name counts."""
    cdef const uint8_t* at = entry.data
    cdef const uint8_t* end = at + entry.size
    cdef Header header
    cdef uint8_t tag
    cdef int i, order
    memset(&header, 0, sizeof(Header))
    while at < end:
        tag = at[0]
        at += 1
        if tag == HEADER_NAME:
            if not read_name(&at, end, &header.name):
                return False
        elif tag == HEADER_VALUE:
            if not read_text(&at, end, &header.value):
                return False
        else:
            return False
    i = self.header_count
    while i > 0:
        order = compared(&self.headers[i - 1].name, &header.name)
        if order == 0:
            self.headers[i - 1].value = header.value
            return True
        if order < 0:
            break
        i -= 1
    if self.header_count == HEADERS:
        return False
    memmove(&self.headers[i + 1], &self.headers[i], (self.header_count - i) * sizeof(Header))
    self.headers[i] = header
    self.header_count += 1
    return True


cdef bint read_record(object message, Record* self) noexcept:
    """Whether a message is plain. `self` points into it."""
    cdef const uint8_t* at = <const uint8_t*>PyBytes_AS_STRING(message)
    cdef const uint8_t* end = at + PyBytes_GET_SIZE(message)
    cdef uint64_t number
    cdef Text entry
    cdef uint8_t tag
    memset(self, 0, sizeof(Record) - sizeof(self.headers))
    while at < end:
        tag = at[0]
        at += 1
        if tag == KEY:
            if not read_text(&at, end, &self.key):
                return False
        elif tag == VALUE:
            if not read_text(&at, end, &self.value):
                return False
        elif tag == STREAM:
            if not read_name(&at, end, &self.stream):
                return False
        elif tag == ACK_INBOX:
            if not read_name(&at, end, &self.ack_inbox):
                return False
        elif tag == CORRELATION_ID:
            if not read_name(&at, end, &self.correlation_id):
                return False
        elif tag == PARTITION:
            if not read_number(&at, end, &number):
                return False
            self.partition = <int32_t><uint32_t>number
        elif tag == ACK_POLICY:
            if not read_number(&at, end, &number):
                return False
            self.ack_policy = <int32_t><uint32_t>number
        elif tag == EXPECTED_OFFSET:
            if not read_number(&at, end, &number):
                return False
        elif tag == HEADER:
            if not read_text(&at, end, &entry) or not read_header(&entry, self):
                return False
        else:
            return False
    return True


cdef inline bint is_same_text(const Text* self, const Text* other) noexcept nogil:
    return self.size == other.size and (self.size == 0 or memcmp(self.data, other.data, self.size) == 0)


def grouped(list messages not None, Py_ssize_t records_max):
    """Records by stream and partition, in runs of one ack policy and so many at most.

    Args:
        messages: bytes, each a Publish.
    Returns:
        For each partition its runs, in order: (stream, partition, ack policy, messages). None: see the module; so it is
        for more than 64 partitions.
    """
    cdef Place[PLACES] places
    cdef Record record
    cdef Place* place
    cdef Py_ssize_t count = 0
    cdef Py_ssize_t i, k = 0
    cdef list of_partition, run, found = [], runs = []
    for i in range(PyList_GET_SIZE(messages)):
        message = messages[i]
        if type(message) is not bytes or not read_record(message, &record):
            return None
        if k >= count or places[k].partition != record.partition or not is_same_text(
            &places[k].stream, &record.stream
        ):  # not where the one before went
            for k in range(count):
                if places[k].partition == record.partition and is_same_text(&places[k].stream, &record.stream):
                    break
            else:
                if count == PLACES:
                    return None
                k = count
                count += 1
                places[k].stream = record.stream
                places[k].partition = record.partition
                found.append([])
                runs.append(None)
        of_partition = <list>found[k]
        run = runs[k]
        if run is None or places[k].ack_policy != record.ack_policy or len(run) == records_max:
            run = []
            runs[k] = run
            places[k].ack_policy = record.ack_policy
            stream = PyBytes_FromStringAndSize(<const char*>record.stream.data, record.stream.size).decode("ascii")
            of_partition.append((stream, record.partition, record.ack_policy, run))
        run.append(message)
    return found


cdef class Binary:
    """Bytes of rows, behind one another, as Arrow has them: offsets and data."""

    cdef readonly bytes offsets
    cdef readonly bytes data
    cdef int32_t* ends
    cdef char* to
    cdef Py_ssize_t count

    def __cinit__(self, Py_ssize_t count, Py_ssize_t size):
        self.offsets = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
        self.data = PyBytes_FromStringAndSize(NULL, size)
        self.ends = <int32_t*>PyBytes_AS_STRING(self.offsets)
        self.to = PyBytes_AS_STRING(self.data)
        self.ends[0] = 0

    cdef inline void add(self, const Text* text) noexcept:
        cdef int32_t at = self.ends[self.count]
        if text.size:
            memcpy(self.to + at, text.data, text.size)
        self.count += 1
        self.ends[self.count] = at + <int32_t>text.size


cdef bytes bits(Py_ssize_t count):
    """So many bits that are not set."""
    cdef bytes found = PyBytes_FromStringAndSize(NULL, (count + 7) // 8)
    memset(PyBytes_AS_STRING(found), 0, (count + 7) // 8)
    return found


cdef inline void set_bit(bytes found, Py_ssize_t i) noexcept:
    (<uint8_t*>PyBytes_AS_STRING(found))[i >> 3] |= <uint8_t>(1 << (i & 7))


def columns(list messages not None):
    """Keys, values and headers as Arrow's buffers.

    Returns:
        Keys: (validity, Binary), or None if no record has one; one without bytes is none. Values: Binary. Headers:
        (validity, offsets, names, values), the last two Binary, or None if no record has any; those of a record are by
        name. None instead of all: see the module; so it is for more than 2 GiB of one of them.
    """
    cdef Py_ssize_t count = PyList_GET_SIZE(messages)
    cdef Py_ssize_t key_bytes = 0, value_bytes = 0, header_count = 0, name_bytes = 0, content_bytes = 0
    cdef Py_ssize_t i
    cdef int k
    cdef Record record
    for i in range(count):
        if type(messages[i]) is not bytes or not read_record(messages[i], &record):
            return None
        key_bytes += record.key.size
        value_bytes += record.value.size
        header_count += record.header_count
        for k in range(record.header_count):
            name_bytes += record.headers[k].name.size
            content_bytes += record.headers[k].value.size
    if max(key_bytes, value_bytes, header_count, name_bytes, content_bytes) > INT32_LARGEST:
        return None
    cdef Binary values = Binary(count, value_bytes)
    cdef bytes valid = None
    cdef Binary keys = None
    if key_bytes:
        valid, keys = bits(count), Binary(count, key_bytes)
    cdef bytes headed = None, header_offsets = None
    cdef Binary names = None, contents = None
    cdef int32_t* ends = NULL
    if header_count:
        headed = bits(count)
        header_offsets = PyBytes_FromStringAndSize(NULL, 4 * (count + 1))
        names, contents = Binary(header_count, name_bytes), Binary(header_count, content_bytes)
        ends = <int32_t*>PyBytes_AS_STRING(header_offsets)
        ends[0] = 0
    for i in range(count):
        read_record(messages[i], &record)
        values.add(&record.value)
        if keys is not None:
            keys.add(&record.key)
            if record.key.size:
                set_bit(valid, i)
        if names is not None:
            for k in range(record.header_count):
                names.add(&record.headers[k].name)
                contents.add(&record.headers[k].value)
            ends[i + 1] = <int32_t>names.count
            if record.header_count:
                set_bit(headed, i)
    return (
        None if keys is None else (valid, keys),
        values,
        None if names is None else (headed, header_offsets, names, contents),
    )


# --- what goes --------------------------------------------------------------------------------------------------------


cdef inline Py_ssize_t number_bytes(uint64_t value) noexcept nogil:
    cdef Py_ssize_t count = 1
    while value >= 0x80:
        value >>= 7
        count += 1
    return count


cdef inline uint8_t* put_number(uint8_t* to, uint64_t value) noexcept nogil:
    while value >= 0x80:
        to[0] = <uint8_t>(value | 0x80)
        value >>= 7
        to += 1
    to[0] = <uint8_t>value
    return to + 1


cdef inline uint8_t* put_bytes(uint8_t* to, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    if size:
        memcpy(to, data, size)
    return to + size


cdef inline Py_ssize_t text_bytes(const Text* text) noexcept nogil:
    return 1 + number_bytes(text.size) + text.size if text.size else 0


cdef inline uint8_t* put_text(uint8_t* to, uint8_t tag, const Text* text) noexcept nogil:
    if text.size == 0:
        return to
    to[0] = tag
    return put_bytes(put_number(to + 1, text.size), text.data, text.size)


cdef inline Py_ssize_t ack_bytes(const Record* record, uint64_t offset, Py_ssize_t around) noexcept nogil:
    cdef Py_ssize_t size = around + text_bytes(&record.ack_inbox) + text_bytes(&record.correlation_id)
    if offset:
        size += 1 + number_bytes(offset)
    if record.ack_policy:
        size += 1 + number_bytes(<uint64_t><int64_t>record.ack_policy)
    return size


def acks(list messages not None, uint64_t first_offset, bytes head not None, bytes tail not None):
    """The answers to records that are stored one behind the other, each a Published, framed.

    Args:
        head: The fields of their acks that are before the offset, as protobuf writes them.
        tail: Those behind the ack policy.
    Returns:
        None: see the module.
    """
    cdef Py_ssize_t count = PyList_GET_SIZE(messages)
    cdef Py_ssize_t around = PyBytes_GET_SIZE(head) + PyBytes_GET_SIZE(tail)
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t i, size, whole
    cdef Record record
    for i in range(count):
        if type(messages[i]) is not bytes or not read_record(messages[i], &record):
            return None
        size = ack_bytes(&record, first_offset + i, around)
        total += 5 + 1 + number_bytes(size) + size + text_bytes(&record.correlation_id)
    found = PyBytes_FromStringAndSize(NULL, total)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(found)
    for i in range(count):
        read_record(messages[i], &record)
        size = ack_bytes(&record, first_offset + i, around)
        whole = 1 + number_bytes(size) + size + text_bytes(&record.correlation_id)
        to[0] = 0
        to[1] = <uint8_t>(whole >> 24)
        to[2] = <uint8_t>(whole >> 16)
        to[3] = <uint8_t>(whole >> 8)
        to[4] = <uint8_t>whole
        to[5] = ACK_OF_ANSWER
        to = put_number(to + 6, size)
        to = put_bytes(to, <const uint8_t*>PyBytes_AS_STRING(head), PyBytes_GET_SIZE(head))
        if first_offset + i:
            to[0] = OFFSET_OF_ACK
            to = put_number(to + 1, first_offset + i)
        to = put_text(to, ACK_INBOX_OF_ACK, &record.ack_inbox)
        to = put_text(to, CORRELATION_ID_OF_ACK, &record.correlation_id)
        if record.ack_policy:
            to[0] = ACK_POLICY_OF_ACK
            to = put_number(to + 1, <uint64_t><int64_t>record.ack_policy)
        to = put_bytes(to, <const uint8_t*>PyBytes_AS_STRING(tail), PyBytes_GET_SIZE(tail))
        to = put_text(to, CORRELATION_ID_OF_ANSWER, &record.correlation_id)
    return found


# --- framing ----------------------------------------------------------------------------------------------------------


def whole(bytearray data not None, Py_ssize_t bytes_max):
    """gRPC's messages that are whole, as long as each is uncompressed and not too long; and where the next one begins."""
    cdef const uint8_t* start = <const uint8_t*><char*>data
    cdef Py_ssize_t size = len(data)
    cdef Py_ssize_t at = 0
    cdef Py_ssize_t length
    cdef list found = []
    while size - at >= 5 and start[at] == 0:
        length = <Py_ssize_t>start[at + 1] << 24 | <Py_ssize_t>start[at + 2] << 16 | start[at + 3] << 8 | start[at + 4]
        if length > bytes_max or length > size - at - 5:
            break
        found.append(PyBytes_FromStringAndSize(<const char*>start + at + 5, length))
        at += 5 + length
    return found, at


include "_outgoing.pxi"
