# Tokens of JSON (RFC 8259), and values that no column wants (`_json.J3`, `_json.J4`).
#
# Beyond the RFC, as Spark's reader: NaN, Infinity, +Infinity, -Infinity, +INF and -INF are numbers. Not as Spark's
# reader: nothing in single quotes, and no half of a surrogate pair, which has no UTF-8.

cdef struct Text:
    const uint8_t* begin
    const uint8_t* at
    const uint8_t* end
    const uint8_t* string  # the string that was read last: within the text, or in `scratch`
    int64_t string_length
    uint8_t* scratch
    int64_t scratch_capacity
    int depth
    int64_t places  # bytes that the row in hand has taken in lists and maps, but for strings
    Node* column  # that a value does not fit

cdef enum:  # what a number is
    WHOLE = 0
    FRACTION = 1
    WORD = 2  # NaN, Infinity, INF


cdef inline void pass_space(Text* text) noexcept nogil:
    while text.at < text.end and (
        text.at[0] == c' ' or text.at[0] == c'\n' or text.at[0] == c'\r' or text.at[0] == c'\t'
    ):
        text.at += 1


cdef inline int pass_word(Text* text, const char* word, int length) noexcept nogil:
    if text.end - text.at < length or memcmp(text.at, word, length) != 0:
        return SYNTAX
    text.at += length
    return DECODED


