"""What a JSON record has to be: one check for HTTP and WebSocket, so that both refuse the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from lakebed.errors import InvalidArgumentError, SchemaMismatchError
from lakebed.serve.gateway_models import NewRecord
from lakebed.topic.json_records import TROUBLE, RecordRows, reason
from lakebed.topic.json_values import UnfitError

if TYPE_CHECKING:
    from lakebed.api.encoding import WriteTarget

_WHY_MAX: Final = 200
_USUAL: Final = frozenset(["value", "key"])

Model = TypeVar("Model", bound=BaseModel)


def check_form(
    model: type[Model], value: Any, fault: str = "the body does not have the form of this call"
) -> Model:
    """Return what a model makes of a JSON value; raise `InvalidArgumentError` if it does not fit.

    Of many mistakes the first is told.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise InvalidArgumentError(
            fault,
            at=_place(first["loc"]),
            why=first["msg"][:_WHY_MAX],
        ) from None


def check_record(record: Any) -> None:
    """Raise `InvalidArgumentError` if a JSON value does not have the form of a record."""
    # What most records are needs no model: text or an object, with a key or without.
    if (
        type(record) is dict
        and record.keys() <= _USUAL
        and type(record.get("value")) in (str, dict)
        and type(record.get("key", "")) is str
    ):
        return
    check_form(NewRecord, record, "the message does not have the form of a record")


class RecordReader:
    """Reads records of a topic, whose form was checked, as rows that can be appended."""

    def __init__(self, target: WriteTarget) -> None:
        self.target = target
        self._raw = target.raw
        self._row = RecordRows(None if target.raw else pa.schema(list(target.value_type)))

    def __call__(self, record: dict[str, Any], **facts: object) -> dict[str, Any]:
        """Return the row of a record; `facts` say in the error which one it is."""
        try:
            if self._raw:
                _check_raw(record["value"])
            return self._row(record)
        except TROUBLE as error:
            raise SchemaMismatchError(
                "a record does not fit its topic",
                topic=self.target.topic.name,
                **facts,
                why=reason(error)[:_WHY_MAX],
            ) from error


def _check_raw(value: object) -> None:
    """Refuse a value of a raw topic that is neither bytes nor text: its bytes are not defined."""
    if not (value is None or isinstance(value, str)):
        if not isinstance(value, dict) or value.keys() != {"base64"}:
            raise UnfitError('a value of a raw topic must be text or {"base64": "..."}')
        if not isinstance(value["base64"], str):
            raise UnfitError("base64 must be text")


def _place(location: Sequence[int | str]) -> str:
    return ".".join(map(str, location))[:_WHY_MAX] or "body"
