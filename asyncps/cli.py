"""The `asyncps` command: roles, launchers, benchmarks.

It copies the environment for the processes that it starts; settings are read by config alone. A
secret never stands on a command line: the token comes from the environment.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from asyncps.config import Config, environment
from asyncps.errors import AsyncPSError, ConfigError, NotYetError
from asyncps.launch import LocalJob, launch_local
from asyncps.launch.environment import membership, read_settings, without_cluster

Command = Callable[..., Any]
_LOG_LEVELS = click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False)
_LAUNCHERS = click.Choice(["local", "ssh", "mpi", "sge", "yarn", "slurm"])
# A program's own options stand behind it: the first word that is no option ends ours.
_WITH_COMMAND = {"allow_interspersed_args": False}
_ALL_THROUGH = {"ignore_unknown_options": True, "help_option_names": []}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 2 for what the user can put right, 1 for other errors."""
    try:
        result = cli.main(
            args=arguments, prog_name="asyncps", standalone_mode=False, obj=environment()
        )
        code = result if isinstance(result, int) else 0
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = 130
    except AsyncPSError as error:
        click.echo(f"asyncps: error: {error}", err=True)
        code = 2 if isinstance(error, (ConfigError, NotYetError)) else 1
    sys.exit(code)


def _version() -> str:
    try:
        return importlib.metadata.version("asyncps")
    except importlib.metadata.PackageNotFoundError:
        return "(source tree, not installed)"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_version(), prog_name="asyncps")
def cli() -> None:
    """A parameter server for distributed training."""


def _role_options(command: Command) -> Command:
    """Add the options that override a role's environment."""
    options = [
        click.option("--scheduler", metavar="HOST:PORT", help="Where everybody meets."),
        click.option("--num-workers", type=int, help="The job starts when all have joined."),
        click.option("--num-servers", type=int, help="The job starts when all have joined."),
        click.option("--rank", type=int, help="Task number within the role."),
        click.option("--job", help="Keeps two jobs on one port apart."),
        click.option("--bind", metavar="HOST[:PORT[-PORT]]", help="Where this role listens."),
        click.option("--advertise", metavar="HOST", help="Address told to the others."),
        click.option("--loop", type=click.Choice(["uvloop", "asyncio"]), help="Event loop."),
        click.option("--log-level", type=_LOG_LEVELS, help="Level of the role's own log."),
        click.option("--metrics-port", type=int,
                     help="Serve Prometheus metrics there; 0: any, the log says which."),
    ]
    return functools.reduce(lambda made, option: option(made), reversed(options), command)


_import_option = click.option(
    "--import", "imports", metavar="MODULE[,MODULE]",
    help="Modules with optimizers of your own; also ASYNCPS_IMPORT.",
)


def _config(environ: dict[str, str], role: str, options: dict[str, Any]) -> Config:
    return Config.from_env({**environ, "ASYNCPS_ROLE": role}, role=role, **options)


def _run_role(environ: dict[str, str], role: str, options: dict[str, Any]) -> int:
    config = _config(environ, role, options)
    from asyncps.roles.run import run_role

    return run_role(config)


@cli.command()
@_role_options
@click.pass_obj
def scheduler(environ: dict[str, str], /, **options: Any) -> int:
    """Run the scheduler of a job."""
    return _run_role(environ, "scheduler", options)


@cli.command()
@_role_options
@_import_option
@click.pass_obj
def server(environ: dict[str, str], /, **options: Any) -> int:
    """Run one server of a job."""
    return _run_role(environ, "server", options)


@cli.command(context_settings=_WITH_COMMAND)
@_role_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def worker(
    environ: dict[str, str], /, command: tuple[str, ...], **options: Any
) -> int:
    """Run COMMAND, a worker of the job: asyncps worker [OPTIONS] -- python train.py ..."""
    config = _config(environ, "worker", options)
    if not command:
        raise ConfigError("worker needs a command",
                          expected="asyncps worker [OPTIONS] -- python train.py ...")
    given = {f"ASYNCPS_{name.upper()}": value for name, value in options.items()
             if value is not None}
    optional = {"ASYNCPS_TOKEN": config.token, "ASYNCPS_LOCAL_RANK": config.local_rank}
    env = {
        **without_cluster(environ),
        **{name: str(value) for name, value in given.items()},
        **membership("worker", config.rank, num_workers=config.num_workers,
                     num_servers=config.num_servers, scheduler=config.scheduler, job=config.job),
        **{name: str(value) for name, value in optional.items() if value not in (None, "")},
        "ASYNCPS_ON_WORKER_LOST": config.on_worker_lost,
        "ASYNCPS_PARENT": str(os.getpid()),
    }
    from asyncps.launch.reaped import run_worker

    return run_worker(command, env, config)


