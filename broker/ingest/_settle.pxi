# Settles records with an id or expectations, when their batch is about to be appended: settling.py applied to columns.
#
# If some records are dropped, the others are copied into new columns. Repeats are rare, and come in crowds.

cdef enum Kind:
    REPEAT = 1                  # the kinds of settling.py, but its WRONG is several kinds here
    WRONG_SEQUENCE
    WRONG_ID
    WRONG_FENCE
    IDS_ARE_OFF
    ARE_OFF                     # the table of subjects is off
    NO_ROOM
    NOT_READY                   # the table of subjects is not read yet
    NOT_KNOWN                   # the table of subjects has no room, or had none


cdef int64_t WAITED_US = 60000000      # as in settling.py


cdef struct Condition:
    int32_t row
    int32_t id_header           # row of the header columns; -1: there is no id
    int32_t expected_header     # row of the header columns; -1: no id is expected
    int32_t may_be_told
    int64_t expected_sequence   # -1: any
    int64_t expected_subject_sequence   # -1: any
    int64_t fence               # -1: none is named


cdef struct Dropped:
    int32_t row
    int32_t kind
    int32_t told                # its publisher gets an answer
    int32_t enveloped           # at the ack inbox of its envelope, which stands in `text` as a reply subject does
    int32_t correlation_size    # behind the inbox
    int32_t subject_size        # behind that
    uint32_t policy
    int64_t time_us
    int32_t reply_size          # the reply subject's
    Py_ssize_t reply_at         # position of the reply subject in `text` of Settling
    Py_ssize_t id_at            # WRONG_ID: position there of the id that the record before has
    Py_ssize_t id_size
    int64_t offset              # REPEAT: offset of the first record; WRONG_SEQUENCE, WRONG_FENCE: the one that is right


cdef struct Settling:
    Table* table                # NULL: ids are off
    Subjects* subjects          # NULL: the table is off or not read yet
    int64_t next_offset
    int64_t now_us              # by the clock of the table
    int64_t wall_us             # by that of the timestamps
    int64_t window_us
    int64_t ids_max
    int64_t subjects_max
    int64_t fence               # the partition's
    Buffer* puts                # Put: entries that the table of subjects had before
    Buffer* dropped             # Dropped
    Buffer* text


cdef inline Py_ssize_t count_conditions(const Columns* columns) noexcept nogil:
    return columns.conditions.size // <Py_ssize_t>sizeof(Condition)


cdef inline const char* header_of(const Columns* columns, int32_t header, Py_ssize_t* size) noexcept nogil:
    cdef const int32_t* ends = <const int32_t*>columns.header_value.ends.data
    size[0] = ends[header + 1] - ends[header]
    return columns.header_value.data.data + ends[header]


cdef int64_t least_time(const Columns* columns) noexcept nogil:
    cdef const int64_t* times = <const int64_t*>columns.timestamps.data
    cdef int64_t least = times[0]
    cdef Py_ssize_t i
    for i in range(1, columns.rows):
        least = min(least, times[i])
    return least


cdef inline int64_t waited_us(int64_t wall_us, int64_t timestamp_us) noexcept nogil:
    return min(max(<int64_t>0, wall_us - timestamp_us), WAITED_US)


cdef void hash_ahead(const Table* table, const Columns* columns, Py_ssize_t first, Hash* hashes) noexcept nogil:
    """Hash the next ids and prefetch their places in the index. All at once take hardly longer than one."""
    cdef const Condition* conditions = <const Condition*>columns.conditions.data
    cdef const char* text
    cdef Py_ssize_t i, size
    for i in range(first, min(first + LOOKS_AHEAD, count_conditions(columns))):
        if conditions[i].id_header >= 0:
            text = header_of(columns, conditions[i].id_header, &size)
            hashes[i - first] = siphash(table.key, text, size)
            prefetch(table.index + (hashes[i - first].first & table.index_mask))


