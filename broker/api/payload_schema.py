"""The columns of a stream's JSON objects, as a text that is kept with the stream: DDL, as Spark has it.

    item BIGINT, price DOUBLE, tags ARRAY<STRING>, pos STRUCT<x: INT, `y axis`: INT>

    text     column, …            comments from -- to the end of a line
    column   name type            in a STRUCT  name: type  (the colon may be left out)
    name     A-Z a-z 0-9 _ ; any other name stands in backticks, and a backtick in it twice
    type     BOOLEAN TINYINT SMALLINT INT BIGINT FLOAT DOUBLE DECIMAL(p,s) STRING DATE TIMESTAMP TIMESTAMP_NTZ
             ARRAY<type> STRUCT<column, …> MAP<STRING, type>

D1  One schema has one text, which is kept (`canonical`), and is its own canonical text. So two schemas are equal if
    their texts are, and what fits the limit once always does.
D2  No rule here depends on tables of Unicode, and none may ever refuse a text that an earlier release has kept: brokers
    have to judge a command alike (`metadata/shapes.py`), and a catalog has to open.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from broker.api.errors import InvalidSetting

KEY: Final = "payload_schema"
LENGTH_MAX: Final = 16_384
"""Characters of the kept text: each broker has it in memory, and each snapshot of the catalog."""
GIVEN_MAX: Final = 2 * LENGTH_MAX
"""Characters of a text that is given, with its comments and spaces."""
LEVELS_MAX: Final = 64
"""Levels of a schema, also of one that a reader gives."""
OF_RECORDS: Final = ("offset", "timestamp", "subject", "key", "headers", "reply", "partition", "stream", "_corrupt")
"""Columns beside those of the objects, in Python or in Spark, whose names no column may have."""

PLAIN: Final = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "STRING", "DATE", "TIMESTAMP",
                "TIMESTAMP_NTZ")  # fmt: skip
_SAME: Final = {"BYTE": "TINYINT", "SHORT": "SMALLINT", "INTEGER": "INT", "LONG": "BIGINT", "REAL": "FLOAT",
                "DEC": "DECIMAL", "NUMERIC": "DECIMAL", "TIMESTAMP_LTZ": "TIMESTAMP"}  # fmt: skip
_TYPES: Final = (*PLAIN, "DECIMAL", "ARRAY", "STRUCT", "MAP")
_DIGITS: Final = 38

_TOKEN: Final = re.compile(r"[ \t\r\n]+|--[^\n]*|([A-Za-z0-9_]+)|`((?:[^`]|``)*)`|([<>(),:])")
_BARE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Type:
    """The type of a column. `numbers`: of DECIMAL. `parts`: the columns of STRUCT; of ARRAY and MAP, without names."""

    word: str
    numbers: tuple[int, ...] = ()
    parts: tuple[Column, ...] = ()

    def __str__(self) -> str:
        if self.word == "STRUCT":
            return f"STRUCT<{', '.join(f'{_name(each.name)}: {each.type}' for each in self.parts)}>"
        if self.parts:
            return f"{self.word}<{', '.join(str(each.type) for each in self.parts)}>"
        return f"{self.word}({','.join(map(str, self.numbers))})" if self.numbers else self.word


@dataclass(frozen=True, slots=True)
class Column:
    """A column, or a field of a STRUCT."""

    name: str
    type: Type


def canonical(text: str) -> str:
    """The text that is kept of a given one (D1).

    Raises:
        InvalidSetting: it is no such schema, or is beyond a limit; says where.
    """
    return text_of(columns_in(text))


def text_of(columns: Iterable[Column]) -> str:
    """The canonical text of columns. Raises InvalidSetting: it is too long."""
    text = ", ".join(f"{_name(column.name)} {column.type}" for column in columns)
    if len(text) > LENGTH_MAX:
        raise refused(f"{len(text)} characters, written without spaces and comments; {LENGTH_MAX} at most", LENGTH_MAX)
    return text


def columns_in(text: str) -> tuple[Column, ...]:
    """The columns that a text declares. Raises InvalidSetting as `canonical`."""
    if len(text) > GIVEN_MAX:
        raise refused(f"{len(text)} characters; {GIVEN_MAX} at most, with spaces and comments", GIVEN_MAX)
    reading = _Reading(text)
    columns = reading.columns("", 1, is_struct=False)
    reading.expect_end()
    for column in columns:
        if _folded(column.name) in OF_RECORDS:
            raise refused(
                f"column {column.name!r}: a record has a column of this name; declare value STRUCT<{column.name}: …> as"
                " the only column, with all columns of the objects in it"
            )
    return columns


def refused(why: str, limit: int | None = None) -> InvalidSetting:
    """The error for a schema that cannot be kept."""
    return InvalidSetting(f"{KEY}: {why}", key=KEY, **({} if limit is None else {"limit": limit}))


class _Reading:
    """A text that is read token by token: a word (a name or a type), a name in backticks, or a mark."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0  # behind the token
        self._from = 0  # where it begins
        self.word = self.quoted = self.mark = ""
        self.next()

    def next(self) -> None:
        self.word = self.quoted = self.mark = ""
        while self._at < len(self._text) and not (self.word or self.quoted or self.mark):
            self._from = self._at
            found = _TOKEN.match(self._text, self._at)
            if found is None:
                raise self.error("a name that is not of A-Z a-z 0-9 _ stands in backticks")
            self._at = found.end()
            self.word, quoted, self.mark = found[1] or "", found[2], found[3] or ""
            if quoted is not None:
                self.quoted = quoted.replace("``", "`")
                if not self.quoted or _CONTROL.search(self.quoted):
                    raise self.error("a name is empty, or has a control character")
        if not (self.word or self.quoted or self.mark):
            self._from = len(self._text)

    def error(self, why: str, path: str = "") -> InvalidSetting:
        """The error for what stands here."""
        if self._from >= len(self._text):
            where = "at its end"
        else:
            line = self._text.count("\n", 0, self._from) + 1
            where = f"at {self._text[self._from : self._from + 20]!r} in line {line}"
        return refused(f"{f'column {path!r:.120}, ' if path else ''}{where}: {why}")

    def take(self, mark: str, why: str, path: str) -> None:
        if self.mark != mark:
            raise self.error(why, path)
        self.next()

    def expect_end(self) -> None:
        if self.word or self.quoted or self.mark:
            raise self.error("a comma must stand between columns, as in item BIGINT, price DOUBLE")

    def columns(self, path: str, level: int, *, is_struct: bool) -> tuple[Column, ...]:
        columns: list[Column] = []
        seen: dict[str, str] = {}
        while True:
            name = self.word or self.quoted
            if not name:
                raise self.error("the name of a column must stand here", path.rstrip("."))
            self.next()
            whole = path + name
            other = seen.setdefault(_folded(name), name)
            if len(seen) == len(columns):
                more = "" if other == name else f" as {other!r:.120}: SQL does not tell them apart"
                raise refused(f"column {whole!r:.120}: its name occurs twice{more}")
            if is_struct and self.mark == ":":
                self.next()
            columns.append(Column(name, self.type(whole, level)))
            if self.mark != ",":
                return tuple(columns)
            self.next()

    def type(self, path: str, level: int) -> Type:
        if level > LEVELS_MAX:
            raise refused(f"column {path!r:.120}: more than {LEVELS_MAX} levels", LEVELS_MAX)
        word = _upper(self.word)
        word = _SAME.get(word, word)
        if word not in _TYPES:
            raise self.error(f"a type must stand here: {', '.join(_TYPES)}", path)
        self.next()
        found = Type(word)
        if word == "DECIMAL":
            found = Type(word, self.precision(path))
        elif word not in PLAIN:
            self.take("<", f"{word} is followed by its types, as in {_EXAMPLES[word]}", path)
            found = Type(word, parts=self.parts(word, path, level))
            self.take(">", f"a comma or > must stand here, as in {_EXAMPLES[word]}", path)
        if word in PLAIN and self.mark == "(":
            raise self.error(f"{word} has no length", path)
        if _upper(self.word) in ("NOT", "COMMENT", "DEFAULT"):
            raise self.error("NOT NULL, COMMENT and DEFAULT are not kept: an object may be without any member", path)
        return found

    def parts(self, word: str, path: str, level: int) -> tuple[Column, ...]:
        if word == "STRUCT":
            return self.columns(path + ".", level + 1, is_struct=True)
        if word == "ARRAY":
            return (Column("", self.type(path + "[]", level + 1)),)
        key = self.type(path + "{}", level + 1)
        if key.word != "STRING":
            raise refused(f"column {path!r:.120}: the keys of a MAP are STRING, as names of members are")
        self.take(",", f"a comma must stand here, as in {_EXAMPLES[word]}", path)
        return Column("", key), Column("", self.type(path + "{}", level + 1))

    def precision(self, path: str) -> tuple[int, int]:
        if self.mark != "(":
            return 10, 0
        self.next()
        numbers = [self.number(path)]
        if self.mark == ",":
            self.next()
            numbers.append(self.number(path))
        precision, scale = numbers[0], numbers[1] if len(numbers) > 1 else 0
        if not 1 <= precision <= _DIGITS or scale > precision:
            rule = f"DECIMAL(p,s) has p from 1 to {_DIGITS}, and s from 0 to p"
            raise refused(f"column {path!r:.120}: {rule}", _DIGITS)
        self.take(")", "DECIMAL has one or two numbers, as in DECIMAL(10,2)", path)
        return precision, scale

    def number(self, path: str) -> int:
        if not re.fullmatch("[0-9]{1,9}", self.word):
            raise self.error("DECIMAL has one or two numbers, as in DECIMAL(10,2)", path)
        number = int(self.word)
        self.next()
        return number


_EXAMPLES: Final = {"ARRAY": "ARRAY<STRING>", "STRUCT": "STRUCT<x: INT, y: INT>", "MAP": "MAP<STRING, BIGINT>"}


def _name(name: str) -> str:
    return name if _BARE.fullmatch(name) else "`" + name.replace("`", "``") + "`"


def _folded(name: str) -> str:
    """For comparing names as SQL does; of ASCII letters only (D2)."""
    return name.encode().lower().decode()


def _upper(word: str) -> str:
    return word.upper() if word.isascii() else word
