# The fate of a message: rules.py applied to its bytes in place, then the record or the answer that follows.
#
# D1  Columns change only in `finish`, when the message is complete.
# D2  A slot is used only while this connection owns its builder, which another Intake may take over.

cdef enum State:
    AT_LINE                     # a control line is next, or has come in part
    IN_HEADERS
    IN_COOKIE                   # the bytes of a payload that tell an envelope
    IN_ENVELOPE                 # payload that begins with the cookie
    IN_VALUE                    # payload of a record that will be stored
    IN_SKIPPED                  # payload of any other message
    AT_END                      # CR LF, or LF, is next


cdef struct Connection:
    uint64_t number             # its Intake's, which no other Intake of this process has
    Py_ssize_t line_max
    Py_ssize_t payload_max
    Py_ssize_t reply_size_max
    const char* reply_prefixes  # each behind a byte that is its length; the Intake keeps them alive
    Py_ssize_t reply_prefixes_size
    RouteTable table
    Buffer ending               # uint64_t sids: their routes are dropped behind the message that is half read
    int64_t position            # bytes that were fed so far on this connection
    State state
    Buffer line                 # a control line that has come in part, or that of a message that has
    Buffer header               # header block of a message that has come in part
    Buffer payload              # its payload, if that begins with the cookie
    Py_ssize_t missing          # bytes still to come in this state
    # The current message
    ControlLine message
    const char* line_data
    const char* header_data     # NULL: there is none, or it is not read
    Buffer spans                # the message's headers, as HeaderSpan
    bint has_envelope
    bint has_inbox              # it is told at the ack inbox of its envelope, if anywhere
    bint inbox_may_be_told
    Envelope envelope
    Buffer envelope_spans       # the envelope's headers, as HeaderSpan from the payload on
    const char* value           # NULL: it lies in the value column
    Options options
    int fate
    Slot* slot
    bint reply_acks             # as its slot had it when the fate was decided
    bint expects_offset         # its envelope says which offset it is to get
    Py_ssize_t record_bytes_max
    bint oversize
    bint tombstone
    int awaits                  # AWAITS_*
    # Results, until the caller takes them
    Buffer operations           # struct Operation
    Buffer operation_text
    Buffer answers
    Buffer dirty_slots          # Slot*, in the order of their first record; one whose `listed_at` is elsewhere is stale
    int64_t[FATE_COUNT] fates
    int64_t byte_count
    int64_t unanswerable
    # Failure
    const char* problem         # NULL while all is well
    int64_t problem_position
    char[64] problem_excerpt
    Py_ssize_t problem_excerpt_size


cdef int decide(Connection* self) noexcept nogil:
    """Apply rules.py to the current message: set its fate, slot, options, tombstone and awaits."""
    cdef const char* subject = self.line_data + self.message.subject_at
    cdef Py_ssize_t subject_size = self.message.subject_size
    cdef Route* route = find_route(&self.table, self.message.sid)
    cdef Options* options = &self.options
    cdef Slot* slot
    self.tombstone = self.expects_offset = False
    self.slot = NULL
    if route == NULL:
        self.fate = UNROUTED
        return 0
    slot = route.lead
    if subject_size >= 7 and memcmp(subject, b"_INBOX.", 7) == 0:
        self.fate = SKIPPED_INBOX
        return 0
    if subject[0] == c'$':
        self.fate = SKIPPED_SYSTEM
        return 0
    self.oversize = is_oversize(slot, &self.message)
    if not self.message.has_headers:
        no_options(options)
    elif self.header_data == NULL or (
        self.oversize and self.message.header_size > HEADER_PEEK_BYTES_MAX
    ):
        no_options(options)
    elif read_headers(options, self.header_data, self.message.header_size, &self.spans) < 0:
        return -1
    if self.has_envelope:
        add_options(self)
    if route.by != BY_FIXED:
        slot = route.slots[partition_of(self, route)]
        if slot == NULL:
            self.fate = SKIPPED_OTHER_PARTITION
            return 0
    if slot.owner != self.number:
        self.fate = UNROUTED
        return 0
    self.slot = slot
    self.reply_acks, self.record_bytes_max = slot.reply_acks, slot.record_bytes_max
    self.expects_offset = self.has_envelope and slot.expects_offsets
    self.has_inbox = self.has_envelope and self.envelope.ack_inbox.size > 0
    if self.has_inbox:
        self.inbox_may_be_told = may_be_acked(self)
    self.fate = judge(self, slot, subject, subject_size)
    return 0


