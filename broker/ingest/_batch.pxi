# Builder and PendingBatch: the growing columns of a partition, and the columns on their way to disk.
#
# A Slot holds all that the parser knows of a Builder, and is read without the GIL. To take a batch moves the
# columns out of the slot as they are. A value that has arrived in part is carried over to the next columns.

cdef struct Slot:
    void* builder               # the Builder around this slot; it outlives every use of the pointer
    uint64_t owner              # number of the Intake that lists it as dirty
    Columns* columns            # NULL while there is nothing
    const char* stream
    Py_ssize_t stream_size
    const char* subject         # that the partition listens on, for acks of envelopes
    Py_ssize_t subject_size
    const char* stream_json     # in quotes
    Py_ssize_t stream_json_size
    int partition
    int partition_count
    bint reply_acks
    bint expects_offsets        # `rules.R11`
    int awaits_by_default       # AWAITS_*
    Py_ssize_t record_bytes_max
    Py_ssize_t batch_bytes
    Py_ssize_t batch_records
    Py_ssize_t batch_bytes_hard
    bint listed                 # it is in its owner's list of dirty slots
    Py_ssize_t listed_at        # the byte of that list where it is
    Py_ssize_t arrived          # bytes of a value in part; they lie behind the value column's size
    Py_ssize_t arriving         # bytes that this value will have


cdef inline bint is_full(const Slot* slot) noexcept nogil:
    return slot.columns != NULL and (
        slot.columns.byte_count >= slot.batch_bytes or slot.columns.rows >= slot.batch_records
    )


cdef inline bint is_oversize(const Slot* slot, const ControlLine* message) noexcept nogil:
    return message.subject_size + message.reply_size + message.size > slot.record_bytes_max


cdef int add_headers(Columns* columns, const char* block, const Buffer* spans, Py_ssize_t* next_row) noexcept nogil:
    """Add headers from `next_row` of their columns on, and move that. Returns 0; -1: no memory."""
    cdef const HeaderSpan* header = <const HeaderSpan*>spans.data
    cdef Py_ssize_t count = spans.size // <Py_ssize_t>sizeof(HeaderSpan), row = next_row[0], i
    for i in range(count):
        if (
            append(&columns.header_key.data, block + header[i].name_at, header[i].name_size) < 0
            or mark(&columns.header_key, row, True, columns.header_key.data.size) < 0
            or append(&columns.header_value.data, block + header[i].value_at, header[i].value_size) < 0
            or mark(&columns.header_value, row, True, columns.header_value.data.size) < 0
        ):
            return -1
        row += 1
    next_row[0] = row
    return 0


cdef class Guard:
    """Tells the builders of an Intake that it is parsing without the GIL."""

    cdef bint busy

    cdef int check(self) except -1:
        if self.busy:
            raise RuntimeError("the Intake is parsing in another thread; it and its builders belong to one thread")
        return 0


