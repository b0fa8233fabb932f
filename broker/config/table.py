"""Every key of a broker's configuration with its dotted name: `settings.py`, flattened.

    settings.Config ─► SETTINGS: key, kind, default, limit, meaning ─► file, environment, errors, conf/liftlog.toml

A key has one name in the file (`http.port`) and one in the environment (`LIFTLOG_HTTP_PORT`); no two share one.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Final, cast

from broker.api.validation import OrNone, Text, ValueShape, object_of
from broker.config.settings import Config, Secret

PREFIX: Final = "LIFTLOG_"
# Such a default for every stream would be a trap, so `defaults` has none of them.
NOT_DEFAULTABLE: Final = frozenset(
    {"subject", "group", "payload_schema", "encryption", "concurrency_control", "envelopes"}
)
DEFAULTS_DOC: Final = "Settings of new streams that do not say otherwise. A change does not touch streams that exist."


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table.

    Attributes:
        key: Dotted, as in the file: `http.port`.
        kind: int, str, bool, list or secret.
        default: Its value when nobody sets it; None: not set.
        shape: The values that it may have.
    """

    key: str
    kind: str
    default: Any
    shape: ValueShape

    @property
    def limit(self) -> tuple[int, int] | tuple[str, ...] | None:
        """(least, greatest), both allowed; or the words allowed; None: no limit."""
        is_limited = self.kind == "int" or (isinstance(self.shape, Text) and self.shape.words)
        return self.shape.rule.limit if is_limited else None

    @property
    def unit(self) -> str | None:
        """bytes, ms, records; None: a count or text."""
        return self.shape.rule.unit

    @property
    def doc(self) -> str:
        """One line; empty for `defaults`, which `StreamSettings` explains."""
        return self.shape.rule.doc

    @property
    def nullable(self) -> bool:
        """It may be unset."""
        return isinstance(self.shape, OrNone)

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.key.replace(".", "_").upper()


def _table(cls: type[Any], prefix: str = "") -> Iterator[Setting]:
    shapes = object_of(cls).shapes
    for f in fields(cls):
        if f.name in SECTIONS and not prefix:
            yield from _table(SECTIONS[f.name], f.name + ".")
        elif prefix != "defaults." or f.name not in NOT_DEFAULTABLE:
            shape = shapes[f.name]
            kind = "secret" if shape.rule.read is Secret else shape.kind
            yield Setting(key=prefix + f.name, kind=kind, default=f.default, shape=shape)


SECTIONS: Final[dict[str, type[Any]]] = {
    f.name: cast("type[Any]", f.default_factory) for f in fields(Config) if isinstance(f.default_factory, type)
}
"""The tables of the file, each with its dataclass."""

SETTINGS: Final = tuple(_table(Config))
"""The table, in the order of the file."""

BY_KEY: Final = {setting.key: setting for setting in SETTINGS}
BY_VARIABLE: Final = {setting.variable: setting for setting in SETTINGS}
assert len(BY_VARIABLE) == len(SETTINGS), "two keys share one variable"


def annotated() -> str:
    """The table as a TOML file in which every key has its default: what conf/liftlog.toml holds."""
    lines = [
        "# liftlog broker: every key with its default. This file changes nothing until you change it.",
        "#",
        "# A key may also be set in the environment: http.port is LIFTLOG_HTTP_PORT. Unknown keys are errors.",
        '# "" and "none" mean: not set.',
        "",
    ]
    section = ""
    for setting in SETTINGS:
        table, _, name = setting.key.rpartition(".")
        if table != section:
            section = table
            lines += ["", *_comment(DEFAULTS_DOC if table == "defaults" else SECTIONS[table].__doc__), f"[{table}]"]
        lines += _comment(setting.doc)
        limit = _limit_text(setting)
        lines.append(f"{name} = {_toml(setting)}" + (f"  # {limit}" if limit else ""))
    return "\n".join(lines) + "\n"


def _comment(text: str | None) -> list[str]:
    return textwrap.wrap(text or "", 100, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _limit_text(setting: Setting) -> str:
    if not setting.limit:
        return ""
    if setting.unit == "bytes":
        return " to ".join(_bytes_text(int(bound)) for bound in setting.limit)
    text = (" to " if isinstance(setting.limit[0], int) else ", ").join(map(str, setting.limit))
    return f"{text} {setting.unit}" if setting.unit else text


def _bytes_text(count: int) -> str:
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power and count % (1 << power) == 0:
            return f"{count >> power} {unit}"
    return f"{count} B"


def _toml(setting: Setting) -> str:
    value = setting.default
    if value is None:
        return '"none"' if setting.kind == "int" else '""'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:_}" if value >= 100_000 else str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{item}"' for item in value) + "]"
    return f'"{value}"'
