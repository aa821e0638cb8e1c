"""What must hold: asyncps against MXNet, against raw sockets, and against its own budgets."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """One cell of the table of targets.

    Attributes:
      topology, case: where it is measured.
      ours: the op of asyncps.
      system, ops: whom it is compared with; of several ops the best of each pass.
      ratio: at least this ratio of their time to ours.
      raw: the share of raw sockets' goodput that is enough where the ratio is missed; 0: none.
    """

    topology: str
    case: str
    ours: str
    system: str
    ops: tuple[str, ...]
    ratio: float
    raw: float = 0.0


VERBS = ("push_pull", "pushpull", "push_pull_list")  # MXNet's better one counts
RAW_IS_ENOUGH = 0.9
RAW_OPS = ("tcp_duplex", "tcp_pingpong")  # what raw sockets reach: the better of both
TOPOLOGIES = ("1x1", "1x2", "2x2")


def _by_topology(
    rows: dict[str, tuple[float, ...]], ours: str, ops: tuple[str, ...], raw: float
) -> list[Target]:
    """Rows of ratios for 1x1, 1x2, 2x2 against MXNet."""
    return [
        Target(topology, case, ours, "mxnet", ops, ratio, raw)
        for case, ratios in rows.items()
        for topology, ratio in zip(TOPOLOGIES, ratios, strict=True)
    ]


TARGETS: list[Target] = [
    *_by_topology(
        {
            "1M": (1.5, 1.2, 1.3),
            "16M": (1.8, 1.5, 1.3),
            "resnet18": (1.5, 1.4, 1.3),
            "100M": (3.7, 3.0, 1.5),
        },
        "pushpull",
        VERBS,
        RAW_IS_ENOUGH,
    ),
    *_by_topology(
        {"4K": (2, 2, 2), "64K": (2, 2, 2), "many1000": (20, 20, 20)}, "pushpull", VERBS, 0
    ),
    *_by_topology({"4K": (2.5, 2.5, 2.5), "64K": (2.5, 2.5, 2.5)}, "pushpull_await", VERBS, 0),
    *_by_topology(
        {
            "16M": (3, 2.2, 2),
            "resnet18": (2.5, 2.2, 2.2),
            "100M": (4.5, 3.2, 2.5),
            "many1000": (40, 40, 40),
        },
        "sgd",
        ("sgd",),
        0,
    ),
    # goodput of raw blocking sockets in both directions at once; both sides move the same bytes
    Target("1x1", "16M", "pushpull", "raw", ("tcp_duplex",), 0.85),
    Target("1x1", "100M", "pushpull", "raw", ("tcp_duplex",), 0.85),
]
ADAM_AT_MOST = 1.4  # times push-pull without optimizer, 100M, 1x1
IDLE_UNDER = 0.01  # of a core
