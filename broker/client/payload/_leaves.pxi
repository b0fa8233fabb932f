# Values without values in them: numbers, words, strings. What fits which column: json_columns.py.

cdef double[23] TENS
cdef int _power
for _power in range(23):
    TENS[_power] = 10.0 ** _power

cdef int64_t INT64_MAX_WHOLE_SECONDS = 9_223_372_036_854
cdef uint64_t SIGN_BIT = <uint64_t>1 << 63


cdef int put_leaf(Text* text, Node* node, uint8_t first) noexcept nogil:
    cdef const uint8_t* begin = text.at
    cdef int code, form
    cdef int32_t days
    cdef int64_t us
    cdef uint8_t truth
    cdef bint fits = False
    if first == c'"':
        code = read_string(text)
        if code != DECODED:
            return code
        if node.kind == STRING:
            return put_bytes(node, text.string, text.string_length)
        if node.kind == DATE:
            if read_date(text.string, text.string_length, &days):
                return put_fixed(node, &days)
        elif node.kind == INSTANT or node.kind == LOCAL_TIME:
            if read_time(text.string, text.string_length, node.kind == INSTANT, &us):
                return put_fixed(node, &us)
        elif node.kind == DECIMAL:
            if is_number(text.string, text.string_length):
                code = put_decimal(node, text.string, text.string + text.string_length, &fits)
                if fits:
                    return code
        elif node.kind == FLOAT:
            if put_word(node, text.string, text.string_length, &fits) == NO_MEMORY:
                return NO_MEMORY
            if fits:
                return DECODED
        text.at, text.column = begin, node
        return UNFIT
    if node.kind == STRING:  # its JSON, as it stands there
        code = pass_value(text)
        return put_bytes(node, begin, text.at - begin) if code == DECODED else code
    if node.kind == BOOL:
        truth = first == c't'
        if first == c't' or first == c'f':
            code = pass_word(text, b"true", 4) if truth else pass_word(text, b"false", 5)
            return put_fixed(node, &truth) if code == DECODED else code
        return unfit(text, node)
    if first == c'{' or first == c'[' or first == c't' or first == c'f':
        return unfit(text, node)
    code = pass_number(text, &form)
    if code != DECODED:
        return code
    if node.kind == INT or node.kind == UINT:
        if form == WHOLE:
            code = put_whole(node, begin, text.at, &fits)
    elif node.kind == FLOAT:
        if form == WORD:
            code = put_word(node, begin, text.at - begin, &fits)
        else:
            fits = True
            code = put_float(node, begin, text.at)
    elif node.kind == DECIMAL:
        if form != WORD:
            code = put_decimal(node, begin, text.at, &fits)
    elif node.kind == INSTANT and form == WHOLE:  # seconds since 1970
        if read_whole(begin, text.at, &us) and -INT64_MAX_WHOLE_SECONDS <= us <= INT64_MAX_WHOLE_SECONDS:
            us *= 1_000_000
            fits = True
            code = put_fixed(node, &us)
    if fits:
        return code
    text.at, text.column = begin, node
    return UNFIT


cdef inline bint read_magnitude(const uint8_t* at, const uint8_t* end, uint64_t* found) noexcept nogil:
    """Digits as a number; False: it is too large."""
    cdef uint64_t value = 0, digit
    if end - at > 20:
        return False
    while at < end:
        digit = at[0] - c'0'
        if value > <uint64_t>1844674407370955161u or (value == <uint64_t>1844674407370955161u and digit > 5):
            return False
        value = value * 10 + digit
        at += 1
    found[0] = value
    return True


cdef inline bint read_whole(const uint8_t* at, const uint8_t* end, int64_t* found) noexcept nogil:
    cdef bint is_negative = at[0] == c'-'
    cdef uint64_t value
    if not read_magnitude(at + is_negative, end, &value) or value > SIGN_BIT - (not is_negative):
        return False
    found[0] = <int64_t>(0 - value) if is_negative else <int64_t>value
    return True


cdef int put_whole(Node* node, const uint8_t* at, const uint8_t* end, bint* fits) noexcept nogil:
    cdef int64_t value
    cdef uint64_t magnitude
    cdef int shift = 64 - 8 * node.width
    if node.kind == UINT:
        if at[0] == c'-' or not read_magnitude(at, end, &magnitude) or (magnitude << shift) >> shift != magnitude:
            return DECODED
        fits[0] = True
        return put_fixed(node, &magnitude)  # the lower bytes come first
    if not read_whole(at, end, &value) or <int64_t>(<uint64_t>value << shift) >> shift != value:
        return DECODED
    fits[0] = True
    return put_fixed(node, &value)


cdef inline int put_double(Node* node, double value) noexcept nogil:
    cdef float narrow
    if node.width == 8:
        return put_fixed(node, &value)
    narrow = <float>value
    return put_fixed(node, &narrow)


cdef int put_word(Node* node, const uint8_t* at, int64_t length, bint* fits) noexcept nogil:
    """NaN, Infinity, INF, the last two with a sign too."""
    cdef bint is_negative = length > 0 and at[0] == c'-'
    if length == 3 and memcmp(at, b"NaN", 3) == 0:
        fits[0] = True
        return put_double(node, NAN)
    if is_negative or (length > 0 and at[0] == c'+'):
        at += 1
        length -= 1
        if length == 3 and memcmp(at, b"INF", 3) == 0:
            fits[0] = True
            return put_double(node, -INFINITY if is_negative else INFINITY)
    if length == 8 and memcmp(at, b"Infinity", 8) == 0:
        fits[0] = True
        return put_double(node, -INFINITY if is_negative else INFINITY)
    return DECODED


