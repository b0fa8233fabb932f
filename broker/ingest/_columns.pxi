# Growable C buffers, the columns of one batch, which are made of them, and the pool that recycles columns.
#
# A column of texts is `data` plus `ends` (Arrow's offsets, int32, rows + 1 of them) plus `validity`
# (Arrow's bitmap). A part is made when it is needed: `ends` is empty until a value comes that is not
# null, and `validity` until the column has both such a value and a null. So columns that nobody uses
# cost nothing per record.
#
# C1  A function that returns -1 ran out of memory and left `rows` as it was.
# C2  The pool holds at most POOL_BYTES_MAX: one huge batch does not stay in memory. It is shared by all
#     builders, so an idle builder holds nothing.

cdef extern from *:
    """
    #include <pthread.h>
    static pthread_mutex_t liftlog_pool_lock = PTHREAD_MUTEX_INITIALIZER;
    #define liftlog_lock_pool() pthread_mutex_lock(&liftlog_pool_lock)
    #define liftlog_unlock_pool() pthread_mutex_unlock(&liftlog_pool_lock)
    #if defined(__GNUC__) || defined(__clang__)
    #define liftlog_likely(x) __builtin_expect(!!(x), 1)
    #define liftlog_prefetch(address) __builtin_prefetch(address)
    #else
    #define liftlog_likely(x) (x)
    #define liftlog_prefetch(address) ((void)(address))
    #endif
    """
    void lock_pool "liftlog_lock_pool"() noexcept nogil
    void unlock_pool "liftlog_unlock_pool"() noexcept nogil
    bint likely "liftlog_likely"(bint) noexcept nogil
    void prefetch "liftlog_prefetch"(const void*) noexcept nogil

cdef Py_ssize_t POOL_BYTES_MAX = 32 << 20
cdef Py_ssize_t POOL_COUNT_MAX = 256
cdef Py_ssize_t BUFFER_BYTES_MIN = 256


cdef struct Buffer:
    char* data
    Py_ssize_t size
    Py_ssize_t capacity


cdef struct Texts:
    Buffer data
    Buffer ends
    Buffer validity
    Py_ssize_t nulls            # counted only when `ends` is not empty


cdef struct Enveloped:          # a row whose publisher is told at the ack inbox of its envelope
    int32_t row
    int32_t awaits              # AWAITS_*
    uint32_t policy
    int32_t inbox_size
    int32_t correlation_size
    Py_ssize_t at               # position in `enveloped_text` of the inbox, and then the correlation id


cdef struct Columns:
    Py_ssize_t rows
    Py_ssize_t byte_count       # bytes of data
    Py_ssize_t weight           # byte_count, and the cost of records and headers besides
    int64_t max_timestamp_us
    Buffer timestamps           # int64
    Texts subject
    Texts key
    Texts value
    Texts headers               # has no data of its own: its ends count rows of the next two columns
    Texts header_key
    Texts header_value
    Texts reply
    Py_ssize_t header_rows
    Buffer awaited              # int32: rows whose publisher awaits an ack for a committed record
    Buffer awaited_leader       # int32: rows whose publisher awaits an ack for a record that is durable on the leader
    Buffer enveloped            # Enveloped
    Buffer enveloped_text
    Py_ssize_t enveloped_all    # of these, how many await AWAITS_ALL
    Py_ssize_t enveloped_leader
    Buffer conditions           # Condition: rows with an id or expectations
    Py_ssize_t id_count
    Py_ssize_t expected_id_count
    Py_ssize_t expected_subject_count
    Columns* next_pooled


cdef int grow(Buffer* buffer, Py_ssize_t more) noexcept nogil:
    """Make room for `more` bytes. The capacity doubles, so that the cost of appending stays linear."""
    cdef Py_ssize_t capacity = buffer.capacity * 2
    cdef char* data
    if capacity < BUFFER_BYTES_MIN:
        capacity = BUFFER_BYTES_MIN
    if capacity < buffer.size + more:
        capacity = (buffer.size + more + 63) & ~(<Py_ssize_t>63)
    data = <char*>PyMem_RawRealloc(buffer.data, capacity)
    if data == NULL:
        return -1
    buffer.data = data
    buffer.capacity = capacity
    return 0


