"""What is decided before anything is written: order, parts, shards, how holes are filled. Nothing on disk."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from h5cache.convert.plan import RunPlan, parse_size, plan_fill, plan_output, plan_run, plan_schema
from h5cache.deal import plan_order
from h5cache.errors import SchemaError
from h5cache.schema import Field, Schema

PICTURES = Schema.of({"image": Field("uint8", (3, 224, 224)), "label": Field("int64")})


def test_order_is_a_permutation_by_the_seed() -> None:
    assert sorted(plan_order(1000, 7, True).tolist()) == list(range(1000))
    assert plan_order(1000, 7, True).tolist() == plan_order(1000, 7, True).tolist()
    assert plan_order(1000, 7, True).tolist() != plan_order(1000, 8, True).tolist()


def test_order_of_seed_0_never_changes() -> None:
    # Every dataset's bytes rest on it.
    assert plan_order(8, 0, True).tolist() == [2, 4, 3, 6, 5, 0, 1, 7]


def test_order_without_shuffle_is_the_sources() -> None:
    assert plan_order(4, 0, False).tolist() == [0, 1, 2, 3]


def test_parts_cover_every_place_once() -> None:
    plan = RunPlan("x.h5", 100, 32)
    assert [(part.number, part.start, part.stop) for part in plan.parts] == [
        (0, 0, 32),
        (1, 32, 64),
        (2, 64, 96),
        (3, 96, 100),
    ]
    assert str(plan) == "x.h5: 100 samples in 4 parts of 32"


def test_parts_of_a_file_hold_1024_pictures() -> None:
    assert plan_run("x.h5", 50_000, PICTURES, 94_000.0).part_samples == 1024


def test_small_dataset_has_parts_for_many_workers() -> None:
    assert plan_run("x.h5", 1000, PICTURES, 94_000.0).part_samples == 64


def test_parts_hold_whole_chunks() -> None:
    schema = plan_schema(PICTURES, "auto", 100)
    assert plan_run("x.h5", 50_000, schema, 94_000.0, part_samples=100).part_samples == 112  # chunks of 16


def test_parts_of_small_samples_hold_more() -> None:
    schema = plan_schema(Schema.of({"x": Field("float32", (16,))}), "auto", None)
    assert plan_run("x.h5", 10**7, schema, 64.0).part_samples == 262_144


def test_small_field_beside_pictures_does_not_make_parts_large() -> None:
    schema = plan_schema(Schema.of({**PICTURES, "box": Field("float32", (8,))}), "auto", None)
    assert plan_run("x.h5", 50_000, schema, 94_000.0).part_samples == 1024


def test_shards_are_as_large_as_asked_for() -> None:
    assert plan_run("folder", 50_000, PICTURES, 94_000.0, shard_size=4096).part_samples == 4096
    assert plan_run("folder", 50_000, PICTURES, 94_000.0, shard_size="94MB").part_samples == 1008


def test_shards_by_default_are_many_enough_for_workers_and_at_most_512_mb() -> None:
    assert plan_run("folder", 10_000, PICTURES, 94_000.0).num_parts == 10
    assert plan_run("folder", 1_281_167, PICTURES, 94_000.0).part_samples * 94_000 < 520e6


def test_sizes_that_are_none_are_refused() -> None:
    for text in ("", "MB", "12 parsecs", "-3", "0MB"):
        with pytest.raises(SchemaError):
            parse_size(text)


def test_splits_have_outputs_of_their_own() -> None:
    assert plan_output("/d/a.h5", "train") == "/d/a-train.h5"
    assert plan_output("/d/a", "val") == "/d/a/val"


@given(st.integers(1, 60), st.data())
def test_fill_keeps_every_good_sample_once_and_moves_only_the_tail(count: int, data: st.DataObject) -> None:
    holes = data.draw(st.sets(st.integers(0, count - 1)))
    filled = plan_fill(count, np.array(sorted(holes), np.int64))
    assert sorted(filled.tolist()) == [place for place in range(count) if place not in holes]
    for place, origin in enumerate(filled.tolist()):
        assert origin == place or (place in holes and origin >= len(filled))
