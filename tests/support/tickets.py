"""A program that makes a ticket and starts the processes that hold it.

`python -m tests.support.tickets spawn|fork|forkserver ACTION`; the action "groups" has two groups
one after another and says how they went, "stay" one that meets again and again, and "exit" one
whose maker says no more after it has started them.
"""

from __future__ import annotations

import multiprocessing
import signal
import sys

from asyncps.errors import AsyncPSError
from asyncps.ticket import JobTicket, settings_of
from tests.support.member import Member


def hold(ticket: JobTicket, rank: int, size: int, for_ever: bool) -> None:
    """One process: it meets the others, and says so in one line."""
    try:
        with Member(settings_of(ticket, rank, size)) as member:
            member.meet()
            print(f"{member.place()} has met", flush=True)
            while for_ever:
                member.meet()
    except AsyncPSError as error:
        print(f"rank {rank} saw {type(error).__name__}: {error}", flush=True)


def main() -> None:
    """The maker."""
    how, action = sys.argv[1:]
    context = multiprocessing.get_context(how)
    ticket = JobTicket()
    for size in (3, 2) if action == "groups" else (2,):
        processes = [
            context.Process(target=hold, args=(ticket, rank, size, action == "stay"))
            for rank in range(size)
        ]
        for process in processes:
            process.start()
        if action == "groups":
            for process in processes:
                process.join()
            print(f"codes {[process.exitcode for process in processes]}", flush=True)
    if action == "stay":
        signal.pause()
    print("the script is over", flush=True)


if __name__ == "__main__":
    main()