cdef inline int reserve(Buffer* buffer, Py_ssize_t more) noexcept nogil:
    if likely(buffer.capacity - buffer.size >= more):
        return 0
    return grow(buffer, more)


cdef inline int append(Buffer* buffer, const char* data, Py_ssize_t size) noexcept nogil:
    if size == 0:
        return 0
    if reserve(buffer, size) < 0:
        return -1
    memcpy(buffer.data + buffer.size, data, size)
    buffer.size += size
    return 0


cdef inline Py_ssize_t count_enveloped(const Columns* columns) noexcept nogil:
    return columns.enveloped.size // <Py_ssize_t>sizeof(Enveloped)


cdef int append_enveloped(Columns* columns, const Enveloped* entry) noexcept nogil:
    if append(&columns.enveloped, <const char*>entry, sizeof(Enveloped)) < 0:
        return -1
    columns.enveloped_all += entry.awaits == AWAITS_ALL
    columns.enveloped_leader += entry.awaits == AWAITS_LEADER
    return 0


cdef void release(Buffer* buffer) noexcept nogil:
    PyMem_RawFree(buffer.data)
    buffer.data = NULL
    buffer.size = buffer.capacity = 0


cdef int begin_values(Texts* column, Py_ssize_t row) noexcept nogil:
    """Make the ends, and the validity, of the nulls before the first value of a column, which comes at `row`."""
    cdef Py_ssize_t size = (row + 1) * sizeof(int32_t)
    if reserve(&column.ends, size) < 0 or (row and reserve(&column.validity, (row + 7) >> 3) < 0):
        return -1
    memset(column.ends.data, 0, size)
    if row:
        memset(column.validity.data, 0, (row + 7) >> 3)
        column.validity.size = (row + 7) >> 3
    column.ends.size = size
    column.nulls = row
    return 0


cdef int begin_nulls(Texts* column, Py_ssize_t row) noexcept nogil:
    """Make the validity of the `row` values before the first null of a column."""
    cdef Py_ssize_t size = (row + 7) >> 3
    if reserve(&column.validity, size) < 0:
        return -1
    memset(column.validity.data, 0xff, size)
    if row & 7:
        column.validity.data[size - 1] = <char>((1 << (row & 7)) - 1)
    column.validity.size = size
    return 0


cdef inline int mark(Texts* column, Py_ssize_t row, bint valid, Py_ssize_t end) noexcept nogil:
    """Add `row` to a column whose data (or children) now reach to `end`."""
    cdef Buffer* bits = &column.validity
    if column.ends.size == 0:
        if not valid:
            return 0
        if begin_values(column, row) < 0:
            return -1
    elif not valid and column.nulls == 0 and begin_nulls(column, row) < 0:
        return -1
    if reserve(&column.ends, sizeof(int32_t)) < 0:
        return -1
    (<int32_t*>(column.ends.data + column.ends.size))[0] = <int32_t>end
    column.ends.size += sizeof(int32_t)
    if column.nulls or not valid:
        if (row & 7) == 0:
            if reserve(bits, 1) < 0:
                return -1
            bits.data[row >> 3] = 0
            bits.size = (row >> 3) + 1
        if valid:
            bits.data[row >> 3] |= <char>(1 << (row & 7))
        else:
            column.nulls += 1
    return 0


cdef inline Py_ssize_t null_count(const Texts* column, Py_ssize_t rows) noexcept nogil:
    return column.nulls if column.ends.size else rows


cdef void clear_texts(Texts* column) noexcept nogil:
    column.data.size = column.ends.size = column.validity.size = 0
    column.nulls = 0


cdef void clear(Columns* columns) noexcept nogil:
    columns.rows = columns.byte_count = columns.weight = columns.header_rows = 0
    columns.max_timestamp_us = INT64_MIN
    columns.timestamps.size = columns.awaited.size = columns.awaited_leader.size = columns.conditions.size = 0
    columns.id_count = columns.expected_id_count = columns.expected_subject_count = 0
    columns.enveloped.size = columns.enveloped_text.size = columns.enveloped_all = columns.enveloped_leader = 0
    clear_texts(&columns.subject)
    clear_texts(&columns.key)
    clear_texts(&columns.value)
    clear_texts(&columns.headers)
    clear_texts(&columns.header_key)
    clear_texts(&columns.header_value)
    clear_texts(&columns.reply)