cdef void add_options(Connection* self) noexcept nogil:
    """Add the options of the envelope: its headers come behind those of NATS, and its key goes before theirs."""
    cdef const HeaderSpan* header = <const HeaderSpan*>self.envelope_spans.data
    cdef Py_ssize_t i
    for i in range(self.envelope.header_count):
        self.options.count += 1
        note_option(&self.options, self.envelope.base, &header[i])
    if self.envelope.key.size:
        self.options.key = self.envelope.key


cdef int partition_of(Connection* self, const Route* route) noexcept nogil:
    cdef const char* subject = self.line_data + self.message.subject_at
    cdef Span token
    if route.by == BY_TOKEN:
        token = token_of(subject, self.message.subject_size, route.token)
        return crc32_of(subject + token.at, token.size) % <uint32_t>route.count
    if route.by == BY_KEY and self.options.key.size != OPTION_ABSENT:
        return crc32_of(self.options.key.data, self.options.key.size) % <uint32_t>route.count
    return crc32_of(subject, self.message.subject_size) % <uint32_t>route.count


cdef int judge(Connection* self, Slot* slot, const char* subject, Py_ssize_t subject_size) noexcept nogil:
    """Apply rules 3 to 10: return the fate, and set `awaits` and `tombstone`."""
    cdef Options* options = &self.options
    if options.malformed:
        return REFUSED_BAD_HEADER
    if not (
        is_utf8(subject, subject_size) and options.names_utf8
        and is_utf8(self.line_data + self.message.reply_at, self.message.reply_size)
    ):
        return REFUSED_BAD_UTF8
    if slot.reply_acks:
        if options.expected_stream.size > 0 and not text_is(&options.expected_stream, slot.stream, slot.stream_size
        ):
            return REFUSED_EXPECTED_STREAM
        if options.expects_last and slot.partition_count > 1:
            return REFUSED_EXPECTED_LAST_PARTITIONS
        if options.expects_unknown:
            return REFUSED_EXPECTED_LAST_UNKNOWN
        if options.expected_subject.size > 0:
            if not text_is(&options.expected_subject, subject, subject_size):
                return REFUSED_EXPECTED_LAST_OTHER_SUBJECT
            if options.expected_subject_sequence.size <= 0:
                return REFUSED_EXPECTED_LAST_NO_SEQUENCE
    self.awaits = awaits_of_policy(self.envelope.ack_policy) if self.has_envelope else slot.awaits_by_default
    if options.ack.size != OPTION_ABSENT:
        if text_is(&options.ack, b"all", 3):
            self.awaits = AWAITS_ALL
        elif text_is(&options.ack, b"leader", 6):
            self.awaits = AWAITS_LEADER
        elif text_is(&options.ack, b"none", 4):
            self.awaits = AWAITS_NONE
        else:
            return REFUSED_BAD_ACK
    if options.fence.size != OPTION_ABSENT and sequence_of(options.fence.data, options.fence.size) == NO_SEQUENCE:
        return REFUSED_BAD_FENCE
    if options.tombstone.size != OPTION_ABSENT:
        if text_is(&options.tombstone, b"1", 1) or text_is(&options.tombstone, b"true", 4):
            if options.key.size == OPTION_ABSENT:
                return REFUSED_TOMBSTONE_WITHOUT_KEY
            self.tombstone = True
        elif not (text_is(&options.tombstone, b"0", 1) or text_is(&options.tombstone, b"false", 5)):
            return REFUSED_BAD_TOMBSTONE
    if self.oversize:
        return REFUSED_TOO_LARGE
    if slot.columns != NULL and slot.columns.weight + weight(self) > slot.batch_bytes_hard and slot.columns.rows:
        return REFUSED_BATCH_FULL
    if self.has_inbox:
        if not slot.reply_acks and (
            options.expects_last or options.expected_stream.size > 0 or options.fence.size != OPTION_ABSENT
        ):
            self.awaits = AWAITS_NONE
    elif not slot.reply_acks or self.message.reply_size == 0:
        self.awaits = AWAITS_NONE
    return STORED