cdef inline bint is_among(const Buffer* rows, Py_ssize_t* at, Py_ssize_t row) noexcept nogil:
    """Whether a row is in a list of rows. Rows are asked for in ascending order; `at` is kept from call to call."""
    cdef const int32_t* list_of = <const int32_t*>rows.data
    cdef Py_ssize_t count = count_rows(rows)
    while at[0] < count and list_of[at[0]] < row:
        at[0] += 1
    return at[0] < count and list_of[at[0]] == row


cdef int judge_subject(Settling* self, Hash subject, int64_t expected, Dropped* verdict) noexcept nogil:
    """Judge a subject's expectation; set the kind of the verdict if it does not hold. Returns 0; -1: no memory."""
    cdef int64_t last
    cdef int taken
    if self.subjects_max == 0:
        verdict.kind = ARE_OFF
        return 0
    if self.subjects == NULL:
        verdict.kind = NOT_READY
        return 0
    last = last_of(self.subjects, subject)
    if last >= 0 and last != expected:
        verdict.kind = WRONG_SEQUENCE
        verdict.offset = last
        return 0
    taken = takes_subject(self.subjects, subject)
    if taken < 0:
        return -1
    if last == UNKNOWN or not taken:
        verdict.kind = NOT_KNOWN
    return 0


cdef int settle_rows(Settling* self, const Columns* columns, const char* last, Py_ssize_t last_size) noexcept nogil:
    """Judge all conditions in order, and note the ids and subjects of records that stay. Returns 0; -1: no memory.

    `last`: the id of the record before these, empty if it has none.
    """
    cdef const Condition* conditions = <const Condition*>columns.conditions.data
    cdef const int64_t* times = <const int64_t*>columns.timestamps.data
    cdef const Condition* condition
    cdef const char* text = NULL
    cdef const char* expected
    cdef Py_ssize_t i, size = 0, expected_size, for_all = 0, for_leader = 0, gone = 0
    cdef int64_t offset, found, at = -1
    cdef int32_t before = -1
    cdef Put put
    cdef Dropped verdict
    cdef Hash[LOOKS_AHEAD] ahead
    cdef Hash id
    cdef bint has_id, is_awaited
    cdef Py_ssize_t enveloped_at = 0
    cdef const Enveloped* entry
    id.first = id.second = 0
    put.subject.first = put.subject.second = 0
    for i in range(count_conditions(columns)):
        if i % LOOKS_AHEAD == 0 and self.table != NULL:
            hash_ahead(self.table, columns, i, ahead)
        condition = &conditions[i]
        if condition.row != before + 1:
            last_size = 0
        if self.subjects != NULL and put_rows(
            self.subjects, columns, before + 1, condition.row, self.next_offset + before + 2 - gone, self.puts
        ) < 0:
            return -1
        before = condition.row
        offset = self.next_offset + condition.row - gone
        if self.subjects != NULL:
            put.subject = hash_subject(self.subjects, columns, condition.row)
        has_id = condition.id_header >= 0 and self.table != NULL
        if condition.id_header >= 0:
            text = header_of(columns, condition.id_header, &size)
        else:
            size = 0
        verdict.kind = 0
        verdict.id_size = 0
        verdict.offset = -1
        if has_id:
            id = ahead[i % LOOKS_AHEAD]
            found = find_id(
                self.table, id,
                self.now_us - waited_us(self.wall_us, times[condition.row]) - self.window_us, &at,
            )
            if found >= 0:
                verdict.kind = REPEAT
                verdict.offset = found
        if verdict.kind == 0 and condition.fence >= 0 and condition.fence != self.fence:
            verdict.kind = WRONG_FENCE
            verdict.offset = self.fence
        if verdict.kind == 0 and condition.expected_sequence >= 0 and condition.expected_sequence != offset:
            verdict.kind = WRONG_SEQUENCE
            verdict.offset = offset
        if verdict.kind == 0 and condition.expected_subject_sequence >= 0 and judge_subject(
            self, put.subject, condition.expected_subject_sequence, &verdict
        ) < 0:
            return -1
        if verdict.kind == 0 and condition.expected_header >= 0:
            expected = header_of(columns, condition.expected_header, &expected_size)
            if self.table == NULL:
                verdict.kind = IDS_ARE_OFF
            elif expected_size != last_size or memcmp(expected, last, last_size) != 0:
                verdict.kind = WRONG_ID
                verdict.id_at = self.text.size
                verdict.id_size = last_size
                if append(self.text, last, last_size) < 0:
                    return -1
        if verdict.kind == 0 and has_id and self.table.places[1] - self.table.places[0] >= self.ids_max:
            verdict.kind = NO_ROOM
        if verdict.kind == 0:
            if has_id:
                add_id(self.table, id, at, offset, self.now_us)
            if self.subjects != NULL and (
                put_subject(self.subjects, put.subject, offset + 1, &put.before) < 0
                or append(self.puts, <const char*>&put, sizeof(Put)) < 0
            ):
                return -1
            last = text
            last_size = size
            continue
        is_awaited = is_among(&columns.awaited, &for_all, condition.row) or is_among(
            &columns.awaited_leader, &for_leader, condition.row
        )
        entry = find_enveloped(columns, &enveloped_at, condition.row)
        if entry != NULL:
            is_awaited = entry.awaits != AWAITS_NONE
        verdict.row = condition.row
        verdict.told = is_awaited if verdict.kind == REPEAT else condition.may_be_told
        if entry != NULL and verdict.kind > WRONG_ID:
            verdict.told = False  # Liftbridge has no error for it
        if note_dropped(self, columns, &verdict, entry) < 0:
            return -1
        gone += 1
    if self.subjects != NULL:
        return put_rows(
            self.subjects, columns, before + 1, columns.rows, self.next_offset + before + 2 - gone, self.puts
        )
    return 0


