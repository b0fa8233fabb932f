"""Scenario scripts: what is done, and what came of it, in text that people read and the machine has written.

    # Why this scenario is there.
    verb word key=value ...
    ---
    verb word: what came of it, one thing after the other
    the state behind it all
                                  an empty line ends a block

A runner is called with each command and returns lines. `LIFTLOG_REWRITE=1` writes what comes of them into the script
instead of comparing: look at the difference before you commit it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

REWRITE = "LIFTLOG_REWRITE"
Runner = Callable[[str, list[str], dict[str, str]], list[str]]


def replay(script: str, run: Runner, state: Callable[[], str]) -> str:
    """The script with what comes of it now: after each command what it led to, after each block the state."""
    blocks = []
    for block in script.strip().split("\n\n"):
        lines = block.split("---\n")[0].rstrip("\n").split("\n")
        lines = [line for line in lines if line != "---"]
        commands = [line for line in lines if not line.startswith("#")]
        output = []
        for line in commands:
            verb, *rest = line.split()
            words = [word for word in rest if "=" not in word]
            values = dict(word.split("=", 1) for word in rest if "=" in word)
            if outcome := run(verb, words, values):
                output.append(f"{' '.join([verb, *words])}: {', '.join(outcome)}")
        text = "\n".join(lines)
        if commands:
            text += "\n---\n" + "\n".join([*output, state()])
        blocks.append(text)
    return "\n\n".join(blocks) + "\n"


def check(path: Path, run: Runner, state: Callable[[], str]) -> None:
    """Replay the script of a file and compare, or rewrite it."""
    before = path.read_text()
    now = replay(before, run, state)
    if os.environ.get(REWRITE):
        path.write_text(now)
    else:
        assert now == before, f"{path.name}: {REWRITE}=1 writes it anew"
