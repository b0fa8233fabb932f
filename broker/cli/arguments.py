"""The parameters of a function as options and arguments of a click command.

    def tail(ctx: click.Context, stream: Annotated[str, Argument(…)], limit: Annotated[int | None, Option(…)] = None)

The annotation gives the type, the default of the parameter gives that of the option; a parameter without one is
required. A parameter `ctx` gets click's context. Decision 0055 says why this is not typer.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, get_args

import click


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """A value by its place. `min` and `max` bound a number; `callback` may refuse or change what was read."""

    metavar: str | None = None
    help: str = ""
    min: float | None = None
    max: float | None = None
    parser: Callable[[str], Any] | None = None
    callback: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option(Argument):
    """A value by its name, further: from the environment; before the others, as `--version`."""

    flags: tuple[str, ...]
    envvar: str | None = None
    is_eager: bool = False


def Option(*flags: str, **more: Any) -> _Option:
    return _Option(flags=flags, **more)


def command(name: str, function: Callable[..., None]) -> click.Command:
    """The command that calls the function. Its help is the docstring."""
    signature = inspect.signature(function, eval_str=True)

    def call(**values: Any) -> None:
        context = {"ctx": click.get_current_context()} if "ctx" in signature.parameters else {}
        function(**context, **values)

    return click.Command(name, params=parameters(signature), callback=call, help=inspect.getdoc(function))


def parameters(signature: inspect.Signature) -> list[click.Parameter]:
    return [
        _parameter(name, parameter.annotation, parameter.default)
        for name, parameter in signature.parameters.items()
        if name != "ctx"
    ]


_TYPES: Final = {int: (click.INT, click.IntRange), float: (click.FLOAT, click.FloatRange)}


def _parameter(name: str, annotation: Any, default: Any) -> click.Parameter:
    hint, declared = get_args(annotation)
    alternatives = [one for one in get_args(hint) if one is not NoneType]
    kind = alternatives[0] if NoneType in get_args(hint) else hint
    is_list = getattr(kind, "__origin__", None) is list
    if is_list:
        [kind] = get_args(kind)
    # All of them are seconds.
    metavar = "S" if kind is float and declared.metavar is None else declared.metavar
    more: dict[str, Any] = {"metavar": metavar, "type": _type(kind, declared)}
    if default is inspect.Parameter.empty:
        more["required"] = True
    else:
        more["default"] = None if is_list else default
    if declared.callback is not None:
        more["callback"] = lambda ctx, param, value: declared.callback(value)
    if not isinstance(declared, _Option):
        if not more.get("required"):
            more["metavar"] = f"[{declared.metavar}]"
        return click.Argument([name], help=declared.help, **more)
    more |= {"multiple": True} if is_list else {}
    more |= {"is_flag": True} if kind is bool else {}
    return click.Option(
        [name, *declared.flags],
        help=declared.help,
        envvar=declared.envvar,
        is_eager=declared.is_eager,
        show_default=True,
        expose_value=not declared.is_eager,
        **more,
    )


def _type(kind: Any, declared: Argument) -> Any:
    if declared.parser is not None:
        return click.types.FuncParamType(declared.parser)
    if kind in _TYPES:
        plain, ranged = _TYPES[kind]
        is_bounded = declared.min is not None or declared.max is not None
        return ranged(declared.min, declared.max) if is_bounded else plain  # type: ignore[arg-type]
    return click.BOOL if kind is bool else click.STRING
