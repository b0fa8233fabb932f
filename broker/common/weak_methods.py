"""A method of somebody who is not kept for it: `weakref.WeakMethod`, which takes ten times the memory of this one."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import Any, Generic, TypeVar, cast
from weakref import ref

M = TypeVar("M", bound=Callable[..., Any])


class WeakCall(Generic[M]):
    """See the module. Called, it gives the method; None: its owner is gone.

    Args:
        method: Of an object; what `weakref.ref` tells of that is shared by all of its methods.
    """

    __slots__ = ("_function", "_owner")

    def __init__(self, method: M) -> None:
        bound = cast(MethodType, method)
        self._owner, self._function = ref(bound.__self__), bound.__func__

    def __call__(self) -> M | None:
        owner = self._owner()
        return None if owner is None else cast(M, MethodType(self._function, owner))
