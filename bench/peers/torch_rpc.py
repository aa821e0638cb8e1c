"""A parameter server on torch.distributed.rpc (TensorPipe), synchronous sum; see launch.py.

ops: push_pull      an rpc push a key (acknowledged once every worker's value is in), then an
                    rpc pull a key, all keys in flight together
     pushpull       one rpc a key that returns the sum
     pushpull_list  one rpc a server that carries all its keys
Keys go round-robin to servers; a key over 1e6 elements is cut across them.
TP_TRANSPORT: "uv" pins TCP, "shm" is TensorPipe's default on one host.
"""

from __future__ import annotations

import os
import sys
import threading

import common
import torch
import torch.distributed.rpc as rpc
import values

PEER = "torch-{}-rpc".format(torch.__version__.split("+")[0])
WORKERS = int(os.environ["PEERS_NW"])
SERVERS = int(os.environ["PEERS_NS"])

# the server's side: these live once in each server process
_lock = threading.Lock()
_store, _pending, _waiting, _at_barrier = {}, {}, {}, []


def _accumulate(key, value, reply):
    future = torch.futures.Future()
    with _lock:
        waiting = _waiting.setdefault(key, [])
        if not waiting:
            _pending[key] = value
        elif isinstance(value, list):
            torch._foreach_add_(_pending[key], value)
        else:
            _pending[key].add_(value)
        waiting.append((future, reply))
        done = len(waiting) == WORKERS
        if done:
            _store[key] = _pending.pop(key)
            _waiting[key] = []
            out, ready = _store[key], list(waiting)
    if done:
        for f, wants in ready:
            f.set_result(out if wants else None)
    return future


@rpc.functions.async_execution
def push(key, value):
    """Acknowledged once all workers' values are summed."""
    return _accumulate(key, value, False)


@rpc.functions.async_execution
def pushpull(key, value):
    """Answered with the sum."""
    return _accumulate(key, value, True)


def pull(key):
    """The last sum."""
    return _store[key]


@rpc.functions.async_execution
def barrier():
    """Answered once all workers have called."""
    future = torch.futures.Future()
    with _lock:
        _at_barrier.append(future)
        ready = list(_at_barrier) if len(_at_barrier) == WORKERS else []
        if ready:
            _at_barrier.clear()
    for f in ready:
        f.set_result(None)
    return future


def shard(grads: list[torch.Tensor]) -> list[tuple]:
    """[(server, key, tensor)], in the order of the keys and their parts."""
    out = []
    for k, grad in enumerate(grads):
        if grad.numel() > 1000000 and SERVERS > 1:
            parts = enumerate(torch.chunk(grad, SERVERS))
            out.extend((s, (k, s), part) for s, part in parts)
        else:
            out.append((k % SERVERS, (k, 0), grad))
    return out


def run_case(case: str, rank: int, peer: str, meter: common.Meter | None) -> None:
    """All ops over one case, each verified before and after its timed rounds."""
    grads = [torch.from_numpy(x) for x in common.grads(case, rank, WORKERS)]
    parts = [(f"server{s}", (case, k), t) for s, k, t in shard(grads)]
    by_server = {}
    for i, (server, _, _) in enumerate(parts):
        by_server.setdefault(server, []).append(i)
    outs = [None] * len(parts)

    def push_pull() -> None:
        for f in [rpc.rpc_async(s, push, args=(k, t)) for s, k, t in parts]:
            f.wait()
        futures = [rpc.rpc_async(s, pull, args=(k,)) for s, k, _ in parts]
        outs[:] = [f.wait() for f in futures]

    def fused() -> None:
        futures = [rpc.rpc_async(s, pushpull, args=(k, t)) for s, k, t in parts]
        outs[:] = [f.wait() for f in futures]

    def lists() -> None:
        futures = [
            rpc.rpc_async(s, pushpull, args=((case, "list"), [parts[i][2] for i in ix]))
            for s, ix in by_server.items()
        ]
        for f, ix in zip(futures, by_server.values(), strict=True):
            for i, out in zip(ix, f.wait(), strict=True):
                outs[i] = out

    def bar() -> None:
        rpc.rpc_sync("server0", barrier)

    def verify(op: str) -> None:
        whole = {}
        for (_, (_, (k, _)), _), out in zip(parts, outs, strict=True):
            whole.setdefault(k, []).append(out)
        sums = [torch.cat(whole[k]).numpy() for k in sorted(whole)]
        values.check(sums, common.CASES[case], WORKERS, who=f"rpc {op} rank {rank} {case}")
        outs[:] = [None] * len(outs)

    todo = {"push_pull": push_pull, "pushpull": fused}
    if len(grads) > 1:
        todo["pushpull_list"] = lists
    for op, one in todo.items():
        one()
        verify(op)
        times, use = common.measure(one, case, bar, meter, WORKERS)
        verify(op)
        common.emit(peer, op, case, WORKERS, SERVERS, times, use, rank=rank)


def main(argv: list[str]) -> None:
    """All cases of argv."""
    role, rank = os.environ["PEERS_ROLE"], int(os.environ["PEERS_RANK"])
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("TP_SOCKET_IFNAME", "lo")
    tcp = os.environ.get("TP_TRANSPORT", "uv") == "uv"
    options = rpc.TensorPipeRpcBackendOptions(
        init_method="tcp://127.0.0.1:" + os.environ["PEERS_PORT"],
        num_worker_threads=8,
        rpc_timeout=120,
        **({"_transports": ["uv"], "_channels": ["basic"]} if tcp else {}),
    )
    rpc.init_rpc(
        f"{role}{rank}",
        rank=rank if role == "server" else SERVERS + rank,
        world_size=SERVERS + WORKERS,
        rpc_backend_options=options,
    )
    if role == "worker":
        meter = common.Meter(common.wait_pids()) if rank == 0 else None
        for case in common.parse_cases(argv[1]):
            run_case(case, rank, PEER + ("-tcp" if tcp else "-shm"), meter)
    rpc.shutdown()


if __name__ == "__main__":
    import torch_rpc  # the rpc functions must live in an importable module

    torch_rpc.main(sys.argv)
