"""The one validator of values that others write: settings, requests, answers, small files.

The type of a dataclass's field and its `Rule` declare once what a value must be:

    partition: Annotated[int, Rule(limit=(0, 1023))]
    linger_ms: int = declared(20, limit=(0, 10_000), unit="ms")

`build` makes the declared value of a JSON value. `ValueShape.schema` says the same declaration as JSON Schema.

V1  For any value, `take` returns a value of the declared type, or raises Misfit, or what a `Rule.read` raises.
V2  `take` refuses every value that the schema of the shape forbids. It may refuse more: see `Rule`.
V3  Text that cannot be written as UTF-8 is never taken; a whole number fits 64 bits.
"""

from __future__ import annotations

import functools
import re
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from broker.api.misfit import NOTHING, Misfit, unknown
from broker.api.plain import INT64_MAX

T = TypeVar("T")
JSON = dict[str, Any]
Names = Mapping[Any, str]
"""Dataclasses that a document names: their schema is a reference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The limits that a type does not express.

    Attributes:
        limit: (least, greatest), both allowed: of a number, of the length of text, of the count of items. Or the words
            that are allowed.
        unit: bytes, ms, records: for error texts.
        pattern: The whole text matches it; of a table each key does.
        says: The pattern in words, for people: "must be ...".
        is_printable: Text without control characters. Not in the schema.
        read: Makes the value of the text that was checked; it may refuse more.
        doc: For the schema, and for a commented configuration file.
        is_absent: None stands for "not given", and null is refused: it might be taken for "all".
        documented_as: The dataclass whose schema stands for this mapping.
    """

    limit: tuple[int, int] | tuple[str, ...] | None = None
    unit: str | None = None
    pattern: str | None = None
    says: str = ""
    is_printable: bool = False
    read: Callable[[Any], Any] | None = None
    doc: str = ""
    is_absent: bool = False
    documented_as: type | None = None


def declared(default: T, **rule: Any) -> T:
    """A field of a dataclass with a default and a `Rule`."""
    made: T = field(default=default, metadata={"rule": Rule(**rule)})
    return made


def build(cls: type[T], value: Any, *, is_open: bool = False) -> T:
    """The dataclass that a JSON object stands for.

    Args:
        is_open: Keys that are not declared are passed over, not refused, as clients must with answers.
    Raises:
        Misfit: a key is missing or unknown, or its value is not what was declared.
    """
    return cast("T", shape_of(cls, is_open=is_open).take(value))


def shape_of(hint: Any, rule: Rule | None = None, *, is_open: bool = False) -> ValueShape:
    """The shape of a type, with what its `Rule` adds."""
    return _shape_of(hint, rule, is_open)


def object_of(cls: Any, *, is_open: bool = False) -> Object:
    """The shape of a dataclass."""
    return cast("Object", _shape_of(cls, None, is_open))


@functools.cache
def _shape_of(hint: Any, rule: Rule | None, is_open: bool) -> ValueShape:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return shape_of(arguments[0], rule or arguments[1], is_open=is_open)
    if origin in (Union, types.UnionType):
        choices = [choice for choice in arguments if choice is not type(None)]
        if len(choices) > 1:
            return OneOf(rule or Rule(), choices, is_open)
        inner = shape_of(choices[0], None if get_origin(choices[0]) is Annotated else rule, is_open=is_open)
        return inner if rule and rule.is_absent else OrNone(rule or inner.rule, inner)
    rule = rule or Rule()
    if origin is Literal:
        return Text(Rule(limit=arguments, doc=rule.doc))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return Pieces(rule, [shape_of(one, is_open=is_open) for one in arguments])
    if origin is tuple:
        return Items(rule, shape_of(arguments[0], is_open=is_open))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Table(rule, arguments[0], shape_of(arguments[1], is_open=is_open))
    if is_dataclass(hint) and rule.read is None:
        return Object(rule, hint, is_open)
    return _PLAIN.get(hint, Text if rule.read else Anything)(rule)


