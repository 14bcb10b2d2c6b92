"""Schemas as JSON documents, which is how they are given and shown outside of Python.

    {"fields": [FIELD, ...]}
    FIELD  {"name": "id", "type": TYPE, "nullable": true | false}     nullable if it does not say
    TYPE   "bool" "int32" "int64" "float" "double" "string" "binary" "date"
           "timestamp" (UTC) "timestamp_ntz" (without time zone)
           "decimal(PRECISION, SCALE)"
           {"list": TYPE} {"map": TYPE} {"struct": [FIELD, ...]}

`map` has keys of type string; `{"map": TYPE, "keys": TYPE}` has others. The elements of lists and
the values of maps are nullable; `"nullable": false` beside `list` or `map` says that they are not.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pyarrow as pa
from pyarrow import types

from lakebed.errors import InvalidArgumentError, LakebedError
from lakebed.topic.schema import TIMESTAMP, check_schema

_SIMPLE: Final = {
    "bool": pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
    "timestamp_ntz": pa.timestamp("us"),
}
_NAMES: Final = {kind: name for name, kind in _SIMPLE.items()}
_DECIMAL: Final = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)", re.ASCII)
_ALLOWED: Final = ", ".join(_SIMPLE) + ", decimal(P, S), {list}, {map} or {struct}"


class _Wrong(Exception):  # noqa: N818  # it never leaves this module
    """Something is wrong with a field."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


def schema_of(document: Any, **source: object) -> pa.Schema:
    """Return the schema of a document; what is wrong is told with its source and the field."""
    try:
        return check_schema(_schema(document))
    except _Wrong as wrong:
        raise InvalidArgumentError(str(wrong), **source, field=wrong.field) from None
    except (LakebedError, RecursionError) as error:
        facts = error.facts if isinstance(error, LakebedError) else {}
        message = error.message if isinstance(error, LakebedError) else "it is nested too deeply"
        raise InvalidArgumentError(message, **{**source, **facts}) from error


def _schema(document: Any) -> pa.Schema:
    if not isinstance(document, dict) or set(document) != {"fields"}:
        raise _Wrong('a schema is a JSON object {"fields": [...]}', "value")
    return pa.schema(_fields(document["fields"], ""))


def _fields(document: Any, path: str) -> list[pa.Field]:
    if not isinstance(document, list):
        raise _Wrong("fields are a list", path or "value")
    return [_field(field, index, path) for index, field in enumerate(document)]


def _field(document: Any, index: int, path: str) -> pa.Field:
    field_path = f"{path}[{index}]"
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        raise _Wrong('a field is an object with "name" and "type"', field_path)
    name = f"{path}.{document['name']}" if path else document["name"]
    _check_keys(document, {"name", "type", "nullable"}, name)
    if "type" not in document:
        raise _Wrong("the field has no type", name)
    return pa.field(document["name"], _type(document["type"], name), _nullable(document, name))


def _check_keys(document: dict[str, Any], allowed: set[str], path: str) -> None:
    for key in document:
        if key not in allowed:
            raise _Wrong(f"unknown key {key!r}; known are {', '.join(sorted(allowed))}", path)


def _nullable(document: dict[str, Any], path: str) -> bool:
    nullable = document.get("nullable", True)
    if not isinstance(nullable, bool):
        raise _Wrong("nullable is true or false", path)
    return nullable


def _type(document: Any, path: str) -> pa.DataType:
    if isinstance(document, str):
        return _simple(document, path)
    if isinstance(document, dict) and "list" in document:
        _check_keys(document, {"list", "nullable"}, path)
        return pa.list_(
            pa.field("element", _type(document["list"], path), _nullable(document, path))
        )
    if isinstance(document, dict) and "map" in document:
        _check_keys(document, {"map", "keys", "nullable"}, path)
        item = pa.field("value", _type(document["map"], path), _nullable(document, path))
        return pa.map_(_type(document.get("keys", "string"), path), item)
    if isinstance(document, dict) and "struct" in document:
        _check_keys(document, {"struct"}, path)
        return pa.struct(_fields(document["struct"], path))
    raise _Wrong(f"a type is one of {_ALLOWED}", path)


def _simple(text: str, path: str) -> pa.DataType:
    if text in _SIMPLE:
        return _SIMPLE[text]
    match = _DECIMAL.fullmatch(text)
    if match and 1 <= int(match[1]) <= 38 and int(match[2]) <= int(match[1]):
        return pa.decimal128(int(match[1]), int(match[2]))
    if match:
        raise _Wrong(
            "a decimal must have 1 to 38 digits, and no more of them after the point", path
        )
    raise _Wrong(f"unknown type {text!r}; types are {_ALLOWED}", path)


def schema_document(schema: pa.Schema) -> dict[str, object]:
    """Return a schema in the form in which it can be given."""
    return {"fields": [_field_document(field) for field in schema]}


def _field_document(field: pa.Field) -> dict[str, object]:
    return {"name": field.name, "type": type_document(field.type), "nullable": field.nullable}


def type_document(kind: pa.DataType) -> object:
    """Return a type in the form in which it can be given."""
    if kind in _NAMES:
        return _NAMES[kind]
    if types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if types.is_struct(kind):
        return {"struct": [_field_document(field) for field in kind]}
    if types.is_list(kind):
        element = kind.value_field
        nullable = {} if element.nullable else {"nullable": False}
        return {"list": type_document(element.type), **nullable}
    nullable = {} if kind.item_field.nullable else {"nullable": False}
    keys = {} if kind.key_type == pa.string() else {"keys": type_document(kind.key_type)}
    return {"map": type_document(kind.item_type), **keys, **nullable}
