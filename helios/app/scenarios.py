"""Scenarios of a what-if.

A scenario has a policy, a backfill rule, and a source of run times.

The default set has the baselines without which a scheduling result means nothing (docs/first-steps.md): plain
FIFO + EASY, a rule that needs no model, the policies of Helios, and oracles as bounds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helios.choices import Policy, RunTimes
from helios.errors import UsageError
from helios.ports import HORIZON_S, RUN_TIME, Order
from helios.services.qssf import divide_large_jobs, shortest_service_first
from helios.simulate import ORDERS as SIMPLE_ORDERS
from helios.simulate import RESERVING, Ageing, Backfill, LongestWaits, WaitBound
from helios.units import length

Options = tuple[tuple[str, int | float | None], ...]
"""Names and values of a policy's options as they are stored, sorted by name.

A person writes an option as ``patience = "3h"``. It is stored as its value and the name ``patience_s``.
"""

NEVER = "never"
QSSF, SRTF, FIFO = "qssf", "srtf", "fifo"
WAIT_SHARE = 0.5
"""Default ageing time of ``qssf``, as a share of the longest wait of the site's own order."""
BOUND_SHARE = 0.9
"""Default wait bound of ``qssf``, as such a share."""
LARGE_DIVISOR = 4.0
"""Default divisor of the service of jobs of a node or more. Decision 25 says how the three were chosen."""
AGED: Options = (("bound_share", BOUND_SHARE), ("large_divisor", LARGE_DIVISOR), ("wait_share", WAIT_SHARE))
"""All three as options, for rules that age as ``qssf`` does."""
WAIT_BOUNDS = frozenset({"bound_share", "patience_s"})
"""Options that say when a job goes first. A replay has one of them."""

_NOT_AGED = frozenset({FIFO, SRTF})

