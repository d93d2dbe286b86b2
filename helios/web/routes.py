"""Every page of the site, by its place in the menu."""

from __future__ import annotations

from functools import partial
from importlib import import_module

from helios.web.page import MenuPlace, Role, Route
from helios.web.pages.advice import advice_page
from helios.web.pages.card import card_page
from helios.web.pages.history import history_page
from helios.web.pages.job import job_page
from helios.web.pages.jobs import JOB_CHOICE, jobs_page
from helios.web.pages.nodes import nodes_page
from helios.web.pages.overview import overview_page
from helios.web.pages.qos import qos_page
from helios.web.pages.queue import queue_page, running_page, waiting_page
from helios.web.pages.report_page import CHOICE, WINDOW
from helios.web.pages.reports import reports_page
from helios.web.pages.study import study_page
from helios.web.pages.subjects import account_page, node_page, partition_page, user_page
from helios.web.pages.use import usage_page
from helios.web.pages.work import decisions_page, energy_page, predictions_page, services_page

WING_PAGES = ("helios.training.web_pages", "helios.job_use.web_pages")
"""Modules of the wings with more routes, as ``ROUTES``."""

ROUTES = (
    Route(
        "/",
        "What runs and waits, what Helios did, and what needs a person",
        overview_page,
        menu_name="Overview",
        readers=Role.USER,
        is_cached=False,
    ),
    Route(
        "/queue",
        "All waiting jobs, the next one first",
        queue_page,
        menu_name="Queue",
        readers=Role.USER,
        is_cached=False,
        needs_slurm=True,
    ),
    Route(
        "/running",
        "All running jobs, the oldest start first",
        running_page,
        menu_name="Running",
        readers=Role.USER,
        is_cached=False,
        needs_slurm=True,
    ),
    Route("/card", "The own jobs, for a frame on another page", card_page, readers=Role.USER, is_cached=False),
    Route("/waiting", "Who waits, by partition and user", waiting_page, query=CHOICE, menu_name="Who waits"),
    Route(
        "/qos",
        "QOS with their limits and jobs, and reservations",
        qos_page,
        menu_name="QOS",
        readers=Role.USER,
        is_cached=False,
        needs_slurm=True,
    ),
    Route("/nodes", "Pools of nodes: asleep, waking, failed", nodes_page, menu_name="Nodes", needs_slurm=True),
    Route("/nodes/{node}", "One node: its jobs, events, what Helios did", node_page, query=WINDOW, parent="/nodes"),
    Route(
        "/history",
        "Charts of use, waits and submissions",
        history_page,
        query=CHOICE,
        place=MenuPlace.HISTORY,
        menu_name="Charts",
        readers=Role.USER,
    ),
    Route(
        "/partitions",
        "Jobs, hours and waits by partition",
        partial(usage_page, "partition"),
        query=CHOICE,
        place=MenuPlace.HISTORY,
        menu_name="Partitions",
        readers=Role.USER,
    ),
    Route(
        "/partitions/{partition}",
        "One partition: rules, use, waits, nodes",
        partition_page,
        query=WINDOW,
        place=MenuPlace.HISTORY,
        readers=Role.USER,
        parent="/partitions",
    ),
    Route(
        "/accounts",
        "Jobs, hours and waits by account",
        partial(usage_page, "account"),
        query=CHOICE,
        place=MenuPlace.HISTORY,
        menu_name="Accounts",
        readers=Role.MANAGER,
    ),
    Route(
        "/accounts/{account}",
        "One account: use and waits",
        account_page,
        query=WINDOW,
        place=MenuPlace.HISTORY,
        readers=Role.MANAGER,
        parent="/accounts",
    ),
    Route(
        "/users",
        "Jobs, hours and waits by user",
        partial(usage_page, "user"),
        query=CHOICE,
        place=MenuPlace.HISTORY,
        menu_name="Users",
    ),
    Route(
        "/users/{user}",
        "One user: jobs, use, waits, advice",
        user_page,
        query=WINDOW,
        place=MenuPlace.HISTORY,
        readers=Role.USER,
        parent="/users",
    ),
    Route(
        "/jobs",
        "Jobs of a window, the newest first",
        jobs_page,
        query=JOB_CHOICE,
        place=MenuPlace.HISTORY,
        menu_name="Jobs",
        readers=Role.USER,
    ),
    Route(
        "/jobs/{job}",
        "One job: its life, prediction, place, alike jobs",
        job_page,
        place=MenuPlace.HISTORY,
        readers=Role.USER,
        parent="/jobs",
        is_cached=False,
    ),
    Route(
        "/advice",
        "Requests that do not fit what jobs need",
        advice_page,
        query=(*WINDOW, "user"),
        place=MenuPlace.HISTORY,
        menu_name="Advice",
        readers=Role.USER,
    ),
    Route(
        "/services",
        "What services asked for, by day",
        services_page,
        query=WINDOW,
        place=MenuPlace.HELIOS,
        menu_name="Services",
    ),
    Route(
        "/decisions",
        "The audit log",
        decisions_page,
        query=(*CHOICE, "result"),
        place=MenuPlace.HELIOS,
        menu_name="Decisions",
    ),
    Route(
        "/predictions",
        "How far off predicted run times were",
        predictions_page,
        query=(*WINDOW, "by"),
        place=MenuPlace.HELIOS,
        menu_name="Predictions",
        readers=Role.USER,
    ),
    Route(
        "/energy",
        "Node hours, energy, and what sleep saved",
        energy_page,
        query=WINDOW,
        place=MenuPlace.HELIOS,
        menu_name="Energy",
        readers=Role.MANAGER,
    ),
    *(route for module in WING_PAGES for route in import_module(module).ROUTES),
    Route("/study", "The latest study: statements and figures", study_page, place=MenuPlace.STUDY, menu_name="Study"),
    Route(
        "/reports", "Reports and what-ifs that were written", reports_page, place=MenuPlace.STUDY, menu_name="Reports"
    ),
)
