# A message of some columns, as columns.py describes it: what it begins with, and its check.
#
#     | header, changed | stored header | what the others add | offset | subject |

cdef enum:
    COLUMNS = 7
    BUFFERS = 25
    NODES = 10
    STORED_HEAD_MAX = 904
    ADDED_BYTES = 8

cdef int64_t BODY_MAX = <int64_t>1 << 48  # so that no sum of lengths overflows; a longer batch is left to the twin
cdef int[COLUMNS + 1] first_buffer = [*(BUFFERS_OF[name][0] for name in SCHEMA.names), BUFFER_COUNT]
cdef int[COLUMNS + 1] first_node = [*(NODES_OF[name][0] for name in SCHEMA.names), NODE_COUNT]
cdef Py_ssize_t PACKED_SIZE = PACKED_HEADER_BYTES
cdef dict masks = {}
assert len(SCHEMA.names) == COLUMNS and BUFFER_COUNT == BUFFERS and NODE_COUNT == NODES
assert [BUFFERS_OF[name][1] for name in SCHEMA.names] == list(first_buffer)[1:]
assert [NODES_OF[name][1] for name in SCHEMA.names] == list(first_node)[1:]
assert HEADER_BYTES < STORED_HEAD_MAX == PACKED_HEADER_BYTES and ADDED.size == ADDED_BYTES
assert KNOWN.size == sizeof(Known)


cdef struct Known:
    # As columns.KNOWN.
    uint32_t crcs[COLUMNS]
    uint32_t added[COLUMNS]
    int64_t edges[COLUMNS + 1]


cdef uint32_t mask_of(object columns) except? 0:
    """A bit for each column that is wanted. (`offset` always is.)"""
    cdef int i
    found = masks.get(columns)
    if found is None:
        found = 0
        for i in range(COLUMNS):
            if SCHEMA.names[i] in columns:
                found |= 1 << i
        masks[columns] = found  # there are no more than 64
    return found


cdef bint find_edges(const uint8_t* head, int64_t* edges) noexcept nogil:
    """Where the columns of an uncompressed batch lie in its body, each up to the next edge. False: it is not as every
    writer of batches puts them (`columns.spans_of`), or it is too long for here."""
    cdef int64_t body, at = 0
    cdef int64_t[2] place
    cdef int i, column = 0
    memcpy(&body, head + BODY_LENGTH_POSITION, 8)
    if not 0 <= body <= BODY_MAX:
        return False
    for i in range(BUFFERS):
        if i == first_buffer[column]:
            edges[column] = at
            column += 1
        memcpy(place, head + BUFFERS_POSITION + 16 * i, 16)
        if place[0] != at or not 0 <= place[1] <= body:
            return False
        at += (place[1] + 7) & -8
        if at > body:
            return False
    edges[COLUMNS] = at
    return at == body


cdef void change_head(uint8_t* head, Py_ssize_t size, const int64_t* edges, uint32_t wanted) noexcept nogil:
    """Make the changed header (`columns.J2`) of the stored one, in its place."""
    cdef uint8_t[16 * BUFFERS] places
    cdef uint8_t[16 * NODES] nodes
    cdef int64_t[2] place
    cdef int64_t at = size + ADDED_BYTES
    cdef uint32_t buffer_count = 0, node_count = 0
    cdef int column, i
    memset(places, 0, sizeof(places))
    memset(nodes, 0, sizeof(nodes))
    for column in range(COLUMNS):
        if not wanted >> column & 1:
            continue
        for i in range(first_buffer[column], first_buffer[column + 1]):
            memcpy(place, head + BUFFERS_POSITION + 16 * i, 16)
            place[0] += at - edges[column]
            memcpy(places + 16 * buffer_count, place, 16)
            buffer_count += 1
        for i in range(first_node[column], first_node[column + 1]):
            memcpy(nodes + 16 * node_count, head + NODES_POSITION + 16 * i, 16)
            node_count += 1
        at += edges[column + 1] - edges[column]
    memcpy(head + BODY_LENGTH_POSITION, &at, 8)
    memcpy(head + BUFFERS_POSITION - 4, &buffer_count, 4)
    memcpy(head + NODES_POSITION - 4, &node_count, 4)
    memcpy(head + BUFFERS_POSITION, places, sizeof(places))
    memcpy(head + NODES_POSITION, nodes, sizeof(nodes))


