"""The table of settings as a TOML file in which every key has its default, meaning, limit and unit.

`conf/liftlog.toml` is this text, and a test holds them against each other; `liftlog broker --defaults` prints it.
"""

from __future__ import annotations

from broker.runtime.config.settings import DEFAULTS_DOC, SECTIONS, SETTINGS, Setting


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
            lines += ["", f"# {DEFAULTS_DOC if table == 'defaults' else SECTIONS[table].__doc__}", f"[{table}]"]
        if setting.doc:
            lines.append(f"# {setting.doc}")
        limit = _limit_text(setting)
        lines.append(f"{name} = {_toml(setting)}" + (f"  # {limit}" if limit else ""))
    return "\n".join(lines) + "\n"


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
