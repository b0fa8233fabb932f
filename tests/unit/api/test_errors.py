"""The error tree: one reason each, survives pickling and HTTP, and the docstring lists all of it."""

from __future__ import annotations

import pickle

import pytest

from broker.api import errors
from tests.support.errors import page


@pytest.mark.parametrize("cls", errors.BY_REASON.values(), ids=lambda c: c.__name__)
def test_error_survives_pickling_and_a_problem_body(cls: type[errors.LiftlogError]) -> None:
    error = cls("what, where", limit=[1, 2], key="k")
    for copy in (pickle.loads(pickle.dumps(error)), errors.from_problem(error.to_problem())):
        assert type(copy) is cls
        assert str(copy) == "what, where"
        assert copy.fields == {"limit": [1, 2], "key": "k"}
        assert copy.limit == [1, 2]


def test_reasons_are_unique_and_every_error_is_in_the_docstring() -> None:
    def count(cls: type[errors.LiftlogError]) -> int:
        ours = [child for child in cls.__subclasses__() if child.__module__ == errors.__name__]  # Spark adds its own
        return 1 + sum(count(child) for child in ours)

    assert count(errors.LiftlogError) == len(errors.BY_REASON), "two types share a reason"
    for reason, cls in errors.BY_REASON.items():
        if cls is not errors.LiftlogError:
            assert any(line.split()[:1] == [cls.__name__] for line in (errors.__doc__ or "").splitlines()), cls
        if reason not in ("internal", "retryable", "invalid_request", "corrupt_log"):
            assert reason in (errors.__doc__ or "")


def test_the_page_has_every_code() -> None:
    assert [reason for reason in errors.BY_REASON if reason != "retryable" and f"`{reason}`" not in page()] == []


def test_unknown_reason_becomes_the_base_error() -> None:
    assert type(errors.from_problem({"reason": "from_the_future", "detail": "x"})) is errors.LiftlogError
    assert str(errors.from_problem({})) == "no detail given"
