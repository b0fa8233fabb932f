"""Every test that takes `twin` runs against both implementations."""

from __future__ import annotations

from types import ModuleType
from typing import cast

import pytest

from tests.unit.ingest.twins import TWIN_IDS, TWINS


@pytest.fixture(params=TWINS, ids=TWIN_IDS)
def twin(request: pytest.FixtureRequest) -> ModuleType:
    return cast(ModuleType, request.param)
