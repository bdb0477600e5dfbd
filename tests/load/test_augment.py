"""Crops and flips: pixel for pixel what numpy and cv2 make by hand, and the same however one iterates."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch
from load_cases import NUM, content
from torch.utils.data import DataLoader

from h5cache import Field, H5TensorDataset, Writer
from h5cache.load.augment import HorizontalFlip, RandomCrop, RandomResizedCrop, plan_geometry, uniform_draws

SAMPLES = np.arange(20_000)
PICTURES = ["big", "big_codes", "small", "codes", "hwc"]
STEPS: dict[str, list[Any]] = {
    "flip": [HorizontalFlip()],
    "always flip": [HorizontalFlip(1.0)],
    "crop": [RandomCrop((9, 7))],
    "crop and flip": [RandomCrop(8), HorizontalFlip()],
    "padded crop": [RandomCrop((12, 10), padding=4), HorizontalFlip()],
    "larger than the picture": [HorizontalFlip(), RandomCrop((14, 12), padding=2)],
    "resized": [RandomResizedCrop(7), HorizontalFlip()],
    "resized up": [RandomResizedCrop((30, 40), scale=(0.2, 0.5))],
}


def by_hand(picture: np.ndarray, geometry: Any, row: int) -> np.ndarray:
    """Crop, scale and mirror one (C, H, W) picture, plane by plane, with what everybody has."""
    padding = geometry.padding
    padded = np.pad(picture, ((0, 0), (padding, padding), (padding, padding)))
    top, left, height, width = (int(getattr(geometry, name)[row]) for name in ("top", "left", "height", "width"))
    box = padded[:, top : top + height, left : left + width]
    if (height, width) != geometry.size:
        shrinks = height >= geometry.size[0] and width >= geometry.size[1]
        method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
        planes = [cv2.resize(np.ascontiguousarray(plane), geometry.size[::-1], interpolation=method) for plane in box]
        box = np.stack(planes)
    return box[:, :, ::-1] if geometry.flip[row] else box


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("field", PICTURES)
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_augmented_pictures_equal_those_made_by_hand(
    one: H5TensorDataset, field: str, steps: str, memory_format: str
) -> None:
    options: dict[str, Any] = {"augment": STEPS[steps], "seed": 5, "memory_format": memory_format}
    with one.loader(16, "full", fields=[field, "number"], as_dict=False, threads=2, **options) as loader:
        loader.set_epoch(3)
        for pictures, numbers in loader:
            stored = content()[field][numbers].numpy()
            geometry = plan_geometry(STEPS[steps], stored.shape[2:], 5, 3, numbers.numpy())
            expected = np.stack([by_hand(picture, geometry, row) for row, picture in enumerate(stored)])
            assert np.array_equal(pictures.numpy(), expected)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "uint16"])
def test_pictures_of_one_and_four_channels_are_augmented(tmp_path: Any, channels: int, layout: str, dtype: str) -> None:
    stored = np.random.default_rng(0).integers(0, 200, (10, channels, 15, 11)).astype(dtype)
    shape = (channels, 15, 11) if layout == "CHW" else (15, 11, channels)
    with Writer(str(tmp_path / "x.h5"), {"image": Field(dtype, shape, layout=layout, exact="never")}) as w:
        w.append(image=stored if layout == "CHW" else stored.transpose(0, 2, 3, 1))
    ds = H5TensorDataset(str(tmp_path / "x.h5"))
    for steps in STEPS.values():
        for memory_format in ("contiguous", "channels_last"):
            with ds.loader(10, augment=steps, threads=1, memory_format=memory_format) as loader:
                ((pictures,),) = loader
            geometry = plan_geometry(steps, (15, 11), 0, 0, np.arange(10))
            expected = np.stack([by_hand(picture, geometry, row) for row, picture in enumerate(stored)])
            assert np.array_equal(pictures.numpy(), expected)


def test_exact_codes_are_padded_with_zeros_as_floats_are(one: H5TensorDataset) -> None:
    """Not with the value that code 0 stands for."""
    with one.loader(
        NUM, fields=["codes"], as_dict=False, augment=[RandomCrop((40, 38), padding=14)], threads=1
    ) as loader:
        ((pictures,),) = loader
    assert torch.count_nonzero(pictures[:, :, 0]) == 0


def test_padded_pixels_are_normalised_like_black_ones(one: H5TensorDataset) -> None:
    options: dict[str, Any] = {"augment": [RandomCrop((40, 38), padding=14)], "normalize": "imagenet"}
    with one.loader(NUM, fields=["small"], as_dict=False, threads=1, **options) as loader:
        ((pictures,),) = loader
    assert torch.equal(pictures[0, 0, 0], torch.full((38,), -0.485) / torch.tensor(0.229))


# The same, however one iterates


def collect(batches: Any) -> dict[int, torch.Tensor]:
    return {
        int(number): picture
        for pictures, numbers in batches
        for picture, number in zip(pictures.clone(), numbers, strict=True)
    }


@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
@pytest.mark.parametrize("field", ["big", "small"])
def test_augmentation_depends_on_seed_epoch_and_sample_alone(one: H5TensorDataset, field: str) -> None:
    options: dict[str, Any] = {
        "fields": [field, "number"],
        "as_dict": False,
        "augment": [RandomResizedCrop(9), HorizontalFlip()],
        "seed": 2,
    }
    expected = collect(one.loader(8, threads=2, **options))
    for batch_size, shuffle, threads in ((1, False, 0), (5, "full", 3), (75, "chunk", 1)):
        found = collect(one.loader(batch_size, shuffle, threads=threads, **options))
        assert all(torch.equal(found[number], expected[number]) for number in range(NUM))
    stream = one.batches(6, "full", **options)
    found = collect(DataLoader(stream, batch_size=None, num_workers=2))
    assert all(torch.equal(found[number], expected[number]) for number in range(NUM))
    # resumed
    loader = one.loader(8, "full", threads=1, **options)
    next(iter(loader))
    state = loader.state_dict()
    other = one.loader(8, "full", threads=0, **{**options, "seed": 3})
    other.load_state_dict(state)
    found = collect(other)
    assert len(found) == NUM - 8
    assert all(torch.equal(picture, expected[number]) for number, picture in found.items())
    # other epochs and seeds differ
    loader.set_epoch(1)
    for different in (collect(loader), collect(one.loader(8, threads=1, **{**options, "seed": 3}))):
        assert sum(torch.equal(different[number], expected[number]) for number in range(NUM)) < NUM / 5


def test_pictures_of_one_sample_get_the_same_crop(tmp_path: Any) -> None:
    """A mask must fit its image."""
    image = torch.randint(0, 256, (12, 3, 20, 16), dtype=torch.uint8)
    fields = {"image": Field("uint8", (3, 20, 16)), "mask": Field("uint8", (1, 20, 16))}
    with Writer(str(tmp_path / "x.h5"), fields) as w:
        w.append(image=image, mask=image[:, :1])
    steps = [RandomCrop(9, padding=2), HorizontalFlip()]
    with H5TensorDataset(str(tmp_path / "x.h5")).loader(12, augment=steps, threads=1) as loader:
        ((found, mask),) = loader
    assert torch.equal(found[:, :1], mask)


# Draws


def test_draws_are_uniform_and_independent() -> None:
    draws = uniform_draws(0, 0, SAMPLES, 0)
    assert draws.min() >= 0
    assert draws.max() < 1
    assert np.abs(draws.mean(0) - 0.5).max() < 0.01
    assert np.abs(draws.var(0) - 1 / 12).max() < 0.003
    others = (uniform_draws(0, 0, SAMPLES, 1), uniform_draws(0, 1, SAMPLES, 0), uniform_draws(1, 0, SAMPLES, 0))
    for other in (*others, np.roll(draws, 1, axis=0), np.roll(draws, 1, axis=1)):
        assert abs(np.corrcoef(draws.ravel(), other.ravel())[0, 1]) < 0.01


def test_flips_have_their_probability() -> None:
    for p in (0.0, 0.2, 0.5, 1.0):
        flips = plan_geometry([HorizontalFlip(p)], (8, 8), 0, 0, SAMPLES).flip.mean()
        assert abs(flips - p) < 0.015


def test_crops_reach_every_place_alike() -> None:
    geometry = plan_geometry([RandomCrop((5, 9), padding=1)], (8, 10), 0, 0, SAMPLES)
    for places, count in ((geometry.top, 6), (geometry.left, 4)):
        counts = np.bincount(places, minlength=count)
        assert len(counts) == count
        assert np.abs(counts / len(SAMPLES) - 1 / count).max() < 0.015


@pytest.mark.parametrize("size", [(100, 100), (300, 40), (40, 300)])
def test_resized_crops_lie_inside_and_have_area_and_ratio_as_asked(size: tuple[int, int]) -> None:
    step = RandomResizedCrop(32, scale=(0.2, 0.6))
    geometry = plan_geometry([step], size, 0, 0, SAMPLES)
    assert geometry.top.min() >= 0
    assert geometry.left.min() >= 0
    assert (geometry.top + geometry.height).max() <= size[0]
    assert (geometry.left + geometry.width).max() <= size[1]
    ratio = geometry.width / geometry.height
    assert ratio.min() > 0.7
    assert ratio.max() < 1.42
    if size == (100, 100):
        area = geometry.width * geometry.height / 10_000
        assert abs(area.mean() - 0.4) < 0.01
        assert 0.19 < area.min() < 0.21
        assert abs(np.log(ratio).mean()) < 0.01


@pytest.mark.parametrize(
    "make",
    [
        lambda: HorizontalFlip(1.5),
        lambda: HorizontalFlip(-0.1),
        lambda: RandomCrop(0),
        lambda: RandomCrop(8, padding=-1),
        lambda: RandomResizedCrop(0),
        lambda: RandomResizedCrop(8, scale=(0.5, 0.1)),
        lambda: RandomResizedCrop(8, scale=(0.0, 1.0)),
        lambda: RandomResizedCrop(8, ratio=(2.0, 1.0)),
    ],
)
def test_a_wrong_step_is_refused(make: Any) -> None:
    with pytest.raises(ValueError):
        make()


def test_pictures_that_cannot_be_scaled_are_refused(tmp_path: Any) -> None:
    with Writer(str(tmp_path / "x.h5"), {"image": Field("int32", (3, 8, 8))}) as w:
        w.append(image=np.zeros((4, 3, 8, 8), np.int32))
    with pytest.raises(ValueError, match="int32"):
        H5TensorDataset(str(tmp_path / "x.h5")).loader(2, augment=[RandomResizedCrop(4)])
