"""asyncps moves gradients between Python processes: a parameter server over asyncio and TCP."""

from __future__ import annotations

from asyncps import errors, optim
from asyncps.cluster import LocalCluster, connect, create
from asyncps.config import Config
from asyncps.core import Handle
from asyncps.data import SplitSampler
from asyncps.kvstore import AsyncKVStore, KVStore
from asyncps.localstore import LocalStore

__all__ = [
    "AsyncKVStore",
    "Config",
    "Handle",
    "KVStore",
    "LocalCluster",
    "LocalStore",
    "SplitSampler",
    "connect",
    "create",
    "errors",
    "optim",
]
