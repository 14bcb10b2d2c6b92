"""HTTP routes as `operations/` describes them; FastAPI makes the OpenAPI document of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema
from starlette.responses import Response

from lakebed.operations.description import Route
from lakebed.operations.routes import ENDPOINTS, NEEDS, ROUTES
from lakebed.serve import gateway_models as models
from lakebed.serve.http_errors import MEDIA_TYPE
from lakebed.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI

_JSON: Final = "application/json"
_TEXT: Final = "text/plain"
_OPENMETRICS: Final = "application/openmetrics-text"
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
_SCHEMAS: Final = "#/components/schemas/"

Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[Response]])


def add_route(app: FastAPI, name: str) -> Callable[[Endpoint], Endpoint]:
    """Make a decorator that adds a function to an application as the route of a call."""
    route = ROUTES[name]
    extra: dict[str, Any] = {}
    if name in NEEDS:
        extra["security"] = [{"token": []}, {}]  # a log without tokens is open to everybody
    if route.body is not None:
        # The pipeline reads the body, after it has checked who sends it.
        extra["requestBody"] = {"required": True, "content": _content(_JSON, route.body)}
    return app.api_route(
        route.path,
        methods=[route.method],
        name=name,
        status_code=route.status,
        tags=["server" if name in ENDPOINTS else "log"],
        response_description=_MEANINGS[route.status],
        responses=_responses(name, route),
        openapi_extra=extra,
    )


def document(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's document of an application, with the models of bodies and errors."""
    description: dict[str, Any] = get_openapi(
        title="Lakebed",
        version=__version__,
        description="A durable event log. An error's body has its code, and what to do about it.",
        routes=app.routes,
        separate_input_output_schemas=False,
    )
    for methods in description["paths"].values():
        for operation in methods.values():
            operation["responses"].pop("422", None)  # FastAPI's own; here it is 400
    answers = description["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        del answers[name]
    bodies = {route.body for route in ROUTES.values() if route.body is not None}
    used = [getattr(models, name) for name in sorted({"Problem", *bodies})]
    _, schemas = models_json_schema(
        [(model, "validation") for model in used], ref_template=f"{_SCHEMAS}{{model}}"
    )
    description["components"] = {
        "schemas": answers | schemas["$defs"],
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
    }
    return description


def _responses(name: str, route: Route) -> dict[int | str, dict[str, Any]]:
    """Describe the answers of a route; FastAPI adds the schemas of their models."""
    statuses = (
        *(_ALWAYS if name in NEEDS else ()),
        *(_BODY if route.body is not None else ()),
        *route.errors,
    )
    problem = {"content": _content(MEDIA_TYPE, models.Problem.__name__)}
    answer = _answer(route.answer)
    responses: dict[int | str, dict[str, Any]] = {route.status: dict(answer)}
    for status in sorted(statuses):
        # A log that is not ready says why, as it says that it is.
        responses[status] = dict(answer if name == "ready" else problem)
    for status, response in responses.items():
        response["description"] = _MEANINGS[int(status)]
    return responses


def _answer(answer: str | None) -> dict[str, Any]:
    if answer is None:
        return {}
    if answer == _TEXT:
        return {"content": {kind: {"schema": {"type": "string"}} for kind in (_TEXT, _OPENMETRICS)}}
    return {"model": getattr(models, answer)}


def _content(media_type: str, model: str) -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _SCHEMAS + model}}}
