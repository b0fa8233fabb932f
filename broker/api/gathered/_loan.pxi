# Hands gathered rows to Arrow in one go, by its C data interface: one batch is one loan of all its memory.
#
#     Loan ── Shipment ──> ArrowArray of the batch ── children: a column each, in the order of the schema
#      │                                                  buffers: where they lie in the blocks
#      └── blocks, kept                                release: the blocks go back to the memory
#
# Python objects for each column (buffer, array, field) would cost more than to copy the bytes that are in them.

cdef extern from *:
    """
    #ifndef ARROW_C_DATA_INTERFACE
    #define ARROW_C_DATA_INTERFACE
    struct ArrowArray {
      int64_t length;
      int64_t null_count;
      int64_t offset;
      int64_t n_buffers;
      int64_t n_children;
      const void** buffers;
      struct ArrowArray** children;
      struct ArrowArray* dictionary;
      void (*release)(struct ArrowArray*);
      void* private_data;
    };
    #endif
    """
    struct ArrowArray:
        int64_t length, null_count, offset, n_buffers, n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil
        void* private_data


cdef enum:
    CONSTANTS_MAX = 4
    ARRAYS_MAX = 1 + NODES + CONSTANTS_MAX
    ARRAY_BUFFERS_MAX = 3


cdef struct Shipment:
    # All that Arrow sees of a loan. The batch is the first array.
    ArrowArray arrays[ARRAYS_MAX]
    ArrowArray* children[ARRAYS_MAX]
    const void* buffers[ARRAYS_MAX * ARRAY_BUFFERS_MAX]
    int array_count
    int child_count


cdef void leave_child(ArrowArray* array) noexcept nogil:
    array.release = NULL  # the memory of a child is given back with the batch


cdef void end_loan(ArrowArray* array) noexcept nogil:
    cdef void* loan = array.private_data
    array.release = NULL
    if Py_IsInitialized():  # else the process ends, and nobody takes the memory again
        give_back(<PyObject*>loan)


cdef void give_back(PyObject* lent) noexcept with gil:
    loan = <Loan>lent
    loan.end()
    Py_DECREF(loan)


cdef object zeros = np.zeros(1 << 16, np.uint8)


cdef class Loan:
    """The memory of one batch. The loan ends when nothing can read the batch any more. Then its blocks are free."""

    cdef object memory
    cdef list blocks            # they go back to the memory
    cdef list kept              # all other objects whose bytes the batch reads
    cdef Shipment* shipment     # lives as long as the loan; Arrow reads it until it has taken the batch over, or failed

    def __cinit__(self, memory):
        self.memory = memory
        self.blocks, self.kept = [], []
        self.shipment = <Shipment*>PyMem_RawMalloc(sizeof(Shipment))
        if self.shipment == NULL:
            raise MemoryError
        self.shipment.array_count = self.shipment.child_count = 0

    def __dealloc__(self):
        PyMem_RawFree(self.shipment)

    cdef int end(self) except -1:
        for block in self.blocks:
            self.memory.give(block)
        self.blocks, self.kept = [], []
        return 0

    cdef ArrowArray* batch(self, int columns, int64_t count) except NULL:
        """Begin the batch. Returns the first of its columns; the others lie behind it."""
        cdef ArrowArray* array = &self.shipment.arrays[0]
        self.shipment.array_count = 1
        self.begin(array, count, 0)
        self.add_buffer(array, NULL)
        return self.add_children(array, columns)

    cdef int begin(self, ArrowArray* array, int64_t count, int64_t null_count) except -1:
        memset(array, 0, sizeof(ArrowArray))
        array.length, array.null_count = count, null_count
        array.buffers = &self.shipment.buffers[(array - &self.shipment.arrays[0]) * ARRAY_BUFFERS_MAX]
        array.release = leave_child
        return 0

    cdef int add_buffer(self, ArrowArray* array, const void* data) except -1:
        assert array.n_buffers < ARRAY_BUFFERS_MAX
        array.buffers[array.n_buffers] = data
        array.n_buffers += 1
        return 0

    cdef ArrowArray* add_children(self, ArrowArray* array, int count) except NULL:
        cdef Shipment* shipment = self.shipment
        cdef ArrowArray* first = &shipment.arrays[shipment.array_count]
        cdef int i
        assert shipment.array_count + count <= ARRAYS_MAX
        array.n_children, array.children = count, &shipment.children[shipment.child_count]
        for i in range(count):
            array.children[i] = first + i
        shipment.array_count += count
        shipment.child_count += count
        return first

    cdef const void* nothing(self, int64_t size) except NULL:
        """The address of at least `size` zeros, which are only read."""
        global zeros
        if len(zeros) < size:
            zeros = np.zeros(2 * size, np.uint8)
        return self.keep(zeros)

    cdef const void* keep(self, array) except NULL:
        """Keep an array until the loan ends. Returns the address of its bytes."""
        cdef Py_buffer view
        PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
        cdef const void* data = view.buf
        PyBuffer_Release(&view)
        self.kept.append(array)
        return data

    cdef object lend(self, schema):
        """Lend all of it to Arrow, as a batch."""
        cdef ArrowArray* array = &self.shipment.arrays[0]
        array.private_data, array.release = <PyObject*>self, end_loan
        Py_INCREF(self)
        try:
            return pa.RecordBatch._import_from_c(<uintptr_t>array, schema)
        finally:
            if array.release != NULL:  # Arrow did not take it over
                array.release(array)
