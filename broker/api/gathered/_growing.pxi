# Columns that are being gathered, each with its children, and the buffers that they consist of.

cdef class Growing:
    """A buffer that grows: a block, exchanged for a larger one when it is full."""

    cdef object memory, block
    cdef uint8_t* data
    cdef int64_t capacity, wanted

    def __cinit__(self, memory):
        self.memory = memory

    cdef int reserve(self, int64_t used, int64_t needed) except -1:
        """Make room for `needed` bytes, of which the first `used` are kept."""
        cdef Py_buffer view
        if needed <= self.capacity:
            return 0
        self.wanted = max(self.wanted, needed, 2 * self.capacity)
        block = self.memory.take(self.wanted)
        PyObject_GetBuffer(block, &view, PyBUF_WRITABLE)
        if used:
            memcpy(view.buf, self.data, used)
        if self.block is not None:
            self.memory.give(self.block)
        self.block, self.data, self.capacity = block, <uint8_t*>view.buf, view.len
        PyBuffer_Release(&view)  # the block stays where it is
        return 0

    cdef const void* hand_over(self, Loan loan) except NULL:
        """Give the block to the loan, and return its address. The next block will have as much room."""
        cdef const void* data = self.data
        if self.block is None:
            return loan.nothing(8)
        loan.blocks.append(self.block)
        self.block, self.data, self.capacity = None, NULL, 0
        return data


