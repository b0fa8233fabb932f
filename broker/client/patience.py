"""How long a call goes on after failures: exponential pauses with jitter, up to a deadline.

The clock starts at the first failure and is set back by progress, so a long read may survive many
broken connections, and a consumer that is slow between two batches is never out of time. The pauses
and the deadline are tenacity's, which is loaded at the first failure and not before: an executor
that meets none never pays for the import.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from broker.api.errors import DeadlineExceeded, LiftlogError
from broker.client.interrupt import Interrupt

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0


class Patience:
    """The retries of one call or one read.

    Args:
        deadline_s: How long failures may follow each other without progress; 0: the first one is raised as it is.
        interrupt: Ends a pause early.
        what: What is being tried; begins the text of the error.
    """

    def __init__(self, deadline_s: float, *, interrupt: Interrupt | None = None, what: str = "") -> None:
        self._deadline_s = deadline_s
        self._interrupt = interrupt
        self._what = f"{what}: " if what else ""
        self._attempts: Iterator[Any] | None = None
        self._attempt: Any = None
        self.failure_count = 0

    def progress(self) -> None:
        """Something was achieved: the next failure is a first one again."""
        if self._attempts is not None:
            self._attempts = None
            self.failure_count = 0

    def pause(self, error: LiftlogError) -> None:
        """Note a failure and wait before the next try.

        Raises:
            DeadlineExceeded: failures have followed each other for `deadline_s`; caused by `error`.
        """
        self.failure_count += 1
        if self._deadline_s <= 0:
            raise error
        from tenacity import RetryError

        if self._attempts is None:
            self._attempts = iter(self._retrying())
            self._attempt = next(self._attempts)
        with self._attempt:
            raise error
        try:
            self._attempt = next(self._attempts)
        except RetryError:
            raise self._exceeded(error) from error

    def _retrying(self) -> Any:
        from tenacity import Retrying, stop_after_delay, wait_random_exponential

        return Retrying(
            stop=stop_after_delay(self._deadline_s),
            wait=wait_random_exponential(multiplier=FIRST_PAUSE_S, max=PAUSE_S_MAX),
            sleep=self._interrupt.pause if self._interrupt is not None else time.sleep,
        )

    def _exceeded(self, error: LiftlogError) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"{self._what}gave up after {self.failure_count} failed tries in {self._deadline_s:g} s; the last: {error}",
            deadline_s=self._deadline_s,
            tries=self.failure_count,
            last_reason=error.reason,
        )
