"""Answers of every page as JSON, and their schemas: ``python -m tests.answers`` writes helios/web/answers.json.

Two sites are asked, a live one of fakes and its history alone, as an admin, a manager and a user.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

import helios.model
from helios.model import FrameKind
from helios.report.admin.sacct_format import Field
from helios.web import openapi
from helios.web.application import Access, web_application
from helios.web.routes import ROUTES
from helios.web.site import Site
from tests.browser.sites import ADMIN, MANAGER, TOKEN, USER_HEADER, LiveSite

RECORD = Path(openapi.__file__).with_name("answers.json")
READERS = (ADMIN, MANAGER, "alice", "nobody")
"""One of each role, and a user without jobs."""
QUERIES = ("", "?from=now-8weeks")
LONGEST_TEXT = 200
"""Letters of a text of an example."""
MAPS = ("charts",)
"""Keys whose values are objects with names of the site as keys."""
CHART = {"$ref": "#/components/schemas/Chart"}


def ask_everything(folder: Path) -> dict[str, list[tuple[Any, bool]]]:
    """Return the answers of each route, and whether it has CSV, the richest first."""
    live = LiveSite(folder)
    try:
        fakes = live.fake_site
        slurm = fakes.settings.slurm.model_copy(update={"commands": str(folder)})
        alone = fakes.settings.model_copy(update={"slurm": slurm})
        access = Access(token=TOKEN, user_header=USER_HEADER, admins=frozenset({ADMIN}), managers=frozenset({MANAGER}))
        bare = alone.model_copy(update={"report": alone.report.model_copy(update={"folder": str(folder / "none")})})
        sites = [live.site, *(Site(settings, clock=lambda: fakes.cluster.now) for settings in (alone, bare))]
        answers: dict[str, list[tuple[Any, bool]]] = defaultdict(list)
        readers = [*itertools.product(sites[:2], READERS), (sites[2], ADMIN)]
        for site, reader in readers:
            headers = {"Authorization": f"Bearer {TOKEN}", USER_HEADER: reader}
            with TestClient(web_application(site, access), base_url="http://127.0.0.1") as web:
                for route, query in itertools.product(ROUTES, QUERIES if reader == ADMIN else QUERIES[:1]):
                    if (path := live.filled(route.path)) is None:
                        continue
                    told = web.get(path + query, headers={**headers, "Accept": "application/json"})
                    is_first = not answers[route.path]
                    has_csv = is_first and web.get(f"{path}?format=csv", headers=headers).status_code == 200
                    if told.status_code == 200:
                        answers[route.path].append((told.json(), has_csv))
    finally:
        live.close()
    return {path: sorted(found, key=lambda each: -len(json.dumps(each[0]))) for path, found in answers.items()}


def infer(values: Sequence[Any], *, key: str = "") -> dict[str, Any]:
    """Return the schema that all values have.

    Every single value may be null, which is unknown.
    """
    objects = [value for value in values if isinstance(value, dict)]
    lists = [value for value in values if isinstance(value, list)]
    single = [value for value in values if not isinstance(value, dict | list)]
    types = {_type(value) for value in single if value is not None}
    schema: dict[str, Any] = {}
    if objects and key in MAPS:
        inner = [inside for value in objects for inside in value.values()]
        schema |= {"additionalProperties": CHART if key == "charts" else infer(inner)}
    elif objects:
        names = list(dict.fromkeys(name for value in objects for name in value))
        schema["properties"] = {
            name: infer([value[name] for value in objects if name in value], key=name) for name in names
        }
        schema["required"] = sorted(name for name in names if all(name in value for value in objects))
    if lists:
        schema["items"] = infer([item for value in lists for item in value], key=f"{key}[]")
    types |= {"object"} if objects else set()
    types |= {"array"} if lists else set()
    if single or not (objects or lists):
        types |= {"null"}
    known = sorted(types)
    return {"type": known[0] if len(known) == 1 and known != ["null"] else known, **schema} if known != ["null"] else {}


def _type(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "string" if isinstance(value, str) else "number"


def meanings() -> dict[str, str]:
    """Return what columns of frames and fields of reports say of themselves, where all say the same."""
    found: dict[str, set[str]] = defaultdict(set)
    for module in [module for name, module in sys.modules.items() if name.startswith("helios.")]:
        for value in vars(module).values():
            for each in value if isinstance(value, tuple) else ():
                if isinstance(each, Field):
                    found[each.column].add(each.doc)
    for kind in vars(helios.model).values():
        if isinstance(kind, FrameKind):
            for column in kind.columns:
                if column.name not in found:
                    found[column.name].add(column.doc)
    return {name: texts.pop() for name, texts in found.items() if len(texts) == 1}


def described(schema: dict[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    """Return a schema with the meaning of its keys, where it is known."""
    found = dict(schema)
    if "properties" in found:
        found["properties"] = {
            name: described(inner, words)
            | ({"description": words[name]} if name in words and "properties" not in inner else {})
            for name, inner in found["properties"].items()
        }
    for inner in ("items", "additionalProperties"):
        if inner in found:
            found[inner] = described(found[inner], words)
    return found


def shortened(value: Any) -> Any:
    """Return an example with the first element of each list."""
    if isinstance(value, dict):
        return {name: shortened(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shortened(inner) for inner in value[:1]]
    return value[:LONGEST_TEXT] if isinstance(value, str) else value


def charts_of(answers: Mapping[str, Sequence[tuple[Any, bool]]]) -> list[Any]:
    """Return every chart of the answers."""
    return [chart for found in answers.values() for answer, _ in found for chart in answer.get("charts", {}).values()]


def keys_in(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the key of each value that a schema describes, with those around it."""
    for name, inner in schema.get("properties", {}).items():
        yield f"{path}/{name}"
        yield from keys_in(inner, f"{path}/{name}")
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            yield from keys_in(schema[name], f"{path}/*")


def closed(schema: Any) -> Any:
    """Return a schema that allows no key it does not describe."""
    if isinstance(schema, dict):
        found = {name: closed(inner) for name, inner in schema.items()}
        return found | ({"additionalProperties": False} if isinstance(found.get("properties"), dict) else {})
    return [closed(inner) for inner in schema] if isinstance(schema, list) else schema


def main() -> None:
    """Write the schemas and examples."""
    with tempfile.TemporaryDirectory() as folder:
        answers = ask_everything(Path(folder))
    words = meanings()
    record = {
        "chart": described(infer(charts_of(answers)), words),
        "answers": {
            path: {
                "has_table": any(has_csv for _, has_csv in found),
                "schema": described(infer([answer for answer, _ in found]), words),
                "example": shortened(found[0][0]),
            }
            for path, found in sorted(answers.items())
        },
    }
    # A line for each page, so that a change of one is a line of a diff.
    lines = ",\n".join(f"{json.dumps(path)}: {json.dumps(each)}" for path, each in record["answers"].items())
    RECORD.write_text(f'{{"chart": {json.dumps(record["chart"])},\n"answers": {{\n{lines}\n}}}}\n', encoding="utf-8")
    print(f"{RECORD}: {len(answers)} of {len(ROUTES)} pages, {RECORD.stat().st_size:,} B")  # noqa: T201
    print("without an answer:", *({route.path for route in ROUTES} - set(answers)))  # noqa: T201


if __name__ == "__main__":
    main()
