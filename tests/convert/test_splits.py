"""Splits: every sample in exactly one, by class, by the seed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from convert_samples import check_pixels, digest, small
from hypothesis import given, settings
from hypothesis import strategies as st

from h5cache.convert.split import parse_split
from h5cache.deal import plan_splits
from h5cache.errors import SchemaError


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 6), min_size=40, max_size=120),
    st.sampled_from(["a=0.5,b=0.5", "train=0.8,val=0.1,test=0.1", "a=0.34,b=0.66"]),
    st.integers(0, 3),
)
def test_every_sample_is_in_exactly_one_split(labels: list[int], text: str, seed: int) -> None:
    fractions = parse_split(text)
    dealt = plan_splits(len(labels), np.array(labels, np.int64), fractions, seed, True)
    assert sorted(np.concatenate(list(dealt.values())).tolist()) == list(range(len(labels)))
    for name, samples in dealt.items():
        assert abs(len(samples) - len(labels) * fractions[name]) <= 1.5


@settings(max_examples=50)
@given(st.integers(8, 40), st.integers(1, 30))
def test_each_class_is_dealt_by_its_shares(num_classes: int, per_class: int) -> None:
    labels = np.repeat(np.arange(num_classes), per_class)
    dealt = plan_splits(len(labels), labels, {"a": 0.75, "b": 0.25}, 0, True)
    counts = np.bincount(labels[dealt["a"]], minlength=num_classes)
    assert np.all(np.abs(counts - 0.75 * per_class) < 2)


def test_many_small_classes_add_up() -> None:
    # Rounded class by class, 5 samples at 10 % would give every one of them to train.
    labels = np.repeat(np.arange(100), 5)
    dealt = plan_splits(500, labels, {"train": 0.9, "val": 0.1}, 0, True)
    assert len(dealt["val"]) == 50


def test_membership_does_not_depend_on_shuffle() -> None:
    labels = np.arange(60) % 3
    mixed = plan_splits(60, labels, {"a": 0.5, "b": 0.5}, 4, True)
    sorted_ = plan_splits(60, labels, {"a": 0.5, "b": 0.5}, 4, False)
    assert sorted(mixed["a"].tolist()) == sorted_["a"].tolist()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("train=0.9", "add up to 1"),
        ("train", "NAME=SHARE"),
        ("a=0.5,a=0.5", "twice"),
        ("a/b=0.5,c=0.5", "name of a split"),
        ("a=1.5,b=-0.5", "NAME=SHARE"),
    ],
)
def test_wrong_split_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(SchemaError, match=says):
        parse_split(text)


def test_empty_split_is_refused() -> None:
    with pytest.raises(SchemaError, match="would be empty"):
        plan_splits(3, None, {"a": 0.99, "b": 0.01}, 0, True)


@pytest.mark.parametrize("name", ["data.h5", "data"])
def test_splits_become_datasets_of_their_own_in_one_run(
    pictures: Path, keys: list[str], tmp_path: Path, name: str
) -> None:
    result = small(pictures, tmp_path / name, split="train=0.8,val=0.2")
    train, val = (Path(path) for path in result.paths)
    assert [path.name for path in (train, val)] == (
        ["data-train.h5", "data-val.h5"] if name.endswith(".h5") else ["train", "val"]
    )
    found = [check_pixels(train, pictures), check_pixels(val, pictures)]
    assert sorted(found[0] + found[1]) == keys
    assert [len(one) for one in found] == [80, 20]


def test_split_that_is_published_already_is_not_converted_again(pictures: Path, tmp_path: Path) -> None:
    first = small(pictures, tmp_path / "data.h5", split="train=0.8,val=0.2")
    train, val = (Path(path) for path in first.paths)
    before = digest(train), digest(val)
    val.unlink()  # as if the run had been killed between the two
    again = small(pictures, tmp_path / "data.h5", split="train=0.8,val=0.2")
    assert again.num_converted == 20
    assert again.num_samples == 100
    assert (digest(train), digest(val)) == before


def test_split_of_another_run_is_not_overwritten(pictures: Path, tmp_path: Path) -> None:
    small(pictures, tmp_path / "data.h5", split="train=0.8,val=0.2")
    with pytest.raises(FileExistsError):
        small(pictures, tmp_path / "data.h5", split="train=0.7,val=0.3")
