import subprocess
import sys

import pytest
from typer.testing import CliRunner

from helios.cli.main import application


@pytest.mark.parametrize("words", [["turn"], ["rehearse"], ["power", "turn"], ["daemon", "--office", "nodes"]])
def test_a_name_that_is_gone_is_misuse(words: list[str]) -> None:
    assert CliRunner().invoke(application, [*words, "--help"]).exit_code == 2


INTERRUPTED = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
runpy.run_module("helios", run_name="__main__")
"""


def test_an_interrupt_while_the_command_is_imported_leaves_no_traceback() -> None:
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (130, "")
