"""Views of a dataset: select, filter and split, through every door and in every order, without copying data."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from load_cases import NUM, check, flat
from torch.utils.data import DataLoader

from h5cache import H5TensorDataset

SHUFFLES = [False, "chunk", "full"]
CHOSEN = [70, 3, 3, 41, 0, 74, 12, 13, 14, 15, 16]


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_every_door_delivers_the_samples_of_a_view(ds: H5TensorDataset, shuffle: Any) -> None:
    view = ds.select(CHOSEN)
    doors = [
        view.loader(4, shuffle, threads=2),
        view.batches(4, shuffle),
        DataLoader(view.batches(4, shuffle), batch_size=None, num_workers=2),
        DataLoader(view, batch_size=4, shuffle=bool(shuffle)),
        DataLoader(view, batch_size=4, shuffle=bool(shuffle), num_workers=1),
    ]
    for door in doors:
        found = flat([check(batch) for batch in door])
        assert sorted(found) == sorted(CHOSEN)
        if not shuffle:
            assert found == CHOSEN
    assert check(view[[1, -1]]) == [3, 16]
    assert view[0]["number"] == 70


def test_views_of_views_count_from_the_view(ds: H5TensorDataset) -> None:
    view = ds.select(range(20, 60)).select([0, -1, 5])
    assert check(view[:]) == [20, 59, 25]
    assert view.index["key"].tolist() == ["k20", "k59", "k25"]
    assert len(ds) == NUM


def test_filter_chooses_by_the_index(ds: H5TensorDataset) -> None:
    view = ds.filter(lambda index: np.char.endswith(index["key"].astype(str), "7"))
    assert check(view[:]) == [7, 17, 27, 37, 47, 57, 67]
    assert check(view.filter(lambda index: index["key"] == "k27")[:]) == [27]
    for wrong in (lambda index: [True], lambda index: np.arange(len(index))):
        with pytest.raises(ValueError, match="truth values"):
            ds.filter(wrong)


def test_split_parts_are_disjoint_and_together_everything(ds: H5TensorDataset) -> None:
    parts = ds.split(train=0.8, val=0.1, test=0.1, seed=3, stratify=False)
    found = {name: check(part[:]) for name, part in parts.items()}
    assert sorted(flat(found.values())) == list(range(NUM))
    assert abs(len(found["train"]) - 60) <= 1
    again = ds.split(train=0.8, val=0.1, test=0.1, seed=3, stratify=False)
    assert check(again["val"][:]) == found["val"]
    seen = flat([check(batch) for batch in parts["val"].loader(3, "full", threads=1)])
    assert sorted(seen) == sorted(found["val"])


@pytest.mark.parametrize("wrong", [{}, {"train": -1.0}, {"train": 0.5}, {"train": float("nan")}, {"a": 1.5, "b": -0.5}])
def test_wrong_shares_are_refused(ds: H5TensorDataset, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="shares"):
        ds.split(**wrong)


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_a_view_resumes_and_another_view_refuses_its_state(one: H5TensorDataset, shuffle: Any) -> None:
    view = one.select(range(5, 50))
    with view.loader(4, shuffle, threads=1) as loader:
        batches = iter(loader)
        seen = check(next(batches))
        state = loader.state_dict()
    with view.loader(4, shuffle, threads=0) as other:
        other.load_state_dict(state)
        seen += flat([check(batch) for batch in other])
    assert sorted(seen) == list(range(5, 50))
    with pytest.raises(ValueError, match="other samples"):
        one.select(range(6, 51)).loader(4, shuffle).load_state_dict(state)


def test_a_view_pickles(one: H5TensorDataset) -> None:
    assert check(pickle.loads(pickle.dumps(one.select(CHOSEN)))[:]) == CHOSEN


def test_a_mask_chooses_and_must_fit(one: H5TensorDataset) -> None:
    mask = torch.zeros(NUM, dtype=torch.bool)
    mask[[3, 8]] = True
    assert check(one.select(mask)[:]) == [3, 8]
    with pytest.raises(IndexError, match="mask"):
        one.select(mask[:-1])
    with pytest.raises(IndexError, match="out of range"):
        one.select([NUM])
