# Columns that grow: a tree of nodes as the schema is one (`_json.J1`).
#
# `length` counts the values of a node. All nodes of a struct have as many as the struct, plus one for those that the row
# in hand has given already: so a name that occurs twice is seen without a list of names. The ends of strings, lists and
# maps stand in `ends`, of which there is one more than values.

cdef enum:  # in the order of json_columns.KINDS
    BOOL = 0
    INT = 1
    UINT = 2
    FLOAT = 3
    STRING = 4
    DECIMAL = 5
    DATE = 6
    INSTANT = 7
    LOCAL_TIME = 8
    LIST = 9
    STRUCT = 10
    MAP = 11

cdef struct Node:
    int kind
    int width  # of a fixed-width value, in bytes
    int precision
    int scale
    int64_t place_bytes  # what one more value takes here and in the columns below that have as many
    const char* name
    int64_t name_length
    int64_t length
    int64_t capacity
    uint8_t* valid  # a byte for each value
    int32_t* ends
    uint8_t* data
    int64_t data_length
    int64_t data_capacity
    int children_count
    Node** children
    int* places  # of children by the hash of their names; 0: none
    uint32_t places_mask


cdef Node* new_node(field) except NULL:
    cdef Node* node = <Node*>calloc(1, sizeof(Node))
    cdef uint32_t place
    cdef int i
    if node == NULL:
        raise MemoryError()
    try:
        kind, width, precision, scale, name, _, children = field
        node.kind, node.width, node.precision, node.scale = kind, width, precision, scale
        node.name, node.name_length = name, len(name)  # `fields` of the decoder keeps it
        if children:
            node.children = <Node**>calloc(len(children), sizeof(Node*))
            if node.children == NULL:
                raise MemoryError()
            for child in children:
                node.children[node.children_count] = new_node(child)
                node.children_count += 1
        node.place_bytes = 1 + (width or (0 if kind == STRUCT else sizeof(int32_t)))
        if kind == STRUCT:
            for i in range(node.children_count):
                node.place_bytes += node.children[i].place_bytes
            node.places_mask = 4
            while node.places_mask < 2 * <uint32_t>node.children_count:
                node.places_mask *= 2
            node.places = <int*>calloc(node.places_mask, sizeof(int))
            if node.places == NULL:
                raise MemoryError()
            node.places_mask -= 1
            for i in range(node.children_count):
                place = hashed(node.children[i].name, node.children[i].name_length) & node.places_mask
                while node.places[place]:
                    place = (place + 1) & node.places_mask
                node.places[place] = i + 1
        if grow(node) != DECODED:
            raise MemoryError()
    except BaseException:
        free_node(node)
        raise
    return node


cdef void free_node(Node* node) noexcept:
    cdef int i
    if node == NULL:
        return
    for i in range(node.children_count):
        free_node(node.children[i])
    free(node.children)
    free(node.places)
    free(node.valid)
    free(node.ends)
    free(node.data)
    free(node)


cdef inline uint32_t hashed(const char* name, int64_t length) noexcept nogil:
    cdef uint32_t found = 2166136261u
    cdef int64_t i
    for i in range(length):
        found = (found ^ <uint8_t>name[i]) * 16777619u
    return found ^ (found >> 15)


cdef inline bint is_named(Node* node, const uint8_t* name, int64_t length) noexcept nogil:
    return node.name_length == length and memcmp(node.name, name, length) == 0


cdef Node* child_named(Node* node, const uint8_t* name, int64_t length, int* next_child) noexcept nogil:
    """The child of a struct; NULL: none. Objects mostly have their names in the order of the schema: looked at first."""
    cdef uint32_t place
    cdef int i = next_child[0]
    if i < node.children_count and is_named(node.children[i], name, length):
        next_child[0] = i + 1
        return node.children[i]
    place = hashed(<const char*>name, length) & node.places_mask
    while node.places[place]:
        i = node.places[place] - 1
        if is_named(node.children[i], name, length):
            next_child[0] = i + 1
            return node.children[i]
        place = (place + 1) & node.places_mask
    return NULL


cdef int grow(Node* node) noexcept nogil:
    """Make room for more values."""
    cdef int64_t capacity = 2 * node.capacity if node.capacity else 64
    cdef void* place = realloc(node.valid, capacity)
    if place == NULL:
        return NO_MEMORY
    node.valid = <uint8_t*>place
    if node.width:
        place = realloc(node.data, capacity * node.width)
        if place == NULL:
            return NO_MEMORY
        node.data = <uint8_t*>place
    elif node.kind != STRUCT:
        place = realloc(node.ends, (capacity + 1) * sizeof(int32_t))
        if place == NULL:
            return NO_MEMORY
        node.ends = <int32_t*>place
        if not node.capacity:
            node.ends[0] = 0
    node.capacity = capacity
    return DECODED


cdef inline int put_valid(Node* node) noexcept nogil:
    """Count one more value, which stands in its place already, or in the children."""
    if node.length == node.capacity and grow(node) != DECODED:
        return NO_MEMORY
    node.valid[node.length] = 1
    node.length += 1
    return DECODED


cdef inline int put_end(Node* node, int64_t end) noexcept nogil:
    """A string, list or map ends here."""
    if put_valid(node) != DECODED:
        return NO_MEMORY
    node.ends[node.length] = <int32_t>end
    return DECODED


cdef inline int put_fixed(Node* node, const void* value) noexcept nogil:
    if node.length == node.capacity and grow(node) != DECODED:
        return NO_MEMORY
    memcpy(node.data + node.length * node.width, value, node.width)
    node.valid[node.length] = 1
    node.length += 1
    return DECODED


cdef int put_bytes(Node* node, const uint8_t* bytes, int64_t length) noexcept nogil:
    cdef int64_t capacity
    cdef void* place
    if node.data_length + length > node.data_capacity:
        capacity = max(2 * node.data_capacity, node.data_length + length + 1024)
        place = realloc(node.data, capacity)
        if place == NULL:
            return NO_MEMORY
        node.data, node.data_capacity = <uint8_t*>place, capacity
    if length:
        memcpy(node.data + node.data_length, bytes, length)
    node.data_length += length
    return put_end(node, node.data_length)


cdef int put_null(Node* node) noexcept nogil:
    cdef int i
    if node.length == node.capacity and grow(node) != DECODED:
        return NO_MEMORY
    if node.width:
        memset(node.data + node.length * node.width, 0, node.width)
    elif node.kind == STRUCT:
        for i in range(node.children_count):
            if node.children[i].length == node.length and put_null(node.children[i]) != DECODED:
                return NO_MEMORY
    else:
        node.ends[node.length + 1] = node.ends[node.length]
    node.valid[node.length] = 0
    node.length += 1
    return DECODED


cdef void cut(Node* node, int64_t length) noexcept nogil:
    """Forget the values from `length` on (`_json.J1`)."""
    cdef int i
    cdef int64_t below
    if node.kind == STRUCT:
        for i in range(node.children_count):
            cut(node.children[i], length)
    elif node.kind == STRING:
        if node.length >= length:
            node.data_length = node.ends[length]
    elif node.kind == LIST or node.kind == MAP:
        if node.length >= length:
            below = node.ends[length]
            for i in range(node.children_count):
                cut(node.children[i], below)
    if node.length > length:
        node.length = length
