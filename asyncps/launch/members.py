"""Who takes part in a launch, and how a member's end is told."""

from __future__ import annotations

import signal
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a job."""

    role: str
    rank: int

    def __str__(self) -> str:
        return self.role if self.role == "scheduler" else f"{self.role} {self.rank}"

    @property
    def file_name(self) -> str:
        """Name of its log file."""
        return f"{str(self).replace(' ', '-')}.log"


def exit_code_of(code: int) -> int:
    """Return a shell's exit code for a process's: 128+n for signal n (given as -n)."""
    return 128 - code if code < 0 else code


def describe_end(code: int) -> str:
    """Say in words how a process ended; -n stands for signal n."""
    if code >= 0:
        return f"exited with code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"was killed by signal {-code}{name}"
