"""on_worker_lost="continue": when a job goes on without a worker that is lost, and who is told."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from asyncps.config import Config
from asyncps.errors import WorkerLost
from asyncps.protocol import messages as m
from asyncps.state.agreements import Action, Stores
from asyncps.state.membership import Membership, Node, Outbox, Standing

ENDED = (Standing.LEFT, Standing.LOST)

# For survivors of a loss to say what they saw, for servers to finish.
GRACE_S = 5.0


def cut_off(servers: Sequence[Node]) -> bool:
    """Tell whether a server is cut off that has not heard yet that all is over."""
    return any(server.standing is Standing.SUSPECT for server in servers)


def grace_s(config: Config, servers: Sequence[Node]) -> float:
    """Return how long the end of a job takes at most: a server that is cut off may come back."""
    return max(GRACE_S, config.reconnect_s) if cut_off(servers) else GRACE_S


def all_ended(workers: Sequence[Node]) -> bool:
    """Tell whether there is no worker any more that the job is for."""
    return all(worker.standing in ENDED for worker in workers)


def named(ended: m.Ended, workers: Sequence[Node]) -> list[Node]:
    """Return the worker that the word of a process that was reaped speaks of, if there is one.

    That process may be one that had started the worker, such as a shell, which is known by rank and
    host. It may as well be one whose rank was refused, since the worker is there already.
    """
    return [
        node for node in workers
        if node.member.hostname == ended.hostname and ended.rank in (None, node.rank) and (
            node.member.pid == ended.pid
            or (ended.rank is not None and (node.ending is not None or node.link is None))
        )
    ]


def goes_on_without(config: Config, membership: Membership, node: Node) -> bool:
    """Tell whether the job that runs goes on when this node is lost: somebody must be left."""
    return (
        config.on_worker_lost == "continue" and node.role == "worker"
        and any(other.standing is not Standing.LOST
                for other in membership.nodes("worker") if other is not node)
    )


def part_with(
    node: Node, reason: str, membership: Membership, stores: Stores, outbox: Outbox
) -> list[Action]:
    """Go on without a worker: tell everybody, itself too, and return what is to be carried out."""
    node.standing = Standing.LOST
    node.lost = m.Gone(node.rank, node.host, reason)
    error = WorkerLost(f"{node} is lost: {reason}", rank=node.rank)
    outbox.log(logging.WARNING, f"{error.message}; the job goes on without it", told=True)
    # Should it come back to life it hears that it is lost, before anything else of ours.
    outbox.tell(node, node.lost)
    for other in membership:
        if other.is_there:
            outbox.tell(other, node.lost)
    return stores.left(node.rank, error)
