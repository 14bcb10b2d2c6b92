"""Arrow data from outside: the one place where it is checked before any kernel works on it.

IPC messages carry lengths, offsets and sizes that their sender chose. A batch is checked in this
order, each step safe on what the earlier ones let pass:

1. its size, counted from its buffers without reading them (`batch_bytes`);
2. once for a stream, its schema: names and time zones are UTF-8, and every type is one whose
   arrays these checks cover. Unions, views of lists, run-end encoding, fixed-size lists, extension
   types and dictionaries of nested values are refused: no topic holds them;
3. a batch without rows is replaced by an empty one: nothing in its columns is looked at;
4. Arrow's full validation;
5. what that leaves out: the views of null slots.

What a dictionary or a view becomes when it is written out is bounded by `topic.expansion`. Offsets
of lists and maps of length zero, which validation passes whatever they are, are replaced by
`topic.offsets`.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import types

from lakebed.errors import LakebedError, ProtocolError, SchemaMismatchError
from lakebed.topic.expansion import has_negative_view, has_views


def batch_bytes(batch: pa.RecordBatch | None) -> int:
    """Return the size of a batch's buffers; unlike `nbytes` it reads none of them."""
    return 0 if batch is None else int(batch.get_total_buffer_size())


def check_text(schema: pa.Schema) -> None:
    """Refuse a schema with a name or a time zone that is not UTF-8."""
    try:
        for field in schema:
            _read_text(field)
    except UnicodeDecodeError as error:
        raise ProtocolError(
            "a name or a time zone of the schema is not UTF-8", reason=str(error)
        ) from error


class Received:
    """Checks the batches of one stream, which all have one schema."""

    def __init__(self) -> None:
        self._schema_checked = False
        self._schema_error: LakebedError | None = None
        self._viewed: list[int] = []
        """Columns that hold views."""

    def check(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch, or an empty one of its schema; raise if it is not safe to work on."""
        if not self._schema_checked:
            self._check_schema(batch.schema)
        if self._schema_error is not None:
            raise _copy(self._schema_error)
        if batch.num_rows == 0:
            columns = [pa.nulls(0, field.type) for field in batch.schema]
            return pa.RecordBatch.from_arrays(columns, schema=batch.schema)
        try:
            batch.validate(full=True)
        except pa.ArrowException as error:
            raise _invalid(str(error)) from error
        for index in self._viewed:
            if has_negative_view(batch.column(index)):
                raise _invalid("a view has a negative size", column=batch.schema.names[index])
        return batch

    def _check_schema(self, schema: pa.Schema) -> None:
        self._schema_checked = True
        try:
            check_text(schema)
            for field in schema:
                _check_type(field.name, field.type)
        except LakebedError as error:
            self._schema_error = error
            return
        self._viewed = [index for index, kind in enumerate(schema.types) if has_views(kind)]


def _invalid(reason: str, **facts: object) -> ProtocolError:
    return ProtocolError("the batch is not valid Arrow data", reason=reason, **facts)


def _copy(error: LakebedError) -> LakebedError:
    """Return an equal error: one that is raised twice keeps the frames of both."""
    return type(error)(error.message, **error.facts)


# Types


def _read_text(field: pa.Field) -> None:
    """Read every name and time zone of a field; pyarrow raises for one that is not UTF-8."""
    field.name  # noqa: B018  # a property that decodes
    _read_type(field.type)


def _read_type(kind: pa.DataType) -> None:
    if isinstance(kind, pa.BaseExtensionType):
        _read_type(kind.storage_type)
    elif types.is_dictionary(kind):
        _read_type(kind.value_type)
    elif types.is_timestamp(kind):
        kind.tz  # noqa: B018
    for index in range(kind.num_fields):
        _read_text(kind.field(index))


def _check_type(path: str, kind: pa.DataType) -> None:
    """Refuse a type whose arrays are not checked here."""
    if types.is_struct(kind):
        for field in kind:
            _check_type(f"{path}.{field.name}", field.type)
    elif types.is_map(kind):
        _check_type(f"{path}.key", kind.key_type)
        _check_type(f"{path}.value", kind.item_type)
    elif types.is_list(kind) or types.is_large_list(kind):
        _check_type(f"{path}.element", kind.value_type)
    elif not _is_flat(kind.value_type if types.is_dictionary(kind) else kind):
        raise SchemaMismatchError(
            "a column does not fit the topic",
            column=path,
            expected="a type that a topic can hold",
            got=kind,
        )


def _is_flat(kind: pa.DataType) -> bool:
    """Return True for types whose values have a fixed width, or are text or bytes."""
    if isinstance(kind, pa.BaseExtensionType):
        return False
    return any(is_kind(kind) for is_kind in _FLAT)


_FLAT = (
    types.is_primitive,
    types.is_decimal,
    types.is_null,
    types.is_string,
    types.is_binary,
    types.is_large_string,
    types.is_large_binary,
    types.is_string_view,
    types.is_binary_view,
    types.is_fixed_size_binary,
)