cdef Py_ssize_t texts_capacity(const Texts* column) noexcept nogil:
    return column.data.capacity + column.ends.capacity + column.validity.capacity


cdef Py_ssize_t capacity_of(const Columns* columns) noexcept nogil:
    return (
        <Py_ssize_t>sizeof(Columns) + columns.timestamps.capacity + columns.awaited.capacity
        + columns.awaited_leader.capacity + columns.conditions.capacity
        + columns.enveloped.capacity + columns.enveloped_text.capacity
        + texts_capacity(&columns.subject) + texts_capacity(&columns.key) + texts_capacity(&columns.value)
        + texts_capacity(&columns.headers) + texts_capacity(&columns.header_key)
        + texts_capacity(&columns.header_value) + texts_capacity(&columns.reply)
    )


cdef void free_texts(Texts* column) noexcept nogil:
    release(&column.data)
    release(&column.ends)
    release(&column.validity)


cdef void free_columns(Columns* columns) noexcept nogil:
    release(&columns.timestamps)
    release(&columns.awaited)
    release(&columns.awaited_leader)
    release(&columns.conditions)
    release(&columns.enveloped)
    release(&columns.enveloped_text)
    free_texts(&columns.subject)
    free_texts(&columns.key)
    free_texts(&columns.value)
    free_texts(&columns.headers)
    free_texts(&columns.header_key)
    free_texts(&columns.header_value)
    free_texts(&columns.reply)
    PyMem_RawFree(columns)


cdef void roll_back_texts(Texts* column, Py_ssize_t rows) noexcept nogil:
    cdef Py_ssize_t row
    if column.ends.size == 0:
        column.data.size = 0
        return
    if rows == 0:
        clear_texts(column)
        return
    column.ends.size = (rows + 1) * sizeof(int32_t)
    column.data.size = (<int32_t*>column.ends.data)[rows]
    column.nulls = 0
    if column.validity.size:
        column.validity.size = (rows + 7) >> 3
        if rows & 7:
            column.validity.data[rows >> 3] &= <char>((1 << (rows & 7)) - 1)
        for row in range(rows):
            column.nulls += not (column.validity.data[row >> 3] >> (row & 7)) & 1
        if column.nulls == 0:
            column.validity.size = 0


cdef void roll_back(Columns* columns) noexcept nogil:
    """Undo a record that was added in part (C1)."""
    columns.timestamps.size = columns.rows * sizeof(int64_t)
    roll_back_texts(&columns.subject, columns.rows)
    roll_back_texts(&columns.key, columns.rows)
    roll_back_texts(&columns.value, columns.rows)
    roll_back_texts(&columns.reply, columns.rows)
    roll_back_texts(&columns.headers, columns.rows)
    columns.headers.data.size = 0
    roll_back_texts(&columns.header_key, columns.header_rows)
    roll_back_texts(&columns.header_value, columns.header_rows)


cdef Columns* pool = NULL
cdef Py_ssize_t pool_bytes = 0
cdef Py_ssize_t pool_count = 0


cdef Columns* take_columns() noexcept nogil:
    """Give out empty columns, from the pool if it has some. NULL: no memory."""
    global pool, pool_bytes, pool_count
    cdef Columns* columns
    lock_pool()
    columns = pool
    if columns != NULL:
        pool = columns.next_pooled
        pool_bytes -= capacity_of(columns)
        pool_count -= 1
    unlock_pool()
    if columns == NULL:
        columns = <Columns*>PyMem_RawCalloc(1, sizeof(Columns))
        if columns != NULL:
            columns.max_timestamp_us = INT64_MIN
    return columns


cdef void give_columns(Columns* columns) noexcept nogil:
    """Give columns back to the pool, or free them if it must not keep them (C2)."""
    global pool, pool_bytes, pool_count
    cdef Py_ssize_t capacity
    if columns == NULL:
        return
    clear(columns)
    capacity = capacity_of(columns)
    lock_pool()
    if pool_bytes + capacity <= POOL_BYTES_MAX and pool_count < POOL_COUNT_MAX:
        columns.next_pooled = pool
        pool = columns
        pool_bytes += capacity
        pool_count += 1
        columns = NULL
    unlock_pool()
    if columns != NULL:
        free_columns(columns)
