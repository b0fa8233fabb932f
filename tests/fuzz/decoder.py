"""A decoder, as the fuzzer knows it: a name, the code that it stands for, a check, and how its bytes are made and
sealed.

A check takes any bytes and returns, or raises one of the documented errors. It asserts what must hold of a value that
comes back. Anything else that leaves it is a bug: another exception, an assertion, a hang, the death of the process.

Where a CRC stands before the decoder proper, most changed bytes would get no further. `unseal` takes the CRC off and
`seal` puts the right one on, so that half of the inputs reach what is behind it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from crc32c import crc32c

from tests.fuzz.mutation import mutate_bytes, mutate_json

CORPUS: Final = Path(__file__).parent / "corpus"
"""One folder per decoder, one file per input."""

Form = Literal["bytes", "json"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """See the module.

    Attributes:
        name: Also that of its folder in the corpus.
        modules: Files of the code that it stands for, from the root of the repository.
        check: Raises only what is in `errors`.
        checks_more: The same of other circumstances. A run makes one of all with each input, as each takes long.
        errors: The errors that such bytes may lead to, by contract.
        form: `json`: what is inside the seal is JSON, and is also changed as JSON.
        words: Tokens of its language.
        unseal, seal: See the module.
        weight: How many times an easy one takes; a run makes so many times fewer cases.
    """

    name: str
    modules: tuple[str, ...]
    check: Callable[[bytes], None]
    errors: tuple[type[BaseException], ...]
    form: Form = "bytes"
    words: tuple[bytes, ...] = ()
    unseal: Callable[[bytes], bytes] | None = None
    seal: Callable[[bytes], bytes] | None = None
    weight: int = 1
    checks_more: tuple[Callable[[bytes], None], ...] = ()
    _inputs: list[bytes] = field(default_factory=list)

    def __str__(self) -> str:
        return self.name

    def corpus(self) -> list[Path]:
        """Its files, by name."""
        return sorted(path for path in (CORPUS / self.name).iterdir() if path.is_file())

    def meet(self, data: bytes) -> bool:
        """Check one input. Returns whether it was taken; False: a documented error."""
        taken = [self._meet(check, data) for check in (self.check, *self.checks_more)]
        return all(taken)

    def meet_once(self, data: bytes) -> bool:
        """The same with one of the checks; which, the input says."""
        checks = (self.check, *self.checks_more)
        return self._meet(checks[crc32c(data) % len(checks)], data)

    def _meet(self, check: Callable[[bytes], None], data: bytes) -> bool:
        try:
            check(data)
        except self.errors:
            return False
        return True

    def inputs(self) -> list[bytes]:
        """With which it begins: those of the corpus."""
        if not self._inputs:
            self._inputs.extend(path.read_bytes() for path in self.corpus())
        return self._inputs

    def case(self, seed: int) -> bytes:
        """The input of a seed: one of the corpus, changed."""
        rng = random.Random(f"{self.name} {seed}")
        return self.changed(rng, rng.choice(self.inputs()))

    def changed(self, rng: random.Random, data: bytes, change: Callable[[bytes], bytes] | None = None) -> bytes:
        """An input, changed behind its seal or with it. `change`: how, instead of the ways of this module."""
        is_sealed = self.seal is not None and self.unseal is not None and rng.random() < 0.6
        inner = self.unseal(data) if is_sealed and self.unseal is not None else data
        if change is not None:
            inner = change(inner)
        elif self.form == "json" and rng.random() < 0.7:
            inner = _changed_json(rng, inner)
        else:
            inner = mutate_bytes(rng, inner, others=self.inputs(), words=self.words)
        return self.seal(inner) if is_sealed and self.seal is not None else inner


def _changed_json(rng: random.Random, data: bytes) -> bytes:
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return mutate_bytes(rng, data)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        value = mutate_json(rng, value)
    return json.dumps(value).encode()
