# The table of message ids of broker/storage/memory/ids.py, and its hash: the same steps on the same arrays, without the
# GIL.
#
# A Table points into numpy arrays that the caller holds. The places of head and tail only ever grow; a mask makes rows
# of them. Capacities are powers of two. The caller has made room (IdTable.reserve) before it adds an id, so nothing
# here allocates.

cdef enum:
    ENTRY_FIRST = 0
    ENTRY_SECOND
    ENTRY_OFFSET
    ENTRY_TIME
    ENTRY_WIDTH

cdef enum:
    STALE = -1


cdef enum:
    LOOKS_AHEAD = 16            # the index is prefetched so many ids before it is read


cdef struct Hash:
    uint64_t first
    uint64_t second


cdef struct Table:
    int64_t* entries
    int32_t* index
    int64_t* places             # head, tail
    uint64_t entry_mask
    uint64_t index_mask
    uint64_t[2] key


cdef inline uint64_t rotated(uint64_t word, int bits) noexcept nogil:
    return (word << bits) | (word >> (64 - bits))


cdef inline void sip_rounds(uint64_t* v, int count) noexcept nogil:
    cdef int i
    for i in range(count):
        v[0] += v[1]
        v[1] = rotated(v[1], 13) ^ v[0]
        v[0] = rotated(v[0], 32)
        v[2] += v[3]
        v[3] = rotated(v[3], 16) ^ v[2]
        v[0] += v[3]
        v[3] = rotated(v[3], 21) ^ v[0]
        v[2] += v[1]
        v[1] = rotated(v[1], 17) ^ v[2]
        v[2] = rotated(v[2], 32)


cdef Hash siphash(const uint64_t* key, const char* text, Py_ssize_t size) noexcept nogil:
    """SipHash-2-4 with 128 bits: broker/storage/memory/siphash.py."""
    cdef uint64_t[4] v
    cdef uint64_t word
    cdef Hash found
    cdef Py_ssize_t left = size
    v[0] = key[0] ^ <uint64_t>0x736F6D6570736575
    v[1] = key[1] ^ <uint64_t>0x646F72616E646F6D ^ <uint64_t>0xEE
    v[2] = key[0] ^ <uint64_t>0x6C7967656E657261
    v[3] = key[1] ^ <uint64_t>0x7465646279746573
    while left >= 8:
        memcpy(&word, text, 8)
        v[3] ^= word
        sip_rounds(v, 2)
        v[0] ^= word
        text += 8
        left -= 8
    word = 0
    memcpy(&word, text, left)
    word |= <uint64_t>(size & 255) << 56
    v[3] ^= word
    sip_rounds(v, 2)
    v[0] ^= word
    v[2] ^= <uint64_t>0xEE
    sip_rounds(v, 4)
    found.first = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= <uint64_t>0xDD
    sip_rounds(v, 4)
    found.second = v[0] ^ v[1] ^ v[2] ^ v[3]
    return found


cdef inline int64_t* entry_of(const Table* table, int64_t place) noexcept nogil:
    return table.entries + ENTRY_WIDTH * (<uint64_t>place & table.entry_mask)


cdef inline int64_t* entry_at(const Table* table, uint64_t at) noexcept nogil:
    """The entry that the index names at `at`, which must not be empty."""
    return table.entries + ENTRY_WIDTH * <int64_t>(table.index[at] - 1)


cdef int64_t find_index(const Table* table, Hash id) noexcept nogil:
    """The place of an id in the index; -1: it is not there."""
    cdef uint64_t at = id.first & table.index_mask
    cdef int64_t* entry
    while table.index[at]:
        entry = entry_at(table, at)
        if entry[ENTRY_FIRST] == <int64_t>id.first and entry[ENTRY_SECOND] == <int64_t>id.second:
            return <int64_t>at
        at = (at + 1) & table.index_mask
    return -1


