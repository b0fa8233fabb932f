"""Pins over HTTP: placed by who has seen the last one; no consumers; limits."""

from __future__ import annotations

from typing import Any

from broker.api.answers import PIN_LENGTH_MAX
from tests.unit.serving.server import Answer, Api


def place(api: Api, text: str, version: int, name: str = "query.frame") -> Answer:
    return api.post(f"/v1/pins/{name}", {"text": text, "version": version})


def test_a_pin_is_replaced_by_who_has_seen_it_only(api: Api) -> None:
    assert api.get("/v1/pins/query.frame").json() == {"text": "", "version": 0, "placed": False}
    first: dict[str, Any] = place(api, "a", 0).json()
    assert (first["text"], first["placed"]) == ("a", True)
    assert place(api, "b", 0).json() == {**first, "placed": False}
    second = place(api, "b", first["version"]).json()
    assert second["placed"]
    assert second["version"] > first["version"]
    assert api.get("/v1/pins/query.frame").json() == {**second, "placed": False}
    assert api.get("/v1/pins/query.other").json()["version"] == 0


def test_pins_are_no_consumers(api: Api) -> None:
    place(api, "a", 0, name="spark")
    assert api.get("/v1/consumers").json() == {"consumers": []}
    assert api.get("/v1/consumers/spark").status == 404


def test_a_pin_is_small_and_has_a_name(api: Api) -> None:
    assert place(api, "x" * PIN_LENGTH_MAX, 0).status == 200
    for text, version, name in (("x" * (PIN_LENGTH_MAX + 1), 1, "a"), ("", 0, "a"), ("\n", 0, "a"), ("x", -1, "a")):
        assert place(api, text, version, name).status == 400
    assert place(api, "x", 0, name="not%2Fone").json()["reason"] == "invalid_name"
