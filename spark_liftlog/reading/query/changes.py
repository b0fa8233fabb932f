"""Options that are others than when the checkpoint was written: which of them are refused, and which are told.

Streams, partitions, subjects and the key may be added to a query and left out. A checkpoint has the positions of
streams and partitions, and not the filter; so the filter is kept beside the published progress (`note`), in whose
absence nothing is told. Of a key a digest is kept: whoever may see consumers need not see keys.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Final

from broker.api.errors import InvalidSetting, LiftlogError
from spark_liftlog.options import SourceOptions
from spark_liftlog.progress.publishing import BEGINS
from spark_liftlog.reading.cluster import Cluster
from spark_liftlog.reading.offsets import Offset

log = logging.getLogger("spark_liftlog")

TEXT_MAX: Final = 2_000
"""Characters of a filter, or of names, that are kept or logged."""


class OptionChanges:
    """Looks at each position that Spark hands over.

    Args:
        options: Those of today.
        cluster: Is asked once for what was published.

    Attributes:
        note: What is kept with published progress; empty: all subjects and keys are read.
    """

    def __init__(self, options: SourceOptions, cluster: Cluster) -> None:
        self._options = options
        self._cluster = cluster
        self._told: set[str] = set()
        self._knows_subjects = not options.commit_offsets
        key = [] if options.key is None else [f"key=sha256:{hashlib.sha256(options.key).hexdigest()[:32]}"]
        subjects = ["subjects=" + ",".join(sorted(options.subjects))] if options.subjects else []
        self.note = " ".join(key + subjects)[:TEXT_MAX]

    def check(self, at: Offset) -> None:
        """Compare the options with a position, and tell what changed, once.

        Raises:
            InvalidSetting: the position has none of the query's streams: it is another query's.
        """
        selection = self._options.selection
        left_out = sorted(stream for stream in at.incarnations if not selection.has(stream))
        if left_out and len(left_out) == len(at.incarnations):
            raise InvalidSetting(
                f"the checkpoint belongs to stream {', '.join(map(repr, left_out))}, the query reads"
                f" {selection}: use a checkpoint of its own",
                key="stream",
                value=str(selection),
            )
        apart = sorted(key for key in at.positions if selection.has(key[0]) and not selection.takes(key))
        self._tell("source.streams_left_out streams=%s note=their positions are kept", left_out)
        self._tell(
            "source.partitions_left_out partitions=%s note=their positions are kept",
            [f"{stream}/{partition}" for stream, partition in apart],
        )
        if not self._knows_subjects:
            self._knows_subjects = True
            self._check_subjects(at)

    def _tell(self, line: str, names: list[str]) -> None:
        if names and (text := ",".join(names)) not in self._told:
            self._told.add(text)
            log.warning(line, text[:TEXT_MAX])

    def _check_subjects(self, at: Offset) -> None:
        try:
            published = self._cluster.committed(self._options.consumer or at.consumer, is_patient=False)
        except LiftlogError:  # nothing was published, or nobody can say: no query waits for a warning
            return
        former = {p.metadata.removeprefix(BEGINS).strip() for p in published if (p.stream, p.partition) in at.positions}
        for before in sorted(former - {self.note}):
            log.warning(
                "source.subjects_changed from=%s to=%s note=it counts from the position of the query on",
                before or "all",
                self.note or "all",
            )
