# The buffers and nodes of a message, found and checked (`_gathering.G4`).

cdef struct Part:
    # A buffer that is empty is NULL.
    int64_t rows
    int64_t byte_count
    const uint8_t* data[BUFFERS]
    int64_t size[BUFFERS]
    int64_t length[NODES]
    int64_t null_count[NODES]


cdef bint is_plain(const uint8_t* message, Py_ssize_t size) noexcept:
    """Whether the header is that of every uncompressed batch, except for the numbers that differ by batch."""
    cdef const uint8_t* template = TEMPLATE_BYTES
    cdef Py_ssize_t after_length = BODY_LENGTH_POSITION + 8, after_rows = ROWS_POSITION + 8
    cdef Py_ssize_t after_buffers = BUFFERS_POSITION + 16 * BUFFERS
    return (
        size >= HEADER_SIZE
        and memcmp(message, template, BODY_LENGTH_POSITION) == 0
        and memcmp(message + after_length, template + after_length, VALUE_POSITION - after_length) == 0
        and memcmp(message + VALUE_END, template + VALUE_END, ROWS_POSITION - VALUE_END) == 0
        and memcmp(message + after_rows, template + after_rows, BUFFERS_POSITION - after_rows) == 0
        and memcmp(message + after_buffers, template + after_buffers, NODES_POSITION - after_buffers) == 0
    )


cdef int find_parts(const uint8_t* message, Py_ssize_t size, Part* part) except -1:
    """Find the buffers and nodes of an uncompressed message (`_gathering.G4`)."""
    cdef const int64_t* places = <const int64_t*>(message + BUFFERS_POSITION)
    cdef const int64_t* nodes = <const int64_t*>(message + NODES_POSITION)
    cdef int64_t body = size - HEADER_SIZE
    cdef int i
    part.byte_count = size
    memcpy(&part.rows, message + ROWS_POSITION, 8)
    for i in range(BUFFERS):
        find_buffer(message, body, i, places + 2 * i, part)
    for i in range(NODES):
        part.length[i], part.null_count[i] = nodes[2 * i], nodes[2 * i + 1]
    if not 0 <= part.rows <= body // 8 or part.length[0] != part.rows:  # more rows would overflow later sums
        raise BadBatch(f"{part.rows} rows, of which the first column has {part.length[0]}, in a body of {body} bytes")
    return 0


cdef int find_some_parts(const uint8_t* message, Py_ssize_t size, columns, Part* part) except -1:
    """Find the buffers and nodes of a message of some columns, uncompressed (`_gathering.G4`). Those of the others are
    empty."""
    cdef const int64_t* places = <const int64_t*>(message + BUFFERS_POSITION)
    cdef const int64_t* nodes = <const int64_t*>(message + NODES_POSITION)
    cdef int64_t body = size - HEADER_SIZE
    cdef int i
    memset(part, 0, sizeof(Part))
    part.byte_count = size
    memcpy(&part.rows, message + ROWS_POSITION, 8)
    if not 0 <= part.rows <= body // 8:  # more rows would overflow later sums
        raise BadBatch(f"{part.rows} rows in a body of {body} bytes")
    for name in columns:
        for i in range(*BUFFERS_OF[name]):
            find_buffer(message, body, i, places, part)
            places += 2
        for i in range(*NODES_OF[name]):
            part.length[i], part.null_count[i] = nodes[0], nodes[1]
            nodes += 2
    return 0


cdef int find_buffer(const uint8_t* message, int64_t body, int i, const int64_t* place, Part* part) except -1:
    """Note buffer `i`, which lies at this place of a body of so many bytes."""
    cdef int64_t at = place[0], length = place[1]
    if at < 0 or length < 0 or length > body or at > body - length:
        raise BadBatch(f"buffer {i} is {length} bytes at {at} of a body of {body}")
    part.data[i] = message + HEADER_SIZE + at if length else NULL
    part.size[i] = length
    return 0


cdef int find_arrays(object rows, Part* part) except -1:
    """Find the buffers and nodes of rows that Arrow has decoded: all columns, or some. The caller keeps the rows while
    it uses the part."""
    cdef int buffer_at, node_at
    memset(part, 0, sizeof(Part))
    part.rows = rows.num_rows
    part.byte_count = rows.get_total_buffer_size()
    for name, column in zip(rows.schema.names, rows.columns):
        buffer_at, node_at = BUFFERS_OF[name][0], NODES_OF[name][0]
        for buffer in column.buffers():
            part.data[buffer_at] = (
                <const uint8_t*><uintptr_t>buffer.address if buffer is not None and buffer.size else NULL
            )
            part.size[buffer_at] = buffer.size if buffer is not None else 0
            buffer_at += 1
        nodes = []
        list_nodes(column, nodes)
        for length, null_count in nodes:
            part.length[node_at], part.null_count[node_at] = length, null_count
            node_at += 1
    return 0


def list_nodes(array, nodes):
    assert array.offset == 0
    nodes.append((len(array), array.null_count))
    if pa.types.is_list(array.type):
        list_nodes(array.values, nodes)
    elif pa.types.is_struct(array.type):
        for i in range(array.type.num_fields):
            list_nodes(array.field(i), nodes)


cdef const uint8_t* some_bytes(const Part* part, int buffer, int64_t start, int64_t end) except? NULL:
    """The address of bytes [start, end) of a buffer; NULL if that is no byte."""
    if not 0 <= start <= end or end > part.size[buffer]:
        raise BadBatch(f"buffer {buffer} has {part.size[buffer]} bytes, not [{start}, {end})")
    return part.data[buffer] + start if end > start else NULL


cdef int64_t first_not_below(const int64_t* offsets, int64_t count, int64_t wanted) noexcept:
    cdef int64_t low = 0, high = count, middle
    while low < high:
        middle = (low + high) // 2
        if offsets[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return low
