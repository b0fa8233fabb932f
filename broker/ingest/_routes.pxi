# The routes of messages to slots: a hash table from subscription id to route.
#
# It has open addressing with linear probing, and is at most half full. An entry without a route is free. A deletion
# moves later entries of the run back, so there are no tombstones.

cdef enum:
    BY_FIXED = 0
    BY_KEY = 1
    BY_SUBJECT = 2
    BY_TOKEN = 3


cdef struct Route:
    int by
    int token
    int count                   # number of the stream's partitions
    bint opens_envelopes
    Slot* lead                  # one of the slots, which has the settings that all partitions share
    Slot** slots                # a slot for each partition, NULL if it is led elsewhere; NULL for BY_FIXED


cdef struct RouteEntry:
    uint64_t sid
    Route* route


cdef struct RouteTable:
    RouteEntry* entries
    uint64_t mask
    Py_ssize_t count


cdef class RouteHolder:
    """Owns a Route and keeps its builders alive."""

    cdef Route* route
    cdef list builders

    def __cinit__(self, list builders, int by, int token, bint opens_envelopes):
        cdef Builder builder = builders[0]
        self.builders = builders
        self.route = <Route*>PyMem_RawCalloc(1, sizeof(Route))
        if self.route == NULL:
            raise MemoryError()
        self.route.by = by
        self.route.token = token
        self.route.opens_envelopes = opens_envelopes
        self.route.count = builder.slot.partition_count
        self.route.lead = &builder.slot
        if by != BY_FIXED:
            self.route.slots = <Slot**>PyMem_RawCalloc(self.route.count, sizeof(Slot*))
            if self.route.slots == NULL:
                raise MemoryError()
            for builder in builders:
                self.route.slots[builder.slot.partition] = &builder.slot

    def __dealloc__(self):
        if self.route != NULL:
            PyMem_RawFree(self.route.slots)
            PyMem_RawFree(self.route)


cdef inline uint64_t home_of(const RouteTable* table, uint64_t sid) noexcept nogil:
    return ((sid * <uint64_t>0x9E3779B97F4A7C15) >> 32) & table.mask


cdef int make_table(RouteTable* table) except -1:
    table.entries = <RouteEntry*>PyMem_RawCalloc(16, sizeof(RouteEntry))
    if table.entries == NULL:
        raise MemoryError()
    table.mask = 15
    table.count = 0
    return 0


cdef inline Route* find_route(const RouteTable* table, uint64_t sid) noexcept nogil:
    cdef uint64_t at = home_of(table, sid)
    while table.entries[at].route != NULL:
        if table.entries[at].sid == sid:
            return table.entries[at].route
        at = (at + 1) & table.mask
    return NULL


cdef int put_route(RouteTable* table, uint64_t sid, Route* route) noexcept nogil:
    cdef RouteTable larger
    cdef uint64_t at
    if <uint64_t>(table.count + 1) * 2 > table.mask:
        larger.mask = table.mask * 2 + 1
        larger.count = 0
        larger.entries = <RouteEntry*>PyMem_RawCalloc(larger.mask + 1, sizeof(RouteEntry))
        if larger.entries == NULL:
            return -1
        for at in range(table.mask + 1):
            if table.entries[at].route != NULL:
                put_route(&larger, table.entries[at].sid, table.entries[at].route)
        PyMem_RawFree(table.entries)
        table[0] = larger
    at = home_of(table, sid)
    while table.entries[at].route != NULL and table.entries[at].sid != sid:
        at = (at + 1) & table.mask
    if table.entries[at].route == NULL:
        table.count += 1
    table.entries[at].sid = sid
    table.entries[at].route = route
    return 0


cdef void drop_route(RouteTable* table, uint64_t sid) noexcept nogil:
    cdef uint64_t at = home_of(table, sid), next_at, home
    while table.entries[at].route != NULL and table.entries[at].sid != sid:
        at = (at + 1) & table.mask
    if table.entries[at].route == NULL:
        return
    table.count -= 1
    next_at = at
    while True:
        next_at = (next_at + 1) & table.mask
        if table.entries[next_at].route == NULL:
            break
        home = home_of(table, table.entries[next_at].sid)
        if ((next_at - home) & table.mask) >= ((next_at - at) & table.mask):
            table.entries[at] = table.entries[next_at]
            at = next_at
    table.entries[at].route = NULL
