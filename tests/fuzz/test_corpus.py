"""A short run of the fuzzer: every input of the corpus, and some changed ones of each decoder, by fixed seeds.

`make fuzz MINUTES=60` is the long one. An input that it finds is kept in the corpus, so it is met here for good.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from tests.fuzz.decoder import CORPUS, Decoder
from tests.fuzz.table import DECODERS, ELSEWHERE
from tests.support.effort import first_short

ROOT = Path(__file__).parents[2]
CASES = {"first": range(200), "others": range(200, 600)}
"""Seeds of the cases of a decoder of weight 1; the others have fewer, by their weight."""
DECODES = re.compile(
    r"json\.loads|parse_json\(|frombuffer|\.unpack|fromhex|tomllib\.load|ipc\.(?:open|read)_|int\.from_bytes"
)


@pytest.fixture(autouse=True)
def _in_time() -> Iterator[None]:
    """A hang is a finding too."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("a decoder does not come to an end")

    before = signal.signal(signal.SIGALRM, too_long)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=list(DECODERS))
def test_its_corpus_gives_values_or_the_documented_error(decoder: Decoder) -> None:
    for path in decoder.corpus():
        signal.alarm(60)
        try:
            decoder.meet(path.read_bytes())
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz --decoder {decoder.name} --input {path}") from error


@pytest.mark.parametrize("cases", first_short(CASES.values()), ids=CASES)
@pytest.mark.parametrize("decoder", DECODERS.values(), ids=list(DECODERS))
def test_any_bytes_give_a_value_or_the_documented_error(decoder: Decoder, cases: range) -> None:
    for seed in range(cases.start // decoder.weight, max(5, cases.stop // decoder.weight)):
        signal.alarm(60)
        try:
            decoder.meet_once(decoder.case(seed))
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzz --decoder {decoder.name} --seed {seed} --cases 1") from error


def test_a_decoder_that_does_wrong_is_found() -> None:
    """The fuzzer can fail: one that lets an IndexError out is found within a few cases, by the same seeds each time."""

    def wrong(data: bytes) -> None:
        if len(data) % 7 == 3:
            data[len(data)]

    decoder = Decoder(name="address", modules=(), check=wrong, errors=(ValueError,))

    def first_bad() -> int:
        for seed in range(500):
            try:
                decoder.meet(decoder.case(seed))
            except IndexError:
                return seed
        raise AssertionError("not found")

    assert first_bad() == first_bad()


def test_every_decoder_is_in_the_table() -> None:
    """Files of the code that decode something are named by a decoder, or by ELSEWHERE with a reason."""
    named = {module for decoder in DECODERS.values() for module in decoder.modules} | ELSEWHERE.keys()
    assert not {module for module in named if not (ROOT / module).exists()}, "gone, and still in the table"
    for folder in ("broker", "spark_liftlog"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            is_named = name in named or not DECODES.search(path.read_text())
            assert is_named, f"{name} decodes something: name it in tests/fuzz/table.py"
    compiled = {str(path.relative_to(ROOT)) for path in (ROOT / "broker").rglob("*.pyx")}
    assert compiled <= named, "what is compiled may read beyond its bytes: name it in tests/fuzz/table.py"


def test_every_corpus_belongs_to_a_decoder() -> None:
    assert {path.name for path in CORPUS.iterdir()} == DECODERS.keys()
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 1 << 20
