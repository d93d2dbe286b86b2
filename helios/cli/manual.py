"""The manual pages, written from the commands and the settings themselves.

``helios setup`` lays them down; docs/generate.py writes docs/reference/ from the same walk through the commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from helios import __version__
from helios.cli.main import COMMANDS, application, import_command
from helios.config import ConfigValue, load_configuration

FOLDER = "usr/share/man"
OF_THE_USER = {
    "database.url": "helios.db in the user's data folder",
    "control.state_folder": "the user's state folder",
    "report.folder": "reports in the user's data folder",
}
"""Defaults that differ from user to user, by key."""
EXIT_STATUS = {
    "0": "Done.",
    "1": "It failed.",
    "2": "It was misused, or a setting is wrong.",
    "3": "Nothing of Helios is left on the cluster, only values that look like it and are in no record.",
    "130": "Interrupted.",
}
FILES = {
    "/etc/helios/helios.toml, /etc/helios/conf.d/*.toml": "Settings of the machine.",
    "~/.config/helios/helios.toml, ./helios.toml": "Settings of a user and of a folder; a later file wins.",
    "/etc/helios/environment": "Variables of the services that others must not read.",
}


def command_tree(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a command and its subcommands, with their names."""
    yield name, command
    for word, below in sorted(getattr(command, "commands", {}).items()):
        yield from command_tree(below, f"{name} {word}")


def root_command() -> Any:
    """Return ``helios`` itself, whose options come before a command."""
    return typer.main.get_command(application)


def describe_options(command: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the spelling, meaning and default of each option and argument."""
    for parameter in command.params:
        if parameter.name not in {"help", "install_completion", "show_completion"}:
            argument = getattr(parameter, "param_type_name", "") == "argument"
            default = parameter.default
            shown = "" if default in (None, False) or callable(default) else getattr(default, "value", default)
            spelled = str(parameter.name).upper() if argument else ", ".join(parameter.opts)
            yield spelled, getattr(parameter, "help", None) or "", str(shown)


def default_settings() -> Iterator[tuple[ConfigValue, Any]]:
    """Yield each setting with the default that a page shows."""
    for setting in load_configuration(environment={}, folder=Path("/nonexistent")).listing():
        yield setting, OF_THE_USER.get(setting.key, setting.value)


def manual_pages() -> dict[str, str]:
    """Return the manual pages by path.

    There is one of ``helios``, one of each command with all below it, and one of the settings.
    """
    pages = {f"man1/helios-{name}.1": _command_page(name) for name in COMMANDS}
    pages |= {"man1/helios.1": _root_page(), "man5/helios.toml.5": _settings_page()}
    return {f"{FOLDER}/{path}": text for path, text in sorted(pages.items())}


def _root_page() -> str:
    command = root_command()
    return _page(
        "helios 1",
        f"helios - {_summary(command)}",
        ("SYNOPSIS", ["helios [OPTION ...] COMMAND [ARGUMENT ...]"]),
        ("DESCRIPTION", [_text(command.help, command.epilog)]),
        ("OPTIONS", _options(command)),
        ("COMMANDS", [_entry(f"helios-{name}(1)", line) for name, (_, line) in COMMANDS.items()]),
        ("FILES", [_entry(name, meaning) for name, meaning in FILES.items()]),
        ("EXIT STATUS", [_entry(code, meaning) for code, meaning in EXIT_STATUS.items()]),
        ("SEE ALSO", [_text("helios.toml(5), slurm.conf(5), sacct(1), scontrol(1)")]),
    )


def _command_page(name: str) -> str:
    (_, command), *below = command_tree(import_command(name), f"helios {name}")
    sections = [
        (
            "SYNOPSIS",
            ["\n.br\n".join(_synopsis(words, verb) for words, verb in below or [(f"helios {name}", command)])],
        ),
        ("DESCRIPTION", [_text(command.help, command.epilog)]),
        ("OPTIONS", _options(command)),
    ]
    if below:
        verbs = [[f".SS {_escape(words)}", _text(verb.help, verb.epilog), *_options(verb)] for words, verb in below]
        sections.append(("COMMANDS", [part for verb in verbs for part in verb]))
    sections.append(("SEE ALSO", [_text("helios(1), helios.toml(5)")]))
    return _page(f"helios-{name} 1", f"helios-{name} - {_summary(command)}", *sections)


def _settings_page() -> str:
    entries = [
        _entry(
            setting.key, f"{setting.doc}. Variable {setting.variable}. Default: {'empty' if default == '' else default}"
        )
        for setting, default in default_settings()
    ]
    about = (
        "TOML. The part of a key before the dot names the table. A variable of the environment wins over every file."
    )
    files = [_entry(name, meaning) for name, meaning in FILES.items()]
    see = [_text("helios(1), helios-config(1)")]
    sections = (("DESCRIPTION", [_text(about)]), ("SETTINGS", entries), ("FILES", files), ("SEE ALSO", see))
    return _page("helios.toml 5", "helios.toml - settings of Helios", *sections)


def _page(title: str, name: str, *sections: tuple[str, Sequence[str]]) -> str:
    page, number = title.split()
    lines = [
        f'.TH {_escape(page.upper())} {number} "" "Helios {__version__}" "Helios"',
        ".nh",
        ".ad l",
        ".SH NAME",
        _escape(name),
    ]
    for heading, parts in sections:
        lines += [f".SH {heading}", *filter(None, parts)] if any(parts) else []
    return "\n".join(lines) + "\n"


def _summary(command: Any) -> str:
    first = (command.help or "").split("\n\n")[0].rstrip(".")
    return first[:1].lower() + first[1:]


def _synopsis(words: str, command: Any) -> str:
    arguments = [spelled for spelled, _, _ in describe_options(command) if not spelled.startswith("-")]
    return f".B {_escape(words)}\n" + _escape(" ".join(["[OPTION ...]", *arguments]))


def _options(command: Any) -> list[str]:
    return [
        _entry(spelled, f"{meaning} Default: {default}" if default else meaning)
        for spelled, meaning, default in describe_options(command)
    ]


def _entry(name: str, meaning: str) -> str:
    return f".TP\n.B {_escape(name)}\n{_escape(meaning)}"


def _text(*texts: str | None) -> str:
    paragraphs = [part for text in texts if text for part in re.split(r"\n\s*\n", text.strip())]
    return "\n.PP\n".join(map(_escape, paragraphs))


def _escape(text: str) -> str:
    """Return a line that roff prints as it is."""
    line = " ".join(text.split()).replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{line}" if line.startswith((".", "'")) else line