cdef inline const Enveloped* find_enveloped(const Columns* columns, Py_ssize_t* at, Py_ssize_t row) noexcept nogil:
    """The entry of a row; NULL: it has none. Rows are asked for in ascending order; `at` is kept from call to call."""
    cdef const Enveloped* entry = <const Enveloped*>columns.enveloped.data
    cdef Py_ssize_t count = count_enveloped(columns)
    while at[0] < count and entry[at[0]].row < row:
        at[0] += 1
    return &entry[at[0]] if at[0] < count and entry[at[0]].row == row else NULL


cdef int note_dropped(Settling* self, const Columns* columns, Dropped* verdict, const Enveloped* entry) noexcept nogil:
    cdef const int32_t* ends = <const int32_t*>columns.reply.ends.data
    cdef const int32_t* subjects = <const int32_t*>columns.subject.ends.data
    verdict.reply_size = 0
    verdict.reply_at = self.text.size
    verdict.enveloped = entry != NULL
    if verdict.told and entry != NULL:
        verdict.reply_size, verdict.correlation_size = entry.inbox_size, entry.correlation_size
        verdict.subject_size = subjects[verdict.row + 1] - subjects[verdict.row]
        verdict.policy = entry.policy
        verdict.time_us = (<const int64_t*>columns.timestamps.data)[verdict.row]
        if append(
            self.text, columns.enveloped_text.data + entry.at, entry.inbox_size + entry.correlation_size
        ) < 0 or append(self.text, columns.subject.data.data + subjects[verdict.row], verdict.subject_size) < 0:
            return -1
    elif verdict.told:
        verdict.reply_size = ends[verdict.row + 1] - ends[verdict.row]
        if append(self.text, columns.reply.data.data + ends[verdict.row], verdict.reply_size) < 0:
            return -1
    return append(self.dropped, <const char*>verdict, sizeof(Dropped))


cdef Columns* without(const Columns* columns, const Buffer* dropped) noexcept nogil:
    """Make columns without the rows that were dropped, which are some but not all. NULL: no memory."""
    cdef const Dropped* gone = <const Dropped*>dropped.data
    cdef const Dropped* end = <const Dropped*>(dropped.data + dropped.size)
    cdef const Condition* condition = <const Condition*>columns.conditions.data
    cdef const Condition* last_condition = condition + count_conditions(columns)
    cdef Columns* kept = take_columns()
    cdef Buffer* awaiting
    cdef Py_ssize_t row, for_all = 0, for_leader = 0, enveloped_at = 0
    cdef const Enveloped* entry
    cdef bint is_gone
    if kept == NULL:
        return NULL
    for row in range(columns.rows):
        is_gone = gone < end and gone.row == row
        awaiting = NULL
        if is_among(&columns.awaited, &for_all, row):
            awaiting = &kept.awaited
        elif is_among(&columns.awaited_leader, &for_leader, row):
            awaiting = &kept.awaited_leader
        entry = find_enveloped(columns, &enveloped_at, row)
        if is_gone:
            gone += 1
        elif copy_row(
            kept, columns, row,
            condition if condition < last_condition and condition.row == row else NULL, awaiting, entry,
        ) < 0:
            give_columns(kept)
            return NULL
        if condition < last_condition and condition.row == row:
            condition += 1
    return kept


