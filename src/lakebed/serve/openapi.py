"""The OpenAPI document: parameters as the routes have them, bodies and answers of the models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lakebed.serve import gateway_models as models
from lakebed.serve.http_errors import MEDIA_TYPE
from lakebed.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI

_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_ALWAYS: Final = (400, 401, 403, 429, 500, 503)
_BODY: Final = (408, 413, 415)
_MEANINGS: Final = {
    200: "Done.",
    201: "It was made.",
    204: "Done; there is nothing to tell.",
    400: "A value, a name or the body is not allowed.",
    401: "The server does not know who is calling.",
    403: "The caller may not do this.",
    404: "There is no such topic, partition or group, or no such path.",
    408: "The body did not come in time.",
    409: "It exists already, has members, or cannot be changed in this way.",
    413: "The body, a record or the batch is too large.",
    415: "The body is not JSON.",
    416: "The partition does not have this offset.",
    429: "The caller or all of them do too much, for now.",
    500: "The server could not do it; a write may have happened.",
    503: "The log cannot do it now, or the server is stopping.",
}


class Operation(NamedTuple):
    """What a call takes and gives, beside its parameters."""

    status: int
    gives: type[BaseModel] | str | None
    """The model of the answer, or its media type if that is no JSON."""
    errors: tuple[int, ...]
    takes: type[BaseModel] | None = None
    problem: type[BaseModel] = models.Problem


OPERATIONS: Final = {
    "live": Operation(200, models.Live, ()),
    "ready": Operation(200, models.Ready, (503,), problem=models.Ready),
    "metrics": Operation(200, _TEXT, _ALWAYS),
    "topics": Operation(200, models.TopicNames, _ALWAYS),
    "create_topic": Operation(201, models.Topic, (*_ALWAYS, *_BODY, 409), models.NewTopic),
    "describe_topic": Operation(200, models.Topic, (*_ALWAYS, 404)),
    "alter_topic": Operation(200, models.Topic, (*_ALWAYS, *_BODY, 404, 409), models.TopicChange),
    "delete_topic": Operation(204, None, (*_ALWAYS, 404)),
    "put": Operation(200, models.Written, (*_ALWAYS, *_BODY, 404, 409), models.NewRecords),
    "read": Operation(200, models.Records, (*_ALWAYS, 404, 416)),
    "offsets": Operation(200, models.Offsets, (*_ALWAYS, 404)),
    "groups": Operation(200, models.GroupNames, _ALWAYS),
    "describe_group": Operation(200, models.Group, (*_ALWAYS, 404)),
    "commit_offsets": Operation(204, None, (*_ALWAYS, *_BODY, 404, 409), models.Commit),
    "delete_group": Operation(204, None, (*_ALWAYS, 404, 409)),
}
"""By the name of the call, which is the name of its route."""
_UNGUARDED: Final = ("live", "ready")


def document(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application."""
    found: dict[str, Any] = get_openapi(
        title="Lakebed",
        version=__version__,
        description="A durable event log. An error's body has its code, and what to do about it.",
        routes=app.routes,
    )
    for path, methods in found["paths"].items():
        for method, given in methods.items():
            found["paths"][path][method] = _operation(given["operationId"], given)
    found["components"] = {
        "schemas": _schemas(),
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    return found


def _operation(name: str, given: dict[str, Any]) -> dict[str, Any]:
    operation = OPERATIONS[name]
    responses = {str(operation.status): _response(operation.status, operation.gives)}
    for status in sorted(operation.errors):
        media_type = _JSON if operation.problem is models.Ready else MEDIA_TYPE
        responses[str(status)] = _response(status, operation.problem, media_type)
    shown = {
        "operationId": name,
        "summary": given["summary"],
        "description": given["description"],
        "tags": ["server" if name in (*_UNGUARDED, "metrics") else "log"],
        "parameters": given.get("parameters", []),
        "responses": responses,
    }
    if name not in _UNGUARDED:
        shown["security"] = [{"token": []}, {}]  # a log without tokens is open to everybody
    if operation.takes is not None:
        content = {_JSON: {"schema": _reference(operation.takes)}}
        shown["requestBody"] = {"required": True, "content": content}
    return shown


def _response(
    status: int, gives: type[BaseModel] | str | None, media_type: str = _JSON
) -> dict[str, Any]:
    shown: dict[str, Any] = {"description": _MEANINGS[status]}
    if isinstance(gives, str):
        shown["content"] = {gives: {"schema": {"type": "string"}}}
    elif gives is not None:
        shown["content"] = {media_type: {"schema": _reference(gives)}}
    return shown


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _schemas() -> dict[str, Any]:
    used: set[type[BaseModel]] = {models.Problem, models.Ready}
    for operation in OPERATIONS.values():
        used |= {each for each in (operation.gives, operation.takes) if isinstance(each, type)}
    ordered = sorted(used, key=lambda each: each.__name__)
    _, schemas = models_json_schema(
        [(each, "validation") for each in ordered], ref_template="#/components/schemas/{model}"
    )
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions
