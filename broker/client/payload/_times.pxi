# Dates and times in strings, as Spark casts them: json_columns.V3 says which.

cdef int64_t DAY_US = 86_400_000_000


cdef inline int read_digits(const uint8_t** at, const uint8_t* end, int least, int most, int64_t* found) noexcept nogil:
    """Read `least` to `most` digits; returns how many there were, or 0."""
    cdef int count = 0
    found[0] = 0
    while at[0] < end and count < most and c'0' <= at[0][0] <= c'9':
        found[0] = found[0] * 10 + (at[0][0] - c'0')
        at[0] += 1
        count += 1
    return count if count >= least else 0


cdef int64_t days_of(int64_t year, int64_t month, int64_t day) noexcept nogil:
    """Days from 1970-01-01, in the calendar of today, also before 1582. The year counts from March (H. Hinnant)."""
    cdef int64_t era, of_era, of_year
    year -= month <= 2
    era = year // 400 if year >= 0 else -1
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


cdef inline int64_t days_in(int64_t year, int64_t month) noexcept nogil:
    if month == 2:
        return 29 if (year % 4 == 0 and year % 100 != 0) or year % 400 == 0 else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


cdef int read_day(const uint8_t** at, const uint8_t* end, int64_t* days) noexcept nogil:
    """Read yyyy, yyyy-m[m] or yyyy-m[m]-d[d]; returns how many of the three there were, or 0."""
    cdef int64_t year, month = 1, day = 1
    cdef int parts = 1
    if not read_digits(at, end, 4, 4, &year):
        return 0
    if at[0] < end and at[0][0] == c'-':
        at[0] += 1
        parts = 2
        if not read_digits(at, end, 1, 2, &month):
            return 0
        if at[0] < end and at[0][0] == c'-':
            at[0] += 1
            parts = 3
            if not read_digits(at, end, 1, 2, &day):
                return 0
    if not 1 <= month <= 12 or not 1 <= day <= days_in(year, month):
        return 0
    days[0] = days_of(year, month, day)
    return parts


cdef void trim(const uint8_t** at, const uint8_t** end) noexcept nogil:
    while at[0] < end[0] and at[0][0] <= 32:
        at[0] += 1
    while at[0] < end[0] and (end[0] - 1)[0] <= 32:
        end[0] -= 1


cdef bint read_date(const uint8_t* at, int64_t length, int32_t* found) noexcept nogil:
    cdef const uint8_t* end = at + length
    cdef int64_t days
    cdef int parts
    trim(&at, &end)
    parts = read_day(&at, end, &days)
    if not parts or (at < end and not (parts == 3 and (at[0] == c'T' or at[0] == c' '))):
        return False
    found[0] = <int32_t>days
    return True


cdef bint read_time(const uint8_t* at, int64_t length, bint has_zone, int64_t* found) noexcept nogil:
    """A day, or a day and a time of it; for an instant with a zone behind the seconds, else UTC."""
    cdef const uint8_t* end = at + length
    cdef int64_t days, hour = 0, minute = 0, second = 0, us = 0, offset_s = 0
    cdef int parts, count = 0
    cdef bint has_seconds = False
    trim(&at, &end)
    parts = read_day(&at, end, &days)
    if not parts:
        return False
    if at < end:
        if parts < 3 or (at[0] != c'T' and at[0] != c' '):
            return False
        at += 1
        if not read_digits(&at, end, 1, 2, &hour):
            return False
        if at < end and at[0] == c':':
            at += 1
            if not read_digits(&at, end, 1, 2, &minute):
                return False
            if at < end and at[0] == c':':
                at += 1
                if not read_digits(&at, end, 1, 2, &second):
                    return False
                has_seconds = True
                if at < end and at[0] == c'.':
                    at += 1
                    while at < end and c'0' <= at[0] <= c'9':
                        if count < 6:
                            us = us * 10 + (at[0] - c'0')
                            count += 1
                        at += 1
                    while count < 6:
                        us *= 10
                        count += 1
        if hour > 23 or minute > 59 or second > 59:
            return False
        if at < end and not (has_zone and has_seconds and read_zone(at, end, &offset_s)):
            return False
    found[0] = days * DAY_US + (hour * 3600 + minute * 60 + second - offset_s) * 1_000_000 + us
    return True


cdef bint read_zone(const uint8_t* at, const uint8_t* end, int64_t* found) noexcept nogil:
    """Z, UTC, or an offset: +h, +hh, +hhmm, +hh:mm, +hh:mm:ss."""
    cdef int64_t hours, minutes = 0, seconds = 0
    cdef bint is_negative
    cdef int count
    while at < end and at[0] == c' ':
        at += 1
    if end - at == 1 and at[0] == c'Z':
        return True
    if end - at == 3 and memcmp(at, b"UTC", 3) == 0:
        return True
    if at >= end or (at[0] != c'+' and at[0] != c'-'):
        return False
    is_negative = at[0] == c'-'
    at += 1
    count = read_digits(&at, end, 1, 2, &hours)
    if not count:
        return False
    if at < end and at[0] == c':':
        at += 1
        if not read_digits(&at, end, 2, 2, &minutes):
            return False
        if at < end and at[0] == c':':
            at += 1
            if not read_digits(&at, end, 2, 2, &seconds):
                return False
    elif at < end and count == 2 and not read_digits(&at, end, 2, 2, &minutes):
        return False
    if at != end or minutes > 59 or seconds > 59 or hours * 3600 + minutes * 60 + seconds > 64_800:
        return False
    found[0] = hours * 3600 + minutes * 60 + seconds
    if is_negative:
        found[0] = -found[0]
    return True