cdef int copy_row(Columns* to, const Columns* source, Py_ssize_t row, const Condition* condition,
                  Buffer* awaiting, const Enveloped* entry) noexcept nogil:
    """Copy a row. `awaiting`: the list of awaited rows that gets the copy; NULL: none. Returns 0; -1: no memory."""
    cdef Enveloped told
    cdef Py_ssize_t at = to.rows, first = 0, end = 0, header, shift
    cdef int64_t time_us = (<const int64_t*>source.timestamps.data)[row]
    cdef int32_t row_number = <int32_t>at
    cdef const int32_t* ends = <const int32_t*>source.headers.ends.data
    cdef Condition moved
    cdef bint has_headers = is_valid(&source.headers, row)
    if has_headers:
        first, end = ends[row], ends[row + 1]
    shift = to.header_rows - first
    for header in range(first, end):
        if (
            copy_text(&to.header_key, &source.header_key, header, header + shift) < 0
            or copy_text(&to.header_value, &source.header_value, header, header + shift) < 0
        ):
            return -1
    if has_headers:
        to.header_rows += end - first
    if (
        append(&to.timestamps, <const char*>&time_us, sizeof(int64_t)) < 0
        or copy_text(&to.subject, &source.subject, row, at) < 0
        or copy_text(&to.key, &source.key, row, at) < 0
        or copy_text(&to.value, &source.value, row, at) < 0
        or mark(&to.headers, at, has_headers, to.header_rows) < 0
        or copy_text(&to.reply, &source.reply, row, at) < 0
    ):
        return -1
    if awaiting != NULL and append(awaiting, <const char*>&row_number, sizeof(int32_t)) < 0:
        return -1
    if entry != NULL:
        told = entry[0]
        told.row = row_number
        told.at = to.enveloped_text.size
        if append(
            &to.enveloped_text, source.enveloped_text.data + entry.at, entry.inbox_size + entry.correlation_size
        ) < 0 or append_enveloped(to, &told) < 0:
            return -1
    if condition != NULL:
        moved = condition[0]
        moved.row = row_number
        if moved.id_header >= 0:
            moved.id_header += <int32_t>shift
            to.id_count += 1
        if moved.expected_header >= 0:
            moved.expected_header += <int32_t>shift
            to.expected_id_count += 1
        to.expected_subject_count += moved.expected_subject_sequence >= 0
        if append(&to.conditions, <const char*>&moved, sizeof(Condition)) < 0:
            return -1
    to.max_timestamp_us = max(to.max_timestamp_us, time_us)
    to.rows = at + 1
    to.byte_count = (
        to.subject.data.size + to.key.data.size + to.value.data.size + to.reply.data.size
        + to.header_key.data.size + to.header_value.data.size + to.enveloped_text.size
    )
    return 0


cdef inline bint is_valid(const Texts* column, Py_ssize_t row) noexcept nogil:
    if column.ends.size == 0:
        return False
    return column.nulls == 0 or (column.validity.data[row >> 3] >> (row & 7)) & 1


cdef int copy_text(Texts* to, const Texts* source, Py_ssize_t row, Py_ssize_t at) noexcept nogil:
    cdef const int32_t* ends = <const int32_t*>source.ends.data
    cdef bint valid = is_valid(source, row)
    if valid and append(&to.data, source.data.data + ends[row], ends[row + 1] - ends[row]) < 0:
        return -1
    return mark(to, at, valid, to.data.size)
