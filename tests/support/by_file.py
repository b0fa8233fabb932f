"""Which worker gets which tests: all of one file, in the order of the collection.

The files of tests/spark with the common session are as one; each test of the simulator is by itself. In the first lane
one worker takes only what mostly waits, and the others take that when nothing else is left (record 150).
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.lanes import FIRST, MOSTLY_WAITS

WAITER = "gw0"
SPARK_ALONE = ("bare", "discovery", "kills", "standalone")
"""In the names of the files of tests/spark that start sessions of their own."""


class ByFile(LoadScopeScheduling):
    """The scheduler of xdist, with `WAITER` where there are three workers or more."""

    def _is_waiter(self, node: WorkerController) -> bool:
        return self.config.option.lane == FIRST and len(self.nodes) > 2 and node.gateway.id == WAITER

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = self._is_waiter(node)
        fit = (scope for scope in self.workqueue if scope.startswith(MOSTLY_WAITS) == waits)
        if (scope := next(fit, None)) is not None:
            self.workqueue.move_to_end(scope, last=False)  # what it takes next
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        if self._is_waiter(node) and not any(scope.startswith(MOSTLY_WAITS) for scope in self.workqueue):
            node.shutdown()
            return
        super()._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        if path.startswith("tests/sim/"):
            return nodeid
        if path.startswith("tests/spark/") and not any(name in path for name in SPARK_ALONE):
            return "tests/spark"
        return path
