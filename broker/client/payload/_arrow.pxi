# Columns as Arrow arrays. The bytes are copied once: the nodes keep their memory for the next batch.

cdef object buffer_of(const void* data, int64_t length):
    return pa.py_buffer(PyBytes_FromStringAndSize(<const char*>data, length) if length else b"")


cdef object bits_of(const uint8_t* bytes, int64_t length):
    return pa.py_buffer(np.packbits(truths(bytes, length), bitorder="little"))


cdef object truths(const uint8_t* bytes, int64_t length):
    return np.frombuffer(PyBytes_FromStringAndSize(<const char*>bytes, length), np.uint8)


cdef object array_of(Node* node, field):
    """The values of a node as an array of the field's type."""
    cdef int i
    kind, _, _, _, _, type_, children = field
    nulls = node.length - int(np.count_nonzero(truths(node.valid, node.length)))
    valid = bits_of(node.valid, node.length) if nulls else None
    below = [array_of(node.children[i], child) for i, child in enumerate(children)]
    if kind == STRUCT:
        return pa.Array.from_buffers(type_, node.length, [valid], nulls, children=below)
    if kind == BOOL:
        return pa.Array.from_buffers(type_, node.length, [valid, bits_of(node.data, node.length)], nulls)
    if node.width:
        return pa.Array.from_buffers(type_, node.length, [valid, buffer_of(node.data, node.length * node.width)], nulls)
    ends = buffer_of(node.ends, (node.length + 1) * sizeof(int32_t))
    if kind == STRING:
        return pa.Array.from_buffers(type_, node.length, [valid, ends, buffer_of(node.data, node.data_length)], nulls)
    if kind == MAP:
        entries = pa.struct([type_.key_field, type_.item_field])
        below = [pa.Array.from_buffers(entries, len(below[0]), [None], 0, children=below)]
    return pa.Array.from_buffers(type_, node.length, [valid, ends], nulls, children=below)