cdef class Builder:
    """The growing batch of one partition. Touched only by the thread that feeds its Intake.

    Args:
        stream: Its name, which acks give.
        partition, partition_count: Number of this partition, and of all that the stream has.
        subject: What the partition listens on, which acks of envelopes give.
        reply_acks: Whether reply subjects are answered.
        default_ack: `all`, `leader` or `none`: the ack that a message awaits if it does not say.
        record_bytes_max: A larger record is refused (`rules.R2`).
        batch_bytes, batch_records: The batch is full when it reaches either. It may still grow.
        batch_bytes_hard: A record that would take the batch over this is refused, until `take`.
        expects_offsets: The `offset` of an envelope counts (`rules.R11`).

    Attributes:
        tag: Set and read by the driver only, which finds by it where the records go.
    """

    cdef Slot slot
    cdef bytes stream_utf8
    cdef bytes subject_utf8
    cdef bytes ack_head         # each ack begins so, up to the sequence number: {"stream":STREAM,"seq":
    cdef bytes ack_end          # each ack ends so, behind the sequence number
    cdef readonly str stream
    cdef public object tag
    cdef Guard guard
    cdef object __weakref__

    def __cinit__(self, *, str stream, int partition, int partition_count, bint reply_acks, str default_ack,
                  Py_ssize_t record_bytes_max, Py_ssize_t batch_bytes, Py_ssize_t batch_records,
                  Py_ssize_t batch_bytes_hard=BATCH_BYTES_HARD, str subject="", bint expects_offsets=False):
        check_builder(partition, partition_count, default_ack, batch_bytes_hard)
        self.stream = stream
        self.stream_utf8 = stream.encode()
        self.ack_head = ack_head(stream)
        self.ack_end = ack_tail(partition, duplicate=False)
        self.slot.builder = <void*>self
        self.slot.stream = self.stream_utf8
        self.slot.stream_size = len(self.stream_utf8)
        self.subject_utf8 = subject.encode()
        self.slot.subject = self.subject_utf8
        self.slot.subject_size = len(self.subject_utf8)
        self.slot.stream_json = <const char*>self.ack_head + ACK_HEAD_BEFORE
        self.slot.stream_json_size = len(self.ack_head) - ACK_HEAD_BEFORE - ACK_HEAD_BEHIND
        self.slot.partition = partition
        self.slot.partition_count = partition_count
        self.slot.reply_acks = reply_acks
        self.slot.expects_offsets = expects_offsets
        self.slot.awaits_by_default = ACK_VALUES[default_ack.encode()]
        self.slot.record_bytes_max = record_bytes_max
        self.slot.batch_bytes = batch_bytes
        self.slot.batch_records = batch_records
        self.slot.batch_bytes_hard = batch_bytes_hard

    def __dealloc__(self):
        give_columns(self.slot.columns)

    def __repr__(self):
        return f"<Builder {self.stream}/{self.partition} record_count={self.record_count}>"

    @property
    def partition(self):
        return self.slot.partition

    @property
    def partition_count(self):
        return self.slot.partition_count

    @property
    def record_count(self):
        return self.slot.columns.rows if self.slot.columns != NULL else 0

    @property
    def byte_count(self):
        """Bytes of subject, key, value, headers and reply, and of the ack inbox and correlation id of an envelope."""
        return self.slot.columns.byte_count if self.slot.columns != NULL else 0

    @property
    def awaited_count(self):
        """Records whose publisher awaits an ack."""
        return count_awaited(self.slot.columns) if self.slot.columns != NULL else 0

    def alter(self, *, int partition_count, bint reply_acks, str default_ack, Py_ssize_t record_bytes_max,
              Py_ssize_t batch_bytes, Py_ssize_t batch_records):
        """Change settings, for messages whose fate is not decided yet. A route is made anew to know another count."""
        if self.guard is not None:
            self.guard.check()
        check_builder(self.slot.partition, partition_count, default_ack, self.slot.batch_bytes_hard)
        self.slot.partition_count = partition_count
        self.slot.reply_acks = reply_acks
        self.slot.awaits_by_default = ACK_VALUES[default_ack.encode()]
        self.slot.record_bytes_max = record_bytes_max
        self.slot.batch_bytes = batch_bytes
        self.slot.batch_records = batch_records

    def take(self):
        """Hand out the records that are there, and start empty."""
        cdef Columns* columns
        cdef Columns* fresh = NULL
        cdef Slot* slot = &self.slot
        cdef PendingBatch batch
        if self.guard is not None:
            self.guard.check()
        batch = PendingBatch.__new__(PendingBatch)
        batch.stream = self.stream
        batch.partition = slot.partition
        batch.ack_head = self.ack_head
        batch.ack_end = self.ack_end
        batch.subject_utf8 = self.subject_utf8
        columns = slot.columns
        if columns == NULL or columns.rows == 0:
            return batch
        if slot.arriving:
            fresh = take_columns()
            if fresh == NULL or reserve(&fresh.value.data, slot.arriving) < 0:
                give_columns(fresh)
                raise MemoryError()
            memcpy(fresh.value.data.data, columns.value.data.data + columns.value.data.size, slot.arrived)
        slot.columns = fresh
        batch.columns = columns
        return batch


