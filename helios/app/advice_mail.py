"""Mails of advice to users, where an admin says so."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from itertools import groupby

from helios.app.advise import WINDOW, advise
from helios.app.notify import Notice, NoticeNotSent, deliver
from helios.app.reports import ReportQuery
from helios.config import Settings
from helios.errors import HeliosError
from helios.report.gpu_advice import KINDS
from helios.units import count_in_words
from helios.warehouse import Warehouse

AGAIN_AFTER = timedelta(days=7)
"""Shortest time between two mails to a user."""
STATE = "advice mails"
"""Name under which the warehouse keeps when each user had a mail."""
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
FOOT = "Nothing was done to your jobs, and nothing will be. Ask your admins to leave you out."


def mail_advice(settings: Settings, cluster: str, *, now: datetime) -> str:
    """Mail users advice on GPUs that their jobs held and did not use.

    Returns
    -------
    str
        How many mails were sent. Empty where no admin set ``advice.mail_domain``, or none is due.

    Raises
    ------
    NoticeNotSent
        A mail was not accepted. It is tried again with the next run.
    """
    domain = settings.advice.mail_domain
    if not domain:
        return ""
    url = settings.database.url
    query = ReportQuery(
        url=url, slurm=settings.slurm, cluster=cluster, now=now, length=WINDOW, exempt=settings.advice.exempt
    )
    report = advise(query)
    if not report.live:  # nobody is told of a history of the past
        return ""
    found = sorted((one for one in report.advice if one.kind in KINDS), key=lambda one: one.user)
    with Warehouse.open(url) as warehouse:
        sent: dict[str, str] = json.loads(warehouse.remembered(cluster, STATE) or "{}")
        last = {user: at for user, at in sent.items() if now - datetime.fromisoformat(at) < AGAIN_AFTER}
        problems, mails = list[HeliosError](), 0
        for user, pieces in groupby(found, key=lambda one: one.user):
            if user in last or not _USER.fullmatch(user):
                continue
            notice = Notice(
                event="advice",
                cause=f"advice {user}",
                subject="GPUs that your jobs held and did not use",
                lines=(*("\n".join(one.lines()) for one in pieces), FOOT),
            )
            last[user] = now.isoformat()
            warehouse.remember(cluster, STATE, json.dumps(last), at=now)  # before it is sent: it may have arrived
            to_user = settings.notify.model_copy(update={"mail_to": f"{user}@{domain}"})
            try:
                deliver(to_user, "mail", notice, cluster=cluster)
                mails += 1
            except HeliosError as problem:
                del last[user]
                problems.append(problem)
        warehouse.remember(cluster, STATE, json.dumps(last), at=now)
    if problems:
        raise NoticeNotSent(
            f"{count_in_words(len(problems), 'mail')} of advice: {problems[0].message}", hint=problems[0].hint
        )
    return f"{count_in_words(mails, 'mail')} of advice" if mails else ""