cdef inline int awaits_of_policy(uint32_t policy) noexcept nogil:
    if policy == 0:
        return AWAITS_LEADER
    return AWAITS_ALL if policy == 1 else AWAITS_NONE


cdef inline Py_ssize_t weight(Connection* self) noexcept nogil:
    return (
        self.message.subject_size + self.message.reply_size + self.message.size
        + RECORD_WEIGHT_BYTES + HEADER_WEIGHT_BYTES * self.options.count
    )


cdef inline bint is_answerable(const Connection* self) noexcept nogil:
    """Whether its reply subject may be answered."""
    return may_be_told(self, self.line_data + self.message.reply_at, self.message.reply_size)


cdef bint may_be_told(const Connection* self, const char* reply, Py_ssize_t reply_size) noexcept nogil:
    """Whether an answer may go to a subject (`rules.R5`)."""
    cdef const char* prefix = self.reply_prefixes
    cdef const char* end = prefix + self.reply_prefixes_size
    cdef Py_ssize_t size
    if reply_size > self.reply_size_max or reply[0] == c'$':
        return False
    while prefix < end:
        size = <unsigned char>prefix[0]
        if size <= reply_size and memcmp(reply, prefix + 1, size) == 0:
            return True
        prefix += 1 + size
    return False


cdef bint may_be_acked(const Connection* self) noexcept nogil:
    """Whether the ack inbox of its envelope may be told, and the ack is not too long (`rules.R9`)."""
    cdef const Envelope* found = &self.envelope
    return (
        may_be_told(self, found.ack_inbox.data, found.ack_inbox.size) and is_publishable(&found.ack_inbox)
        and self.slot.stream_size + self.slot.subject_size + self.message.subject_size + found.ack_inbox.size
        + found.correlation_id.size <= ACK_TEXTS_BYTES
    )


cdef int finish(Connection* self, const char* value, int64_t now_us) noexcept nogil:
    """Count a message that is complete, and store or answer it. `value` NULL: its value is in the column already."""
    cdef int fate = self.fate
    if fate == STORED and add_record(self, value, now_us) < 0:
        if self.slot.columns != NULL:
            roll_back(self.slot.columns)
        return -1
    self.fates[fate] += 1
    self.byte_count += self.message.size
    if fate >= FIRST_REFUSAL and self.has_inbox:
        if not self.inbox_may_be_told:
            self.unanswerable += 1
        elif ack_errors[fate] != ACK_UNKNOWN and write_ack_refusal(self, fate, now_us) < 0:
            return -1
    elif fate >= FIRST_REFUSAL and self.reply_acks and self.message.reply_size:
        if not is_answerable(self):
            self.unanswerable += 1
        elif write_refusal(
            &self.answers, self.slot, fate, self.line_data + self.message.reply_at, self.message.reply_size,
            self.message.subject_size + self.message.reply_size + self.message.size, self.record_bytes_max
        ) < 0:
            return -1
    self.slot = NULL
    return 0