cdef void unindex(const Table* table, uint64_t at) noexcept nogil:
    """Empty a place of the index. Later entries of its run move up."""
    cdef uint64_t following = at, home
    while True:
        following = (following + 1) & table.index_mask
        if table.index[following] == 0:
            break
        home = <uint64_t>entry_at(table, following)[ENTRY_FIRST] & table.index_mask
        if ((following - home) & table.index_mask) >= ((following - at) & table.index_mask):
            table.index[at] = table.index[following]
            at = following
    table.index[at] = 0


cdef void expire_ids(const Table* table, int64_t since_us) noexcept nogil:
    cdef int64_t head = table.places[0], tail = table.places[1]
    cdef int64_t* entry
    cdef Hash id
    while head < tail:
        entry = entry_of(table, head)
        if entry[ENTRY_TIME] > since_us:
            break
        if entry[ENTRY_OFFSET] != STALE:
            id.first, id.second = <uint64_t>entry[ENTRY_FIRST], <uint64_t>entry[ENTRY_SECOND]
            unindex(table, <uint64_t>find_index(table, id))
        head += 1
    table.places[0] = head


cdef inline int64_t find_id(const Table* table, Hash id, int64_t since_us, int64_t* at) noexcept nogil:
    """Offset of the record with this id if it is younger than `since_us`; else -1. `at` gets its place in the index."""
    cdef int64_t* entry
    at[0] = find_index(table, id)
    if at[0] < 0:
        return -1
    entry = entry_at(table, <uint64_t>at[0])
    return entry[ENTRY_OFFSET] if entry[ENTRY_TIME] > since_us else -1


cdef void add_id(const Table* table, Hash id, int64_t known_at, int64_t offset, int64_t time_us) noexcept nogil:
    """Note an id. `known_at`: its place in the index, if that has it, older than the window; else -1."""
    cdef uint64_t at = id.first & table.index_mask
    cdef int64_t tail = table.places[1]
    cdef int64_t* entry
    if known_at >= 0:
        entry_at(table, <uint64_t>known_at)[ENTRY_OFFSET] = STALE
        unindex(table, <uint64_t>known_at)
    entry = entry_of(table, tail)
    entry[ENTRY_FIRST] = <int64_t>id.first
    entry[ENTRY_SECOND] = <int64_t>id.second
    entry[ENTRY_OFFSET] = offset
    entry[ENTRY_TIME] = time_us
    while table.index[at]:
        at = (at + 1) & table.index_mask
    table.index[at] = <int32_t>(<uint64_t>tail & table.entry_mask) + 1
    table.places[1] = tail + 1


cdef int point_at(Table* table, int64_t* entries, Py_ssize_t capacity, int32_t* index, Py_ssize_t index_size,
                  int64_t* places, bytes key) except -1:
    assert capacity & (capacity - 1) == 0 and index_size & (index_size - 1) == 0 and len(key) == 16
    table.entries, table.index, table.places = entries, index, places
    table.entry_mask, table.index_mask = capacity - 1, index_size - 1
    memcpy(table.key, <const char*>key, 16)
    return 0


def fill_index(int64_t[:, ::1] entries, int32_t[::1] index, Py_ssize_t count):
    """Put the first `count` entries, whose ids all differ, into the empty index, as `IdTable._index` does."""
    cdef uint64_t mask = <uint64_t>index.shape[0] - 1, at
    cdef const int64_t* entry = &entries[0, 0]
    cdef int32_t* places = &index[0]
    cdef Py_ssize_t place
    assert 0 <= count <= entries.shape[0] and entries.shape[1] == ENTRY_WIDTH and (mask & (mask + 1)) == 0
    with nogil:
        for place in range(count):
            if place + LOOKS_AHEAD < count:
                prefetch(places + (<uint64_t>entry[ENTRY_WIDTH * (place + LOOKS_AHEAD)] & mask))
            at = <uint64_t>entry[ENTRY_WIDTH * place] & mask
            while places[at]:
                at = (at + 1) & mask
            places[at] = <int32_t>(place + 1)
