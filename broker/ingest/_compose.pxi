# Columns to bytes: the body of an Arrow IPC message, and the blob of answers.
#
# A body is laid out first. So it is allocated once, and each column is copied once, to its place.

cdef inline Py_ssize_t count_rows(const Buffer* rows) noexcept nogil:
    return rows.size // <Py_ssize_t>sizeof(int32_t)


cdef inline Py_ssize_t count_awaited(const Columns* columns) noexcept nogil:
    return (
        count_rows(&columns.awaited) + count_rows(&columns.awaited_leader)
        + columns.enveloped_all + columns.enveloped_leader
    )


cdef struct Place:
    Py_ssize_t at               # position in the body
    Py_ssize_t size


cdef struct Layout:
    Place[25] buffers
    int64_t[20] nodes
    int buffer_count
    int node_count
    Py_ssize_t body_size


cdef void place(Layout* layout, Py_ssize_t size) noexcept nogil:
    layout.buffers[layout.buffer_count].at = layout.body_size
    layout.buffers[layout.buffer_count].size = size
    layout.buffer_count += 1
    layout.body_size += (size + 7) & ~(<Py_ssize_t>7)


cdef void place_node(Layout* layout, Py_ssize_t rows, Py_ssize_t nulls) noexcept nogil:
    layout.nodes[layout.node_count] = rows
    layout.nodes[layout.node_count + 1] = nulls
    layout.node_count += 2
    place(layout, ((rows + 7) >> 3) if nulls else 0)


cdef void place_texts(Layout* layout, const Texts* column, Py_ssize_t rows) noexcept nogil:
    place_node(layout, rows, null_count(column, rows))
    place(layout, (rows + 1) * sizeof(int32_t))
    place(layout, column.data.size)


cdef void lay_out(Layout* layout, const Columns* columns) noexcept nogil:
    """Decide where each buffer goes. They come in Arrow's order, each at a multiple of 8."""
    cdef Py_ssize_t rows = columns.rows
    layout.buffer_count = layout.node_count = 0
    layout.body_size = 0
    place_node(layout, rows, 0)
    place(layout, rows * sizeof(int64_t))
    place_node(layout, rows, 0)
    place(layout, rows * sizeof(int64_t))
    place_texts(layout, &columns.subject, rows)
    place_texts(layout, &columns.key, rows)
    place_texts(layout, &columns.value, rows)
    place_node(layout, rows, null_count(&columns.headers, rows))
    place(layout, (rows + 1) * sizeof(int32_t))
    place_node(layout, columns.header_rows, 0)
    place_texts(layout, &columns.header_key, columns.header_rows)
    place_texts(layout, &columns.header_value, columns.header_rows)
    place_texts(layout, &columns.reply, rows)


cdef void put(char* body, const Layout* layout, int number, const char* data) noexcept nogil:
    """Copy one buffer to its place, and zero its padding. `data` NULL: write zeros."""
    cdef Py_ssize_t size = layout.buffers[number].size
    cdef char* to = body + layout.buffers[number].at
    if size & 7:
        memset(to + (size & ~(<Py_ssize_t>7)), 0, 8)
    if data != NULL:
        memcpy(to, data, size)
    else:
        memset(to, 0, size)


cdef void put_texts(char* body, const Layout* layout, int number, const Texts* column) noexcept nogil:
    """Copy the validity of a column to buffer `number`, and its ends to the one behind it."""
    cdef bint there = column.ends.size > 0
    put(body, layout, number, column.validity.data if there else NULL)
    put(body, layout, number + 1, column.ends.data if there else NULL)


cdef void write_body(char* body, const Layout* layout, const Columns* columns, int64_t first_offset) noexcept nogil:
    cdef int64_t* offsets = <int64_t*>(body + layout.buffers[1].at)
    cdef Py_ssize_t i
    for i in range(columns.rows):
        offsets[i] = first_offset + i
    put(body, layout, 3, columns.timestamps.data)
    put_texts(body, layout, 4, &columns.subject)
    put(body, layout, 6, columns.subject.data.data)
    put_texts(body, layout, 7, &columns.key)
    put(body, layout, 9, columns.key.data.data)
    put_texts(body, layout, 10, &columns.value)
    put(body, layout, 12, columns.value.data.data)
    put_texts(body, layout, 13, &columns.headers)
    put_texts(body, layout, 16, &columns.header_key)
    put(body, layout, 18, columns.header_key.data.data)
    put_texts(body, layout, 19, &columns.header_value)
    put(body, layout, 21, columns.header_value.data.data)
    put_texts(body, layout, 22, &columns.reply)
    put(body, layout, 24, columns.reply.data.data)


cdef const char* HEX = b"0123456789abcdef"


cdef char* put_hex(char* to, uint64_t value, int digits) noexcept nogil:
    cdef int i
    for i in range(digits - 1, -1, -1):
        to[i] = HEX[value & 15]
        value >>= 4
    return to + digits


cdef inline int digits_of(uint64_t value) noexcept nogil:
    cdef int digits = 1
    while value >= 10:
        value //= 10
        digits += 1
    return digits


cdef inline char* put_number(char* to, uint64_t value, int digits) noexcept nogil:
    cdef int i
    for i in range(digits - 1, -1, -1):
        to[i] = <char>(c'0' + value % 10)
        value //= 10
    return to + digits


cdef inline char* put_bytes(char* to, const char* data, Py_ssize_t size) noexcept nogil:
    memcpy(to, data, size)
    return to + size


cdef Py_ssize_t write_answers(char* to, const Columns* columns, const Buffer* rows, const char* head, Py_ssize_t head_size,
                              const char* tail, Py_ssize_t tail_size, int64_t first_offset,
                              bint numbered) noexcept nogil:
    """Write one PUB for each record of `rows`. With `to` NULL only the size is counted.

    The body of a PUB is the head. If `numbered`, the sequence number and the tail follow.
    """
    cdef const int32_t* awaited = <const int32_t*>rows.data
    cdef const int32_t* ends = <const int32_t*>columns.reply.ends.data
    cdef Py_ssize_t i, row, reply_size, size, total = 0, count = count_rows(rows)
    cdef uint64_t sequence
    cdef int digits = 0
    for i in range(count):
        row = awaited[i]
        reply_size = ends[row + 1] - ends[row]
        sequence = <uint64_t>(first_offset + row + 1)
        size = head_size
        if numbered:
            digits = digits_of(sequence)
            size += digits + tail_size
        if to == NULL:
            total += 4 + reply_size + 1 + digits_of(size) + 2 + size + 2
            continue
        to = put_bytes(to, b"PUB ", 4)
        to = put_bytes(to, columns.reply.data.data + ends[row], reply_size)
        to = put_bytes(to, b" ", 1)
        to = put_number(to, size, digits_of(size))
        to = put_bytes(to, b"\r\n", 2)
        to = put_bytes(to, head, head_size)
        if numbered:
            to = put_number(to, sequence, digits)
            to = put_bytes(to, tail, tail_size)
        to = put_bytes(to, b"\r\n", 2)
    return total