class ValueShape:
    """The values that are taken, and what is made of them.

    Attributes:
        kind: int, str, bool, list, or empty.
        what: The rule that must hold: "must be ...".
    """

    kind = ""
    what = ""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def take(self, value: Any) -> Any:
        """The value of the declared type. Raises Misfit, and what `Rule.read` raises."""
        self.check(value)
        return value if self.rule.read is None else self.rule.read(value)

    def read(self, text: str) -> Any:
        """The value of a text in a query or a variable. A text that has no such value comes back as it is."""
        return text

    def check(self, value: Any) -> None:
        """Refuse what does not fit."""

    def schema(self, names: Names) -> JSON:
        """As JSON Schema (2020-12)."""
        return {**self._schema(names), **({"description": self.rule.doc} if self.rule.doc else {})}

    def _schema(self, names: Names) -> JSON:
        return {}

    def _limits(self, least: str, greatest: str) -> JSON:
        """The limit under these two keywords."""
        found = dict(zip((least, greatest), self.rule.limit or (), strict=False))
        return {key: bound for key, bound in found.items() if bound or key != least or least == "minimum"}


class Anything(ValueShape):
    """Any value; what it must be is another's to say."""


class Whole(ValueShape):
    """A whole number."""

    kind = "int"

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.least, self.greatest = cast("tuple[int, int]", rule.limit or (-INT64_MAX - 1, INT64_MAX))
        unit = f" {rule.unit}" if rule.unit else ""
        bounds = f"from {self.least} to {self.greatest}{unit}" if rule.limit else "of 64 bits"
        self.what = f"must be a whole number {bounds}"

    def take(self, value: Any) -> Any:
        if type(value) is int and self.least <= value <= self.greatest and self.rule.read is None:
            return value
        return super().take(value)

    def check(self, value: Any) -> None:
        if type(value) is not int or not self.least <= value <= self.greatest:
            raise Misfit(self.what, value, limit=self.rule.limit)

    def read(self, text: str) -> Any:
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,30}", text) else text

    def _schema(self, names: Names) -> JSON:
        return {"type": "integer", **self._limits("minimum", "maximum")}


class Truth(ValueShape):
    """True or false."""

    kind = "bool"
    what = "must be true or false"

    def check(self, value: Any) -> None:
        if type(value) is not bool:
            raise Misfit(self.what, value)

    def read(self, text: str) -> Any:
        return {"true": True, "false": False}.get(text, text)

    def _schema(self, names: Names) -> JSON:
        return {"type": "boolean"}


class Text(ValueShape):
    """Text: one of some words, or of some length, or as a pattern says."""

    kind = "str"

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        limit = rule.limit or ()
        self.words = limit if limit and isinstance(limit[0], str) else ()
        bounds: Any = (0, None) if self.words or not limit else limit
        self.least: int = bounds[0]
        self.greatest: int | None = bounds[1]
        if self.words:
            self.what = f"must be one of {', '.join(map(str, self.words))}"
        elif rule.says or self.greatest is None:
            self.what = rule.says or "must be text"
        else:
            length = f"{self.least} to {self.greatest} characters"
            self.what = f"must be {'printable ' if rule.is_printable else ''}text of {length}"
        self._matches = None if rule.pattern is None else re.compile(rule.pattern).fullmatch
        self._is_pattern_alone = bool(rule.pattern) and not (rule.limit or rule.is_printable or rule.read)

    def take(self, value: Any) -> Any:
        if self._is_pattern_alone and type(value) is str and value.isascii() and self._matches(value):  # type: ignore[misc]
            return value  # commands have thousands of them
        return super().take(value)

    def check(self, value: Any) -> None:
        if not isinstance(value, str):
            raise Misfit(
                self.what if self.words or self.rule.limit else "must be text", value, limit=self.words or None
            )
        if not is_utf8(value):
            raise Misfit("must be Unicode text, without halves of characters", value)
        if self.words:
            fits = value in self.words
        else:
            fits = self.least <= len(value) and (self.greatest is None or len(value) <= self.greatest)
            fits = fits and (self._matches is None or self._matches(value) is not None)
            fits = fits and (value.isprintable() or not self.rule.is_printable)
        if not fits:
            raise Misfit(self.what, value, limit=self.rule.limit)

    def _schema(self, names: Names) -> JSON:
        found: JSON = {"type": "string"}
        if self.words:
            return found | {"enum": list(self.words)}
        if self.rule.pattern:
            return found | {"pattern": f"^({self.rule.pattern})$"}
        return found | self._limits("minLength", "maxLength")


