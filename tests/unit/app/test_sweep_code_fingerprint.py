"""Results of other code are not taken for fresh: what counts as other code."""

from pathlib import Path

import pytest

from helios.app.sweep import code_fingerprint


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    (tmp_path / "late").mkdir()
    (tmp_path / "rules.py").write_text("MOST = 8\n")
    (tmp_path / "late" / "deep.py").write_text("DEPTH = 1\n")
    return tmp_path


def digest(lab: Path) -> str:
    code_fingerprint.cache_clear()
    return code_fingerprint(lab)


@pytest.mark.parametrize("name", ["rules.py", "late/deep.py", "late/new.py"])
def test_an_edit_anywhere_in_the_package_is_other_code(lab: Path, name: str) -> None:
    before = digest(lab)
    assert digest(lab) == before
    (lab / name).write_text("MOST = 9\n")
    assert digest(lab) != before


def test_another_release_of_what_fits_trees_is_other_code(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(lab)
    monkeypatch.setattr("helios.app.sweep.version", lambda name: "99" if name == "lightgbm" else "1")
    one = digest(lab)
    monkeypatch.setattr("helios.app.sweep.version", lambda _: "1")
    assert len({before, one, digest(lab)}) == 3


def test_the_sources_of_helios_count_once() -> None:
    code_fingerprint.cache_clear()
    assert code_fingerprint() == code_fingerprint()
    assert len(code_fingerprint()) == 16
