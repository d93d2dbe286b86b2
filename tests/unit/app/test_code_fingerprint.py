"""Results of other code are not taken for fresh: what counts as other code, and what does not."""

from pathlib import Path

import pytest

from helios.app.executors import BEGIN, code_digest, code_fingerprint, imported_modules

LAB = {
    "__init__.py": "",
    "begin.py": "from lab.rules import order\nimport lab.late.table\n",
    "rules.py": '"""Orders."""\nMOST = 8\n"""GPUs."""\ndef order(gpus):\n    """Sort."""\n    return gpus * MOST\n',
    "late/__init__.py": "",
    "late/table.py": "def rows():\n    from lab.late import deep\n    return deep\n",
    "late/deep.py": "DEPTH = 1\n",
    "books.py": "PAGES = 1\n",
    "aside.py": "NOBODY = 1\n",
}


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    for name, text in LAB.items():
        path = tmp_path / "lab" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return tmp_path / "lab"


def digest(lab: Path) -> str:
    return code_digest(imported_modules(lab, "lab.begin", no_part=("lab.books",)))


def edited(lab: Path, name: str, old: str, new: str) -> str:
    (lab / name).write_text((lab / name).read_text().replace(old, new))
    return digest(lab)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("begin.py", "order", "order as by"),
        ("rules.py", "MOST = 8", "MOST = 9"),
        ("rules.py", "gpus * MOST", "gpus + MOST"),
        ("late/deep.py", "1", "2"),
    ],
)
def test_an_edit_of_what_is_reached_is_other_code(lab: Path, name: str, old: str, new: str) -> None:
    assert digest(lab) != edited(lab, name, old, new)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rules.py", "Orders.", "All orders."),
        ("rules.py", "GPUs.", "Most GPUs."),
        ("rules.py", "Sort.", "Sort by size."),
        ("rules.py", "gpus * MOST", "(\n        gpus * MOST\n    )  # by size"),
        ("aside.py", "1", "2"),
        ("books.py", "1", "2"),
    ],
)
def test_words_layout_and_what_is_not_reached_are_not(lab: Path, name: str, old: str, new: str) -> None:
    (lab / "begin.py").write_text(LAB["begin.py"] + "import lab.books\n")
    assert digest(lab) == edited(lab, name, old, new)


def test_another_release_of_what_fits_trees_is_other_code(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(lab)
    monkeypatch.setattr("helios.app.executors.version", lambda name: "99" if name == "lightgbm" else "1")
    one = digest(lab)
    monkeypatch.setattr("helios.app.executors.version", lambda _: "1")
    assert len({before, one, digest(lab)}) == 3


def test_what_a_replay_goes_by_is_reached_and_what_reads_histories_is_not() -> None:
    reached = imported_modules(Path(__file__).parents[3] / "helios", BEGIN)
    decides = (
        "simulate.core.events",
        "simulate.backlog_bound",
        "services.queue_orders",
        "predict.trees",
        "app.resampling",
        "metrics.queue",
    )
    assert {f"helios.{name}" for name in decides} <= set(reached)
    assert not [name for name in reached if name.split(".")[1:2] in (["warehouse"], ["ingest"], ["slurm"], ["cli"])]
    assert code_fingerprint() == code_digest(reached)
