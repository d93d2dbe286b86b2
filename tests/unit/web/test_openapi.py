"""The description of the API is what every page answers, in both directions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from helios.web.openapi import ERROR, openapi, schema_name
from helios.web.routes import ROUTES
from tests.answers import ask_everything, charts_of, closed, infer, keys_in

Answers = dict[str, list[tuple[Any, bool]]]
PATHS = [route.path for route in ROUTES]
RECORD = "write them anew: python -m tests.answers"


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What two sites answer to an admin, a manager and a user."""
    return ask_everything(tmp_path_factory.mktemp("site"))


@pytest.fixture(scope="module")
def described() -> Any:
    return json.loads(json.dumps(openapi()))


def problems(schema: Any, value: object) -> list[str]:
    """Return how a value is not what a schema of the description says, or has what it does not say."""
    within = {"components": closed(openapi()["components"]), **closed(schema)}
    return [f"{error.json_path}: {error.message[:200]}" for error in Draft202012Validator(within).iter_errors(value)]


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_is_as_described_and_has_no_other_key(answers: Answers, described: Any, path: str) -> None:
    schema = described["components"]["schemas"][schema_name(path)]
    assert answers[path], "no site answers it"
    assert {problem for answer, _ in answers[path] for problem in problems(schema, answer)} == set(), RECORD


@pytest.mark.parametrize("path", PATHS)
def test_every_described_key_is_in_some_answer(answers: Answers, described: Any, path: str) -> None:
    schema = described["components"]["schemas"][schema_name(path)]
    assert set(keys_in(schema)) == set(keys_in(infer([answer for answer, _ in answers[path]]))), RECORD


def test_charts_are_as_described(answers: Answers, described: Any) -> None:
    charts = charts_of(answers)
    assert charts
    assert [
        problem for chart in charts for problem in problems(described["components"]["schemas"]["Chart"], chart)
    ] == []


@pytest.mark.parametrize("path", PATHS)
def test_an_example_is_an_answer(described: Any, path: str) -> None:
    content = described["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
    assert problems(content["schema"], content["example"]) == []


def test_a_key_that_is_not_described_is_found() -> None:
    assert problems(ERROR, {"error": "x", "hint": None}) == []
    assert (
        problems(ERROR, {"error": "x", "more": 1}) and problems(ERROR, {"hint": "x"}) and problems(ERROR, {"error": 1})
    )


def test_every_parameter_of_every_page_has_a_meaning(described: Any) -> None:
    for path, item in described["paths"].items():
        given = {each["name"]: each for each in item["get"]["parameters"]}
        assert set(re.findall(r"\{(\w+)\}", path)) == {name for name, each in given.items() if each["required"]}
        assert all(each["description"] for each in given.values())


def test_the_record_stays_small() -> None:
    assert len(json.dumps(openapi())) < 200_000
    assert Path(openapi.__code__.co_filename).with_name("answers.json").stat().st_size < 150_000
