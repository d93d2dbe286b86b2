from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from helios.app.explain import JobUnknown, NothingKept, explain
from helios.control import ServiceMode
from helios.model import Mode
from helios.warehouse import Warehouse
from tests.unit.app.sites import Town

ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@pytest.fixture
def town(tmp_path: Path) -> Town:
    town = Town(tmp_path)
    town.learn()
    return town


def said(town: Town, job: str) -> str:
    return "\n".join(explain(town.cycles, job).lines())


def test_a_pending_job_is_told_its_place_with_and_without_helios(town: Town) -> None:
    town.cluster.submit(user="bob")
    short = town.cluster.submit(user="alice")
    town.cycles.cycle(modes=ACTIVE)
    told = explain(town.cycles, short)
    assert (told.rank, told.rank_without, told.queued) == (1, 2, 2)
    assert told.stands[0].startswith("SiteFactor")


def test_a_pending_job_is_told_whose_past_jobs_its_prediction_rests_on(town: Town) -> None:
    job = town.cluster.submit(user="alice")
    assert "It rests on 40 ended jobs of alice of this size and limit: the last 12 took 1 min." in said(town, job)


def test_a_pending_job_without_any_history_claims_nothing(tmp_path: Path) -> None:
    town = Town(tmp_path)
    town.warehouse().close()
    assert "It rests on" not in said(town, town.cluster.submit(user="alice"))


def test_without_the_rules_of_the_cluster_the_rest_is_told(town: Town) -> None:
    told = said(town, town.cluster.submit(user="alice"))
    assert "When it starts is not forecast: the scheduling rules of this cluster cannot be read." in told
    assert "It is number 1 of 1" in told


def test_a_running_job_is_told_what_was_predicted_while_it_waited(town: Town) -> None:
    job = town.cluster.submit(user="alice")
    town.cycles.cycle(modes=ACTIVE)
    town.cluster.tick(timedelta(minutes=1))
    town.cluster.start(job)
    assert "Predicted run time" in said(town, job)


def test_only_a_running_job_is_told_what_remains(town: Town) -> None:
    job = town.cluster.submit(user="alice")
    assert explain(town.cycles, job).remaining_s is None
    town.cluster.start(job)
    town.cluster.tick(timedelta(seconds=30))
    remaining_s = explain(town.cycles, job).remaining_s
    assert remaining_s is not None
    assert 0 <= remaining_s[0] <= remaining_s[1] <= remaining_s[2] < 3600


def test_a_job_that_the_hook_placed_is_told_so(town: Town) -> None:
    job = town.cluster.submit(user="alice", urgency=0.5)
    assert "the priority hook" in said(town, job)


def test_a_job_of_the_past_is_told_from_the_history(town: Town) -> None:
    assert "It ran 1 min" in said(town, "alice3")


def test_an_unknown_job_is_an_error_with_a_way_on(town: Town) -> None:
    with pytest.raises(JobUnknown, match="trace sync"):
        explain(town.cycles, "404")


def test_where_no_helios_has_worked_nothing_is_claimed_and_no_database_made(tmp_path: Path) -> None:
    town = Town(tmp_path)
    (tmp_path / "helios.db").unlink()
    job = town.cluster.submit()
    with pytest.raises(NothingKept, match="sudo helios why"):
        explain(town.cycles, job)
    assert not (tmp_path / "helios.db").exists()


def test_neither_the_audit_nor_the_history_is_read_whole(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    pending, running = town.cluster.submit(user="alice"), town.cluster.submit(user="bob")
    town.cycles.cycle(modes=ACTIVE)
    town.cluster.start(running)
    town.cycles.predictions.knowledge  # noqa: B018 - predictions rest on the history, and are none of why's reading
    for whole in ("decisions", "jobs", "predictions"):
        monkeypatch.setattr(Warehouse, whole, None)
    assert len(explain(town.cycles, pending).decisions) == len(explain(town.cycles, running).decisions) == 1
    assert "It ran 1 min" in said(town, "alice3")


def test_decisions_of_an_earlier_job_of_the_id_are_not_told(town: Town) -> None:
    town.cluster.submit(user="alice", job_id="7")
    town.cycles.cycle(modes=ACTIVE)
    town.cluster.end("7")
    town.cluster.tick(timedelta(minutes=5))
    town.cluster.submit(user="alice", job_id="7")
    assert explain(town.cycles, "7").decisions.empty
