"""What was said of compression: which keys, with what codec and how."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from asyncps.errors import NotYetError
from asyncps.protocol.messages import Key, StoreConfig
from asyncps.roles.landing import FLAGS
from asyncps.roles.plan import bound_of
from asyncps.tensor import codecs
from asyncps.tensor.codecs import Codec, Stateful
from asyncps.tensor.feedback import KeyCoder, Rate
from asyncps.tensor.rowfeedback import AsIs

log = logging.getLogger(__name__)

Words = dict[str, Any]  # as `codecs.checked` returns them
_SHOWN = 5  # keys that a warning lists
Keys = None | str | list[Key]  # all, a pattern of str keys, or these


def check_store(config: StoreConfig, words: Words) -> None:
    """Refuse what a store's type does not have.

    Raises:
        NotYetError: Changes of values are pulled in rounds only.
    """
    if words["pull"] is True and bound_of(config) != 0:
        raise NotYetError(f"pull=True in a store of type {config.type} is not there yet: it is of "
                          "dist_sync")


def differing(words: Words, others: Words) -> str:
    """Return of these words the type, and what others have not or have otherwise.

    The type "none" says all: nobody has said the others.
    """
    if words["type"] == codecs.NONE:
        return f"type={codecs.NONE!r}"
    return ", ".join(f"{name}={value!r}" for name, value in words.items()
                     if name == "type" or others.get(name, name) != value)


class Rule:
    """What was said once: these keys, with this codec."""

    def __init__(self, keys: Keys, words: Words, workers: int) -> None:
        self.keys = keys
        self.words = words
        self.feedback = bool(words["error_feedback"])
        self.skips = words["nonfinite"] == "skip"
        self.ends = words["type"] == codecs.NONE  # their compression
        # Of all its keys: slabs of these travel as one.
        self.codec: Codec = AsIs() if self.ends else codecs.made(words, workers)
        self.pull = FLAGS.get(words["pull"], 0)  # how answers of its float32 keys travel
        self.changes = codecs.made_for_changes(words)  # or by what codec, and how much

    def follow(self, coder: KeyCoder, rate: Rate | None) -> None:
        """Let what a key has kept follow its learning rate, if it is to."""
        if self.words["lr_scaled"]:
            extra = isinstance(self.codec, Stateful) and self.codec.scales_extra
            coder.follow(rate, extra=extra)

    def names(self, key: Key) -> bool:
        """Tell whether it speaks of a key."""
        if self.keys is None:
            return True
        if isinstance(self.keys, str):
            return isinstance(key, str) and fnmatchcase(key, self.keys)
        return any(type(key) is type(one) and key == one for one in self.keys)

    def warn_of_nobody(self, there: Sequence[Key]) -> None:
        """Warn if it names no key, or a key of its list is none.

        Args:
            there: The keys of the store.
        """
        if self.keys is None or (isinstance(self.keys, str) and any(map(self.names, there))):
            return
        listed = self.keys if isinstance(self.keys, list) else ()
        nobody = [one for one in listed
                  if not any(type(key) is type(one) and key == one for key in there)]
        if listed and not nobody:
            return
        said = ", ".join(map(repr, nobody[:_SHOWN])) or repr(self.keys)
        patterns = any(isinstance(one, str) and set(one) & set("*?[") for one in nobody)
        log.warning(
            "compression %s is set for keys that this store does not have: %s%s; it has %d keys: "
            "%s%s", self.words["type"], said,
            " (in a list each is a key, and no pattern)" if patterns else "", len(there),
            ", ".join(map(repr, there[:_SHOWN])), ", ..." if len(there) > _SHOWN else "")