@cli.command(context_settings=_WITH_COMMAND)
@click.option("-n", "--num-workers", type=int, required=True, help="Number of workers.")
@click.option("-s", "--num-servers", type=int,
              help="Number of servers; default: as many as workers.")
@click.option("-H", "--hostfile", help="File with the hosts to run on (not there yet).")
@click.option("--launcher", type=_LAUNCHERS, default="local", show_default=True,
              help="How processes are started; local is there.")
@click.option("--sync-dst-dir", help="Directory to copy to on the hosts (not there yet).")
@click.option("--env", multiple=True, metavar="NAME[=VALUE]",
              help="A variable for all roles; without a value it is handed on.")
@click.option("--env-server", multiple=True, metavar="NAME[=VALUE]",
              help="A variable for the servers (NAME:VALUE too).")
@click.option("--env-worker", multiple=True, metavar="NAME[=VALUE]",
              help="A variable for the workers (NAME:VALUE too).")
@click.option("--job", metavar="NAME",
              help="The job's name, ASYNCPS_JOB; default: a random one.")
@click.option("--p3", is_flag=True, help="MXNet's P3 training (not there yet).")
@click.option("--metrics-port", type=int, metavar="PORT",
              help="Serve Prometheus metrics: 0: every role on any port, told on stderr and by "
                   "status; N: scheduler N, servers from N+1 on, then workers.")
@click.option("--log-dir", type=click.Path(path_type=Path), help="Keep a file a rank there.")
@click.option("--on-worker-lost", type=click.Choice(["fail", "continue"]), default="fail",
              show_default=True, help="What survivors do when a worker is lost.")
@_import_option
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.pass_obj
def launch(
    environ: dict[str, str], /, num_workers: int, num_servers: int | None, launcher: str,
    on_worker_lost: str, log_dir: Path | None, imports: str | None, metrics_port: int | None,
    job: str | None, command: tuple[str, ...], **options: Any,
) -> int:
    """Run COMMAND as the workers of a new job, with scheduler and servers.

    The first process that fails ends the job, and its exit code is the launcher's (128+n for
    signal n); with --on-worker-lost continue, the last worker of all, or another process.
    """
    if launcher != "local":
        raise NotYetError(f"--launcher {launcher} is not there yet", expected="local")
    for name in ("hostfile", "sync_dst_dir", "p3"):
        if options[name]:
            raise NotYetError(f"--{name.replace('_', '-')} is not there yet")
    if not command:
        raise ConfigError("launch needs a command",
                          expected="asyncps launch -n 2 -- python train.py ...")
    if imports:
        environ = {**environ, "ASYNCPS_IMPORT": imports}
    clean = without_cluster(environ)
    config = Config.from_env(
        clean, num_workers=num_workers,
        num_servers=num_workers if num_servers is None else num_servers,
    )
    last = (metrics_port or 0) + config.num_servers + config.num_workers
    if metrics_port is not None and (metrics_port < 0 or (metrics_port and last > 65535)):
        raise ConfigError("--metrics-port: each process takes a port of its own, from this one on",
                          expected="ports up to 65535, or 0 for any", got=metrics_port)
    return launch_local(LocalJob(
        command=command, num_workers=config.num_workers, num_servers=config.num_servers,
        inherited=environ, env=_environment_by_role(environ, options), name=job, log_dir=log_dir,
        metrics_port=metrics_port, on_worker_lost=on_worker_lost, colour=_wants_colour(environ),
        debug=config.log_level.upper() == "DEBUG",
    ))  # fmt: skip


def _environment_by_role(
    environ: dict[str, str], options: dict[str, Any]
) -> dict[str, dict[str, str]]:
    read = {}
    for name in ("env", "env_server", "env_worker"):
        option = f"--{name.replace('_', '-')}"
        read[name], unset = read_settings(options[name], environ, option)
        for variable in unset:
            click.echo(f"asyncps: warning: {option} {variable}: it has no value here", err=True)
    return {
        "scheduler": read["env"],
        "server": {**read["env"], **read["env_server"]},
        "worker": {**read["env"], **read["env_worker"]},
    }


