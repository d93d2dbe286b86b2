"""What freezes behaviour forgets no command, and its golden files are all there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests import behaviour

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


def runnable() -> set[str]:
    """Commands that do something, by the reference, which another test holds to the code."""
    parts = re.split(r"^## `helios ?(.*)`$", REFERENCE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    groups = {name for name in texts if any(other.startswith(f"{name} ") for other in texts)} | {""}
    return {name for name, text in texts.items() if name not in groups or (name and "| option |" in text)}


def frozen() -> set[str]:
    commands = runnable()
    lines = [command.words for command in (*behaviour.SET_UP, *behaviour.COMMANDS)]
    typed = {
        max((name for name in commands if f"{line} ".startswith(f"{name} ")), key=len, default="") for line in lines
    }
    assert "" not in typed
    return typed


def test_every_command_is_frozen_or_left_out_for_a_reason() -> None:
    assert frozen() | set(behaviour.LEFT_OUT) == runnable()
    assert not frozen() & set(behaviour.LEFT_OUT)
    assert all(behaviour.LEFT_OUT.values())


def test_there_is_a_golden_file_for_each_command_and_none_besides() -> None:
    names = [command.name for command in (*behaviour.SET_UP, *behaviour.COMMANDS)]
    assert len(set(names)) == len(names)
    kept = behaviour.kept_names()
    assert {name for name in kept if name.startswith("commands/")} == {f"commands/{name}.json" for name in names}
    assert {name for name in kept if not name.startswith("commands/")} == set(behaviour.OTHER_FILES)


def test_a_renamed_word_is_replaced_and_sorted_in_the_golden_text() -> None:
    golden = behaviour.pretty({"still": "the bench", "acted": 1, "stillness": 2})
    text = behaviour.renamed(golden, as_lines=False, words={"still": "blockers", "bench": "quarantine"})
    assert text == behaviour.pretty({"acted": 1, "blockers": "the quarantine", "stillness": 2})
    assert list(json.loads(text)) == ["acted", "blockers", "stillness"]