ORDERS: dict[Policy, Order] = {
    **{Policy(name): order for name, order in SIMPLE_ORDERS.items()},
    Policy.QSSF: shortest_service_first,
    Policy.SERVICE: shortest_service_first,
    Policy.MEAN_SERVICE: shortest_service_first,
    Policy.SRTF: SIMPLE_ORDERS[Policy.SJF],
}
READS: Mapping[Policy, int] = {Policy.QSSF: RUN_TIME.truncated_mean, Policy.MEAN_SERVICE: RUN_TIME.mean}
"""Column of a prediction that a policy orders by; the others order by the median."""
BY_RUN_TIME = frozenset({Policy.SJF, Policy.QSSF, Policy.SERVICE, Policy.MEAN_SERVICE})
DEFAULT_BACKFILLS: Mapping[Policy, Sequence[Backfill]] = {Policy.SRTF: (Backfill.NONE,)}
AGAIN_S = 3_600
"""How often waiting jobs are predicted again, s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOption:
    """One option of a policy.

    Attributes
    ----------
    kept_as : str
        Name under which it is stored.
    read : callable
        Returns the value of a text; raises UsageError.
    not_of : frozenset of str
        The policies that do not have it.
    description : str
        What it is, for a person.
    """

    kept_as: str
    read: Callable[[Any], int | float | None]
    not_of: frozenset[str]
    description: str


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")


def _share_or_never(value: Any) -> float | None:
    if value == NEVER:
        return None
    if not _is_number(value) or value <= 0:
        raise UsageError(f"{value!r} is not a share, a number above 0.", hint=f"Write 0.5, or {NEVER}.")
    return float(value)


def _divisor(value: Any) -> float:
    if not _is_number(value) or value < 1:
        raise UsageError(f"{value!r} is not a number from 1 on.", hint="Write 4, or 1 for none.")
    return float(value)


OPTIONS: Mapping[str, PolicyOption] = {
    "wait_share": PolicyOption(
        kept_as="wait_share",
        read=_share_or_never,
        not_of=_NOT_AGED,
        description="how much the longest waiter may pay: the time that counts as e times the service, as a share of "
        'the longest wait under the site\'s own order; 0.25, 0.5, 1; "never": jobs do not age',
    ),
    "bound_share": PolicyOption(
        kept_as="bound_share",
        read=_share_or_never,
        not_of=_NOT_AGED,
        description='a job that has waited longer than this share of that longest wait goes first; "never"',
    ),
    "large_divisor": PolicyOption(
        kept_as="large_divisor",
        read=_divisor,
        not_of=_NOT_AGED,
        description="jobs of a node or more count as their service divided by this: 4",
    ),
    "patience": PolicyOption(
        kept_as="patience_s",
        read=lambda text: None if text == NEVER else int(length(text).total_seconds()),
        not_of=frozenset({SRTF}),
        description='a job that has waited so long goes first: "12h"; "never"; instead of bound_share',
    ),
}


def read_options(policy: str, written: Mapping[str, Any]) -> Options:
    """Return the options of a policy as they are stored.

    Raises
    ------
    UsageError
        The policy has no such option, a value is not understood, or the options contradict each other.
    """
    options = {name: option for name, option in OPTIONS.items() if policy not in option.not_of}
    if unknown := [name for name in written if name not in options]:
        has = "; ".join(f"{name}: {option.description}" for name, option in options.items()) or "none"
        raise UsageError(f"{policy} has no option {', '.join(unknown)}.", hint=f"Its options: {has}")
    read = {options[name].kept_as: options[name].read(value) for name, value in written.items()}
    if set(read) >= WAIT_BOUNDS:
        raise UsageError(
            f"{policy} cannot have patience together with bound_share: both say when a job goes first.",
            hint="Give one or the other. In a plan write [[options.qssf]] twice, once with patience.",
        )
    return tuple(sorted(read.items()))


Estimates = RunTimes | int


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
                "Queues are ordered by predicted or true run times, not by time limits or expected run times.",
                hint="Use --run-times predicted or --run-times true.",
            )

    def with_options(self, options: Options) -> Scenario:
        """Return the scenario with further options, which replace those of the same name.

        A patience replaces a bound share too, and the other way round.
        """
        given = dict(options)
        replaced = WAIT_BOUNDS if WAIT_BOUNDS & set(given) else frozenset()
        kept = {name: value for name, value in self.options if name not in replaced}
        return replace(self, options=tuple(sorted((kept | given).items())))

    @property
    def uses_predictions(self) -> bool:
        """Whether a predictor is needed."""
        return RunTimes.PREDICTED is self.run_times or self.estimates in {RunTimes.PREDICTED, RunTimes.EXPECTED}

    @property
    def wait_share(self) -> float | None:
        """Ageing time as a share of the own order's longest wait.

        None where jobs do not age.
        """
        return dict(self.options).get("wait_share", WAIT_SHARE if self.policy is Policy.QSSF else None)

    @property
    def bound_share(self) -> float | None:
        """Wait bound as a share of the longest wait.

        None where there is none of this kind.
        """
        options = dict(self.options)
        usual = BOUND_SHARE if self.policy is Policy.QSSF else None
        return None if "patience_s" in options else options.get("bound_share", usual)

    @property
    def needs_own_order(self) -> bool:
        """Whether a replay under the site's own order has to come first."""
        return self.wait_share is not None or self.bound_share is not None

    def rules(self, own_order: LongestWaits | None, *, node: int) -> dict[str, Any]:
        """Return the options of a replay under this scenario.

        ``own_order`` is needed where ``needs_own_order``; ``node`` is the GPUs of a node.
        """
        options = dict(self.options)
        order = ORDERS[self.policy]
        divisor = options.get("large_divisor", LARGE_DIVISOR if self.policy is Policy.QSSF else 1.0)
        if divisor is not None and divisor != 1:
            order = divide_large_jobs(order, divisor, node=node)
        ageing: Ageing | None = None
        guard = None if (patience_s := options.get("patience_s")) is None else WaitBound.constant(int(patience_s))
        if own_order is not None and self.wait_share is not None:
            ageing = own_order.ageing(self.wait_share)
        if own_order is not None and self.bound_share is not None:
            guard = own_order.wait_bound(self.bound_share)
        return {"order": order, "reads": READS.get(self.policy, RUN_TIME.p50), "ageing": ageing, "guard": guard}

    def true_run_time_s(self, run_time_s: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the run time that an oracle's order uses."""
        true_s = run_time_s.astype(np.float64)
        return np.minimum(true_s, HORIZON_S) if self.policy is Policy.QSSF else true_s

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
        """Source of run times, as named in reports.

        It is backfill's source where backfill plans, otherwise that of the order.
        """
        source = self.estimates if self.estimates is not None else self.run_times
        return None if source is None else str(source)


BASELINE = Scenario(policy=Policy.FIFO, backfill=Backfill.EASY, estimates=RunTimes.LIMIT)
"""Scenario of a Slurm site without Helios."""
CONTROLS = (BASELINE, replace(BASELINE, policy=Policy.FEWEST_GPUS, options=AGED))
"""The baseline, and size, aged and bounded as ``qssf`` is, which what is new has to beat."""


def scenarios(
    *,
    policies: Sequence[Policy] = (),
    backfills: Sequence[Backfill] = (),
    estimates: Sequence[Estimates] = (),
    run_times: RunTimes | None = None,
) -> list[Scenario]:
    """Return the scenarios that the options ask for.

    Without options it is the default set. Where ``policies`` has fewest GPUs first, it ages as ``qssf`` does.

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
        return [scenario for scenario in default_scenarios() if scenario.backfill in backfills]
    chosen: list[Scenario] = []
    for policy in policies or [policy for policy in Policy if policy is not Policy.SRTF]:
        for backfill in backfills or DEFAULT_BACKFILLS.get(policy, (Backfill.NONE, Backfill.EASY)):
            if policy is Policy.SRTF:
                chosen.append(Scenario(policy=policy, backfill=backfill, run_times=RunTimes.TRUE))
                continue
            for source in estimates or (RunTimes.TRUE if run_times is RunTimes.TRUE else RunTimes.LIMIT,):
                ordered_by = run_times or (RunTimes.TRUE if source is RunTimes.TRUE else RunTimes.PREDICTED)
                chosen.append(
                    Scenario(
                        policy=policy,
                        backfill=backfill,
                        run_times=ordered_by if policy in BY_RUN_TIME else None,
                        estimates=source if backfill in RESERVING else None,
                        options=AGED if policy is Policy.FEWEST_GPUS else (),
                    )
                )
    return list(dict.fromkeys(chosen))


def with_options(chosen: Sequence[Scenario], texts: Sequence[str]) -> list[Scenario]:
    """Return the scenarios with options from texts like ``qssf.wait_share=0.25``.

    Raises
    ------
    UsageError
        A text is not understood, its policy is not replayed, or it has no such option.
    """
    written_by_policy: dict[str, dict[str, str | float]] = defaultdict(dict)
    for text in texts:
        parts = re.fullmatch(r"\s*(\w+)\.(\w+)\s*=\s*(.+?)\s*", text)
        if parts is None:
            raise UsageError(f"--set {text!r} is not NAME.OPTION=VALUE.", hint="Write --set qssf.wait_share=0.25")
        policy, name, value = parts.groups()
        written_by_policy[policy][name] = float(value) if re.fullmatch(r"\d*\.?\d+", value) else value
    replayed = dict.fromkeys(scenario.policy.value for scenario in chosen)
    if unknown := written_by_policy.keys() - replayed:
        raise UsageError(
            f"--set has an option for {', '.join(sorted(unknown))}, which is not replayed.",
            hint=f"Add it to --policy, or a service to --service. Replayed are: {', '.join(replayed)}",
        )
    options = {policy: read_options(policy, written) for policy, written in written_by_policy.items()}
    return [scenario.with_options(options.get(scenario.policy.value, ())) for scenario in chosen]


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
        Scenario(policy=Policy.FEWEST_GPUS, backfill=easy, estimates=limit, options=AGED),
        Scenario(policy=Policy.QSSF, backfill=easy, run_times=predicted, estimates=limit),
        Scenario(policy=Policy.QSSF, backfill=easy, run_times=true, estimates=limit),
        Scenario(policy=Policy.SERVICE, backfill=easy, run_times=predicted, estimates=limit, options=AGED),
        Scenario(policy=Policy.MEAN_SERVICE, backfill=easy, run_times=predicted, estimates=limit, options=AGED),
        Scenario(policy=Policy.SERVICE, backfill=none, run_times=predicted),
        Scenario(policy=Policy.SERVICE, backfill=easy, run_times=predicted, estimates=limit),
        Scenario(policy=Policy.SERVICE, backfill=easy, run_times=true, estimates=true),
        Scenario(policy=Policy.SJF, backfill=easy, run_times=true, estimates=true),
        Scenario(policy=Policy.SRTF, backfill=none, run_times=true),
        Scenario(policy=Policy.SRTF, backfill=skip, run_times=true),
    ]
