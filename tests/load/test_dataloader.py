"""`H5TensorDataset` under a plain DataLoader: samplers, collate functions, and batches that are not stacked again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from load_cases import NUM, check, content, flat
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

from h5cache import H5TensorDataset
from h5cache.load.collate import Rows

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork",
    "ignore:.*pin_memory.*argument is set as true",
    "ignore:This DataLoader will create",
)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 3, "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "forkserver", "persistent_workers": True},
        {"num_workers": 1, "pin_memory": True},
    ],
    ids=str,
)
def test_a_plain_dataloader_delivers_every_sample(one: H5TensorDataset, options: dict[str, Any]) -> None:
    loader = DataLoader(one, batch_size=8, shuffle=True, **options)
    first, second = ([check(batch) for batch in loader] for _ in range(2))
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(NUM))
    assert first != second


def test_samplers_of_torch_decide_what_comes(one: H5TensorDataset) -> None:
    def numbers(**options: Any) -> list[int]:
        return flat([check(batch) for batch in DataLoader(one, **options)])

    chosen = [3, 3, 70, 12]
    assert numbers(batch_size=3, sampler=chosen) == chosen
    assert numbers(batch_sampler=BatchSampler(SequentialSampler(one), 10, drop_last=True)) == list(range(70))
    ranks = [numbers(batch_size=4, sampler=DistributedSampler(one, 2, rank, shuffle=True)) for rank in range(2)]
    assert set(ranks[0]) | set(ranks[1]) == set(range(NUM))
    weights = torch.zeros(NUM)
    weights[[5, 9]] = 1
    assert set(numbers(batch_size=4, sampler=WeightedRandomSampler(weights, 40))) == {5, 9}
    replaced = numbers(batch_size=4, sampler=RandomSampler(one, replacement=True, num_samples=30))
    assert len(replaced) == 30


def test_subsets_of_torch_are_batches_too(one: H5TensorDataset) -> None:
    subset = Subset(Subset(one, range(10, 40)), [0, 5, 7, 7])
    (batch,) = DataLoader(subset, batch_size=4)
    assert check(batch) == [10, 15, 17, 17]
    train, val = random_split(one, [50, 25])
    both = [number for part in (train, val) for batch in DataLoader(part, batch_size=7) for number in check(batch)]
    assert sorted(both) == list(range(NUM))
    joined = ConcatDataset([one, one])
    found = flat(batch["number"].tolist() for batch in DataLoader(joined, batch_size=8))
    assert found == [*range(NUM), *range(NUM)]


@pytest.mark.parametrize("as_dict", [False, True])
def test_collated_batches_are_the_decoded_memory_itself(file: str, as_dict: bool) -> None:
    rows = H5TensorDataset(file, as_dict=as_dict).__getitems__([4, 1, 2])
    collated = default_collate(rows)
    columns = collated.values() if as_dict else collated
    for column, decoded in zip(columns, rows.batch.values(), strict=True):
        assert column.data_ptr() == decoded.data_ptr()
        assert column.untyped_storage().data_ptr() == decoded.untyped_storage().data_ptr()
    assert type(collated) is (dict if as_dict else list)


def test_batches_of_a_worker_are_in_shared_memory_before_they_are_collated(one: H5TensorDataset) -> None:
    loader = DataLoader(one, batch_size=8, num_workers=1, collate_fn=note_sharing)
    assert all(all(batch) for batch in loader)


def note_sharing(rows: Any) -> list[bool]:
    collated = default_collate(rows)
    return [
        tensor.is_shared() and tensor.data_ptr() == rows.batch[name].data_ptr() for name, tensor in collated.items()
    ]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collate_fn_sees_a_list_of_samples(file: str, num_workers: int) -> None:
    ds = H5TensorDataset(file, ["small", "number"])
    loader = DataLoader(ds, batch_size=8, collate_fn=as_is, num_workers=num_workers)
    rows = [row for batch in loader for row in batch]
    assert all(isinstance(row, tuple) for row in rows)
    assert [int(number) for _, number in rows] == list(range(NUM))
    assert all(torch.equal(small, content()["small"][number]) for small, number in rows)


def as_is(rows: Any) -> Any:
    return rows


def drop_first(rows: list[Any]) -> Any:
    rows.pop(0)
    return default_collate(rows)


def turn_round(rows: list[Any]) -> Any:
    rows.reverse()
    return default_collate(rows)


def replace_one(rows: list[Any]) -> Any:
    rows[0] = rows[1]
    return default_collate(rows)


def take_some(rows: list[Any]) -> Any:
    return default_collate([row for row in rows if int(row["number"]) % 2])


@pytest.mark.parametrize(
    ("collate", "expected"),
    [(drop_first, [1, 2, 3]), (turn_round, [3, 2, 1, 0]), (replace_one, [1, 1, 2, 3]), (take_some, [1, 3])],
)
@pytest.mark.parametrize("as_dict", [False, True])
def test_a_collate_fn_that_changes_the_list_gets_what_it_made(
    file: str, collate: Any, expected: list[int], as_dict: bool
) -> None:
    """The list remembers a batch that is no longer its rows'."""
    if collate is take_some and not as_dict:
        pytest.skip("asks for a name")
    ds = H5TensorDataset(file, ["small", "number"], as_dict=as_dict)
    batch = next(iter(DataLoader(ds, batch_size=4, collate_fn=collate)))
    small, numbers = batch.values() if as_dict else batch
    assert numbers.tolist() == expected
    assert torch.equal(small, content()["small"][expected])


def test_a_collate_fn_that_changes_samples_gets_what_it_made(one: H5TensorDataset) -> None:
    def halve(rows: list[Any]) -> Any:
        for row in rows:
            row["small"] = row["small"] // 2
        return default_collate(rows)

    def add_field(rows: list[Any]) -> Any:
        for row in rows:
            row["more"] = row["number"] + 1
        return default_collate(rows)

    batch = next(iter(DataLoader(one, batch_size=4, collate_fn=halve)))
    assert torch.equal(batch["small"], content()["small"][:4] // 2)
    batch = next(iter(DataLoader(one, batch_size=4, collate_fn=add_field)))
    assert batch["more"].tolist() == [1, 2, 3, 4]


def test_transforms_are_applied_to_each_sample(file: str) -> None:
    ds = H5TensorDataset(file, ["small", "number"], transform=lambda x: x.float() / 255, target_transform=lambda y: -y)
    small, numbers = next(iter(DataLoader(ds, batch_size=4)))
    assert torch.equal(small, content()["small"][:4].float() / 255)
    assert numbers.tolist() == [0, -1, -2, -3]


def test_rows_are_a_list_that_knows_whether_it_was_touched(one: H5TensorDataset) -> None:
    rows = one.__getitems__([0, 1])
    assert isinstance(rows, Rows)
    assert rows.is_untouched
    rows[0]["small"].zero_()  # in place: the batch sees it
    assert rows.is_untouched
    rows[0]["small"] = rows[0]["small"].clone()
    assert not rows.is_untouched
