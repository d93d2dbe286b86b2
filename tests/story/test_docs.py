"""What the documents say is what the code does."""

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from helios.cli.main import COMMANDS, import_command

ROOT = Path(__file__).parents[2]
TOP = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"]
DOCUMENTS = sorted([*TOP, *ROOT.glob("docs/**/*.md")])
RESEARCH = sorted(ROOT.glob("docs/research/*.md"))
DECISIONS = sorted(ROOT.glob("docs/decisions/0*.md"))
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), *RESEARCH])
WIDTH = 100
WORDS_IN_ALL = 40_000
"""Most words of all pages but those that a program writes: who starts reads for two evenings at most."""
WORDS_OF = {
    "docs/research/*.md": 4_000,
    "docs/whatif.md": 3_200,
    "docs/pools.md": 2_500,
    "docs/formats.md": 2_500,
    "docs/operate.md": 2_500,
    "docs/safety.md": 2_200,
}
"""Most words of pages that had grown beyond an evening's reading."""
WORDS_IN_A_CELL = 20
"""Most words in a cell of a table of research: more is prose."""
WORDS_IN_A_DECISION = 150
"""Most words of one decision: context, what was decided, what it costs, what else was tried."""


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
    command, words = import_command(words[0]), words[1:]
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
        assert getattr(command, "invoke_without_command", True) or asked, f"{line}: not a whole command"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_command_named_within_a_sentence_exists(document: Path) -> None:
    named = set(re.findall(r"`(?:sudo )?helios ([a-z]+)", document.read_text()))
    assert named <= {*COMMANDS}, f"no command: {named - {*COMMANDS}}"


def test_every_command_that_a_hint_advises_exists() -> None:
    for path in sorted((ROOT / "helios").rglob("*.py")):
        for hint in re.findall(r'hint=\s*f?"([^"]*)"', path.read_text()):
            advised = set(re.findall(r"(?:^|: |then )helios ([a-z]+)", hint))
            assert advised <= {*COMMANDS}, f"{path.name}: {hint}"


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading(document: Path) -> None:
    for target, anchor in re.findall(r"\]\(\s*([^)#\s]*)(?:#([^)\s]*))?\)", document.read_text()):
        if "://" not in target:
            page = document.parent / target if target else document
            assert page.exists(), target
            assert not anchor or anchor in anchors_of(page), f"{target}#{anchor}"


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = (ROOT / "docs" / "README.md").read_text()
    names = [str(page.relative_to(ROOT / "docs")) for page in [*ROOT.glob("docs/*.md"), *RESEARCH]]
    assert [name for name in names if f"({name}" not in contents] == ["README.md"]


def count_words(pages: Iterable[Path]) -> int:
    return sum(len(page.read_text().split()) for page in pages)


def test_the_documents_stay_short() -> None:
    written = [page for page in ROOT.glob("docs/**/*.md") if page.parent.name != "reference"]
    assert count_words(written) <= WORDS_IN_ALL


@pytest.mark.parametrize("pages", WORDS_OF)
def test_a_long_subject_stays_within_its_words(pages: str) -> None:
    assert 0 < count_words(ROOT.glob(pages)) <= WORDS_OF[pages]


@pytest.mark.parametrize("page", DECISIONS, ids=lambda path: path.name)
def test_a_decision_stays_short(page: Path) -> None:
    words = [word for word in page.read_text().split() if re.search(r"\w", word)]
    assert len(words) <= WORDS_IN_A_DECISION


@pytest.mark.parametrize("page", RESEARCH, ids=lambda path: path.name)
def test_cells_of_research_are_short(page: Path) -> None:
    rows = [line.strip("|") for line in page.read_text().splitlines() if line.startswith("|")]
    cells = [cell for row in rows for cell in row.split(" | ")]
    assert [cell for cell in cells if len(cell.split()) > WORDS_IN_A_CELL] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda path: path.name)
def test_blocks_of_code_are_closed_and_examples_of_toml_are_toml(page: Path) -> None:
    fences = [line for line in page.read_text().splitlines() if line.startswith("```")]
    assert all(line == "```" for line in fences[1::2])
    assert len(fences) % 2 == 0
    for example in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        tomllib.loads(example)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_prose_is_wrapped(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    prose = [line for line in text.splitlines() if " " in line.strip() and not line.startswith(("|", "#", "!["))]
    assert [line for line in prose if len(line) > WIDTH] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_benchmark_and_test_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    paths = {*re.findall(r"\b((?:benchmarks|tests)/[\w/]+\.py)", text)}
    modules = re.findall(r"-m\s+(benchmarks(?:\.\w+)+)", text)
    paths |= {f"{name.replace('.', '/')}.py" for name in modules}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []


def test_every_benchmark_in_a_table_of_figures_exists() -> None:
    named = set()
    for table in re.findall(r"(?:^\|.*\n)+", (ROOT / "docs/research/measured.md").read_text(), flags=re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()]
        if "benchmark" in head:
            named |= {row[head.index("benchmark")].strip("`").split()[0] for row in rows}
    assert named > {"same"}
    assert [name for name in sorted(named - {"same"}) if not (ROOT / f"benchmarks/{name}.py").exists()] == []


@pytest.mark.parametrize("folder", ["benchmarks", "deploy", "helios", "tests"])
def test_every_page_that_the_code_names_exists(folder: str) -> None:
    named = {
        name
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".sh", ".lua", ".toml", ".service"}
        for name in re.findall(r"\bdocs/([\w/-]+\.md)", path.read_text())
    }
    assert [name for name in sorted(named) if not (ROOT / "docs" / name).exists()] == []


def test_every_target_of_the_readme_can_be_made() -> None:
    made = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"(?:`|^)make ([a-z]+)", page.read_text(), flags=re.MULTILINE)) <= made
