import pytest
from typer.testing import CliRunner

from helios.cli.main import application


@pytest.mark.parametrize("words", [["turn"], ["rehearse"], ["power", "turn"], ["daemon", "--office", "nodes"]])
def test_a_name_that_is_gone_is_misuse(words: list[str]) -> None:
    assert CliRunner().invoke(application, [*words, "--help"]).exit_code == 2
