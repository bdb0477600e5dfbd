"""Batches that pass through a plain DataLoader without being taken apart and stacked again.

`DataLoader` asks a dataset for the samples of a batch (`__getitems__`) and stacks them. Ours come as rows of tensors
that are a batch already, in a list that remembers them; torch's `default_collate` finds our function by the rows'
type. A user's own `collate_fn` sees an ordinary list of samples.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.utils.data._utils.collate import default_collate_fn_map

__all__ = ["DictRow", "Rows", "TupleRow", "make_rows"]


class TupleRow(tuple[torch.Tensor, ...]):
    """One sample: a view of its row in each tensor of the batch."""

    __slots__ = ()


class DictRow(dict[str, torch.Tensor]):
    """One sample by field name: views of its rows."""

    __slots__ = ()


class Rows(list[Any]):
    """The samples of a batch, and the batch."""

    def __init__(self, rows: Any, batch: dict[str, torch.Tensor]) -> None:
        super().__init__(rows)
        self.batch = batch
        self._made = list(self)

    @property
    def is_untouched(self) -> bool:
        """False once a collate_fn has reordered, dropped or replaced samples: the batch is theirs no more."""
        return len(self) == len(self._made) and all(map(operator.is_, self, self._made))


class DictRows(Rows):
    """Samples by field name, whose values a collate_fn may have replaced one by one."""

    def __init__(self, rows: Any, batch: dict[str, torch.Tensor]) -> None:
        super().__init__(rows, batch)
        self._values = [tuple(row.values()) for row in self]

    @property
    def is_untouched(self) -> bool:
        return super().is_untouched and all(
            len(row) == len(made) and all(map(operator.is_, row.values(), made))
            for row, made in zip(self, self._values, strict=True)
        )


def make_rows(batch: dict[str, torch.Tensor], as_dict: bool) -> Rows:
    """Return a batch as the list of its samples."""
    samples = zip(*(tensor.unbind(0) for tensor in batch.values()), strict=True)
    if as_dict:
        return DictRows((DictRow(zip(batch, sample, strict=True)) for sample in samples), batch)
    return Rows(map(TupleRow, samples), batch)


def _collate_tuples(rows: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(rows, Rows) and rows.is_untouched:
        return list(rows.batch.values())  # a list, as default_collate makes of tuples
    return torch.utils.data.default_collate([tuple(row) for row in rows])


def _collate_dicts(rows: Any, *, collate_fn_map: Any = None) -> Any:
    if isinstance(rows, Rows) and rows.is_untouched:
        return dict(rows.batch)
    return torch.utils.data.default_collate([dict(row) for row in rows])


default_collate_fn_map.update({TupleRow: _collate_tuples, DictRow: _collate_dicts})
