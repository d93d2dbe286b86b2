"""Which replays a what-if makes: policy, backfill, and where run times come from.

The default set is the controls without which a scheduling result means nothing (docs/first-steps.md): what a
Slurm site has today, the rule that needs no model, ours, and the oracles that bound them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from helios.app.policy_options import Options, read_options
from helios.errors import Misuse
from helios.ports import Order
from helios.services.orders import balanced, shortest_service_first
from helios.simulate import ORDERS as CONTROLS
from helios.simulate import RESERVING, Backfill


class Policy(StrEnum):
    """Queue orders that can be replayed."""

    FIFO = "fifo"
    SJF = "sjf"
    QSSF = "qssf"
    BALANCED = "balanced"
    FEWEST_GPUS = "fewest_gpus"
    SRTF = "srtf"


class RunTimes(StrEnum):
    """Where run times come from, in an order or in a plan for backfill."""

    LIMIT = "limit"
    PREDICTED = "predicted"
    EXPECTED = "expected"
    TRUE = "true"


Estimates = RunTimes | int

ORDERS: dict[Policy, Order] = {
    **{Policy(name): order for name, order in CONTROLS.items()},
    Policy.QSSF: shortest_service_first,
    Policy.BALANCED: balanced,
    Policy.SRTF: CONTROLS[Policy.SJF],
}
BY_RUN_TIME = frozenset({Policy.SJF, Policy.QSSF, Policy.BALANCED})
AGAIN_S = {Policy.BALANCED: 3_600}
"""How often policies predict again what still waits, s; the others go by the prediction of the submission, as the paper
does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One replay to make.

    Attributes
    ----------
    policy : Policy
        The queue order.
    backfill : Backfill
        What may pass a blocked head.
    run_times : RunTimes, optional
        Run times the order believes in: predicted or true; None where the order uses none.
    estimates : RunTimes or int, optional
        Run times backfill plans with, an int being the same for all, s; None where it does not plan.
    options : Options
        What else the policy is told, as :func:`helios.app.policy_options.read_options` gives it.

    Raises
    ------
    Misuse
        The parts contradict each other.
    """

    policy: Policy
    backfill: Backfill
    run_times: RunTimes | None = None
    estimates: Estimates | None = None
    options: Options = ()

    def __post_init__(self) -> None:
        if self.policy is Policy.SRTF and self.backfill in RESERVING:
            raise Misuse(
                f"SRTF preempts instead of reserving, so backfill {self.backfill} has no meaning for it.",
                remedy="Use --backfill none or --backfill skip with srtf.",
            )
        if self.run_times in {RunTimes.LIMIT, RunTimes.EXPECTED}:
            raise Misuse(
                "Queues are ordered by predicted (median) or true run times, not by time limits or expected run times.",
                remedy="Use --run-times predicted or --run-times true.",
            )

    @property
    def uses_predictions(self) -> bool:
        """Whether a predictor has to be asked."""
        return RunTimes.PREDICTED is self.run_times or self.estimates in {RunTimes.PREDICTED, RunTimes.EXPECTED}

    @property
    def published_estimates(self) -> str | None:
        """What ``estimates`` says in a report: backfill's where it plans, else the order's."""
        source = self.estimates if self.estimates is not None else self.run_times
        return None if source is None else str(source)


def plans(
    *,
    policies: Sequence[Policy] = (),
    backfills: Sequence[Backfill] = (),
    estimates: Sequence[Estimates] = (),
    run_times: RunTimes | None = None,
) -> list[Plan]:
    """Return the replays that the options ask for; without options, the default set of controls.

    Parameters
    ----------
    policies, backfills, estimates : sequences
        An empty one means the default for the others given.
    run_times : RunTimes, optional
        What orders by run time believe in; where not given, as ``estimates`` says, else predicted.

    Raises
    ------
    Misuse
        The options contradict each other.
    """
    if not policies and not backfills and not estimates and run_times is None:
        return default_plans()
    if not policies and not estimates and run_times is None:
        return [plan for plan in default_plans() if plan.backfill in backfills]
    chosen: list[Plan] = []
    for policy in policies or [policy for policy in Policy if policy is not Policy.SRTF]:
        for backfill in backfills or _default_backfills(policy):
            chosen += _variants(policy, backfill, estimates, run_times)
    return list(dict.fromkeys(chosen))


def with_options(chosen: Sequence[Plan], texts: Sequence[str]) -> list[Plan]:
    """Return the replays, told what is written as ``balanced.share=0.8``.

    Raises
    ------
    Misuse
        A text is not understood, its policy is not replayed, or it has no such option.
    """
    told: dict[str, dict[str, str | float]] = defaultdict(dict)
    for text in texts:
        parts = re.fullmatch(r"\s*(\w+)\.(\w+)\s*=\s*(.+?)\s*", text)
        if parts is None:
            raise Misuse(f"{text!r} is not understood.", remedy="Write POLICY.OPTION=VALUE, as balanced.share=0.8")
        policy, name, value = parts.groups()
        told[policy][name] = float(value) if re.fullmatch(r"\d*\.?\d+", value) else value
    if strangers := set(told) - {plan.policy.value for plan in chosen}:
        raise Misuse(
            f"{', '.join(sorted(strangers))} is told something, and is not replayed.",
            remedy=f"Replayed are: {', '.join(dict.fromkeys(plan.policy.value for plan in chosen))}",
        )
    options = {policy: read_options(policy, written) for policy, written in told.items()}
    return [replace(plan, options=options.get(plan.policy.value, ())) for plan in chosen]


def default_plans() -> list[Plan]:
    """Return the controls, each with and without backfill."""
    predicted, true, limit = RunTimes.PREDICTED, RunTimes.TRUE, RunTimes.LIMIT
    none, skip, easy = Backfill.NONE, Backfill.SKIP, Backfill.EASY
    return [
        Plan(policy=Policy.FIFO, backfill=easy, estimates=limit),
        Plan(policy=Policy.FIFO, backfill=none),
        Plan(policy=Policy.FIFO, backfill=easy, estimates=true),
        Plan(policy=Policy.FEWEST_GPUS, backfill=none),
        Plan(policy=Policy.FEWEST_GPUS, backfill=easy, estimates=limit),
        Plan(policy=Policy.BALANCED, backfill=Backfill.NODES, run_times=predicted, estimates=RunTimes.EXPECTED),
        Plan(policy=Policy.QSSF, backfill=none, run_times=predicted),
        Plan(policy=Policy.QSSF, backfill=easy, run_times=predicted, estimates=limit),
        Plan(policy=Policy.QSSF, backfill=easy, run_times=predicted, estimates=predicted),
        Plan(policy=Policy.QSSF, backfill=none, run_times=true),
        Plan(policy=Policy.QSSF, backfill=easy, run_times=true, estimates=true),
        Plan(policy=Policy.SJF, backfill=none, run_times=true),
        Plan(policy=Policy.SJF, backfill=easy, run_times=true, estimates=true),
        Plan(policy=Policy.SRTF, backfill=none, run_times=true),
        Plan(policy=Policy.SRTF, backfill=skip, run_times=true),
    ]


def _default_backfills(policy: Policy) -> Sequence[Backfill]:
    own = {Policy.SRTF: (Backfill.NONE,), Policy.BALANCED: (Backfill.EASY, Backfill.NODES)}
    return own.get(policy, (Backfill.NONE, Backfill.EASY))


def _variants(
    policy: Policy, backfill: Backfill, estimates: Sequence[Estimates], run_times: RunTimes | None
) -> list[Plan]:
    if policy is Policy.SRTF:
        return [Plan(policy=policy, backfill=backfill, run_times=RunTimes.TRUE)]
    return [
        Plan(
            policy=policy,
            backfill=backfill,
            run_times=_believed(source, run_times) if policy in BY_RUN_TIME else None,
            estimates=source if backfill in RESERVING else None,
        )
        for source in estimates or _default_estimates(policy, backfill, run_times)
    ]


def _default_estimates(policy: Policy, backfill: Backfill, run_times: RunTimes | None) -> Sequence[Estimates]:
    if run_times is RunTimes.TRUE:
        return (RunTimes.TRUE,)
    return (RunTimes.EXPECTED if (policy, backfill) == (Policy.BALANCED, Backfill.NODES) else RunTimes.LIMIT,)


def _believed(source: Estimates, run_times: RunTimes | None) -> RunTimes:
    if run_times is not None:
        return run_times
    return RunTimes.TRUE if source is RunTimes.TRUE else RunTimes.PREDICTED
