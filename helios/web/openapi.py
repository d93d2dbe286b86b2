"""OpenAPI description of the web site.

Schemas and examples are recorded from the answers of a test site: ``python -m tests.answers`` writes them anew, and a
test compares every answer with them.
"""

from __future__ import annotations

import json
import re
from importlib import resources
from typing import Any

from helios import __version__
from helios.web.page import Role, Route
from helios.web.routes import ROUTES
from helios.web.table import CONTROLS

API_VERSION = 1
"""Raised when a key goes or gets another meaning. New keys and pages do not raise it."""
WHEN = "A month (2026-09), day (2026-09-01, today), moment (2026-09-01T12:00) or distance (now-7days)"
PARAMETERS = {
    "from": f"Begin of the window. {WHEN}. Default: a week, or the last four of a history, before its end",
    "to": f"End of the window. {WHEN}. Default: now, or the end of a history",
    "user": "Name of a user. Only an admin may name another one",
    "account": "Name of an account",
    "partition": "Name of a partition",
    "node": "Name of a node",
    "job": "Id as Slurm writes it: 4711, 4711_3 of an array, 4711+1 of a heterogeneous job",
    "pool": "Id of a training pool, or its begin",
    "by": "What rows are of: all, source, size, day or partition",
    "result": "Result of a decision: done, would, refused, mismatch or failed",
    "state": "State of Slurm: COMPLETED, FAILED, ...",
    "name": "Text within a job's name",
    "sort": "Field of the table; behind a minus the largest first",
    "find": "Text that a row must have",
    "page": "Page of 50 rows. Without it JSON has all rows, and a list of jobs its first page",
    "format": "csv: all chosen rows as CSV. The name of a chart: its picture as SVG",
}
"""Meaning of each parameter."""
ERRORS = {
    "400": "A parameter is not understood; the hint says what is",
    "401": "The token is missing",
    "403": "The proxy named no user",
    "404": "Nothing of that name, or not for this reader",
    "503": "The database or Slurm does not answer, or too many ask",
}
"""Meaning of each status that is an error. All have the same answer."""
ROLES = {
    Role.ADMIN: "For admins.",
    Role.MANAGER: "For admins and managers.",
    Role.USER: "For everybody; who is no admin gets the own jobs.",
}
ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {"type": "string", "description": "What is wrong"},
        "hint": {"type": ["string", "null"], "description": "What to do"},
    },
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI description of the site."""
    recorded = json.loads((resources.files("helios.web") / "answers.json").read_text(encoding="utf-8"))
    schemas = {schema_name(path): answer["schema"] for path, answer in recorded["answers"].items()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Helios",
            "version": __version__,
            "x-api-version": API_VERSION,
            "description": "The pages as JSON, with Accept: application/json. null is unknown, never 0. Times are ISO "
            "8601, lengths seconds, shares fractions of 1. Ignore keys that you do not know.",
        },
        "security": [{"token": []}],
        "paths": {route.path: {"get": _operation(route, recorded["answers"].get(route.path, {}))} for route in ROUTES},
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Error": ERROR, "Chart": recorded["chart"], **schemas},
        },
    }


def schema_name(path: str) -> str:
    """Return the name of the schema of a page."""
    return "".join(word.capitalize() for word in re.findall(r"\w+", path)) or "Overview"


def _operation(route: Route, recorded: dict[str, Any]) -> dict[str, Any]:
    inside = re.findall(r"\{(\w+)\}", route.path)
    controls = CONTROLS if recorded.get("has_table") else ()
    schema: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{schema_name(route.path)}"}}
    content: dict[str, Any] = {"application/json": {**schema, "example": recorded.get("example")}, "text/html": {}}
    content |= {"text/csv": {}} if controls else {}
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {
        "summary": route.summary,
        "description": ROLES[route.readers],
        "parameters": [
            {
                "name": name,
                "in": "path" if name in inside else "query",
                "required": name in inside,
                "description": PARAMETERS[name],
                "schema": {"type": "integer", "minimum": 1} if name == "page" else {"type": "string"},
            }
            for name in (*inside, *route.query, *controls)
        ],
        "responses": {
            "200": {"description": "The page", "content": content},
            **{status: {"description": meaning, "content": error} for status, meaning in ERRORS.items()},
        },
    }