cdef int put_float(Node* node, const uint8_t* begin, const uint8_t* end) noexcept nogil:
    """The float nearest to the number. A product or quotient of two exact doubles is that; others are looked up."""
    cdef const uint8_t* at = begin
    cdef bint is_negative = at[0] == c'-', is_behind_point = False, is_exact = True
    cdef uint64_t digits = 0
    cdef int64_t exponent = 0, written = 0
    cdef int count = 0
    cdef double value
    at += is_negative
    while at < end and (at[0] | 32) != c'e':
        if at[0] == c'.':
            is_behind_point = True
        else:
            if count or at[0] != c'0':
                count += 1
            if count > 18:
                is_exact = False
            else:
                digits = digits * 10 + (at[0] - c'0')
                exponent -= is_behind_point
        at += 1
    if at < end:
        written = read_exponent(at + 1, end)
    exponent += written
    if is_exact and digits <= <uint64_t>1 << 53 and -22 <= exponent <= 22:
        value = <double>digits
        value = value * TENS[exponent] if exponent >= 0 else value / TENS[-exponent]
    else:
        value = looked_up(begin + is_negative, end)
    if node.width == 4:
        value = before_narrowing(value, begin + is_negative, end)
    return put_double(node, -value if is_negative else value)


cdef double looked_up(const uint8_t* begin, const uint8_t* end) noexcept nogil:
    """The double nearest to the number, in Python's way: exact, and the same in every locale."""
    cdef char[NUMBER_MAX + 1] copy
    memcpy(copy, begin, end - begin)
    copy[end - begin] = 0
    with gil:
        return PyOS_string_to_double(copy, NULL, NULL)


cdef double before_narrowing(double value, const uint8_t* begin, const uint8_t* end) noexcept nogil:
    """A double that becomes the float nearest to the number, not to the double: they differ if it is just between two."""
    cdef uint64_t bits
    memcpy(&bits, &value, 8)
    if value < 1e-46 or (bits & 0x1FFFFFFF != 0x10000000 and value >= 1.2e-38):
        return value
    with gil:
        return narrowed((<const char*>begin)[: end - begin], value)


cdef double narrowed(bytes number, double value) noexcept:
    """As `before_narrowing`, slowly: the value is between two floats, or smaller than those with all their digits."""
    cdef object exact = Fraction(Decimal(number.decode()))
    with np.errstate(all="ignore"):
        near = np.float32(value)
        found = [near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf))]
    distances = [abs((Fraction(float(each)) if np.isfinite(each) else 1 << 128) - exact) for each in found]
    return min((distance, int(each.view(np.uint32)) & 1, float(each)) for distance, each in zip(distances, found))[2]


cdef int64_t read_exponent(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """The digits behind an `e`, no further from 0 than 100,000."""
    cdef bint is_negative = at[0] == c'-'
    cdef int64_t found = 0
    if is_negative or at[0] == c'+':
        at += 1
    while at < end:
        found = min(found * 10 + (at[0] - c'0'), <int64_t>100_000)
        at += 1
    return -found if is_negative else found


cdef bint is_number(const uint8_t* begin, int64_t length) noexcept nogil:
    cdef Text text
    cdef int form
    text.at, text.end = begin, begin + length
    return length > 0 and pass_number(&text, &form) == DECODED and form != WORD and text.at == text.end


cdef int put_decimal(Node* node, const uint8_t* begin, const uint8_t* end, bint* fits) noexcept nogil:
    """The number, rounded half up to the scale, as Spark does."""
    cdef const uint8_t* at = begin
    cdef const uint8_t* stop = begin
    cdef bint is_negative = at[0] == c'-', is_behind_point = False, rounds_up = False
    cdef int64_t exponent = 0, count = 0, keep, i
    cdef u128 value = 0
    cdef int digit
    at += is_negative
    while stop < end and (stop[0] | 32) != c'e':
        stop += 1
    if stop < end:
        exponent = read_exponent(stop + 1, end)
    while at < stop and (at[0] == c'0' or at[0] == c'.'):  # zeros before the first digit
        exponent -= is_behind_point
        is_behind_point |= at[0] == c'.'
        at += 1
    begin = at
    while at < stop:
        if at[0] == c'.':
            is_behind_point = True
        else:
            count += 1
            exponent -= is_behind_point
        at += 1
    keep = count + exponent + node.scale  # so many digits has the scaled number before its point
    if count and keep > node.precision:
        return DECODED
    at, i = begin, 0
    while at < stop and i <= keep:
        if at[0] != c'.':
            digit = at[0] - c'0'
            if i == keep:
                rounds_up = digit >= 5
            else:
                value = value * 10 + digit
            i += 1
        at += 1
    while count and i < keep:
        value *= 10
        i += 1
    value += rounds_up
    if value >= ten_to(node.precision):
        return DECODED
    if is_negative:
        value = 0 - value
    fits[0] = True
    return put_fixed(node, &value)


cdef inline u128 ten_to(int power) noexcept nogil:
    cdef u128 found = 1
    while power:
        found *= 10
        power -= 1
    return found