cdef inline int utf8_length(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Bytes of the character that begins here with a byte above 127; 0: it is none."""
    cdef uint8_t first = at[0]
    cdef int64_t left = end - at
    if first < 0xC2 or first > 0xF4:
        return 0
    if left < 2 or (at[1] & 0xC0) != 0x80:
        return 0
    if first < 0xE0:
        return 2
    if left < 3 or (at[2] & 0xC0) != 0x80:
        return 0
    if first < 0xF0:
        if (first == 0xE0 and at[1] < 0xA0) or (first == 0xED and at[1] > 0x9F):
            return 0
        return 3
    if left < 4 or (at[3] & 0xC0) != 0x80:
        return 0
    if (first == 0xF0 and at[1] < 0x90) or (first == 0xF4 and at[1] > 0x8F):
        return 0
    return 4


cdef int read_string(Text* text) noexcept nogil:
    """Read the string that begins here with a quote into `string`."""
    cdef const uint8_t* at = text.at + 1
    cdef const uint8_t* end = text.end
    cdef int length
    cdef uint8_t c
    if text.at >= end or text.at[0] != c'"':
        return SYNTAX
    text.string = at
    while at < end:
        c = at[0]
        if c == c'"':
            text.string_length = at - text.string
            text.at = at + 1
            return DECODED
        if c == c'\\':
            text.at = at
            return read_escaped(text)
        if c < 0x20:
            text.at = at
            return SYNTAX
        if c < 0x80:
            at += 1
            continue
        length = utf8_length(at, end)
        if not length:
            text.at = at
            return ENCODING
        at += length
    text.at = at
    return SYNTAX


cdef int read_escaped(Text* text) noexcept nogil:
    """Go on with a string at its first backslash: what it stands for is in `scratch`, and never longer."""
    cdef const uint8_t* at = text.at
    cdef const uint8_t* end = text.end
    cdef int64_t capacity = end - text.string, length = at - text.string
    cdef uint8_t* out
    cdef uint8_t c
    cdef int width, i
    cdef int64_t code, low
    cdef void* place
    if capacity > text.scratch_capacity:
        place = realloc(text.scratch, capacity)
        if place == NULL:
            return NO_MEMORY
        text.scratch, text.scratch_capacity = <uint8_t*>place, capacity
    out = text.scratch
    memcpy(out, text.string, length)
    while at < end:
        c = at[0]
        text.at = at
        if c == c'"':
            text.string, text.string_length = out, length
            text.at = at + 1
            return DECODED
        if c < 0x20:
            return SYNTAX
        if c >= 0x80:
            width = utf8_length(at, end)
            if not width:
                return ENCODING
            for i in range(width):
                out[length + i] = at[i]
            at += width
            length += width
            continue
        at += 1
        if c == c'\\':
            if at >= end:
                return SYNTAX
            c = at[0]
            at += 1
            if c == c'u':
                code = hex4(at, end)
                if code < 0:
                    return SYNTAX
                at += 4
                if 0xD800 <= code < 0xE000:
                    low = -1
                    if code < 0xDC00 and end - at >= 6 and at[0] == c'\\' and at[1] == c'u':
                        low = hex4(at + 2, end)
                    if not 0xDC00 <= low < 0xE000:
                        return ENCODING
                    at += 6
                    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                length += put_utf8(out + length, code)
                continue
            if c == c'n':
                c = c'\n'
            elif c == c't':
                c = c'\t'
            elif c == c'r':
                c = c'\r'
            elif c == c'b':
                c = 8
            elif c == c'f':
                c = 12
            elif c != c'"' and c != c'\\' and c != c'/':
                return SYNTAX
        out[length] = c
        length += 1
    text.at = at
    return SYNTAX


cdef inline int64_t hex4(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef int64_t found = 0
    cdef int i
    cdef uint8_t c
    if end - at < 4:
        return -1
    for i in range(4):
        c = at[i]
        if c'0' <= c <= c'9':
            found = found * 16 + c - c'0'
        elif c'a' <= (c | 32) <= c'f':
            found = found * 16 + (c | 32) - c'a' + 10
        else:
            return -1
    return found


cdef inline int put_utf8(uint8_t* out, int64_t code) noexcept nogil:
    if code < 0x80:
        out[0] = <uint8_t>code
        return 1
    if code < 0x800:
        out[0], out[1] = <uint8_t>(0xC0 | (code >> 6)), <uint8_t>(0x80 | (code & 63))
        return 2
    if code < 0x10000:
        out[0], out[1] = <uint8_t>(0xE0 | (code >> 12)), <uint8_t>(0x80 | ((code >> 6) & 63))
        out[2] = <uint8_t>(0x80 | (code & 63))
        return 3
    out[0], out[1] = <uint8_t>(0xF0 | (code >> 18)), <uint8_t>(0x80 | ((code >> 12) & 63))
    out[2], out[3] = <uint8_t>(0x80 | ((code >> 6) & 63)), <uint8_t>(0x80 | (code & 63))
    return 4


cdef int read_name(Text* text) noexcept nogil:
    """Read a name of an object, and go behind the colon, to its value."""
    cdef int code = read_string(text)
    if code != DECODED:
        return code
    pass_space(text)
    if text.at >= text.end or text.at[0] != c':':
        return SYNTAX
    text.at += 1
    pass_space(text)
    return DECODED


cdef int pass_number(Text* text, int* form) noexcept nogil:
    """Go behind the number that begins here."""
    cdef const uint8_t* begin = text.at
    cdef const uint8_t* at = text.at
    cdef const uint8_t* end = text.end
    cdef const uint8_t* digits
    form[0] = WHOLE
    if at < end and (at[0] == c'-' or at[0] == c'+'):
        at += 1
    if at < end and (at[0] == c'N' or at[0] == c'I'):
        form[0] = WORD
        text.at = at
        if at[0] == c'N':
            return SYNTAX if at != begin else pass_word(text, b"NaN", 3)
        if pass_word(text, b"Infinity", 8) == DECODED:
            return DECODED
        return SYNTAX if at == begin else pass_word(text, b"INF", 3)
    digits = at
    while at < end and c'0' <= at[0] <= c'9':
        at += 1
    if at == digits or begin[0] == c'+' or (digits[0] == c'0' and at - digits > 1):
        text.at = at
        return SYNTAX
    if at < end and at[0] == c'.':
        form[0] = FRACTION
        at += 1
        digits = at
        while at < end and c'0' <= at[0] <= c'9':
            at += 1
        if at == digits:
            text.at = at
            return SYNTAX
    if at < end and (at[0] | 32) == c'e':
        form[0] = FRACTION
        at += 1
        if at < end and (at[0] == c'-' or at[0] == c'+'):
            at += 1
        digits = at
        while at < end and c'0' <= at[0] <= c'9':
            at += 1
        if at == digits:
            text.at = at
            return SYNTAX
    text.at = at
    return DECODED if at - begin <= NUMBER_MAX else SYNTAX


cdef int pass_value(Text* text) noexcept nogil:
    """Go behind the value that begins here, checking it."""
    cdef uint64_t[16] is_object  # a bit for each level
    cdef int depth = 0, code, form, above = text.depth
    cdef uint8_t c
    while True:
        if text.at >= text.end:
            return SYNTAX
        c = text.at[0]
        if c == c'{' or c == c'[':
            if above + depth >= DEPTH_MAX:
                return DEEP
            if c == c'{':
                is_object[depth >> 6] |= <uint64_t>1 << (depth & 63)
            else:
                is_object[depth >> 6] &= ~(<uint64_t>1 << (depth & 63))
            depth += 1
            text.at += 1
            pass_space(text)
            if text.at >= text.end:
                return SYNTAX
            if text.at[0] != (c'}' if c == c'{' else c']'):
                if c == c'{':
                    code = read_name(text)
                    if code != DECODED:
                        return code
                continue
            text.at += 1
            depth -= 1
        else:
            if c == c'"':
                code = read_string(text)
            elif c == c't':
                code = pass_word(text, b"true", 4)
            elif c == c'f':
                code = pass_word(text, b"false", 5)
            elif c == c'n':
                code = pass_word(text, b"null", 4)
            else:
                code = pass_number(text, &form)
            if code != DECODED:
                return code
        while depth:
            pass_space(text)
            if text.at >= text.end:
                return SYNTAX
            c = text.at[0]
            text.at += 1
            if c == c',':
                pass_space(text)
                if (is_object[(depth - 1) >> 6] >> ((depth - 1) & 63)) & 1:
                    code = read_name(text)
                    if code != DECODED:
                        return code
                break
            if c != (c'}' if (is_object[(depth - 1) >> 6] >> ((depth - 1) & 63)) & 1 else c']'):
                text.at -= 1
                return SYNTAX
            depth -= 1
        if not depth:
            return DECODED


cdef int unfit(Text* text, Node* node) noexcept nogil:
    """The value that begins here is none for the column. If it is no JSON, that is the reason."""
    cdef const uint8_t* begin = text.at
    cdef int code = pass_value(text)
    if code != DECODED:
        return code
    text.at = begin
    text.column = node
    return UNFIT
