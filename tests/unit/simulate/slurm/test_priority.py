"""Are usage, fair shares and priorities those of Slurm's documentation?"""

import numpy as np
import pytest

from helios.model.slurm_site import Share
from helios.simulate.slurm import SlurmTimeline
from tests.unit.simulate.slurm.builders import AT_ONCE, a_site, a_workload

DOCUMENTED = (
    # The example of Slurm's "Multifactor Priority Plugin", section "Fair-share Factor Under An Account Hierarchy"; 30 %
    # of the usage are nobody's.
    Share(account="root", usage_s=100),
    Share(account="A", parent="root", shares=40),
    Share(account="B", parent="A", shares=30),
    Share(account="C", parent="A", shares=10),
    Share(account="D", parent="root", shares=60),
    Share(account="E", parent="D", shares=25),
    Share(account="F", parent="D", shares=35),
    Share(account="B", user="1", usage_s=20),
    Share(account="C", user="2", usage_s=25),
    Share(account="C", user="3", usage_s=0),
    Share(account="E", user="4", usage_s=25),
    Share(account="F", user="5", usage_s=0),
)


def factors(shares, *, fair_tree):
    """Return the fair-share factor of each user."""
    users = tuple(sorted({share.user for share in shares if share.user}))
    homes = [next(share.account for share in shares if share.user == user) for user in users]
    accounts = tuple(sorted(set(homes)))
    workload = a_workload(
        [(0, 10)] * len(users),
        users=users,
        user=list(range(len(users))),
        accounts=accounts,
        account=[accounts.index(home) for home in homes],
    )
    site = a_site(nodes=1, shares=shares, priority={"fairshare": 1, "fair_tree": fair_tree})
    state = SlurmTimeline(workload, site, latency=AT_ONCE).state
    return dict(zip(users, state.shares["factor"][state.jobs["association"]].tolist(), strict=True))


def test_classic_factors_are_those_of_the_documentation():
    documented = {"1": 0.408479, "2": 0.022097, "3": 0.125, "4": 0.5, "5": 0.749154}
    assert factors(DOCUMENTED, fair_tree=False) == pytest.approx(documented, abs=1e-6)


def test_the_fair_tree_ranks_users_of_underserved_accounts_first():
    # Level fair shares: D .60/.25 before A .40/.45; in D F, unused, before E; in A B .75/.44 before C; in C 3 before 2.
    assert factors(DOCUMENTED, fair_tree=True) == {"5": 1.0, "4": 0.8, "1": 0.6, "3": 0.4, "2": 0.2}


def test_users_who_are_equally_served_have_the_same_rank():
    shares = (Share(account="A"), *(Share(account="A", user=user) for user in "abc"))
    assert set(factors(shares, fair_tree=True).values()) == {1.0}


def test_a_user_in_place_of_an_account_has_its_factor():
    shares = (
        Share(account="A", shares=1),
        Share(account="B", shares=1),
        Share(account="A", user="parent", shares=None, usage_s=30),
        Share(account="B", user="other", usage_s=10),
    )
    assert factors(shares, fair_tree=False)["parent"] == pytest.approx(2 ** -(0.75 / 0.5))


def test_usage_grows_while_a_job_runs_and_decays_by_half_lives():
    site = a_site(
        shares=(Share(account="A"), Share(account="A", user="u"), Share(account="A", user="v")),
        priority={"fairshare": 1, "calc_period_s": 60, "decay_half_life_s": 3600},
    )
    rows = [(0, 600, 4, 6000), (4150, 600, 1, 6000)]
    workload = a_workload(rows, users=("u", "v"), user=[0, 1], accounts=("A",))
    timeline = SlurmTimeline(workload, site, latency=AT_ONCE)
    usage = timeline.state.shares["usage"]
    timeline.advance(300.0)
    assert usage[0] == pytest.approx(usage[1])
    assert usage[1] == pytest.approx(4 * 300, rel=0.06)
    # Priorities, and with them usage, are made anew on whole minutes here.
    timeline.advance(600.0)
    ended = usage[1]
    assert ended == pytest.approx(4 * 600, rel=0.15)
    timeline.advance(600.0 + 3600.0)
    # Slurm's decay is 1 - 0.693 / half-life each second, which is not quite a half.
    assert usage[1] == pytest.approx(ended / 2, rel=0.001)
    timeline.advance(4500.0)
    assert usage[2] == pytest.approx(350, rel=0.05)


def test_whoever_has_used_less_starts_first():
    site = a_site(
        shares=(Share(account="A"), Share(account="A", user="u"), Share(account="A", user="v")),
        priority={"fairshare": 1000, "calc_period_s": 60},
        scheduling={"backfill": False},
    )
    rows = [(0, 600, 8, 6000), (1, 60, 8, 600), (2, 60, 8, 600)]
    workload = a_workload(rows, users=("u", "v"), user=[0, 0, 1], accounts=("A",))
    timeline = SlurmTimeline(workload, site, latency=AT_ONCE)
    timeline.advance()
    started = timeline.result().started_s
    assert started[2] < started[1]
    assert np.isfinite(started).all()
