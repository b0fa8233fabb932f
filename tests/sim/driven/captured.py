# ruff: noqa: E501  (one line for each mistake reads better than six)
"""Deliberate mistakes in what captures messages while streams are paused and connections to NATS are lost: seeds of
`changing.CAPTURING` find them. As `mutants.py`.
"""

from __future__ import annotations

from typing import Final

from tests.sim.driven.changed import CAPTURES, FLUSH, of

CAPTURING: Final = "node.capturing"
DRIVER: Final = "intake.driver"
SEAM: Final = "intake.nats_seam"

CAPTURED: Final = (
    # pauses
    of("ends a capture for a pause without what was sent", CAPTURING, "            self._pausing = self.end(with_sent=True)\n", "            self._pausing = self.end()\n", seed=221, seeds=222),
    of("refuses before its capture has ended", CAPTURING, "        return self._pausing is None or self._pausing.done()\n", "        return True\n", seed=13),
    of("takes in nothing more of one partition of many", CAPTURES, "            if with_sent:\n                await self._take_in_sent()\n", "            pass\n", seed=221, seeds=222),
    of("does not wait until its unsubscription has come", DRIVER, "                if client.is_connected:\n                    await self._until_answered(client)\n            except", "                pass\n            except", seed=13),
    of("leaves what has gathered where it captures no more", FLUSH, "        self._flush(slot, force=True)\n        await slot.idle.wait()\n", "        await slot.idle.wait()\n", seed=29),
    # connections that are lost
    of("leaves a subscription to a reconnect", DRIVER, "                        client._subs.pop(sid, None)  # or a reconnect would bring it back\n", "                        pass\n", seed=5),
    of("parses on where a lost connection has ended", SEAM, "        self._intake.reset()\n        self._operations.clear()\n", "        pass\n", seed=5),
    of("reads on from the former connection", SEAM, "        self._inbox = None\n        await super()", "        await super()", seed=5),
)  # fmt: skip
