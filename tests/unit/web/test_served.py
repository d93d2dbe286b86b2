"""The page as it is served: by the command, and beside the daemon."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from helios.cli.system import _serve_page
from helios.config import Settings
from helios.errors import ConfigurationInvalid, UsageError
from helios.web.server import open_server
from tests.unit.daemon.builders import eventually

TOKEN = "a token of this test"


def settings(folder: Path, **web: object) -> Settings:
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    given = {"listen": "127.0.0.1:0", "token_file": str(folder / "token"), "in_daemon": True} | web
    return Settings.model_validate({"database": {"url": f"sqlite:///{folder}/helios.db"}, "web": given})


def get(address: str, path: str, *, token: str = TOKEN) -> int:
    asked = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_it_answers_from_a_thread_and_ends_when_told(tmp_path: Path) -> None:
    server = open_server(settings(tmp_path), token=TOKEN)
    server.start()
    assert get(server.address, "openapi.json") == 200
    assert get(server.address, "openapi.json", token="another token of a test") == 401
    server.stop()
    assert eventually(lambda: not any(thread.name == "web" for thread in threading.enumerate()))


def test_a_daemon_whose_page_cannot_be_served_says_so_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigurationInvalid, match="cannot listen"):
            open_server(settings(tmp_path, listen=taken), token=TOKEN)
        _serve_page(settings(tmp_path, listen=taken), None)
    _serve_page(settings(tmp_path, token_file=""), None)
    (tmp_path / "token").chmod(0o644)
    _serve_page(Settings.model_validate({"web": {"token_file": str(tmp_path / "token")}}), None)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert ["cannot listen" in said[0], "names no file" in said[1], "Others can read" in said[2]] == [True] * 3


def test_admins_without_a_header_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="users of a proxy"):
        open_server(settings(tmp_path, admins="root"), token=TOKEN)


def test_the_command_serves_what_the_settings_say_until_it_is_told_to_stop(tmp_path: Path) -> None:
    settings(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HELIOS_")}
    environment |= {"HELIOS_WEB_TOKEN_FILE": str(tmp_path / "token"), "HELIOS_WEB_LISTEN": "127.0.0.1:0"}
    environment |= {"HELIOS_DATABASE_URL": f"sqlite:///{tmp_path}/helios.db", "HOME": str(tmp_path)}
    words = [sys.executable, "-m", "helios", "web"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("Listens on http://127.0.0.1:")
        assert get(line.split()[-1], "openapi.json") == 200
        process.terminate()
        assert process.wait(timeout=30) in {0, -15}