def is_utf8(text: str) -> bool:
    """Whether it can be written as UTF-8: JSON may hold halves of characters, by escapes."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


class OrNone(ValueShape):
    """The value, or null."""

    def __init__(self, rule: Rule, inner: ValueShape) -> None:
        super().__init__(rule)
        self.inner = inner
        self.kind = inner.kind
        self.what = f"{inner.what} or null"

    def take(self, value: Any) -> Any:
        try:
            return None if value is None else self.inner.take(value)
        except Misfit as misfit:
            misfit.what += "" if misfit.path else " or null"
            raise

    def read(self, text: str) -> Any:
        return self.inner.read(text)

    def _schema(self, names: Names) -> JSON:
        inner = self.inner.schema(names)
        inner.pop("description", None)
        if isinstance(inner.get("type"), str) and "enum" not in inner:
            return {**inner, "type": [inner["type"], "null"]}
        if not inner:
            return {}
        return {"oneOf": [inner, {"type": "null"}]}


class OneOf(ValueShape):
    """One of several words, or an object with one of several keys."""

    def __init__(self, rule: Rule, choices: Iterable[Any], is_open: bool) -> None:
        super().__init__(rule)
        shapes = [shape_of(choice, is_open=is_open) for choice in choices]
        self.shapes = shapes
        self.words = [word for shape in shapes if isinstance(shape, Text) for word in shape.words]
        self.objects = {key: shape for shape in shapes if isinstance(shape, Object) for key in shape.shapes}
        words = [*map(repr, self.words), f"an object with one of {', '.join(self.objects)}"]
        self.what = f"must be {', '.join(words[:-1])} or {words[-1]}"

    def take(self, value: Any) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        shape = self.objects.get(next(iter(value))) if isinstance(value, Mapping) and len(value) == 1 else None
        if shape is None:
            raise Misfit(self.what, value)
        return shape.take(value)

    def _schema(self, names: Names) -> JSON:
        return {"oneOf": [shape.schema(names) for shape in self.shapes]}


class Items(ValueShape):
    """A list of items of one shape, as a tuple."""

    kind = "list"

    def __init__(self, rule: Rule, item: ValueShape) -> None:
        super().__init__(rule)
        self.item = item
        self.least, self.greatest = cast("tuple[int, int]", rule.limit or (0, 1 << 62))
        self.what = f"must be a list of {self.least} to {self.greatest} items" if rule.limit else "must be a list"

    def take(self, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise Misfit(self.what, value, limit=self.rule.limit)
        if not self.least <= len(value) <= self.greatest:
            raise Misfit(f"{self.what}, not of {len(value)} items", value, limit=self.rule.limit)
        take, found = self.item.take, []
        try:
            for one in value:
                found.append(take(one))
        except Misfit as misfit:
            misfit.path.append(len(found))
            raise
        return tuple(found)

    def read(self, text: str) -> Any:
        return [part.strip() for part in text.split(",") if part.strip()]

    def _schema(self, names: Names) -> JSON:
        return {"type": "array", "items": self.item.schema(names), **self._limits("minItems", "maxItems")}


class Pieces(ValueShape):
    """A list of fixed length, as a tuple."""

    def __init__(self, rule: Rule, shapes: list[ValueShape]) -> None:
        super().__init__(rule)
        self.shapes = shapes
        self.what = f"must be a list of {len(shapes)} items"

    def take(self, value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(self.shapes):
            raise Misfit(self.what, value)
        found: list[Any] = []
        try:
            for shape, one in zip(self.shapes, value, strict=True):
                found.append(shape.take(one))
        except Misfit as misfit:
            misfit.path.append(len(found))
            raise
        return tuple(found)

    def _schema(self, names: Names) -> JSON:
        count = len(self.shapes)
        return {"type": "array", "items": self.shapes[0].schema(names), "minItems": count, "maxItems": count}


class Table(ValueShape):
    """An object of any keys, whose values are of one shape. Keys may be whole numbers, which JSON has as text."""

    def __init__(self, rule: Rule, key: type, item: ValueShape) -> None:
        super().__init__(rule)
        self.item = item
        self.key = key
        self.keys, self.key_pattern = ("whole numbers", "[0-9]{1,18}") if key is int else ("Unicode text", "(?s:.*)")
        if rule.pattern is not None:
            self.keys, self.key_pattern = rule.says.removeprefix("must be "), rule.pattern
        self._key_matches = re.compile(self.key_pattern).fullmatch
        self.greatest = cast("int", rule.limit[1]) if rule.limit else None
        self.what = "must be an object" + (f" of up to {self.greatest} entries" if rule.limit else "")

    def take(self, value: Any) -> Any:
        if not isinstance(value, Mapping) or (self.greatest is not None and len(value) > self.greatest):
            raise Misfit(self.what, value, limit=self.rule.limit)
        found: dict[Any, Any] = {}
        for key, one in value.items():
            if not isinstance(key, str) or not self._key_matches(key) or not is_utf8(key):
                raise Misfit(f"must be an object whose keys are {self.keys}", key)
            try:
                found[self.key(key)] = self.item.take(one)
            except Misfit as misfit:
                misfit.path.append(key)
                raise
        return found

    def _schema(self, names: Names) -> JSON:
        if self.rule.documented_as is not None:
            return shape_of(self.rule.documented_as).schema(names)
        schema = self.item.schema(names)
        more = {"additionalProperties": schema} if schema else {}
        return {"type": "object", **more, **self._limits("minProperties", "maxProperties")}


class Object(ValueShape):
    """A dataclass; an instance of it is taken as it is.

    An open one is an answer: its schema promises every key, and who reads it does without those that have a default.
    """

    what = "must be a JSON object"

    def __init__(self, rule: Rule, cls: Any, is_open: bool) -> None:
        super().__init__(rule)
        self.cls = cls
        self.is_open = is_open
        hints = get_type_hints(cls, include_extras=True)
        self.shapes = {
            one.name: shape_of(hints[one.name], one.metadata.get("rule"), is_open=is_open) for one in fields(cls)
        }
        self.required = [one.name for one in fields(cls) if not _has_default(one)]
        self.promised = [name for name, hint in hints.items() if not _may_be_absent(hint)]

    def take(self, value: Any) -> Any:
        if isinstance(value, self.cls):
            return value
        if type(value) is not dict and not isinstance(value, Mapping):
            raise Misfit(self.what, value)
        if not self.is_open:
            for key in value:
                if key not in self.shapes:
                    raise unknown(key, value[key], self.shapes)
        for key in self.required:
            if key not in value:
                raise Misfit("is missing", NOTHING, key)
        found: dict[str, Any] = {}
        try:  # once around all fields: bulk answers have thousands of objects
            for key, shape in self.shapes.items():
                if key in value:
                    found[key] = shape.take(value[key])
        except Misfit as misfit:
            misfit.path.append(key)
            raise
        return self.cls(**found)

    def _schema(self, names: Names) -> JSON:
        return {"$ref": f"#/components/schemas/{names[self.cls]}"} if self.cls in names else self.inline(names)

    def inline(self, names: Names) -> JSON:
        """The schema itself, where others have a reference."""
        return {
            "type": "object",
            "properties": {key: shape.schema(names) for key, shape in self.shapes.items()},
            "required": self.promised if self.is_open else self.required,
            **({} if self.is_open else {"additionalProperties": False}),
        }


def _may_be_absent(hint: Any) -> bool:
    return get_origin(hint) is Annotated and bool(get_args(hint)[1].is_absent)


def _has_default(one: Field[Any]) -> bool:
    return one.default is not MISSING or one.default_factory is not MISSING


_PLAIN: Final[dict[Any, type[ValueShape]]] = {int: Whole, bool: Truth, str: Text}
