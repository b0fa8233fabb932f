# Rows here and there of a message: found by what a column holds, and gathered.

cdef int find_picked(message, Part* part) except -1:
    """Find the parts of a message. Returns whether it is as every writer makes it; else nothing is found: Arrow has to
    decode it."""
    cdef const uint8_t[::1] data = message.data
    if message.columns is None:
        if not is_plain(&data[0], len(data)):
            return False
        find_parts(&data[0], len(data), part)
        return True
    if len(data) < HEADER_SIZE or memcmp(&data[0], <const uint8_t*>TEMPLATE_BYTES, 8) != 0:
        return False
    find_some_parts(&data[0], len(data), message.columns, part)
    return True


def rows_equal(message, name, const uint8_t[::1] wanted):
    """The numbers of the rows whose text is this one, n int32; None: the message is not as every writer makes it.

    Args:
        message: Verified, with the column.
        name: A column of text or bytes.
        wanted: The text.
    Raises:
        BadBatch: the message says of itself what cannot be.
    """
    cdef Part part
    cdef int buffer = BUFFERS_OF[name][0], node = NODES_OF[name][0]
    cdef int64_t length = wanted.shape[0], size, row, count = 0
    cdef const int32_t* ends
    cdef const uint8_t* content
    cdef const uint8_t* bits = NULL
    cdef uint8_t last = wanted[length - 1] if length else 0
    if not find_picked(message, &part):
        return None
    if part.length[node] != part.rows:
        raise BadBatch(f"column {name} has {part.length[node]} of {part.rows} rows")
    if not part.rows:
        return np.empty(0, np.int32)
    ends = <const int32_t*>some_bytes(&part, buffer + 1, 0, 4 * (part.rows + 1))
    content, size = part.data[buffer + 2], part.size[buffer + 2]
    if part.null_count[node] > 0:
        bits = some_bytes(&part, buffer, 0, (part.rows + 7) // 8)
    found = np.empty(part.rows, np.int32)
    cdef int32_t[::1] numbers = found
    with nogil:
        for row in range(part.rows):
            if <int64_t>ends[row + 1] - ends[row] != length:
                continue
            if ends[row] < 0 or ends[row + 1] > size:
                count = -1
                break
            if length and (content[ends[row + 1] - 1] != last or memcmp(content + ends[row], &wanted[0], length) != 0):
                continue
            if bits != NULL and not bits[row >> 3] >> (row & 7) & 1:
                continue
            numbers[count] = <int32_t>row
            count += 1
    if count < 0:
        raise BadBatch(f"column {name} has {size} bytes, row {row} is of [{ends[row]}, {ends[row + 1]})")
    return found[:count]


cdef class Picking:
    """Gathers rows of messages that are picked by number. Arguments as in picking.py."""

    cdef list columns
    cdef object schema, memory
    cdef readonly int64_t rows, byte_count

    def __init__(self, columns, memory):
        stored = dict(zip(SCHEMA.names, columns_of(SCHEMA, 0, 0, memory)))
        self.columns = [stored[name] for name in columns]
        self.schema = pa.schema([SCHEMA.field(name) for name in columns])
        self.memory = memory

    def add(self, message, const int32_t[::1] numbers):
        """Take rows of a message by their numbers, ascending. An error leaves what was taken before as it is."""
        cdef Part part
        cdef Column column
        cdef int64_t count = numbers.shape[0], first, stop, at = 0
        cdef list runs
        rows = None
        if not find_picked(message, &part):
            rows = message.rows()
            find_arrays(rows, &part)
        for column in self.columns:
            at = 0
            while at < count:
                first = numbers[at]
                stop = first + 1
                while at + stop - first < count and numbers[at + stop - first] == stop:
                    stop += 1
                column.put(&part, first, stop, self.rows + at)
                at += stop - first
        self.rows += count
        self.byte_count = 0
        for column in self.columns:
            self.byte_count += column.size(self.rows)

    def take(self):
        """All rows that were added, as one batch of the columns; then there are none."""
        cdef ArrowArray* place
        cdef Column column
        loan = Loan(self.memory)
        place = loan.batch(len(self.columns), self.rows)
        for column in self.columns:
            column.hand_over(loan, place, self.rows)
            place += 1
        self.rows = self.byte_count = 0
        return loan.lend(self.schema)
