"""What a worker knows of one store: where keys live, and which optimizer the servers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncps import optim
from asyncps.protocol.frames import ASSIGN, PUSH
from asyncps.protocol.messages import Key, Piece, Placement, StoreConfig
from asyncps.roles.compressing import Compression
from asyncps.roles.momenta import check_momentum
from asyncps.roles.plan import KeyInfo, Plan, RemoteUnit, bound_of
from asyncps.roles.rates import check_rate
from asyncps.roles.remotetable import RemoteTable
from asyncps.roles.rules import Words
from asyncps.state.rounds import CLOCK_WINDOW
from asyncps.tensor import codecs
from asyncps.transport.link import Link

# Plans of sets of keys that are kept for the next call.
_PLANS = 256


class Directory:
    """Keys, units and plans; written by the loop.

    Args:
        config: What all workers said when they opened the store.
        links: The servers by rank.

    Attributes:
        keys: What is known of each key.
        units: By number.
        optimizer: Its name, or None: this worker has set none.
        hyper: Its hyper-parameters.
        hyper_version: The version of them that pushes carry.
        hyper_asked: The last version that the servers were asked to take, whatever came of it.
        compression: What is encoded, or None: nothing.
        stands_for: Of keys that are not the user's own, the one that is.
    """

    def __init__(self, config: StoreConfig, links: Sequence[Link]) -> None:
        self.config = config
        self.links = links
        self.keys: dict[Key, KeyInfo] = {}
        self.units: dict[int, RemoteUnit] = {}
        self.optimizer: str | None = None
        self.hyper: dict[str, Any] = {}
        self.hyper_version = 0
        self.hyper_asked = 0
        self.compression: Compression | None = None
        self.stands_for: dict[Key, Key] = {}
        # In dist_async a push is applied when it is taken: nothing stays open.
        self._window = None if bound_of(config) is None else CLOCK_WINDOW
        self._late: frozenset[int] = frozenset()
        self._plans: dict[tuple[Key, ...], Plan] = {}

    def add_placements(self, placements: Sequence[Placement]) -> None:
        """Learn where keys live."""
        for placement in placements:
            if placement.spec.key in self.keys:
                continue
            pieces = [(self._learn(piece, placement), piece) for piece in placement.pieces]
            info = self.keys[placement.spec.key] = KeyInfo(placement.spec, pieces)
            info.told = self.stands_for.get(info.key, info.key)
        self._plans.clear()

    def _learn(self, piece: Piece, placement: Placement) -> RemoteUnit:
        unit = self.units.get(piece.unit)
        if unit is None and placement.spec.rows is not None:
            unit = self.units[piece.unit] = RemoteTable(
                self.links[piece.server], piece, placement.spec, self._window
            )
        if isinstance(unit, RemoteTable):
            return unit
        if unit is None:
            unit = RemoteUnit(
                self.links[piece.server], piece.server, piece.unit, piece.row >= 0, self._window,
                self._late,
            )
            self.units[piece.unit] = unit
        if piece.row >= 0:
            while len(unit.sizes) <= piece.row:
                unit.sizes.append(0)
                unit.row_keys.append("")
            unit.sizes[piece.row] = piece.size
            unit.row_keys[piece.row] = placement.spec.key
            unit.grow(len(unit.sizes))
        else:
            unit.sizes = [piece.size]
            unit.row_keys = [placement.spec.key]
        return unit

    def use_optimizer(self, name: str, hyper: dict[str, Any]) -> None:
        """All workers have set it."""
        self.optimizer, self.hyper, self.hyper_version = name, dict(hyper), 0
        self.hyper_asked = 0
        if optim.by_name(name).builtin:
            return
        # The server applies these beside its loop, now or later, and so says when it has. Steps
        # may be under way when another optimizer is set: what holds now holds for good.
        in_step = bound_of(self.config) is not None
        self._window, self._late = CLOCK_WINDOW, frozenset({ASSIGN} if in_step else {ASSIGN, PUSH})
        for unit in self.units.values():
            unit.track.window, unit.late = self._window, self._late

    def next_hyper_version(self) -> int:
        """Take a version; never the same again, for some servers may know it by other words."""
        self.hyper_asked += 1
        return self.hyper_asked

    def let_stand(self, names: Mapping[Key, Key]) -> None:
        """Let each of these keys, made or not, stand for one of the user's own. Any thread."""
        self.stands_for.update(names)
        for key, told in names.items():
            if key in self.keys:
                self.keys[key].told = told
        self._plans.clear()

    def use_compression(self, compression: Compression) -> None:
        """All workers have set it, or have changed its rules."""
        self.compression = compression
        self._plans.clear()

    def check_rate(self, hyper: Mapping[str, Any], words: Words | None = None) -> None:
        """Refuse a rate that a compression, or one of these words, is to follow and cannot.

        Raises:
            ConfigError: The learning rate is a schedule.
        """
        follows = self.compression is not None and self.compression.is_lr_scaled
        if follows or (words is not None and words["lr_scaled"]):
            check_rate(hyper.get("learning_rate"))

    def check_momentum(self, hyper: Mapping[str, Any], words: Words | None = None) -> None:
        """Refuse hyper-parameters, all of an optimizer, with a momentum beside one of a compression
        that there is, or of these words.

        Raises:
            ConfigError: It names both.
        """
        kind = None if words is None else codecs.KINDS.get(words["type"])
        if words is not None and kind is not None and kind.owns_momentum:
            check_momentum(hyper, words)
        if self.compression is not None:
            self.compression.check_momentum(hyper)

    def plan_of(self, keys: tuple[Key, ...]) -> Plan | None:
        """Return the plan that these keys had before. Any thread."""
        return self._plans.get(keys)

    def plan(self, keys: tuple[Key, ...]) -> Plan | None:
        """Return where keys live, or None when one is not known here. Any thread."""
        plan = self._plans.get(keys)
        if plan is None:
            infos = [self.keys.get(key) for key in keys]
            if any(info is None for info in infos):
                return None
            plan = Plan([info for info in infos if info is not None], self.compression)
            if len(self._plans) > _PLANS:
                self._plans.clear()
            self._plans[keys] = plan
        return plan
