"""HTTP routes as `operations/` describes them, and their OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from lakebed.operations.description import Route
from lakebed.operations.routes import NEEDS, ROUTES
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
    404: "The topic, partition, group or path does not exist.",
    408: "The body did not come in time.",
    409: "It exists already, has members, or cannot be changed in this way.",
    413: "The body, a record or the batch is too large.",
    415: "The body is not JSON.",
    416: "The partition does not have this offset.",
    429: "The caller or all of them do too much, for now.",
    500: "The server could not do it; a write may have happened.",
    503: "The log cannot do it now, or the server is stopping.",
}


_SERVER: Final = ("live", "ready", "metrics")

Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Response]])


def add_route(app: FastAPI, name: str) -> Callable[[Endpoint], Endpoint]:
    """Make a decorator that adds a function to an application as the route of a call."""
    route = ROUTES[name]

    def add(function: Endpoint) -> Endpoint:
        app.add_api_route(
            route.path, function, methods=[route.method], name=name, status_code=route.status
        )
        return function

    return add


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
    route = ROUTES[name]
    responses = {str(route.status): _response(route.status, route.answer)}
    for status in sorted(_errors(name, route)):
        responses[str(status)] = _error_response(name, status)
    shown = {
        "operationId": name,
        "summary": given["summary"],
        "description": given["description"],
        "tags": ["server" if name in _SERVER else "log"],
        "parameters": given.get("parameters", []),
        "responses": responses,
    }
    if name in NEEDS:
        shown["security"] = [{"token": []}, {}]  # a log without tokens is open to everybody
    if route.body is not None:
        content = {_JSON: {"schema": _reference(route.body)}}
        shown["requestBody"] = {"required": True, "content": content}
    return shown


def _errors(name: str, route: Route) -> tuple[int, ...]:
    always = _ALWAYS if name in NEEDS else ()
    return (*always, *(_BODY if route.body is not None else ()), *route.errors)


def _error_response(name: str, status: int) -> dict[str, Any]:
    if name == "ready":  # it says why the log cannot be used
        return _response(status, ROUTES[name].answer)
    return _response(status, models.Problem.__name__, MEDIA_TYPE)


def _response(status: int, answer: str | None, media_type: str = _JSON) -> dict[str, Any]:
    """Describe an answer: a model, text of a media type, or nothing."""
    shown: dict[str, Any] = {"description": _MEANINGS[status]}
    if answer == _TEXT:
        shown["content"] = {_TEXT: {"schema": {"type": "string"}}}
    elif answer is not None:
        shown["content"] = {media_type: {"schema": _reference(answer)}}
    return shown


def _reference(model: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model}"}


def _schemas() -> dict[str, Any]:
    used = {models.Problem.__name__}
    for route in ROUTES.values():
        used |= {model for model in (route.answer, route.body) if model not in (None, _TEXT)}
    _, schemas = models_json_schema(
        [(getattr(models, name), "validation") for name in sorted(used)],
        ref_template="#/components/schemas/{model}",
    )
    definitions: dict[str, Any] = schemas["$defs"]
    return definitions