cdef int write_ack_refusal(Connection* self, int fate, int64_t now_us) noexcept nogil:
    """Append the PUB that tells the ack inbox of a refused message. Returns 0; -1: no memory."""
    cdef Ack ack
    ack.stream.data, ack.stream.size = self.slot.stream, self.slot.stream_size
    ack.partition_subject.data, ack.partition_subject.size = self.slot.subject, self.slot.subject_size
    ack.subject.data, ack.subject.size = self.line_data + self.message.subject_at, self.message.subject_size
    ack.inbox, ack.correlation_id = self.envelope.ack_inbox, self.envelope.correlation_id
    ack.policy, ack.offset, ack.error = self.envelope.ack_policy, 0, ack_errors[fate]
    ack.received_ns = <uint64_t>(now_us * 1000)
    ack.committed_ns = 0
    if reserve(&self.answers, ack_pub_size(&ack)) < 0:
        return -1
    self.answers.size = put_ack_pub(self.answers.data + self.answers.size, &ack) - self.answers.data
    return 0


cdef int add_record(Connection* self, const char* value, int64_t now_us) noexcept nogil:
    cdef Slot* slot = self.slot
    cdef ControlLine* message = &self.message
    cdef Options* options = &self.options
    cdef Columns* columns = slot.columns
    cdef Py_ssize_t row, size, header_row, value_size = message.size - message.header_size
    cdef int32_t row_number
    if self.has_envelope:
        value_size = self.envelope.value.size
    if columns == NULL:
        columns = slot.columns = take_columns()
        if columns == NULL:
            return -1
    row = columns.rows
    if row == 0 and touch(self, slot) < 0:
        return -1
    if reserve(&columns.timestamps, sizeof(int64_t)) < 0 or reserve(&columns.conditions, sizeof(Condition)) < 0:
        return -1
    (<int64_t*>(columns.timestamps.data + columns.timestamps.size))[0] = now_us
    columns.timestamps.size += sizeof(int64_t)
    size = message.subject_size + message.reply_size
    if (
        append(&columns.subject.data, self.line_data + message.subject_at, message.subject_size) < 0
        or mark(&columns.subject, row, True, columns.subject.data.size) < 0
    ):
        return -1
    if self.tombstone:
        if mark(&columns.value, row, False, columns.value.data.size) < 0:
            return -1
    else:
        if value != NULL:
            if append(&columns.value.data, value, value_size) < 0:
                return -1
        else:
            columns.value.data.size += value_size
        if mark(&columns.value, row, True, columns.value.data.size) < 0:
            return -1
        size += value_size
    if options.key.size != OPTION_ABSENT:
        if append(&columns.key.data, options.key.data, options.key.size) < 0:
            return -1
        size += options.key.size
    if mark(&columns.key, row, options.key.size != OPTION_ABSENT, columns.key.data.size) < 0:
        return -1
    if message.reply_size and append(&columns.reply.data, self.line_data + message.reply_at, message.reply_size) < 0:
        return -1
    if mark(&columns.reply, row, message.reply_size > 0, columns.reply.data.size) < 0:
        return -1
    if message.has_headers or options.count:
        size -= columns.header_key.data.size + columns.header_value.data.size
        header_row = columns.header_rows
        if message.has_headers and add_headers(columns, self.header_data, &self.spans, &header_row) < 0:
            return -1
        if self.has_envelope and add_headers(
            columns, self.envelope.base, &self.envelope_spans, &header_row
        ) < 0:
            return -1
        if mark(&columns.headers, row, True, header_row) < 0:
            return -1
        size += columns.header_key.data.size + columns.header_value.data.size
    elif mark(&columns.headers, row, False, columns.header_rows) < 0:
        return -1
    if self.has_inbox:
        if self.inbox_may_be_told:
            if add_enveloped(columns, &self.envelope, row, self.awaits) < 0:
                return -1
            size += self.envelope.ack_inbox.size + self.envelope.correlation_id.size
        elif self.awaits != AWAITS_NONE:
            self.unanswerable += 1
    elif self.awaits != AWAITS_NONE:
        if not is_answerable(self):
            self.unanswerable += 1
        else:
            row_number = <int32_t>row
            if append(
                &columns.awaited if self.awaits == AWAITS_ALL else &columns.awaited_leader,
                <const char*>&row_number, sizeof(int32_t)
            ) < 0:
                return -1
    if options.count or self.expects_offset:
        note_condition(self, columns)
        columns.header_rows += options.count
    columns.rows = row + 1
    columns.byte_count += size
    columns.weight += weight(self)
    if now_us > columns.max_timestamp_us:
        columns.max_timestamp_us = now_us
    slot.arrived = slot.arriving = 0
    return 0


