"""Report of a drill: checks with measurement and requirement, for people and for programs."""

from dataclasses import asdict, dataclass
from typing import Any

_WIDE = 16
"""Longer values may exceed their column."""


@dataclass(frozen=True, kw_only=True)
class Check:
    """Requirement, with its measured value."""

    name: str
    measured: str | float
    unit: str = ""
    wanted: str
    ok: bool


def at_most(name: str, measured: float, limit: float, unit: str = "") -> Check:
    """Return a check of a number with an upper limit."""
    return Check(
        name=name,
        measured=round(measured, 2),
        unit=unit,
        wanted=f"at most {limit:g} {unit}".rstrip(),
        ok=measured <= limit,
    )


def equal(name: str, measured: str | float, wanted: str | float) -> Check:
    """Return a check of a value that must equal `wanted`."""
    return Check(name=name, measured=measured, wanted=str(wanted), ok=measured == wanted)


@dataclass(frozen=True, kw_only=True)
class DrillReport:
    """Report of one drill."""

    drill: str
    fault: str
    seconds: float
    checks: tuple[Check, ...]
    recoveries: tuple[str, ...]
    """Recoveries that the training itself recorded, a line each."""

    @property
    def ok(self) -> bool:
        """True if every check holds."""
        return all(check.ok for check in self.checks)

    def to_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def lines(self) -> list[str]:
        """Return the report as lines for a person."""
        width = max(len(check.name) for check in self.checks)
        values = [f"{check.measured} {check.unit}".rstrip() for check in self.checks]
        wide = max(len(value) for value in values if len(value) <= _WIDE)
        return [
            f"{self.drill}: {self.fault}",
            *(
                f"  {'✓' if check.ok else '✗'} {check.name:{width}}  {value:{wide}}  wanted: {check.wanted}"
                for check, value in zip(self.checks, values, strict=True)
            ),
            *(f"  recorded: {line}" for line in self.recoveries),
            f"  {'PASS' if self.ok else 'FAIL'} in {self.seconds:.1f} s",
        ]