cdef class PendingBatch:
    """Records that left their Builder, usable in any thread. Implements storage's Encodable and Conditional.

    Attributes:
        stream, partition: Where they belong.
        record_count, byte_count: Records, and bytes of their data.
        ack_bytes: Of these, bytes that are in no record: ack inboxes and correlation ids of envelopes.
        awaited_count: Answers that `acks` will give.
        leader_count: Answers among these to publishers who are content with what is durable on the leader.
        max_timestamp_us: Latest timestamp among them.
        condition_count, id_count, minds_ids, minds_subjects, last_id: See `Conditional`.
        settled: Counts of the records that `settle` dropped, by reason: duplicates, wrong expectations, no room for
            the id, last record of the subject not known.
    """

    cdef Columns* columns
    cdef Buffer dropped         # Dropped
    cdef Buffer dropped_text    # the replies and ids of dropped records
    cdef Buffer puts            # Put: the changes that `settle` made in the table of subjects
    cdef int64_t missed_end     # the table's `missed_end` before them
    cdef int64_t told_count
    cdef int64_t ids_max        # the limit that the answer to NO_ROOM names
    cdef int64_t subjects_max   # the limit that the answer to NOT_KNOWN names
    cdef readonly tuple settled
    cdef bytes ack_head
    cdef bytes ack_end
    cdef bytes subject_utf8
    cdef readonly str stream
    cdef readonly int partition

    def __cinit__(self):
        self.settled = (0, 0, 0, 0)

    def __dealloc__(self):
        give_columns(self.columns)
        release(&self.dropped)
        release(&self.dropped_text)
        release(&self.puts)

    def __repr__(self):
        return f"<PendingBatch {self.stream}/{self.partition} record_count={self.record_count}>"

    @property
    def record_count(self):
        return self.columns.rows if self.columns != NULL else 0

    @property
    def byte_count(self):
        return self.columns.byte_count if self.columns != NULL else 0

    @property
    def ack_bytes(self):
        return self.columns.enveloped_text.size if self.columns != NULL else 0

    @property
    def awaited_count(self):
        return (count_awaited(self.columns) if self.columns != NULL else 0) + self.told_count

    @property
    def leader_count(self):
        if self.columns == NULL:
            return 0
        return count_rows(&self.columns.awaited_leader) + self.columns.enveloped_leader

    @property
    def condition_count(self):
        return count_conditions(self.columns) if self.columns != NULL else 0

    @property
    def id_count(self):
        return self.columns.id_count if self.columns != NULL else 0

    @property
    def minds_ids(self):
        return self.columns != NULL and self.columns.id_count + self.columns.expected_id_count > 0

    @property
    def minds_subjects(self):
        return self.columns != NULL and self.columns.expected_subject_count > 0

    @property
    def last_id(self):
        cdef const Condition* last
        cdef const char* text
        cdef Py_ssize_t size, count = self.condition_count
        if count == 0:
            return b""
        last = <const Condition*>self.columns.conditions.data + (count - 1)
        if last.row != self.columns.rows - 1 or last.id_header < 0:
            return b""
        text = header_of(self.columns, last.id_header, &size)
        return text[:size]

    def make_room(self, ids, *, int64_t now_us, int64_t wall_us, int64_t window_us, int64_t ids_max):
        """Make room for the ids of this batch: see `Conditional`."""
        cdef Table table
        cdef int64_t[:, ::1] entries = ids.entries
        cdef int32_t[::1] index = ids.index
        cdef int64_t[::1] places = ids.places
        if self.columns == NULL:
            return
        point_at(&table, &entries[0, 0], entries.shape[0], &index[0], index.shape[0], &places[0], ids.key)
        expire_ids(&table, now_us - waited_us(wall_us, least_time(self.columns)) - window_us)
        ids.reserve(min(self.columns.id_count, max(0, ids_max - (places[1] - places[0]))), fill_index)

    def settle(self, ids, subjects, *, int64_t next_offset, int64_t now_us, int64_t wall_us, int64_t window_us,
               int64_t ids_max, int64_t subjects_max, int64_t fence=0):
        """Drop the records that are not to be stored: see `Conditional`."""
        cdef Settling settling
        cdef Table table
        cdef Subjects pointed
        cdef int64_t[:, ::1] entries
        cdef int32_t[::1] index
        cdef int64_t[::1] places
        cdef bytes last = b""
        cdef const char* last_data
        cdef Py_ssize_t last_size
        cdef Columns* kept = NULL
        cdef int64_t room
        cdef int result
        if self.condition_count == 0:
            return
        settling.table = NULL
        settling.subjects = NULL
        if subjects is not None:
            point_at_subjects(&pointed, subjects)
            settling.subjects = &pointed
            self.missed_end = pointed.counts[SUBJECTS_MISSED_END]
        if ids is not None:
            entries, index, places = ids.entries, ids.index, ids.places
            room = entries.shape[0] - (places[1] - places[0])
            assert room >= min(self.columns.id_count, max(0, ids_max - (places[1] - places[0]))), "make_room comes first"
            point_at(&table, &entries[0, 0], entries.shape[0], &index[0], index.shape[0], &places[0], ids.key)
            settling.table = &table
            last = ids.last_id
        settling.next_offset, settling.window_us, settling.ids_max = next_offset, window_us, ids_max
        settling.now_us, settling.wall_us, settling.fence = now_us, wall_us, fence
        settling.dropped, settling.text = &self.dropped, &self.dropped_text
        settling.subjects_max, settling.puts = subjects_max, &self.puts
        self.ids_max, self.subjects_max = ids_max, subjects_max
        last_data, last_size = last, len(last)
        if self.condition_count >= NOGIL_ANSWERS_MIN:
            with nogil:
                result = settle_rows(&settling, self.columns, last_data, last_size)
        else:
            result = settle_rows(&settling, self.columns, last_data, last_size)
        if result < 0:
            raise MemoryError()
        if self.dropped.size == 0:
            return
        self.count_dropped()
        if self.dropped.size // <Py_ssize_t>sizeof(Dropped) < self.columns.rows:
            with nogil:
                kept = without(self.columns, &self.dropped)
            if kept == NULL:
                raise MemoryError()
        give_columns(self.columns)
        self.columns = kept

    def take_back(self, subjects):
        """Undo what `settle` did to `subjects`: see `Conditional`."""
        cdef Subjects pointed
        point_at_subjects(&pointed, subjects)
        put_all_back(&pointed, &self.puts)
        subjects.end_take_back(self.missed_end)

    def note_subjects(self, subjects, int64_t first_offset):
        """Note the subjects of a batch that was appended: see `Conditional`."""
        cdef Subjects pointed
        cdef int result
        if self.columns == NULL:
            return
        point_at_subjects(&pointed, subjects)
        if self.columns.rows >= NOGIL_ANSWERS_MIN:
            with nogil:
                result = put_rows(&pointed, self.columns, 0, self.columns.rows, first_offset + 1, NULL)
        else:
            result = put_rows(&pointed, self.columns, 0, self.columns.rows, first_offset + 1, NULL)
        if result < 0:
            raise MemoryError()

    cdef int count_dropped(self) except -1:
        cdef const Dropped* dropped = <const Dropped*>self.dropped.data
        cdef int64_t repeats = 0, wrong = 0, full = 0, unsure = 0
        cdef Py_ssize_t i
        self.told_count = 0
        for i in range(self.dropped.size // <Py_ssize_t>sizeof(Dropped)):
            repeats += dropped[i].kind == REPEAT
            full += dropped[i].kind == NO_ROOM
            unsure += dropped[i].kind > NO_ROOM
            wrong += REPEAT < dropped[i].kind < NO_ROOM
            self.told_count += dropped[i].told
        self.settled = (repeats, wrong, full, unsure)
        return 0

    cdef bytes dropped_answers(self, bytes error, int ack_error, int64_t now_us):
        """The answers to dropped records, in order. `error`: all get this one; None: each gets its own."""
        cdef const Dropped* dropped = <const Dropped*>self.dropped.data
        cdef const char* text = self.dropped_text.data
        cdef bytes head = self.ack_head
        cdef bytes tail = ack_tail(self.partition, duplicate=True)
        cdef Py_ssize_t i
        cdef list parts = []
        cdef bytes reply
        for i in range(self.dropped.size // <Py_ssize_t>sizeof(Dropped)):
            if not dropped[i].told:
                continue
            reply = text[dropped[i].reply_at:dropped[i].reply_at + dropped[i].reply_size]
            if dropped[i].enveloped:
                if error is None or ack_error != ACK_UNKNOWN:
                    parts.append(self.dropped_ack(&dropped[i], reply, error is not None, ack_error, now_us))
            elif error is not None:
                parts.append(publish(reply, error))
            elif dropped[i].kind == REPEAT:
                parts.append(publish(reply, b"%b%d%b" % (head, dropped[i].offset + 1, tail)))
            else:
                parts.append(publish(reply, self.verdict_error(
                    dropped[i].kind, dropped[i].offset, text[dropped[i].id_at:dropped[i].id_at + dropped[i].id_size]
                    if dropped[i].kind == WRONG_ID else b""
                )))
        return b"".join(parts)

    cdef bytes dropped_ack(self, const Dropped* dropped, bytes inbox, bint is_error, int ack_error, int64_t now_us):
        cdef const char* text = self.dropped_text.data + dropped.reply_at + dropped.reply_size
        cdef bint is_stored = dropped.kind == REPEAT and not is_error
        if not is_error:
            ack_error = 0 if is_stored else ACK_INCORRECT_OFFSET
        return publish(inbox, envelope.encode_ack(
            stream=self.stream.encode(), partition_subject=self.subject_utf8,
            subject=text[dropped.correlation_size:dropped.correlation_size + dropped.subject_size],
            inbox=inbox, correlation_id=text[:dropped.correlation_size], policy=dropped.policy,
            offset=dropped.offset if is_stored else 0, received_us=dropped.time_us,
            committed_us=now_us if is_stored else 0,
            error=ack_error,
        ))

    cdef bytes verdict_error(self, int kind, int64_t sequence, bytes last_id):
        if kind == WRONG_SEQUENCE:
            error, value = WRONG_SEQUENCE_ERROR, str(sequence)
        elif kind == WRONG_ID:
            error, value = WRONG_MSG_ID, last_id.decode("utf-8", "replace")
        elif kind == WRONG_FENCE:
            error, value = WRONG_FENCE_ERROR, str(sequence)
        elif kind == IDS_ARE_OFF:
            error, value = IDS_OFF, ""
        elif kind == ARE_OFF:
            error, value = SUBJECTS_OFF, ""
        elif kind == NOT_READY:
            error, value = SUBJECTS_NOT_READY, ""
        elif kind == NOT_KNOWN:
            error, value = SUBJECTS_FULL, str(self.subjects_max)
        else:
            error, value = IDS_FULL, str(self.ids_max)
        code, err_code, description = error
        return error_body(self.stream, code, err_code, description.replace("{}", value))

    @property
    def max_timestamp_us(self):
        return self.columns.max_timestamp_us if self.columns != NULL else 0

    def compose(self, *, first_offset, leader_epoch, high_watermark, group_index=0, group_count=1, decision=0):
        """The batch as one sealed message, the same bytes as `broker.api.batch.encode_batch` gives.

        Args:
            first_offset: The first record gets it; the others follow without a gap. Below 2**62.
            decision: Id of the sink's decision, below 2**128; 0: none.
        Raises:
            ValueError: there are no records, or a number is out of its range.
        """
        cdef Layout layout
        cdef bytes message
        cdef bytes decision_hex
        cdef int64_t first = -1, epoch = 0, mark = 0, index = 0, count = 0
        cdef char* to
        cdef char* at
        cdef Py_ssize_t size
        cdef const char* template_data = TEMPLATE_BYTES
        if self.columns == NULL:
            raise ValueError("a batch holds at least one record")
        try:
            first, epoch, mark, index, count = first_offset, leader_epoch, high_watermark, group_index, group_count
        except OverflowError:
            pass  # `check_place` says which number it was
        if first < 0 or first >> 62 or mark < 0 or (epoch | index | count) >> 32 or decision:
            check_place(first_offset, leader_epoch, high_watermark, group_index, group_count, decision)
        decision_hex = b"%032x" % decision if decision else NO_DECISION
        lay_out(&layout, self.columns)
        size = HEADER_SIZE + layout.body_size
        message = PyBytes_FromStringAndSize(NULL, size)
        to = message
        if size >= NOGIL_BYTES_MIN:
            with nogil:
                memcpy(to, template_data, HEADER_SIZE)
                write_body(to + HEADER_SIZE, &layout, self.columns, first)
        else:
            memcpy(to, template_data, HEADER_SIZE)
            write_body(to + HEADER_SIZE, &layout, self.columns, first)
        (<int64_t*>(to + BODY_LENGTH_POSITION))[0] = layout.body_size
        (<int64_t*>(to + ROWS_POSITION))[0] = self.columns.rows
        memcpy(to + BUFFERS_POSITION, layout.buffers, sizeof(layout.buffers))
        memcpy(to + NODES_POSITION, layout.nodes, sizeof(layout.nodes))
        at = to + VALUE_POSITION
        at = put_hex(at, FORMAT_VERSION_NUMBER, 4)
        at = put_hex(at, 0, 4)                                       # flags
        at = put_hex(at, first, 16)
        at = put_hex(at, first + self.columns.rows - 1, 16)
        at = put_hex(at, epoch, 8)
        at = put_hex(at, mark, 16)
        at = put_hex(at, <uint64_t>self.columns.max_timestamp_us, 16)
        at = put_hex(at, 0, 16)                                      # producer id
        at = put_hex(at, 0, 8)                                       # producer epoch
        at = put_hex(at, 0, 16)                                      # sequence
        at = put_hex(at, index, 8)
        at = put_hex(at, count, 8)
        memcpy(at, <const char*>decision_hex, 32)
        put_hex(at + 32, 0, 8)
        put_hex(at + 32, crc32c(message), 8)  # the CRC is taken while its own digits are zeros
        return message

    def acks(self, int64_t first_offset, leader=None, *, bint duplicate=False, int64_t now_us=0):
        """Acks of the awaited records, as one blob of PUBs for the connection.

        Args:
            first_offset: The offset that the batch got when it was appended.
            leader: True: ack only those who are content with the leader; False: only all others; None: everybody.
            duplicate: Whether to say that the records were there already.
            now_us: The time, which acks of envelopes give.
        """
        cdef bytes tail = ack_tail(self.partition, duplicate=True) if duplicate else self.ack_end
        return self.answers(self.ack_head, tail, first_offset, True, leader, None, 0, now_us)

    def errors(self, int code, int err_code, str description, leader=None, *, int ack_error=ACK_UNKNOWN):
        """The blob that `acks` gives, but with an error for each awaited record: nothing was stored.

        Args:
            code, err_code, description: JetStream's.
            ack_error: That of acks of envelopes; UNKNOWN: they get none.
        """
        cdef bytes body = error_body(self.stream, code, err_code, description)
        return self.answers(body, b"", 0, False, leader, body, ack_error, 0)

    cdef bytes answers(self, bytes head, bytes tail, int64_t first_offset, bint numbered, object leader, bytes error,
                       int ack_error, int64_t now_us):
        """The blob of answers. `error`: dropped records get this one; None: each gets its own."""
        cdef bytes blob = b""
        if self.columns != NULL and leader is not True and self.columns.awaited.size:
            blob = self.answer_rows(&self.columns.awaited, head, tail, first_offset, numbered)
        if self.columns != NULL and leader is not False and self.columns.awaited_leader.size:
            blob += self.answer_rows(&self.columns.awaited_leader, head, tail, first_offset, numbered)
        if self.columns != NULL and ack_error != ACK_UNKNOWN:
            if leader is not True and self.columns.enveloped_all:
                blob += self.envelope_acks(AWAITS_ALL, first_offset, ack_error, now_us)
            if leader is not False and self.columns.enveloped_leader:
                blob += self.envelope_acks(AWAITS_LEADER, first_offset, ack_error, now_us)
        if self.told_count and leader is not True:
            blob += self.dropped_answers(error, ack_error, now_us)
        return blob

    cdef bytes envelope_acks(self, int awaits, int64_t first_offset, int ack_error, int64_t now_us):
        cdef bytes stream = self.stream.encode()
        cdef Ack ack
        cdef Py_ssize_t size
        cdef bytes blob
        cdef char* to
        ack.stream.data, ack.stream.size = stream, len(stream)
        ack.partition_subject.data, ack.partition_subject.size = self.subject_utf8, len(self.subject_utf8)
        ack.committed_ns, ack.error = <uint64_t>(now_us * 1000), ack_error
        with nogil:
            size = write_acks(NULL, self.columns, awaits, &ack, first_offset)
        blob = PyBytes_FromStringAndSize(NULL, size)
        to = blob
        with nogil:
            write_acks(to, self.columns, awaits, &ack, first_offset)
        return blob

    cdef bytes answer_rows(self, const Buffer* rows, bytes head, bytes tail, int64_t first_offset, bint numbered):
        cdef Py_ssize_t size
        cdef bytes blob
        cdef const char* head_data = head
        cdef const char* tail_data = tail
        cdef Py_ssize_t head_size = len(head), tail_size = len(tail)
        cdef char* to
        if count_rows(rows) < NOGIL_ANSWERS_MIN:
            size = write_answers(NULL, self.columns, rows, head_data, head_size, tail_data, tail_size,
                                 first_offset, numbered)
            blob = PyBytes_FromStringAndSize(NULL, size)
            to = blob
            write_answers(to, self.columns, rows, head_data, head_size, tail_data, tail_size,
                          first_offset, numbered)
            return blob
        with nogil:
            size = write_answers(NULL, self.columns, rows, head_data, head_size, tail_data, tail_size,
                                 first_offset, numbered)
        blob = PyBytes_FromStringAndSize(NULL, size)
        to = blob
        with nogil:
            write_answers(to, self.columns, rows, head_data, head_size, tail_data, tail_size,
                          first_offset, numbered)
        return blob
