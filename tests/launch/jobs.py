"""Runs a job through the local launcher, with fake roles, in this process or in one of its own."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncps.launch import Deadlines, LocalJob, launch_local
from tests.support.processes import clean_environment

ANNOUNCE = "echo asyncps scheduler listening on 127.0.0.1:4321; "
STAY = "exec sleep 1000"
QUICK = Deadlines(report=0.5, speak=0.3, terminate=0.3, interrupt=0.3, leave=0.05, together=0.3)


@dataclass
class Result:
    """How a job ended."""

    code: int
    out: str
    err: str
    reports: list[tuple[Any, ...]]

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass
class Fakes:
    """Shell scripts that stand for the roles, and what the reporter was told."""

    scheduler: str = ANNOUNCE + STAY
    server: str = STAY
    reports: list[tuple[Any, ...]] = field(default_factory=list)

    def role_command(self, role: str) -> Sequence[str]:
        return ["sh", "-c", getattr(self, role)]

    def report(self, *told: Any) -> bool:
        self.reports.append(told)
        return True


def run_job(
    command: Sequence[str],
    *,
    workers: int = 1,
    servers: int = 1,
    fakes: Fakes | None = None,
    deadlines: Deadlines = QUICK,
    environ: dict[str, str] | None = None,
    **options: Any,
) -> Result:
    """Runs a job in this process and waits for its end."""
    fakes = fakes or Fakes()
    job = LocalJob(
        command=command, num_workers=workers, num_servers=servers,
        inherited={**clean_environment(), **(environ or {})}, **options,
    )  # fmt: skip
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        code = launch_local(
            job, role_command=fakes.role_command, reporter=fakes.report, deadlines=deadlines,
            stdout_fd=out.fileno(), stderr_fd=err.fileno(),
        )  # fmt: skip
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return Result(code, texts[0], texts[1], fakes.reports)


def shell(script: str) -> list[str]:
    """The command of a worker that is a shell script."""
    return ["sh", "-c", script]


def python(script: str) -> list[str]:
    """The command of a worker that is a Python program without site-packages."""
    return [sys.executable, "-I", "-S", "-c", script]


def launcher_command(
    command: Sequence[str], *, workers: int = 1, servers: int = 1, scheduler: str = ANNOUNCE + STAY
) -> list[str]:
    """The command that runs a job in a process of its own, with quick deadlines."""
    told = json.dumps({"command": list(command), "workers": workers, "servers": servers,
                       "scheduler": scheduler})
    return [sys.executable, "-m", "tests.launch.jobs", told]


def main() -> None:
    told = json.loads(sys.argv[1])
    fakes = Fakes(scheduler=told["scheduler"])
    job = LocalJob(command=told["command"], num_workers=told["workers"],
                   num_servers=told["servers"], inherited=dict(os.environ))
    sys.exit(launch_local(job, role_command=fakes.role_command, reporter=fakes.report,
                          deadlines=QUICK))


ROOT = Path(__file__).parents[2]

if __name__ == "__main__":
    main()
