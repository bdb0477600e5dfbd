"""Where an epoch stands, as a value that survives the process. Pure: what is saved, and whether it still applies.

A position is a batch number: the order is arithmetic (see order.py), so nothing else is needed to go on with exactly
the samples that are left. Threads, DataLoader workers and the number of ranks may differ when resuming; the samples,
the global batch (batch_size x world_size), `shuffle` and `drop_last` may not. In chunk order the ranks must divide the
lanes. Seed, lanes, groups and window come from the state: they made the order that is being continued.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from h5cache.errors import StateError
from h5cache.load.order import EpochOrder, Order, Shuffle

__all__ = ["STATE_VERSION", "LoaderState"]

STATE_VERSION = 1


@dataclass(frozen=True)
class LoaderState:
    """The order of an epoch and the next batch of it. After the last batch `next_batch` is the number of batches."""

    seed: int
    epoch: int
    #: Batches of each rank that were handed out: the next one's number.
    next_batch: int
    global_batch: int
    shuffle: Shuffle
    drop_last: bool
    lanes: int
    groups: int
    window: int
    num_samples: int
    fingerprint: str
    #: `EpochOrder.check`: tells whether numpy still makes the same order.
    check: int

    @classmethod
    def of(cls, epoch_order: EpochOrder, next_batch: int) -> LoaderState:
        """Describe the position before batch `next_batch`."""
        order = epoch_order.order
        if not 0 <= next_batch <= epoch_order.num_batches:
            raise ValueError(f"next_batch must lie in 0 to {epoch_order.num_batches}, got {next_batch}")
        return cls(
            seed=int(order.seed),
            epoch=int(epoch_order.epoch),
            next_batch=int(next_batch),
            global_batch=order.global_batch,
            shuffle=order.shuffle,
            drop_last=order.drop_last,
            lanes=order.lanes,
            groups=order.groups,
            window=order.window,
            num_samples=order.population.num_samples,
            fingerprint=order.population.fingerprint(order.shuffle),
            check=epoch_order.check,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and strings: fit for torch.save, JSON and StatefulDataLoader."""
        return {"version": STATE_VERSION, **asdict(self)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> LoaderState:
        """Read what `to_dict` made; StateError where it was made by something else."""
        if not isinstance(state, Mapping) or "version" not in state:
            raise StateError("this is no state of an h5cache loader: pass what its state_dict() returned")
        if state["version"] != STATE_VERSION:
            raise StateError(
                f"the state has version {state['version']!r}, this h5cache reads version {STATE_VERSION}: "
                "resume with the h5cache that saved it, or begin the epoch anew with set_epoch()"
            )
        names = {field.name for field in fields(cls)}
        missing, unknown = names - state.keys(), state.keys() - names - {"version"}
        if missing or unknown:
            raise StateError(f"the state is damaged: missing {sorted(missing)}, unknown {sorted(unknown)}")
        for name in names:
            _check_value(name, state[name])
        return cls(**{name: state[name] for name in names})

    def resume(self, order: Order) -> EpochOrder:
        """Return the epoch to go on with, for the rank and world_size of `order`; StateError where it does not apply.

        `order` is the one configured now. Of the orders of later epochs, `seed`, `lanes` and `window` should stay as
        they are in the result, so that the run equals an uninterrupted one; `groups` may follow the workers of now.
        """
        self._check_same_data(order)
        if order.global_batch != self.global_batch:
            fits = self.global_batch % order.world_size == 0
            advice = f"use batch_size={self.global_batch // order.world_size}" if fits else "use ranks that divide it"
            raise StateError(
                f"the state was saved with a global batch of {self.global_batch}, now it is {order.global_batch} "
                f"({order.batch_size} x {order.world_size} ranks): {advice}, or begin the epoch anew with set_epoch()"
            )
        for name in ("shuffle", "drop_last"):
            saved, now = getattr(self, name), getattr(order, name)
            if saved != now:
                raise StateError(f"the state was saved with {name}={saved!r}, now it is {now!r}: use {name}={saved!r}")
        try:
            kept = replace(order, seed=self.seed, lanes=self.lanes, groups=self.groups, window=self.window)
        except ValueError as exc:
            raise StateError(f"the state cannot be continued by {order.world_size} ranks: {exc}") from exc
        if self.next_batch > kept.num_batches:
            raise StateError(f"the state is damaged: batch {self.next_batch} of {kept.num_batches}")
        epoch_order = kept.epoch(self.epoch)
        if epoch_order.check != self.check:
            raise StateError(
                "this numpy shuffles otherwise than the one the state was saved with: resume with that one, "
                "or begin the epoch anew with set_epoch()"
            )
        return epoch_order

    def _check_same_data(self, order: Order) -> None:
        now = order.population.num_samples
        if now != self.num_samples:
            raise StateError(
                f"the state was saved with {self.num_samples} samples, this dataset or view has {now}: "
                "open the same dataset with the same select, filter or split"
            )
        if order.population.fingerprint(self.shuffle) != self.fingerprint:
            what = "other samples, or in other chunks," if self.shuffle == "chunk" else "other samples"
            raise StateError(
                f"the state was saved with {what} than this dataset or view has, though as many: "
                "open the same dataset with the same select, filter or split"
            )


_KINDS: dict[str, tuple[type, ...]] = {"shuffle": (bool, str), "drop_last": (bool,), "fingerprint": (str,)}
_LEAST = {"lanes": 1, "groups": 1, "window": 1, "global_batch": 1}


def _check_value(name: str, value: object) -> None:
    kinds = _KINDS.get(name, (int,))
    fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
    if fits and isinstance(value, int) and not isinstance(value, bool):
        fits = value >= _LEAST.get(name, 0)
    if name == "shuffle":
        fits = value is False or value in ("chunk", "full")
    if not fits:
        raise StateError(f"the state is damaged: {name} is {value!r}")
