"""docs/reference/limits.md says all limits of the code."""

from __future__ import annotations

import pytest

from broker.api.stream import LIMITS
from broker.serving.contract.openapi import document
from broker.serving.http.app import ENDPOINTS
from tests.support.limits import FIXED, NO_LIMIT, constants, number


def test_every_constant_that_is_a_limit_has_a_row() -> None:
    listed = {row.place for row in FIXED}
    assert len(listed) == len(FIXED), "a limit has two rows"
    passed_over = {name for names in NO_LIMIT for name in names.split()}
    for place, name in constants().items():
        assert place in listed or name in passed_over, f"{place}: give it a row in tests/support/limits.py"


def test_the_contract_of_the_http_api_has_the_limits_of_streams() -> None:
    schemas = document(ENDPOINTS)["components"]["schemas"]
    properties = schemas["NewStream"]["properties"]
    for name, (least, greatest) in LIMITS.items():
        assert (properties[name]["minimum"], properties[name]["maximum"]) == (least, greatest), name


@pytest.mark.parametrize(
    "value,unit,text",
    [
        (8 << 20, "bytes", "8 MiB"),
        (7 * 86_400_000, "ms", "7 days"),
        (1500, "ms", "1,500 ms"),
        (65_536, None, "65,536"),
        (None, "ms", "none"),
        (2, "x `a`", "2 x `a`"),
    ],
)
def test_numbers_are_written_as_people_write_them(value: int | None, unit: str | None, text: str) -> None:
    assert number(value, unit) == text
