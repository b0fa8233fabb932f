"""The OpenAPI document is the contract.

Goal: the document is valid, describes exactly what the server answers, and changes only where a reviewer
sees it. (That each answer has the described shape is checked by `Api.request` in every test here.)
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator, validate

from broker.api.errors import BY_REASON
from broker.api.stream import StreamSettings
from broker.serving.contract.openapi import document
from broker.serving.http.app import ENDPOINTS
from tests.unit.serving.listing import listing
from tests.unit.serving.server import CONTRACT, Api, Server

REVIEWED = Path(__file__).parent / "contract.txt"


@pytest.mark.slow
@pytest.mark.long
def test_the_document_is_valid_openapi() -> None:
    validate(CONTRACT, cls=OpenAPIV31SpecValidator)


def test_the_server_serves_the_document(api: Api) -> None:
    assert api.get("/openapi.json").json() == CONTRACT


def test_every_route_is_in_the_document_and_nothing_else(server: Server) -> None:
    routes = {
        (route.method.lower(), route.resource.canonical)
        for route in server.app.router.routes()
        if route.resource is not None
    }
    documented = {
        (method, path) for path, item in CONTRACT["paths"].items() for method in item if method != "parameters"
    }
    assert routes == documented


def test_operations_have_distinct_names() -> None:
    names = [op["operationId"] for item in CONTRACT["paths"].values() for op in item.values() if isinstance(op, dict)]
    assert len(names) == len(set(names))


def test_schemas_are_schemas_and_know_all_settings_and_reasons() -> None:
    schemas = CONTRACT["components"]["schemas"]
    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)
    assert schemas["StreamSettings"]["properties"].keys() == StreamSettings().as_dict().keys()
    assert set(schemas["Problem"]["properties"]["reason"]["enum"]) == set(BY_REASON)


def test_defaults_satisfy_their_own_schema() -> None:
    schema = {**CONTRACT["components"]["schemas"]["StreamSettings"]}
    Draft202012Validator(schema).validate(StreamSettings().as_dict())
    for item in CONTRACT["paths"].values():
        for operation in item.values():
            for parameter in operation["parameters"] if isinstance(operation, dict) else ():
                if "default" in parameter.get("schema", {}):
                    Draft202012Validator(parameter["schema"]).validate(parameter["schema"]["default"])


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.operation)
def test_parameters_enforce_the_limits_that_they_document(endpoint: object) -> None:
    for parameter in endpoint.query:  # type: ignore[attr-defined]
        schema = parameter.schema
        if schema["type"] != "integer":
            continue
        for bound, beyond in ((schema["minimum"], schema["minimum"] - 1), (schema["maximum"], schema["maximum"] + 1)):
            assert parameter.parse(str(bound)) == bound
            with pytest.raises(ValueError, match="must be"):
                parameter.parse(str(beyond))


def test_the_contract_is_what_was_reviewed() -> None:
    """If you mean to change it: LIFTLOG_UPDATE_GOLDEN=1, and look at the difference as a client would."""
    text = listing(document(ENDPOINTS))
    if os.environ.get("LIFTLOG_UPDATE_GOLDEN"):
        REVIEWED.write_text(text)
    assert REVIEWED.read_text() == text