def verified_known(message, *, where=""):
    """Check a whole message. Returns its header and what is known of its columns. If it is bad, `columns.verify_known` says
    why."""
    cdef Py_buffer view
    PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
    try:
        found = known_of_plain(<const uint8_t*>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return twins.verify_known(message, where=where) if found is None else found


cdef object known_of_plain(const uint8_t* message, Py_ssize_t size):
    """Header and what is known if all in the message is usual and right, else None. Each byte is looked at once: the CRC
    of the whole is made of those of its columns."""
    cdef Known known
    cdef Fields fields
    cdef uint32_t crc
    cdef int64_t length
    cdef int i
    if size < HEADER_SIZE or not begins_plain(message) or not find_edges(message, known.edges):
        return None
    if known.edges[COLUMNS] != size - HEADER_SIZE or not read_fields(message, &fields):
        return None
    crc = crc_of_head(message, HEADER_SIZE)
    for i in range(COLUMNS):
        length = known.edges[i + 1] - known.edges[i]
        known.crcs[i] = crc_from(message + HEADER_SIZE + known.edges[i], length, 0)
        known.added[i] = after(known.crcs[i] ^ behind(0, length), known.edges[COLUMNS] - known.edges[i + 1])
        crc = after(crc, length) ^ known.crcs[i]
    if fields.values[FIELD_COUNT - 1] != <uint64_t>crc:
        return None
    return header_of(&fields), PyBytes_FromStringAndSize(<const char*>&known, sizeof(Known))


def begun(head, known, columns):
    """What the message begins with, and where in the stored body lies what follows. As `columns.begun`."""
    cdef const uint8_t[::1] stored = head
    cdef const uint8_t[::1] packed = known
    cdef Py_ssize_t size = stored.shape[0]
    cdef uint32_t wanted = mask_of(columns), added = 0
    cdef Known found
    cdef int column
    cdef uint8_t* out
    if size not in (HEADER_SIZE, PACKED_SIZE) or packed.shape[0] != sizeof(Known):
        return twins.begun(head, known, columns)
    memcpy(&found, &packed[0], sizeof(Known))
    made = PyBytes_FromStringAndSize(NULL, 2 * size + ADDED_BYTES)
    out = <uint8_t*>PyBytes_AS_STRING(made)
    memcpy(out, &stored[0], size)
    change_head(out, size, found.edges, wanted)
    memcpy(out + size, &stored[0], size)
    runs = []
    end = None
    for column in range(COLUMNS):
        if not wanted >> column & 1:
            added ^= found.added[column]
        elif found.edges[column + 1] > found.edges[column]:
            start = runs.pop()[0] if found.edges[column] == end else found.edges[column]
            end = found.edges[column + 1]
            runs.append((start, end))
    memset(out + 2 * size, 0, ADDED_BYTES)
    memcpy(out + 2 * size, &added, 4)
    return made, runs


def verified_projected(message, columns, *, where=""):
    """Check a message of some columns and return the header of its batch. If it is bad, `columns.verify_projected` says
    why."""
    cdef Py_buffer view
    PyObject_GetBuffer(message, &view, PyBUF_SIMPLE)
    try:
        header = header_of_some(<const uint8_t*>view.buf, view.len, mask_of(columns))
    finally:
        PyBuffer_Release(&view)
    return twins.verify_projected(message, columns, where=where) if header is None else header


cdef object header_of_some(const uint8_t* message, Py_ssize_t size, uint32_t wanted):
    """The header of the batch if all in the message is usual and right, else None."""
    cdef const uint8_t* stored = message + HEADER_SIZE
    cdef Py_ssize_t at = 2 * HEADER_SIZE + ADDED_BYTES
    cdef uint8_t[STORED_HEAD_MAX] head
    cdef int64_t[COLUMNS + 1] edges
    cdef int64_t body, length
    cdef uint32_t added, none, crc
    cdef Fields fields
    cdef int column, stop
    if size < at or not begins_plain(message) or not begins_plain(stored):
        return None
    memcpy(&body, message + BODY_LENGTH_POSITION, 8)
    if body != size - HEADER_SIZE or body % 8 or not find_edges(stored, edges):
        return None
    memcpy(head, stored, HEADER_SIZE)
    change_head(head, HEADER_SIZE, edges, wanted)
    memcpy(&added, message + at - ADDED_BYTES, 4)
    memcpy(&none, message + at - 4, 4)
    if memcmp(head, message, HEADER_SIZE) != 0 or none or not read_fields(stored, &fields):
        return None
    crc = crc_of_head(stored, HEADER_SIZE)
    column = 0
    while column < COLUMNS:
        stop = column + 1
        while stop < COLUMNS and (wanted >> stop & 1) == (wanted >> column & 1):
            stop += 1
        length = edges[stop] - edges[column]
        if not wanted >> column & 1:
            crc = behind(crc, length)
        elif length > size - at:  # cannot be: the header that was compared has their sum
            return None
        else:
            crc = crc_from(message + at, length, crc)
            at += length
        column = stop
    if at != size or fields.values[FIELD_COUNT - 1] != <uint64_t>(crc ^ added):
        return None
    return header_of(&fields)
