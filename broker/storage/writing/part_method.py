"""A method or a value of a part, under a name of the whole.

    class Log:
        append = of_part("appender", Appender.append)        log.append is log.appender.append
        cuts: PartValue[int] = told_by("state.cuts")         log.cuts is log.state.cuts, which nobody sets here

Nothing is kept for it in the object: a bound method for each name made an open log twice as large, and
there are ten thousand idle ones. Asking costs some 50 ns more than an attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
T = TypeVar("T", covariant=True)


class PartMethod(Generic[P, R]):
    """The type that a type checker gives the attribute."""

    def __get__(self, whole: Any, owner: Any = None) -> Callable[P, R]:
        raise NotImplementedError  # a property stands in its place


def of_part(part: str, method: Callable[Concatenate[Any, P], R], name: str = "") -> PartMethod[P, R]:
    """The attribute of a class that stands for a method of the part of that name.

    Args:
        part: The attribute that holds it; dots lead to a part of a part.
        method: As its class has it.
        name: Where the part has it under another name, as it is a method of its own part.
    """
    found = property(attrgetter(f"{part}.{name or method.__name__}"), doc=method.__doc__)
    return cast(PartMethod[P, R], found)


class PartValue(Generic[T]):
    """The type that a type checker gives the attribute."""

    def __get__(self, whole: Any, owner: Any = None) -> T:
        raise NotImplementedError  # a property stands in its place


def told_by(path: str) -> PartValue[Any]:
    """The attribute of a class that stands for a value of the part at that path."""
    return cast(PartValue[Any], property(attrgetter(path)))
