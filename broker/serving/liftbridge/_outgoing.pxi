# Records that go to subscriptions: rows of Arrow's columns become messages of protobuf, framed. outgoing.py is the twin.

cdef enum:
    # of a Record
    OFFSET_OF_RECORD = 1 << 3
    KEY_OF_RECORD = 2 << 3 | 2
    VALUE_OF_RECORD = 3 << 3 | 2
    TIMESTAMP_OF_RECORD = 4 << 3
    SUBJECT_OF_RECORD = 7 << 3 | 2
    REPLY_OF_RECORD = 8 << 3 | 2
    HEADER_OF_RECORD = 9 << 3 | 2


cdef class Rows:
    """How many bytes, or entries, each row has, as Arrow says it: where rows end, and which are null. Those are empty."""

    cdef const uint8_t[::1] valid
    cdef const int32_t[::1] ends
    cdef bint has_nulls
    cdef readonly Py_ssize_t count

    def __cinit__(self, Py_ssize_t count, valid, ends, *more):
        cdef Py_ssize_t i
        self.count, self.ends, self.has_nulls = count, ends, valid is not None
        if self.has_nulls:
            self.valid = valid
            if self.valid.shape[0] * 8 < count:
                raise ValueError("which rows are null is not said of all")
        if self.ends.shape[0] <= count or self.ends[0] < 0:
            raise ValueError("where rows end is not said of all")
        for i in range(count):
            if self.ends[i] > self.ends[i + 1]:
                raise ValueError("a row ends before it begins")

    cdef inline bint is_there(self, Py_ssize_t i) noexcept:
        return not self.has_nulls or self.valid[i >> 3] >> (i & 7) & 1


cdef class Texts(Rows):
    """A column of bytes, or of texts.

    Raises:
        ValueError: these are no such rows.
    """

    cdef const uint8_t[::1] data

    def __cinit__(self, Py_ssize_t count, valid, ends, data):
        self.data = data
        if self.ends[count] > self.data.shape[0]:
            raise ValueError("rows end behind their bytes")

    cdef inline void row(self, Py_ssize_t i, Text* text) noexcept:
        text.data, text.size = NULL, 0
        if self.is_there(i) and self.ends[i + 1] > self.ends[i]:
            text.data = &self.data[self.ends[i]]
            text.size = self.ends[i + 1] - self.ends[i]


cdef class Entries(Rows):
    """A column of headers. Raises ValueError, as `Texts`."""

    cdef Texts names
    cdef Texts contents

    def __cinit__(self, Py_ssize_t count, valid, ends, Texts names not None, Texts contents not None):
        self.names, self.contents = names, contents
        if self.ends[count] > min(names.count, contents.count):
            raise ValueError("rows end behind their entries")


cdef inline Py_ssize_t entry_bytes(const Text* name, const Text* content) noexcept nogil:
    return 2 + number_bytes(name.size) + name.size + number_bytes(content.size) + content.size


cdef inline uint8_t* put_entry(uint8_t* to, const Text* name, const Text* content) noexcept nogil:
    to[0] = HEADER_OF_RECORD
    to = put_number(to + 1, entry_bytes(name, content))
    to[0] = HEADER_NAME
    to = put_bytes(put_number(to + 1, name.size), name.data, name.size)
    to[0] = HEADER_VALUE
    return put_bytes(put_number(to + 1, content.size), content.data, content.size)


cdef class Stored:
    """Rows of a batch.

    Args:
        offsets, times: Numbers; times in microseconds.
        headers: None: no row has any.
        place: Stream and partition, as protobuf writes them.
    """

    cdef const int64_t[::1] offsets
    cdef const int64_t[::1] times
    cdef Texts keys
    cdef Texts values
    cdef Texts subjects
    cdef Texts replies
    cdef Entries headers
    cdef bytes place
    cdef Py_ssize_t count

    def __cinit__(
        self,
        offsets,
        times,
        Texts keys not None,
        Texts values not None,
        Texts subjects not None,
        Texts replies not None,
        Entries headers,
        bytes place not None,
    ):
        self.offsets, self.times, self.place = offsets, times, place
        self.keys, self.values, self.subjects, self.replies, self.headers = keys, values, subjects, replies, headers
        self.count = min(
            self.offsets.shape[0], self.times.shape[0], keys.count, values.count, subjects.count, replies.count
        )
        if headers is not None:
            self.count = min(self.count, headers.count)

    cdef Py_ssize_t size(self, Py_ssize_t i) noexcept:
        cdef Py_ssize_t found = PyBytes_GET_SIZE(self.place)
        cdef Py_ssize_t k, whole
        cdef Text text, content
        if self.offsets[i]:
            found += 1 + number_bytes(<uint64_t>self.offsets[i])
        if self.times[i]:
            found += 1 + number_bytes(<uint64_t>self.times[i] * 1000)
        self.keys.row(i, &text)
        found += text_bytes(&text)
        self.values.row(i, &text)
        found += text_bytes(&text)
        self.subjects.row(i, &text)
        found += text_bytes(&text)
        self.replies.row(i, &text)
        found += text_bytes(&text)
        if self.headers is not None and self.headers.is_there(i):
            for k in range(self.headers.ends[i], self.headers.ends[i + 1]):
                self.headers.names.row(k, &text)
                self.headers.contents.row(k, &content)
                whole = entry_bytes(&text, &content)
                found += 1 + number_bytes(whole) + whole
        return found

    cdef uint8_t* put(self, uint8_t* to, Py_ssize_t i) noexcept:
        cdef Py_ssize_t k
        cdef Text text, content
        if self.offsets[i]:
            to[0] = OFFSET_OF_RECORD
            to = put_number(to + 1, <uint64_t>self.offsets[i])
        self.keys.row(i, &text)
        to = put_text(to, KEY_OF_RECORD, &text)
        self.values.row(i, &text)
        to = put_text(to, VALUE_OF_RECORD, &text)
        if self.times[i]:
            to[0] = TIMESTAMP_OF_RECORD
            to = put_number(to + 1, <uint64_t>self.times[i] * 1000)
        to = put_bytes(to, <const uint8_t*>PyBytes_AS_STRING(self.place), PyBytes_GET_SIZE(self.place))
        self.subjects.row(i, &text)
        to = put_text(to, SUBJECT_OF_RECORD, &text)
        self.replies.row(i, &text)
        to = put_text(to, REPLY_OF_RECORD, &text)
        if self.headers is not None and self.headers.is_there(i):
            for k in range(self.headers.ends[i], self.headers.ends[i + 1]):
                self.headers.names.row(k, &text)
                self.headers.contents.row(k, &content)
                to = put_entry(to, &text, &content)
        return to

    def framed(self, Py_ssize_t first, Py_ssize_t end, bint is_backward):
        """The messages of rows from `first` on, up to `end`; or of the last one of these, and back.

        Raises:
            IndexError: there are not so many.
        """
        cdef Py_ssize_t i, row, size, total = 0
        if first < 0 or end > self.count:
            raise IndexError("there are not so many rows")
        for i in range(first, end):
            total += 5 + self.size(i)
        found = PyBytes_FromStringAndSize(NULL, total)
        cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(found)
        for i in range(first, end):
            row = first + end - 1 - i if is_backward else i
            size = self.size(row)
            to[0] = 0
            to[1] = <uint8_t>(size >> 24)
            to[2] = <uint8_t>(size >> 16)
            to[3] = <uint8_t>(size >> 8)
            to[4] = <uint8_t>size
            to = self.put(to + 5, row)
        return found
