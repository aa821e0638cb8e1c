"""asyncps moves gradients between Python processes: a parameter server over asyncio and TCP."""

from __future__ import annotations

from importlib import metadata

from asyncps import errors, initializer, optim
from asyncps.allreducestore import AllReduceStore
from asyncps.call import Handle
from asyncps.cluster import connect, create
from asyncps.communicator import Communicator
from asyncps.config import Config
from asyncps.data import SplitSampler, data_partition, split_and_load
from asyncps.distopt import DistOpt
from asyncps.kvstore import AsyncKVStore, KVStore
from asyncps.later import LATER_NAMES
from asyncps.localcluster import LocalCluster
from asyncps.localstore import LocalStore
from asyncps.tensor.rowsparse import RowSparse
from asyncps.ticket import JobTicket
from asyncps.trainer import Trainer


def __getattr__(name: str) -> str:
    """Say of a documented name that it is not there yet, of another that it does not exist."""
    if name == "__version__":
        return metadata.version("asyncps")
    if name in LATER_NAMES:
        raise AttributeError(f"asyncps.{name} is not there yet")
    raise AttributeError(f"module 'asyncps' has no attribute {name!r}")


__all__ = [
    "AllReduceStore",
    "AsyncKVStore",
    "Communicator",
    "Config",
    "DistOpt",
    "Handle",
    "JobTicket",
    "KVStore",
    "LocalCluster",
    "LocalStore",
    "RowSparse",
    "SplitSampler",
    "Trainer",
    "connect",
    "create",
    "data_partition",
    "errors",
    "initializer",
    "optim",
    "split_and_load",
]
