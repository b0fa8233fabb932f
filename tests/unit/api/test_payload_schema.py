"""The schema that a stream keeps. Goal: D1 and D2 of payload_schema.py, and that each error names column and limit.

Method: random columns, written in ways that mean the same; a case for each rule.
"""

from __future__ import annotations

import random

import pytest

from broker.api.errors import InvalidSetting
from broker.api.payload_schema import (
    GIVEN_MAX,
    LENGTH_MAX,
    LEVELS_MAX,
    OF_RECORDS,
    PLAIN,
    Column,
    Type,
    canonical,
    columns_in,
    text_of,
)
from broker.api.stream import StreamSettings, settings_from

NAMES = ("a", "b1", "_c", "D", "é", "unit price", "`", "1st", "a.b", "select", "x-y", "😀", ":", "NOT")
SYNONYMS = {"TINYINT": "byte", "BIGINT": "long", "INT": "Integer", "FLOAT": "real", "TIMESTAMP": "timestamp_ltz"}


def random_columns(rng: random.Random, depth: int = 0) -> tuple[Column, ...]:
    return tuple(Column(name, random_type(rng, depth)) for name in rng.sample(NAMES, rng.randint(1, 4)))


def random_type(rng: random.Random, depth: int) -> Type:
    what = rng.random()
    if what < 0.5 or depth > 3:
        return Type(rng.choice(PLAIN))
    if what < 0.6:
        precision = rng.randint(1, 38)
        return Type("DECIMAL", (precision, rng.randint(0, precision)))
    if what < 0.75:
        return Type("ARRAY", parts=(Column("", random_type(rng, depth + 1)),))
    if what < 0.85:
        return Type("MAP", parts=(Column("", Type("STRING")), Column("", random_type(rng, depth + 1))))
    return Type("STRUCT", parts=random_columns(rng, depth + 1))


def written(rng: random.Random, columns: tuple[Column, ...], between: str = "") -> str:
    """The columns in another way that means the same."""

    def gap() -> str:
        return rng.choice(["", " ", "\n\t", " -- > , a comment\n"])

    def name(text: str) -> str:
        bare = text.isascii() and text.replace("_", "a").isalnum() and rng.random() < 0.7
        return text if bare else "`" + text.replace("`", "``") + "`"

    def of(type_: Type) -> str:
        word = SYNONYMS.get(type_.word, type_.word) if rng.random() < 0.5 else type_.word
        word = rng.choice([word, word.lower()])
        if type_.word == "STRUCT":
            return f"{word}{gap()}<{written(rng, type_.parts, rng.choice([':', ' ']))}>"
        if type_.parts:
            return f"{word}{gap()}<{gap()}{(gap() + ',').join(of(part.type) for part in type_.parts)}{gap()}>"
        return word + (f"{gap()}({gap()}{','.join(map(str, type_.numbers))}{gap()})" if type_.numbers else "")

    return (gap() + "," + gap()).join(f"{gap()}{name(c.name)}{gap()}{between} {of(c.type)}{gap()}" for c in columns)


@pytest.mark.parametrize("seed", range(200))
def test_one_schema_has_one_text_however_it_is_written(seed: int) -> None:
    rng = random.Random(seed)
    columns = random_columns(rng)
    text = text_of(columns)
    assert columns_in(text) == columns
    assert canonical(text) == text
    assert canonical(written(rng, columns)) == text