cdef void note_condition(Connection* self, Columns* columns) noexcept nogil:
    """Note the id and the expectations of the record that is being added, if it has any (`rules.R6`, `rules.R7`).

    The caller has made room for them.
    """
    cdef Options* options = &self.options
    cdef Condition* condition = <Condition*>(columns.conditions.data + columns.conditions.size)
    cdef bint minds_expectations = self.reply_acks
    condition.id_header = condition.expected_header = -1
    condition.expected_sequence = condition.expected_subject_sequence = condition.fence = -1
    if options.msg_id.size > 0:
        condition.id_header = <int32_t>(columns.header_rows + options.msg_id_at)
    if minds_expectations and options.expected_id.size > 0:
        condition.expected_header = <int32_t>(columns.header_rows + options.expected_id_at)
    if minds_expectations and options.expected_sequence.size > 0:
        condition.expected_sequence = sequence_of(options.expected_sequence.data, options.expected_sequence.size)
    if minds_expectations and options.expected_subject_sequence.size > 0:
        condition.expected_subject_sequence = sequence_of(options.expected_subject_sequence.data,
                                                          options.expected_subject_sequence.size)
    if minds_expectations and options.fence.size != OPTION_ABSENT:
        condition.fence = sequence_of(options.fence.data, options.fence.size)
    if self.expects_offset and condition.expected_sequence < 0:
        condition.expected_sequence = self.envelope.offset if self.envelope.offset >= -1 else NO_SEQUENCE
    if (
        condition.id_header < 0 and condition.expected_header < 0 and condition.fence < 0
        and condition.expected_sequence < 0 and condition.expected_subject_sequence < 0
    ):
        return
    condition.row = <int32_t>columns.rows
    if self.has_inbox:
        condition.may_be_told = self.inbox_may_be_told
    else:
        condition.may_be_told = self.reply_acks and self.message.reply_size > 0 and is_answerable(self)
    columns.id_count += condition.id_header >= 0
    columns.expected_id_count += condition.expected_header >= 0
    columns.expected_subject_count += condition.expected_subject_sequence >= 0
    columns.conditions.size += sizeof(Condition)


cdef inline int64_t sequence_of(const char* text, Py_ssize_t size) noexcept nogil:
    cdef uint64_t number
    return <int64_t>number if read_number(text, size, &number) else NO_SEQUENCE


cdef int touch(Connection* self, Slot* slot) noexcept nogil:
    """List a slot as dirty, behind all others: it gets its first record. Returns 0; -1: no memory."""
    cdef Py_ssize_t place = self.dirty_slots.size
    if append(&self.dirty_slots, <const char*>&slot, sizeof(Slot*)) < 0:
        return -1
    slot.listed = True
    slot.listed_at = place
    return 0


cdef void forget_arrived(Slot* slot) noexcept nogil:
    """Drop a value that has arrived in part, and also the columns if nothing else is in them."""
    slot.arrived = slot.arriving = 0
    if slot.columns != NULL and slot.columns.rows == 0:
        give_columns(slot.columns)
        slot.columns = NULL


cdef int adopt(Connection* self, Slot* slot) noexcept nogil:
    """Take a slot over, as this connection routes to it now. It may have records, even from another Intake."""
    if slot.owner != self.number:
        slot.owner = self.number
        slot.listed = False
        forget_arrived(slot)
    if slot.columns != NULL and slot.columns.rows and not slot.listed:
        return touch(self, slot)
    return 0