def _wants_colour(environ: dict[str, str]) -> bool:
    """Follow https://no-color.org and a terminal that says that it is dumb."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


@cli.command(context_settings=_ALL_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> NoReturn:
    """Run the benchmarks of a clone with ARGUMENTS (bench --help tells which)."""
    script = Path(__file__).resolve().parent.parent / "bench" / "run.py"
    if not script.is_file():
        raise ConfigError("bench works from a clone of the repository only", got=script.parent)
    os.execv(sys.executable, [sys.executable, str(script), *arguments])


@cli.group()
def checkpoint() -> None:
    """Look at checkpoints."""


@checkpoint.command()
@click.argument("directory", type=click.Path(path_type=Path))
def show(directory: Path) -> None:
    """Show what the checkpoint in DIRECTORY holds: keys, clocks, optimizer."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from asyncps.optim import as_given
    from asyncps.tensor.checkpoint import show as read
    from asyncps.tensor.savedtable import ROWS

    entries, meta = read(directory)
    clocks = {(type(key), key): count for key, count in meta.get("clocks", [])}
    # What an optimizer keeps for each element is stored flat, and shown like its key.
    shapes = {(type(entry.key), entry.key): entry.shape for entry in entries
              if entry.state is None}
    table = Table("key", "dtype", "shape", "clock")
    for entry in entries:
        clock = clocks.get((type(entry.key), entry.key), "")
        name = repr(entry.key) if entry.state is None else f"  {entry.key!r}: {entry.state}"
        shape = shapes.get((type(entry.key), entry.key), entry.shape)
        if entry.state is None or entry.shape != (math.prod(shape),):
            shape = entry.shape
        table.add_row(Text(name), entry.dtype, str(shape),
                      str(clock) if entry.state is None else "")
    console = Console(no_color=not _wants_colour(environment()), highlight=False)
    console.print(table)
    optimizer = meta.get("optimizer")
    words = "none" if not optimizer else " ".join(
        [optimizer["name"],
         *(f"{name}={value}" for name, value in as_given(optimizer["hyper"]).items())])
    for entry in entries:
        if entry.table is not None and entry.state == ROWS:
            console.print(Text(f"table {entry.key!r}: {entry.shape[0]} rows of "
                               f"{entry.table.shape}, the others {entry.table.others}"),
                          soft_wrap=True)
    console.print(Text(f"store: {meta.get('store', 'unknown')}"), soft_wrap=True)
    console.print(Text(f"optimizer: {words}"), soft_wrap=True)


@cli.command()
@click.option("--scheduler", metavar="HOST:PORT",
              help="Where the job is; default: ASYNCPS_SCHEDULER.")
@click.option("--pid", type=int, metavar="PID",
              help="Take address, job and token from this process, or from one below it.")
@click.option("--job", help="The name of the job; default: ASYNCPS_JOB.")
@click.option("--watch", type=float, metavar="SECONDS", help="Look again and again, until Ctrl-C.")
@click.option("--timeout", type=float, default=5.0, show_default=True, metavar="SECONDS",
              help="How long one look may take.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a look, on one line.")
@click.pass_obj
def status(
    environ: dict[str, str], /, scheduler: str | None, pid: int | None, job: str | None,
    watch: float | None, timeout: float, as_json: bool,
) -> None:
    """Show a running job: who is there, who is missing, who is waited for.

    The token comes from ASYNCPS_TOKEN. The exit code is 1 when the scheduler does not answer.
    """
    from asyncps.observe.display import show_status
    from asyncps.observe.status import environment_of

    if pid is not None:
        environ = {**without_cluster(environ), **environment_of(pid)}
    config = Config.from_env(environ, scheduler=scheduler, job=job)
    show_status(
        config, watch_s=watch, timeout_s=timeout, as_json=as_json, hint="" if pid is not None else
        "for a launched job use --pid PID, or set ASYNCPS_JOB and ASYNCPS_TOKEN of the job",
    )


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="Plain data.")
@click.pass_obj
def doctor(environ: dict[str, str], /, as_json: bool) -> int:
    """Show what this machine offers, what is missing, and how to get it.

    The exit code is 0 when all that is needed is there, else 1.
    """
    from asyncps.observe import doctor as examination
    from asyncps.observe.display import show

    findings = examination.examine(environ)
    if as_json:
        click.echo(json.dumps(examination.as_data(findings), indent=2))
    else:
        show(*examination.tables(findings))
    return 0 if examination.is_complete(findings) else 1
