from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from helios.app.explain import NothingKept, explain
from helios.app.explain_past import JobUnknown
from helios.control import ServiceMode
from helios.model import Mode
from helios.warehouse import Warehouse
from tests.unit.app.sites import FakeSite

ACTIVE = {"qssf": ServiceMode(mode=Mode.ACTIVE)}


@pytest.fixture
def fake_site(tmp_path: Path) -> FakeSite:
    fake_site = FakeSite(tmp_path)
    fake_site.learn()
    return fake_site


def said(fake_site: FakeSite, job: str) -> str:
    return "\n".join(explain(fake_site.cycles, job).lines())


def test_a_pending_job_is_told_its_place_with_and_without_helios(fake_site: FakeSite) -> None:
    fake_site.cluster.submit(user="bob")
    short = fake_site.cluster.submit(user="alice")
    fake_site.cycles.cycle(modes=ACTIVE)
    told = explain(fake_site.cycles, short)
    assert (told.rank, told.rank_without, told.queued) == (1, 2, 2)
    assert told.stands[0].startswith("SiteFactor")


def test_a_pending_job_is_told_whose_past_jobs_its_prediction_rests_on(fake_site: FakeSite) -> None:
    job = fake_site.cluster.submit(user="alice")
    assert "It rests on 40 ended jobs of alice of this size and limit: the last 12 took 1 min." in said(fake_site, job)


def test_a_pending_job_without_any_history_claims_nothing(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    fake_site.warehouse().close()
    assert "It rests on" not in said(fake_site, fake_site.cluster.submit(user="alice"))


def test_without_the_rules_of_the_cluster_the_rest_is_told(fake_site: FakeSite) -> None:
    told = said(fake_site, fake_site.cluster.submit(user="alice"))
    assert "When it starts is not forecast: the scheduling rules of this cluster cannot be read." in told
    assert "It is number 1 of 1" in told


def test_a_running_job_is_told_what_was_predicted_while_it_waited(fake_site: FakeSite) -> None:
    job = fake_site.cluster.submit(user="alice")
    fake_site.cycles.cycle(modes=ACTIVE)
    fake_site.cluster.tick(timedelta(minutes=1))
    fake_site.cluster.start(job)
    assert "Predicted run time" in said(fake_site, job)


def test_only_a_running_job_is_told_what_remains(fake_site: FakeSite) -> None:
    job = fake_site.cluster.submit(user="alice")
    assert explain(fake_site.cycles, job).remaining_s is None
    fake_site.cluster.start(job)
    fake_site.cluster.tick(timedelta(seconds=30))
    remaining_s = explain(fake_site.cycles, job).remaining_s
    assert remaining_s is not None
    assert 0 <= remaining_s[0] <= remaining_s[1] <= remaining_s[2] < 3600


def test_a_job_that_the_hook_placed_is_told_so(fake_site: FakeSite) -> None:
    job = fake_site.cluster.submit(user="alice", urgency=0.5)
    assert "the priority hook" in said(fake_site, job)


def test_a_job_of_the_past_is_told_from_the_history(fake_site: FakeSite) -> None:
    assert "It ran 1 min" in said(fake_site, "alice3")


def test_an_unknown_job_is_an_error_with_a_way_on(fake_site: FakeSite) -> None:
    with pytest.raises(JobUnknown, match="trace sync"):
        explain(fake_site.cycles, "404")


def test_where_no_helios_has_worked_nothing_is_claimed_and_no_database_made(tmp_path: Path) -> None:
    fake_site = FakeSite(tmp_path)
    (tmp_path / "helios.db").unlink()
    job = fake_site.cluster.submit()
    with pytest.raises(NothingKept, match="sudo helios why"):
        explain(fake_site.cycles, job)
    assert not (tmp_path / "helios.db").exists()


def test_neither_the_audit_nor_the_history_is_read_whole(fake_site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    pending, running = fake_site.cluster.submit(user="alice"), fake_site.cluster.submit(user="bob")
    fake_site.cycles.cycle(modes=ACTIVE)
    fake_site.cluster.start(running)
    fake_site.cycles.predictions.knowledge  # noqa: B018 - predictions rest on the history, and are none of why's reading
    for whole in ("decisions", "predictions"):
        monkeypatch.setattr(Warehouse, whole, None)
    read = Warehouse.jobs
    # Of the jobs only those of one user, in some weeks.
    monkeypatch.setattr(
        Warehouse, "jobs", lambda *args, since, only, **rest: read(*args, since=since, only=only, **rest)
    )
    assert len(explain(fake_site.cycles, pending).decisions) == len(explain(fake_site.cycles, running).decisions) == 1
    assert "It ran 1 min" in said(fake_site, "alice3")


def test_decisions_of_an_earlier_job_of_the_id_are_not_told(fake_site: FakeSite) -> None:
    fake_site.cluster.submit(user="alice", job_id="7")
    fake_site.cycles.cycle(modes=ACTIVE)
    fake_site.cluster.end("7")
    fake_site.cluster.tick(timedelta(minutes=5))
    fake_site.cluster.submit(user="alice", job_id="7")
    assert explain(fake_site.cycles, "7").decisions.empty
