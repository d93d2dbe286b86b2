"""What the documents say is what the code does."""

import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from helios.cli.main import COMMANDS, imported

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md")])


def reference_pages() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[str, str] = module.pages()
    return pages


@pytest.mark.parametrize("name", ["cli.md", "configuration.md", "jobs.md"])
def test_the_reference_is_what_the_code_says(name: str) -> None:
    written = (ROOT / "docs" / "reference" / name).read_text()
    assert written == reference_pages()[name], "run: make reference"


def commands_typed_in(text: str) -> list[str]:
    blocks = "\n".join(re.findall(r"```(?:sh|console|bash)\n(.*?)```", text, flags=re.DOTALL))
    lines = blocks.replace("\\\n", " ").splitlines()
    return [line.split("#")[0].strip() for line in lines if re.match(r"\s*(\$ )?helios ", line)]


def the_command(words: list[str]) -> tuple[Any, list[str]]:
    assert words and words[0] in COMMANDS, f"no command: {words}"
    command, words = imported(words[0]), words[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words[0]]
        words = words[1:]
    return command, words


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_in_a_document_exists_with_its_options(document: Path) -> None:
    for line in commands_typed_in(document.read_text()):
        command, rest = the_command(shlex.split(line.removeprefix("$ "))[1:])
        known = {option for parameter in command.params for option in parameter.opts}
        asked = {word.split("=")[0] for word in rest if word.startswith("--")}
        assert asked <= known, f"{line}: unknown {asked - known}"
        assert not hasattr(command, "commands") or asked, f"{line}: not a whole command"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_named_within_a_sentence_exists(document: Path) -> None:
    named = set(re.findall(r"`(?:sudo )?helios ([a-z]+)", document.read_text()))
    assert named <= {*COMMANDS}, f"no command: {named - {*COMMANDS}}"


def test_every_command_that_a_hint_advises_exists() -> None:
    for path in sorted((ROOT / "helios").rglob("*.py")):
        for hint in re.findall(r'remedy=\s*f?"([^"]*)"', path.read_text()):
            advised = set(re.findall(r"(?:^|: |then )helios ([a-z]+)", hint))
            assert advised <= {*COMMANDS}, f"{path.name}: {hint}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_every_target_of_the_readme_can_be_made() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"`?make ([a-z]+)", (ROOT / "README.md").read_text())) <= made