@pytest.mark.parametrize("seed", range(100))
def test_any_text_is_a_schema_or_an_error_that_names_the_setting(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        text = list(written(rng, random_columns(rng)))
        for _ in range(rng.randint(1, 3)):
            text[rng.randrange(len(text))] = rng.choice(["", "<", ">", "`", ",", "(", "é", "\0", " ", "\u2028", "9"])
        found = canonical_or_error("".join(text))
        if isinstance(found, InvalidSetting):
            assert (found.key, len(str(found)) < 600) == ("payload_schema", True)
        else:
            assert canonical(found) == found


def canonical_or_error(text: str) -> str | InvalidSetting:
    try:
        return canonical(text)
    except InvalidSetting as error:
        return error


@pytest.mark.parametrize(
    "text, says",
    [
        ("", "at its end: the name of a column must stand here"),
        ("a", "column 'a', at its end: a type must stand here: BOOLEAN, TINYINT"),
        ("a INT,\nb BLOB", "column 'b', at 'BLOB' in line 2: a type must stand here"),
        ("x STRUCT<y: ARRAY<STRUCT<z: BINARY>>>", r"column 'x.y\[\].z', at 'BINARY>>>' in line 1: a type"),
        ("a INT b INT", "at 'b INT' in line 1: a comma must stand between columns"),
        ("a INT, a INT", "column 'a': its name occurs twice"),
        ("s STRUCT<id: INT, ID: INT>", "column 's.ID': its name occurs twice as 'id': SQL does not"),
        ("größe INT", "at 'öße INT' in line 1: a name that is not of A-Z a-z 0-9 _ stands in backticks"),
        ("a VARCHAR(3)", r"column 'a', at 'VARCHAR\(3\)' in line 1: a type must stand here"),
        ("a INT(3)", "column 'a', at .*INT has no length"),
        ("a INT NOT NULL", "column 'a', at 'NOT NULL' .* an object may be without any member"),
        ("a DECIMAL(39,0)", "column 'a': DECIMAL.p,s. has p from 1 to 38"),
        ("a DECIMAL(5,6)", "column 'a': DECIMAL.p,s. has p from 1 to 38, and s from 0 to p"),
        ("a MAP<INT, INT>", "column 'a': the keys of a MAP are STRING"),
        ("a MAP<STRING>", "column 'a', at '>' in line 1: a comma must stand here, as in MAP<STRING, BIGINT>"),
        ("a ARRAY<INT", "column 'a', at its end: a comma or > must stand here, as in ARRAY<STRING>"),
        ("a STRUCT<>", "column 'a', at '>' in line 1: the name of a column must stand here"),
        ("`a\tb` INT", "a name is empty, or has a control character"),
        ("a " + "ARRAY<" * LEVELS_MAX + "INT" + ">" * LEVELS_MAX, "more than 64 levels"),
        (f"{'a' * LENGTH_MAX} INT", f"{LENGTH_MAX + 4} characters, written without .*; {LENGTH_MAX} at most"),
        ("a INT " + " " * GIVEN_MAX, f"{GIVEN_MAX + 6} characters; {GIVEN_MAX} at most"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=f"^payload_schema: .*{says}"):
        canonical(text)


@pytest.mark.parametrize("name", OF_RECORDS)
def test_no_column_is_called_like_one_of_the_record(name: str) -> None:
    with pytest.raises(InvalidSetting, match=f"column '{name.upper()}': a record has a column of this name; declare"):
        canonical(f"{name.upper()} STRING")
    assert canonical(f"value STRUCT<{name}: STRING>") == f"value STRUCT<{name}: STRING>"


def test_a_schema_at_the_limits_is_kept_for_good() -> None:
    deep = "a " + "ARRAY<" * (LEVELS_MAX - 1) + "INT" + ">" * (LEVELS_MAX - 1)
    long = "`" + "é" * (LENGTH_MAX - 6) + "` INT"
    for text in (deep, long):
        once = settings_from({"payload_schema": text})
        assert once.payload_schema is not None
        assert settings_from(once.as_dict()) == settings_from(once.as_stored()) == once


def test_a_setting_that_came_later_is_stored_only_if_it_is_set() -> None:
    """A release that does not know it reads the catalog of one that does."""
    assert "payload_schema" not in StreamSettings().as_stored()
    assert (
        StreamSettings().as_stored().keys() | {"payload_schema", "encryption", "concurrency_control", "envelopes"}
        == StreamSettings().as_dict().keys()
    )
    assert settings_from({"payload_schema": "a int"}).as_stored()["payload_schema"] == "a INT"
    assert settings_from({"payload_schema": None}, base=settings_from({"payload_schema": "a int"})) == StreamSettings()
