"""What became of a model: in charge or not, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from helios.model import Step

if TYPE_CHECKING:  # numba takes half a second, and a rollback predicts nothing
    from helios.predict.contest import Contest

SHRINKAGE = "shrinkage"
"""What is in charge where no model is: it needs no training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a model that was trained or asked for.

    Attributes
    ----------
    step : Step, optional
        None: nothing was decided, all stays as it was.
    model_id : str
        The model it is about.
    in_charge, previous : str
        What is in charge from now on, and was until now; ``SHRINKAGE`` where no model is.
    why : str
        For a person.
    contest : Contest, optional
        What it rests on; None: nothing was judged.
    days : float, optional
        Length of the stretch that was judged.
    written : bool
        False: only tried.
    """

    step: Step | None
    model_id: str
    in_charge: str
    previous: str
    why: str
    contest: Contest | None = None
    days: float | None = None
    written: bool = True

    @property
    def did(self) -> str:
        """What happened to the model, in a word or two."""
        return "kept, not promoted" if self.in_charge != self.model_id else "promoted" if self.step else "kept"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "step": None if self.step is None else self.step.value,
            "model_id": self.model_id,
            "in_charge": self.in_charge,
            "previous": self.previous,
            "why": self.why,
            "days": self.days,
            "written": self.written,
            "contest": None if self.contest is None else self.contest.to_json(),
        }
