"""The contract as lines that a reviewer reads: calls, their parameters and answers, and the fields of each body.

A line ends with what a value may be: type, limits, default. Explanations are left out, but for the codes of errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]
LEFT_OUT = ("description", "examples", "properties", "required", "items", "type", "$ref", "title")


def listing(contract: Json) -> str:
    return "\n".join([*calls(contract), "", *bodies(contract)]) + "\n"


def calls(contract: Json) -> Iterator[str]:
    for path, methods in contract["paths"].items():
        for method, call in methods.items():
            if method in ("head", "parameters"):  # as GET; in the path
                continue
            yield f"{method.upper()} {path}  {call['operationId']}"
            for need in call["x-permission"]:
                yield f"    needs {said_need(need)}"
            if call["x-audited"]:
                yield "    is audited"
            for parameter in call.get("parameters", ()):
                if "$ref" in parameter:
                    yield f"    {name_of(parameter['$ref'])}"
                else:
                    needed = " required" * parameter["required"]
                    yield f"    {parameter['in']} {parameter['name']}: {value(parameter['schema'])}{needed}"
            for kind, content in call.get("requestBody", {}).get("content", {}).items():
                yield f"    takes {kind}: {value(content.get('schema', {}))}"
            for status, answer in call["responses"].items():
                told = [f"{kind}: {value(each.get('schema', {}))}" for kind, each in answer.get("content", {}).items()]
                headers = [f"{name}" for name in answer.get("headers", ())]
                codes = answer["description"] if not status.startswith("2") else ""
                yield "    " + "  ".join(each for each in (f"{status}", codes or ", ".join(told), *headers) if each)


def said_need(need: Json) -> str:
    of, when = need.get("of"), need.get("when")
    return need["action"] + f" of {of}" * bool(of) + f", if {when}" * bool(when)


def bodies(contract: Json) -> Iterator[str]:
    for kind, parts in contract["components"].items():
        for name, schema in sorted(parts.items()):
            yield f"{kind} {name}: {value(schema.get('schema', schema))}"
            yield from fields(schema, "    ")


def fields(schema: Json, indent: str) -> Iterator[str]:
    while "items" in schema:
        schema = schema["items"]
    for name, field in schema.get("properties", {}).items():
        needed = " required" * (name in schema.get("required", ()))
        yield f"{indent}{name}: {value(field)}{needed}"
        yield from fields(field, indent + "    ")


def value(schema: Json) -> str:
    """Type and limits in a line. Fields follow in lines of their own."""
    if "$ref" in schema:
        return name_of(schema["$ref"])
    kinds = schema.get("type", "any")
    kind = kinds if isinstance(kinds, str) else " or ".join(kinds)
    if "items" in schema:
        kind += f" of ({value(schema['items'])})"
    rest = [f"{key}={said(each)}" for key, each in schema.items() if key not in LEFT_OUT]
    return " ".join([kind, *rest])


def said(each: Any) -> str:
    if isinstance(each, Mapping):
        return f"({value(each)})" if {"type", "$ref"} & each.keys() else repr(dict(each))
    if isinstance(each, list):
        return "[" + ", ".join(said(item) for item in each) + "]"
    return str(each)


def name_of(reference: str) -> str:
    return reference.rpartition("/")[2]
