"""OpenAPI description of the web site."""

from __future__ import annotations

from typing import Any

from helios import __version__
from helios.web.routes import ROUTES


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the site."""
    paths = {}
    for route in ROUTES:
        inside = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in inside]
        parameters += [
            {"name": name, "in": "query", "required": False, "schema": {"type": "string"}} for name in route.query
        ]
        answers = {
            "200": {"description": "The page", "content": {"application/json": {}, "text/html": {}}},
            "401": {"description": "The token is missing"},
            "404": {"description": "Nothing of that name, or not for this reader"},
        }
        paths[route.path] = {"get": {"summary": route.summary, "parameters": parameters, "responses": answers}}
    return {"openapi": "3.1.0", "info": {"title": "Helios", "version": __version__}, "paths": paths}
