"""Scenarios of a what-if.

A scenario has a policy, a backfill rule, and a source of run times.

The default set has the baselines without which a scheduling result means nothing (docs/first-steps.md): what a Slurm
site has today, a rule that needs no model, the policies of Helios, and oracles as bounds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from helios.errors import UsageError
from helios.ports import Order
from helios.services.queue_orders import balanced, shortest_service_first
from helios.simulate import ORDERS as CONTROLS
from helios.simulate import RESERVING, Backfill, Backlog, WaitBound
from helios.units import length

# Options of policies, in one table for sweep plans, keys of results and replays.
#
# A person writes an option as ``least = "3h"``. It is stored as the value and the name of a parameter of the wait bound
# (``least_s``, 10800). A new bound needs its rows in ``OPTIONS`` and its line in :func:`wait_bound`.

Options = tuple[tuple[str, int | float | None], ...]
"""Names and values as they are stored, sorted by name."""

NEVER = "never"
BALANCED, SRTF = "balanced", "srtf"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOption:
    """One option of a policy.

    Attributes
    ----------
    kept_as : str
        Name under which it is stored, a parameter of the wait bound.
    read : callable
        Returns the value of a text; raises UsageError.
    of : str
        The policy that has it; empty for all that order a queue.
    told : str
        What it is, for a person.
    """

    kept_as: str
    read: Callable[[Any], int | float | None]
    of: str
    told: str


def _length_s(text: Any) -> int:
    return int(length(text).total_seconds())


def _length_or_never_s(text: Any) -> int | None:
    return None if text == NEVER else _length_s(text)


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UsageError(f"{value!r} is not a share, a number from 0 on.", hint="Write 0.9, or 0 for none.")
    return float(value)


OPTIONS: Mapping[str, PolicyOption] = {
    "patience": PolicyOption(
        kept_as="patience_s",
        read=_length_or_never_s,
        of="",
        told='a job that has waited so long goes first: "12h"; "never"; instead of the bound by the backlog',
    ),
    "share": PolicyOption(
        kept_as="share", read=_share, of=BALANCED, told="of the longest backlog that a job waits at most"
    ),
    "least": PolicyOption(kept_as="least_s", read=_length_s, of=BALANCED, told='the bound is never shorter: "3h"'),
    "known": PolicyOption(
        kept_as="known_s", read=_length_s, of=BALANCED, told='longest wait of the site\'s past: "20h"'
    ),
    "every": PolicyOption(
        kept_as="every_s", read=_length_s, of=BALANCED, told='how often the backlog is updated: "1h"'
    ),
}


def read_options(policy: str, written: Mapping[str, Any]) -> Options:
    """Return the options of a policy as they are stored.

    Raises
    ------
    UsageError
        The policy has no such option, a value is not understood, or the options contradict each other.
    """
    there = {name: option for name, option in OPTIONS.items() if option.of in ("", policy) and policy != SRTF}
    if unknown := [name for name in written if name not in there]:
        has = "; ".join(f"{name}: {option.told}" for name, option in there.items()) or "none"
        raise UsageError(f"{policy} has no option {', '.join(unknown)}.", hint=f"Its options: {has}")
    read = {there[name].kept_as: there[name].read(value) for name, value in written.items()}
    if "patience_s" in read and len(read) > 1:
        raise UsageError(
            f"{policy} cannot have patience together with {', '.join(name for name in written if name != 'patience')}: "
            "patience replaces the bound by the backlog.",
            hint="Give one or the other. In a plan write [[options.balanced]] twice, once with patience.",
        )
    options = tuple(sorted(read.items()))
    wait_bound(policy, options)  # raises for values that no bound accepts
    return options


def wait_bound(policy: str, options: Options) -> WaitBound | Backlog | None:
    """Return the bound on waits under a policy, or None.

    Options take precedence over the policy's own bound.
    """
    told: dict[str, Any] = dict(options)
    if "patience_s" in told:
        return None if told["patience_s"] is None else WaitBound.constant(told["patience_s"])
    return Backlog(**told) if policy == BALANCED else None


class Policy(StrEnum):
    """Queue orders that can be replayed."""

    FIFO = "fifo"
    SJF = "sjf"
    QSSF = "qssf"
    BALANCED = "balanced"
    FEWEST_GPUS = "fewest_gpus"
    SRTF = "srtf"


class RunTimes(StrEnum):
    """Source of run times for a queue order or for backfill."""

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
DEFAULT_BACKFILLS: Mapping[Policy, Sequence[Backfill]] = {
    Policy.SRTF: (Backfill.NONE,),
    Policy.BALANCED: (Backfill.EASY, Backfill.NODES),
}
AGAIN_S = {Policy.BALANCED: 3_600}
"""How often a policy predicts waiting jobs again, s. Others use the prediction at submission, as the paper does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One replay of a what-if.

    Attributes
    ----------
    policy : Policy
        The queue order.
    backfill : Backfill
        What may pass a blocked head.
    run_times : RunTimes, optional
        Run times that the order uses, predicted or true; None where it uses none.
    estimates : RunTimes or int, optional
        Run times that backfill plans with, s; an int is the same for all jobs. None where it does not plan.
    options : Options
        Further options of the policy, from :func:`read_options`.

    Raises
    ------
    UsageError
        The parts contradict each other.
    """

    policy: Policy
    backfill: Backfill
    run_times: RunTimes | None = None
    estimates: Estimates | None = None
    options: Options = ()

    def __post_init__(self) -> None:
        if self.policy is Policy.SRTF and self.backfill in RESERVING:
            raise UsageError(
                f"SRTF preempts instead of reserving, so backfill {self.backfill} has no meaning for it.",
                hint="Use --backfill none or --backfill skip with srtf.",
            )
        if self.run_times in {RunTimes.LIMIT, RunTimes.EXPECTED}:
            raise UsageError(
                "Queues are ordered by predicted (median) or true run times, not by time limits or expected run times.",
                hint="Use --run-times predicted or --run-times true.",
            )

    @property
    def uses_predictions(self) -> bool:
        """Whether a predictor is needed."""
        return RunTimes.PREDICTED is self.run_times or self.estimates in {RunTimes.PREDICTED, RunTimes.EXPECTED}

    @property
    def parts(self) -> dict[str, Any]:
        """What names the replay in reports.

        As :func:`helios.report.whatif.scenario_label` takes it.
        """
        return {
            "policy": self.policy.value,
            "run_times": self.run_times.value if self.run_times else None,
            "backfill": self.backfill.value,
            "estimates": self.published_estimates,
            "options": dict(self.options),
        }

    @property
    def published_estimates(self) -> str | None:
        """Source of run times in reports, backfill's where it plans, else the order's."""
        source = self.estimates if self.estimates is not None else self.run_times
        return None if source is None else str(source)


def scenarios(
    *,
    policies: Sequence[Policy] = (),
    backfills: Sequence[Backfill] = (),
    estimates: Sequence[Estimates] = (),
    run_times: RunTimes | None = None,
) -> list[Scenario]:
    """Return the scenarios that the options ask for.

    Without options it is the default set.

    Parameters
    ----------
    policies, backfills, estimates : sequences
        An empty one means the default for the others given.
    run_times : RunTimes, optional
        What orders by run time use. Where not given, it follows ``estimates``, else it is predicted.

    Raises
    ------
    UsageError
        The options contradict each other.
    """
    if not policies and not backfills and not estimates and run_times is None:
        return default_scenarios()
    if not policies and not estimates and run_times is None:
        return [plan for plan in default_scenarios() if plan.backfill in backfills]
    chosen: list[Scenario] = []
    for policy in policies or [policy for policy in Policy if policy is not Policy.SRTF]:
        for backfill in backfills or DEFAULT_BACKFILLS.get(policy, (Backfill.NONE, Backfill.EASY)):
            if policy is Policy.SRTF:
                chosen.append(Scenario(policy=policy, backfill=backfill, run_times=RunTimes.TRUE))
                continue
            own = RunTimes.EXPECTED if (policy, backfill) == (Policy.BALANCED, Backfill.NODES) else RunTimes.LIMIT
            for source in estimates or (RunTimes.TRUE if run_times is RunTimes.TRUE else own,):
                ordered_by = run_times or (RunTimes.TRUE if source is RunTimes.TRUE else RunTimes.PREDICTED)
                chosen.append(
                    Scenario(
                        policy=policy,
                        backfill=backfill,
                        run_times=ordered_by if policy in BY_RUN_TIME else None,
                        estimates=source if backfill in RESERVING else None,
                    )
                )
    return list(dict.fromkeys(chosen))


def with_options(chosen: Sequence[Scenario], texts: Sequence[str]) -> list[Scenario]:
    """Return the scenarios with options from texts like ``balanced.share=0.8``.

    Raises
    ------
    UsageError
        A text is not understood, its policy is not replayed, or it has no such option.
    """
    told: dict[str, dict[str, str | float]] = defaultdict(dict)
    for text in texts:
        parts = re.fullmatch(r"\s*(\w+)\.(\w+)\s*=\s*(.+?)\s*", text)
        if parts is None:
            raise UsageError(f"--set {text!r} is not POLICY.OPTION=VALUE.", hint="Write --set balanced.share=0.8")
        policy, name, value = parts.groups()
        told[policy][name] = float(value) if re.fullmatch(r"\d*\.?\d+", value) else value
    if strangers := set(told) - {plan.policy.value for plan in chosen}:
        raise UsageError(
            f"--set has an option for {', '.join(sorted(strangers))}, which is not replayed.",
            hint=f"Add it to --policy. Replayed are: {', '.join(dict.fromkeys(plan.policy.value for plan in chosen))}",
        )
    options = {policy: read_options(policy, written) for policy, written in told.items()}
    return [replace(plan, options=options.get(plan.policy.value, ())) for plan in chosen]


def default_scenarios() -> list[Scenario]:
    """Return the default scenarios."""
    predicted, true, limit = RunTimes.PREDICTED, RunTimes.TRUE, RunTimes.LIMIT
    none, skip, easy = Backfill.NONE, Backfill.SKIP, Backfill.EASY
    return [
        Scenario(policy=Policy.FIFO, backfill=easy, estimates=limit),
        Scenario(policy=Policy.FIFO, backfill=none),
        Scenario(policy=Policy.FIFO, backfill=easy, estimates=true),
        Scenario(policy=Policy.FEWEST_GPUS, backfill=none),
        Scenario(policy=Policy.FEWEST_GPUS, backfill=easy, estimates=limit),
        Scenario(policy=Policy.BALANCED, backfill=Backfill.NODES, run_times=predicted, estimates=RunTimes.EXPECTED),
        Scenario(policy=Policy.QSSF, backfill=none, run_times=predicted),
        Scenario(policy=Policy.QSSF, backfill=easy, run_times=predicted, estimates=limit),
        Scenario(policy=Policy.QSSF, backfill=easy, run_times=predicted, estimates=predicted),
        Scenario(policy=Policy.QSSF, backfill=none, run_times=true),
        Scenario(policy=Policy.QSSF, backfill=easy, run_times=true, estimates=true),
        Scenario(policy=Policy.SJF, backfill=none, run_times=true),
        Scenario(policy=Policy.SJF, backfill=easy, run_times=true, estimates=true),
        Scenario(policy=Policy.SRTF, backfill=none, run_times=true),
        Scenario(policy=Policy.SRTF, backfill=skip, run_times=true),
    ]
