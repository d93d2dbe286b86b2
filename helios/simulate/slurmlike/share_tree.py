"""The tree of accounts and users, as tables: a parent before its children."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from helios.model.site import Share, SlurmSite
from helios.simulate.slurmlike.state import NOBODY, SHARE
from helios.simulate.slurmlike.workload import SlurmWorkload


def share_tables(
    workload: SlurmWorkload, site: SlurmSite
) -> tuple[NDArray[np.void], NDArray[np.int64], NDArray[np.int64], int]:
    """Return the shares, the lists of their children, each job's association (NOBODY: none), and how many users.

    A user who is not in the site's tree gets one share in the account that the job names, if that is there.
    """
    if not site.shares:
        return np.zeros(0, SHARE), np.zeros(0, np.int64), np.full(len(workload), NOBODY, dtype=np.int64), 0
    account, user = workload.column("account"), workload.column("user")
    pairs, which = np.unique(np.stack([account, user]), axis=1, return_inverse=True)
    asked = [(workload.accounts[one], workload.users[two]) for one, two in pairs.T.tolist()]
    tree = _in_order(site.shares, asked)
    place = {(share.account, share.user): number for number, share in enumerate(tree)}
    leaf = np.array([place.get(pair, NOBODY) if pair[1] else NOBODY for pair in asked], dtype=np.int64)
    shares = _tables(tree)
    children = np.zeros(len(tree), dtype=np.int64)
    _list_children(shares, children)
    return shares, children, leaf[which.ravel()], int(shares["is_user"].sum())


def _in_order(known: tuple[Share, ...], asked: list[tuple[str, str]]) -> list[Share]:
    """Return the tree breadth first, with users that are missing, below one root."""
    accounts = {share.account: share for share in known if not share.user}
    roots = [share for share in accounts.values() if not share.parent or share.parent not in accounts]
    root = roots[0] if len(roots) == 1 and not roots[0].parent else Share(account="root")
    there = {(share.account, share.user) for share in known}
    missing = [
        Share(account=account, user=user)
        for account, user in asked
        if user and account in accounts and (account, user) not in there
    ]
    below: dict[str, list[Share]] = {}
    for share in (*known, *missing):
        if share is root:
            continue
        parent = share.account if share.user else share.parent
        # What hangs on nothing hangs on the root.
        home = parent if parent in accounts and parent != root.account else root.account
        below.setdefault(home, []).append(share)
    tree, place = [root], 0
    while place < len(tree):
        if not tree[place].user:
            tree.extend(below.get(tree[place].account, ()))
        place += 1
    return tree


def _tables(tree: list[Share]) -> NDArray[np.void]:
    account = {share.account: number for number, share in enumerate(tree) if not share.user}
    shares = np.zeros(len(tree), dtype=SHARE)
    shares["parent"], shares["fair_parent"], shares["norm"], shares["effective"] = NOBODY, NOBODY, 1.0, 1.0
    for number, share in enumerate(tree):
        its = shares[number]
        its["is_user"], its["usage"] = bool(share.user), share.usage_s
        its["shares"] = -1 if share.shares is None else share.shares
        if number > 0:
            its["parent"] = account.get(share.account if share.user else share.parent, 0)
            its["fair_parent"] = _fair_parent(shares, number)
    _share_levels(shares)
    for number in range(len(tree) - 1, -1, -1):
        # An account has used what its users have; a dump that says more is believed.
        below = shares["usage"][shares["parent"] == number].sum()
        shares["usage"][number] = max(shares["usage"][number], below)
    return shares


def _fair_parent(shares: NDArray[np.void], number: int) -> int:
    above = int(shares[number]["parent"])
    while above > 0 and shares[above]["shares"] < 0:
        above = int(shares[above]["parent"])
    return above


def _share_levels(shares: NDArray[np.void]) -> None:
    """Sum the shares that compete with each other, and normalise them down the tree."""
    competes = shares["shares"] >= 0
    for number in range(1, len(shares)):
        its = shares[number]
        level = competes & (shares["fair_parent"] == its["fair_parent"])
        level[0] = False
        its["level_shares"] = shares["shares"][level].sum()
        above = shares[its["fair_parent"]]["norm"]
        own = its["shares"] / its["level_shares"] if its["level_shares"] > 0 else 0.0
        its["norm"] = above if its["shares"] < 0 else above * own


def _list_children(shares: NDArray[np.void], children: NDArray[np.int64]) -> None:
    order = np.argsort(shares["parent"], kind="stable")
    children[:] = order
    edges = np.searchsorted(shares["parent"][order], np.arange(len(shares) + 1))
    shares["first_child"], shares["children"] = edges[:-1], np.diff(edges)