cdef class Column:
    """A column or a child of one, being gathered.

    Args:
        node: Its place among the nodes of a message.
        buffer: The place of its validity among the buffers of a message.
    """

    cdef int node, buffer
    cdef Growing valid          # a byte for each slot; written when there are both nulls and values
    cdef bint has_valid
    cdef bint is_blank          # it has only nulls, and nothing is written

    def __init__(self, kind, int node, int buffer, memory):
        self.node = node
        self.buffer = buffer
        self.valid = Growing(memory)
        self.is_blank = True

    cdef int put(self, const Part* part, int64_t first, int64_t stop, int64_t at) except -1:
        """Add the slots [first, stop) of a message behind the first `at`. May be repeated after an error."""
        cdef int64_t length = part.length[self.node], count = stop - first, i
        cdef bint has_nulls = part.null_count[self.node] > 0 and part.size[self.buffer] > 0
        cdef bint is_all_null = has_nulls and part.null_count[self.node] == length
        cdef const uint8_t* bits
        cdef uint8_t* valid
        if not 0 <= first <= stop or stop > length:
            raise BadBatch(f"node {self.node} has {length} slots, not [{first}, {stop})")
        if self.is_blank:
            self.has_valid = False
            if at and not is_all_null:
                self.fill(0, at)
        if is_all_null:
            if not self.is_blank:
                self.fill(at, count)
            return 0
        self.put_some(part, first, stop, at)
        if has_nulls:
            bits = some_bytes(part, self.buffer, 0, (stop + 7) // 8)
            valid = self.validity(at, count)
            for i in range(count):
                valid[i] = (bits[(first + i) >> 3] >> ((first + i) & 7)) & 1
        elif self.has_valid:
            memset(self.validity(at, count), 1, count)
        self.is_blank = False
        return 0

    cdef int fill(self, int64_t at, int64_t count) except -1:
        """Write `count` nulls behind the first `at` slots."""
        self.put_nothing(at, count)
        memset(self.validity(at, count), 0, count)
        self.is_blank = False
        return 0

    cdef uint8_t* validity(self, int64_t at, int64_t count) except NULL:
        """The address for the validity of `count` slots behind the first `at`."""
        self.valid.reserve(at if self.has_valid else 0, at + count + 1)
        if not self.has_valid:
            memset(self.valid.data, 1, at)
            self.has_valid = True
        return self.valid.data + at

    cdef int hand_over(self, Loan loan, ArrowArray* array, int64_t count) except -1:
        """Give all `count` slots away as an array, and begin anew."""
        cdef int64_t null_count = 0
        cdef const void* bits = NULL
        if self.is_blank:
            null_count, bits = count, loan.nothing((count + 7) // 8)
        elif self.has_valid and count:
            valid = np.asarray(<uint8_t[:count]>self.valid.data)
            null_count = count - np.count_nonzero(valid)
            if null_count:
                bits = loan.keep(np.packbits(valid, bitorder="little"))
        loan.begin(array, count, null_count)
        loan.add_buffer(array, bits)
        self.hand_over_rest(loan, array, count)
        self.is_blank, self.has_valid = True, False
        return 0

    cdef int64_t size(self, int64_t count) noexcept:
        """About how many bytes `count` slots have, without their validity."""
        return 0

    cdef int put_some(self, const Part* part, int64_t first, int64_t stop, int64_t at) except -1:
        raise NotImplementedError

    cdef int put_nothing(self, int64_t at, int64_t count) except -1:
        raise NotImplementedError

    cdef int hand_over_rest(self, Loan loan, ArrowArray* array, int64_t count) except -1:
        """Hand over all buffers but the validity."""
        raise NotImplementedError


cdef class Numbers(Column):
    """Slots of eight bytes each."""

    cdef Growing values

    def __init__(self, kind, int node, int buffer, memory):
        super().__init__(kind, node, buffer, memory)
        assert kind.bit_width == 64
        self.values = Growing(memory)

    cdef int64_t size(self, int64_t count) noexcept:
        return 8 * count

    cdef int put_some(self, const Part* part, int64_t first, int64_t stop, int64_t at) except -1:
        cdef const uint8_t* there = some_bytes(part, self.buffer + 1, 8 * first, 8 * stop)
        self.values.reserve(8 * at, 8 * (at + stop - first))
        if there != NULL:
            memcpy(self.values.data + 8 * at, there, 8 * (stop - first))
        return 0

    cdef int put_nothing(self, int64_t at, int64_t count) except -1:
        self.values.reserve(8 * at, 8 * (at + count))
        memset(self.values.data + 8 * at, 0, 8 * count)
        return 0

    cdef int hand_over_rest(self, Loan loan, ArrowArray* array, int64_t count) except -1:
        loan.add_buffer(array, loan.nothing(8 * count) if self.is_blank else self.values.hand_over(loan))
        return 0


cdef class Lists(Column):
    """Slots of different lengths: offsets, and the content that they point into."""

    cdef Growing ends

    def __init__(self, kind, int node, int buffer, memory):
        super().__init__(kind, node, buffer, memory)
        self.ends = Growing(memory)

    cdef int64_t size(self, int64_t count) noexcept:
        cdef int64_t content = 0 if self.is_blank or not count else (<int32_t*>self.ends.data)[count]
        return 4 * (count + 1) + self.content_size(content)

    cdef int64_t content_size(self, int64_t count) noexcept:
        return count

    cdef int put_some(self, const Part* part, int64_t first, int64_t stop, int64_t at) except -1:
        cdef int64_t count = stop - first, i, filled
        cdef const int32_t* there = <const int32_t*>some_bytes(part, self.buffer + 1, 4 * first, 4 * (stop + 1))
        cdef int32_t* ends = self.ends_behind(at, count)
        cdef int32_t shift
        if not 0 <= there[0] <= there[count]:
            raise BadBatch(f"buffer {self.buffer + 1}: offsets from {there[0]} to {there[count]}")
        filled = ends[0]
        if filled + there[count] - there[0] > 0x7fffffff:
            raise BadBatch(f"buffer {self.buffer + 1}: more than 2 GiB are gathered")
        if there[0] < there[count]:
            self.put_content(part, there[0], there[count], filled)
        shift = <int32_t>(filled - there[0])
        for i in range(1, count + 1):
            ends[i] = there[i] + shift
        return 0

    cdef int put_nothing(self, int64_t at, int64_t count) except -1:
        cdef int32_t* ends = self.ends_behind(at, count)
        cdef int64_t i
        for i in range(1, count + 1):
            ends[i] = ends[0]
        return 0

    cdef int32_t* ends_behind(self, int64_t at, int64_t count) except NULL:
        """The address of the end of slot `at`, with room behind it for the ends of `count` more."""
        self.ends.reserve(4 * (at + 1) if at else 0, 4 * (at + count + 1))
        cdef int32_t* ends = <int32_t*>self.ends.data
        if not at:
            ends[0] = 0
        return ends + at

    cdef int hand_over_rest(self, Loan loan, ArrowArray* array, int64_t count) except -1:
        cdef int32_t size = 0 if self.is_blank else (<int32_t*>self.ends.data)[count]
        loan.add_buffer(array, loan.nothing(4 * (count + 1)) if self.is_blank else self.ends.hand_over(loan))
        self.hand_over_content(loan, array, size)
        return 0

    cdef int put_content(self, const Part* part, int64_t first, int64_t stop, int64_t at) except -1:
        raise NotImplementedError

    cdef int hand_over_content(self, Loan loan, ArrowArray* array, int32_t size) except -1:
        raise NotImplementedError


cdef class Texts(Lists):
    """Strings and binaries."""

    cdef Growing content

    def __init__(self, kind, int node, int buffer, memory):
        super().__init__(kind, node, buffer, memory)
        self.content = Growing(memory)

    cdef int put_content(self, const Part* part, int64_t first, int64_t stop, int64_t at) except -1:
        cdef const uint8_t* there = some_bytes(part, self.buffer + 2, first, stop)
        self.content.reserve(at, at + stop - first)
        memcpy(self.content.data + at, there, stop - first)
        return 0

    cdef int hand_over_content(self, Loan loan, ArrowArray* array, int32_t size) except -1:
        loan.add_buffer(array, self.content.hand_over(loan) if size else loan.nothing(0))
        return 0


cdef class Arrays(Lists):
    """Lists of a child's slots."""

    cdef Column items

    def __init__(self, kind, int node, int buffer, memory):
        super().__init__(kind, node, buffer, memory)
        self.items = column_of(kind.value_type, node + 1, buffer + 2, memory)

    cdef int64_t content_size(self, int64_t count) noexcept:
        return self.items.size(count)

    cdef int put_content(self, const Part* part, int64_t first, int64_t stop, int64_t at) except -1:
        return self.items.put(part, first, stop, at)

    cdef int hand_over_content(self, Loan loan, ArrowArray* array, int32_t size) except -1:
        self.items.is_blank |= self.is_blank
        return self.items.hand_over(loan, loan.add_children(array, 1), size)


cdef class Structs(Column):
    """Children side by side."""

    cdef list children

    def __init__(self, kind, int node, int buffer, memory):
        super().__init__(kind, node, buffer, memory)
        self.children = columns_of(kind, node + 1, buffer + 1, memory)

    cdef int64_t size(self, int64_t count) noexcept:
        cdef Column child
        cdef int64_t total = 0
        if self.is_blank:  # an error may have left rows in the children
            return 0
        for child in self.children:
            total += child.size(count)
        return total

    cdef int put_some(self, const Part* part, int64_t first, int64_t stop, int64_t at) except -1:
        cdef Column child
        for child in self.children:
            child.put(part, first, stop, at)
        return 0

    cdef int put_nothing(self, int64_t at, int64_t count) except -1:
        cdef Column child
        for child in self.children:
            if not child.is_blank:  # a blank one has only nulls, and their number does not matter
                child.fill(at, count)
        return 0

    cdef int hand_over_rest(self, Loan loan, ArrowArray* array, int64_t count) except -1:
        cdef ArrowArray* place = loan.add_children(array, len(self.children))
        cdef Column child
        for child in self.children:
            child.is_blank |= self.is_blank  # an error may have left rows in it
            child.hand_over(loan, place, count)
            place += 1
        return 0


cdef class Constant:
    """One value in every row. Its array is as long as the longest batch so far, and is shown again for each."""

    cdef object value, array

    def __init__(self, value):
        self.value = value
        self.array = pa.repeat(value, 0)

    cdef int hand_over(self, Loan loan, ArrowArray* array, int64_t count) except -1:
        if len(self.array) < count:
            self.array = pa.repeat(self.value, count)
        cdef const void* data
        loan.begin(array, count, 0)
        for buffer in self.array.buffers():
            data = NULL
            if buffer is not None:
                data = loan.keep(buffer)
            loan.add_buffer(array, data)
        return 0


def column_of(kind, int node, int buffer, memory):
    if pa.types.is_list(kind):
        return Arrays(kind, node, buffer, memory)
    if pa.types.is_struct(kind):
        return Structs(kind, node, buffer, memory)
    return (Numbers if pa.types.is_primitive(kind) else Texts)(kind, node, buffer, memory)


def columns_of(fields, int node, int buffer, memory):
    """One column per field. Nodes and buffers come in Arrow's order: depth first, own buffers before children's."""
    found = []
    for field in fields:
        found.append(column_of(field.type, node, buffer, memory))
        nodes, buffers = extent(field.type)
        node, buffer = node + nodes, buffer + buffers
    return found


def extent(kind):
    """The number of nodes and of buffers of a type, with those of its children."""
    own = 1 if pa.types.is_struct(kind) else 2 if pa.types.is_primitive(kind) or pa.types.is_list(kind) else 3
    children = [extent(kind.field(i).type) for i in range(kind.num_fields)]
    return 1 + sum(nodes for nodes, _ in children), own + sum(buffers for _, buffers in children)
