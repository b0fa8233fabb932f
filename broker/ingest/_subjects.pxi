# The table of the last records of subjects of broker/storage/memory/subjects.py: the same steps on the same arrays,
# without the GIL.
#
# A Subjects points into numpy arrays that belong to the table, which the caller holds. Capacities are powers of two.
# If there is no room, the table is asked to make some, with the GIL. That is seldom. If it cannot, it says so
# (IS_FULL), and is not asked again.

cdef enum:
    SLOT_FIRST = 0
    SLOT_SECOND
    SLOT_SEQUENCE
    SLOT_WIDTH

cdef enum:
    SUBJECTS_COUNT = 0
    SUBJECTS_LIMIT
    SUBJECTS_IS_FULL
    SUBJECTS_MISSED_END
    SUBJECTS_LOG_START

cdef enum:
    GONE = -1
    UNKNOWN = -1


cdef struct Subjects:
    int64_t* slots
    int64_t* counts
    uint64_t mask
    uint64_t[2] key
    void* table


cdef struct Put:
    Hash subject
    int64_t before


cdef int point_at_subjects(Subjects* self, table) except -1:
    cdef int64_t[:, ::1] slots = table.slots
    cdef int64_t[::1] counts = table.counts
    cdef bytes key = table.key
    cdef Py_ssize_t capacity = slots.shape[0]
    assert capacity & (capacity - 1) == 0 and slots.shape[1] == SLOT_WIDTH and len(key) == 16
    self.slots, self.counts, self.mask, self.table = &slots[0, 0], &counts[0], capacity - 1, <void*>table
    memcpy(self.key, <const char*>key, 16)
    return 0


cdef int make_room(Subjects* self) noexcept with gil:
    """Ask the table for room. Returns 0; -1: no memory."""
    try:
        (<object>self.table).make_room(fill_slots)
        point_at_subjects(self, <object>self.table)
    except MemoryError:
        return -1
    return 0


cdef inline int64_t* slot_of(const Subjects* self, Hash subject) noexcept nogil:
    """The slot where a subject is, or would be."""
    cdef uint64_t at = subject.first & self.mask
    cdef int64_t* slot
    while True:
        slot = self.slots + SLOT_WIDTH * at
        if slot[SLOT_SEQUENCE] == 0 or (
            slot[SLOT_FIRST] == <int64_t>subject.first and slot[SLOT_SECOND] == <int64_t>subject.second
        ):
            return slot
        at = (at + 1) & self.mask


cdef int64_t last_of(const Subjects* self, Hash subject) noexcept nogil:
    """The sequence of the last record on a subject; 0: there is none; or UNKNOWN."""
    cdef int64_t sequence = slot_of(self, subject)[SLOT_SEQUENCE]
    cdef int64_t log_start = self.counts[SUBJECTS_LOG_START]
    if sequence > log_start:
        return sequence
    return 0 if sequence > 0 or self.counts[SUBJECTS_MISSED_END] <= log_start else UNKNOWN


cdef int takes_subject(Subjects* self, Hash subject) noexcept nogil:
    """Whether a record on a subject can be noted. Returns 1 or 0; -1: no memory."""
    if slot_of(self, subject)[SLOT_SEQUENCE] or self.counts[SUBJECTS_COUNT] < self.counts[SUBJECTS_LIMIT]:
        return 1
    if not self.counts[SUBJECTS_IS_FULL] and make_room(self) < 0:
        return -1
    return self.counts[SUBJECTS_COUNT] < self.counts[SUBJECTS_LIMIT]


cdef int put_subject(Subjects* self, Hash subject, int64_t sequence, int64_t* before) noexcept nogil:
    """Note the last record on a subject, or that it was missed. Returns 0; -1: no memory."""
    cdef int taken = takes_subject(self, subject)
    cdef int64_t* slot
    before[0] = 0
    if taken < 0:
        return -1
    if not taken:
        self.counts[SUBJECTS_MISSED_END] = max(self.counts[SUBJECTS_MISSED_END], sequence)
        return 0
    slot = slot_of(self, subject)
    before[0] = slot[SLOT_SEQUENCE]
    if before[0] == 0:
        slot[SLOT_FIRST] = <int64_t>subject.first
        slot[SLOT_SECOND] = <int64_t>subject.second
        self.counts[SUBJECTS_COUNT] += 1
    slot[SLOT_SEQUENCE] = sequence
    return 0


cdef inline Hash hash_subject(const Subjects* self, const Columns* columns, Py_ssize_t row) noexcept nogil:
    cdef const int32_t* ends = <const int32_t*>columns.subject.ends.data
    return siphash(self.key, columns.subject.data.data + ends[row], ends[row + 1] - ends[row])


cdef int put_rows(Subjects* self, const Columns* columns, Py_ssize_t row, Py_ssize_t end, int64_t sequence,
                  Buffer* puts) noexcept nogil:
    """Note the subjects of rows. Returns 0; -1: no memory.

    `sequence`: the sequence of the first row. `puts`: gets the entries that were there before, as Put; may be NULL.
    """
    cdef Hash[LOOKS_AHEAD] ahead
    cdef Py_ssize_t i, count
    cdef Put put
    while row < end:
        count = min(<Py_ssize_t>LOOKS_AHEAD, end - row)
        for i in range(count):
            ahead[i] = hash_subject(self, columns, row + i)
            prefetch(self.slots + SLOT_WIDTH * (ahead[i].first & self.mask))
        for i in range(count):
            put.subject = ahead[i]
            if put_subject(self, ahead[i], sequence + i, &put.before) < 0:
                return -1
            if puts != NULL and append(puts, <const char*>&put, sizeof(Put)) < 0:
                return -1
        row += count
        sequence += count
    return 0


cdef void put_all_back(Subjects* self, const Buffer* puts) noexcept nogil:
    """Undo the changes of `put_rows`, the last one first."""
    cdef const Put* put = <const Put*>(puts.data + puts.size)
    cdef int64_t* slot
    while put > <const Put*>puts.data:
        put -= 1
        slot = slot_of(self, put.subject)
        if slot[SLOT_SEQUENCE]:
            slot[SLOT_SEQUENCE] = put.before if put.before else GONE


def fill_slots(int64_t[:, ::1] slots, const int64_t[:, ::1] entries):
    """Put entries into slots, as `subjects._fill` does. Their subjects all differ, and none is there yet."""
    cdef uint64_t mask = <uint64_t>slots.shape[0] - 1, at
    cdef Py_ssize_t i, count = entries.shape[0]
    cdef const int64_t* entry
    cdef int64_t* first = &slots[0, 0]
    assert count < slots.shape[0] and slots.shape[1] == entries.shape[1] == SLOT_WIDTH and (mask & (mask + 1)) == 0
    if count == 0:
        return
    entry = &entries[0, 0]
    with nogil:
        for i in range(count):
            if i + LOOKS_AHEAD < count:
                prefetch(first + SLOT_WIDTH * (<uint64_t>entry[SLOT_WIDTH * LOOKS_AHEAD] & mask))
            at = <uint64_t>entry[SLOT_FIRST] & mask
            while first[SLOT_WIDTH * at + SLOT_SEQUENCE]:
                at = (at + 1) & mask
            memcpy(first + SLOT_WIDTH * at, entry, SLOT_WIDTH * sizeof(int64_t))
            entry += SLOT_WIDTH
