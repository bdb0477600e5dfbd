"""What a loader makes of stored pixels: memory format, dtype, normalisation, equal to torch's own steps bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from load_cases import content
from torch.utils.data import DataLoader

from h5cache import H5TensorDataset
from h5cache.load.augment import HorizontalFlip, RandomCrop
from h5cache.load.cut import reorder

FORMATS = {"contiguous": torch.contiguous_format, "channels_last": torch.channels_last}
PICTURES = ["big", "big_codes", "small", "codes", "hwc"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def all_of(ds: H5TensorDataset, field: str, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a field of all samples and their numbers, after checking that no batch is strided otherwise."""
    wanted = FORMATS[options.get("memory_format") or ("channels_last" if field == "hwc" else "contiguous")]
    with ds.loader(16, "full", fields=[field, "number"], as_dict=False, threads=2, **options) as loader:
        batches = list(loader)
    for pictures, _ in batches:
        assert pictures.is_contiguous(memory_format=wanted)
    return torch.cat([pictures for pictures, _ in batches]), torch.cat([numbers for _, numbers in batches])


def steps(pictures: torch.Tensor, dtype: torch.dtype, mean: Any = None, std: Any = None) -> torch.Tensor:
    """ToTensor, Normalize and a cast, as one writes them in torch."""
    if mean is None:
        return pictures.to(dtype)
    scaled = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures.float()
    return ((scaled - torch.tensor(mean).view(-1, 1, 1)) / torch.tensor(std).view(-1, 1, 1)).to(dtype)


@pytest.mark.parametrize("field", PICTURES)
@pytest.mark.parametrize("memory_format", [None, "contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32])
def test_dtype_equals_a_cast_by_torch(one: H5TensorDataset, field: str, memory_format: Any, dtype: Any) -> None:
    found, numbers = all_of(one, field, memory_format=memory_format, dtype=dtype)
    pictures = content()[field][numbers]
    expected = steps(pictures, dtype or pictures.dtype)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


@pytest.mark.parametrize("field", PICTURES)
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dtype", [None, "float16", "bfloat16"])
@pytest.mark.parametrize("normalize", ["imagenet", ((0.5,), (0.25,))])
def test_normalize_equals_torchs_steps(
    one: H5TensorDataset, field: str, memory_format: str, dtype: Any, normalize: Any
) -> None:
    found, numbers = all_of(one, field, memory_format=memory_format, dtype=dtype, normalize=normalize)
    mean, std = (MEAN, STD) if normalize == "imagenet" else normalize
    expected = steps(content()[field][numbers], getattr(torch, dtype or "float32"), mean, std)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_options_for_pictures_leave_other_fields_alone(one: H5TensorDataset) -> None:
    with one.loader(8, dtype="float16", normalize="imagenet", memory_format="channels_last", threads=1) as loader:
        batch = next(iter(loader))
    assert batch["number"].dtype == torch.int64
    assert batch["raw"].dtype == torch.uint8
    assert batch["half"].dtype == torch.float16  # a float field takes the dtype
    assert torch.equal(batch["half"], content()["half"][:8].half())
    assert torch.equal(batch["raw"], content()["raw"][:8])


@pytest.mark.parametrize("field", PICTURES)
@pytest.mark.parametrize("augment", [(HorizontalFlip(),), (RandomCrop(8),), (RandomCrop(12, padding=3),)])
@pytest.mark.parametrize("memory_format", ["contiguous", "channels_last"])
def test_every_path_is_contiguous(one: H5TensorDataset, field: str, augment: Any, memory_format: str) -> None:
    for options in ({}, {"dtype": "float32"}, {"normalize": "imagenet", "dtype": "bfloat16"}):
        all_of(one, field, augment=augment, memory_format=memory_format, **options)


def test_every_door_delivers_hwc_as_channels_last(one: H5TensorDataset) -> None:
    for batch in (
        next(iter(one.loader(8, threads=1))),
        next(iter(one.batches(8))),
        next(iter(DataLoader(one, batch_size=8))),
        one[[0, 1, 2]],
    ):
        assert batch["hwc"].shape[1:] == (3, 12, 10)
        assert batch["hwc"].is_contiguous(memory_format=torch.channels_last)
        assert batch["big"].is_contiguous()
    assert one[0]["hwc"].shape == (3, 12, 10)


@pytest.mark.parametrize("field", PICTURES)
def test_a_conv_net_takes_channels_last_without_a_hidden_copy(one: H5TensorDataset, field: str) -> None:
    conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    options: dict[str, Any] = {"memory_format": "channels_last", "dtype": "float32", "threads": 1}
    with one.loader(8, fields=[field], as_dict=False, **options) as loader:
        (pictures,) = next(iter(loader))
    assert pictures.to(memory_format=torch.channels_last).data_ptr() == pictures.data_ptr()
    assert pictures.contiguous(memory_format=torch.channels_last).data_ptr() == pictures.data_ptr()
    with torch.profiler.profile() as profile, torch.no_grad():
        result = conv(pictures)
    assert result.is_contiguous(memory_format=torch.channels_last)
    copies = {event.key for event in profile.key_averages()} & {"aten::clone", "aten::copy_", "aten::_to_copy"}
    assert not copies


@pytest.mark.parametrize("shape", [(3, 16, 24), (4, 5, 7), (1, 8, 8), (3, 1, 9), (3, 9, 1)])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "int16"])
def test_reordering_a_picture_there_and_back_gives_the_same_pixels(shape: tuple[int, ...], dtype: str) -> None:
    picture = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    last = np.zeros((*shape[1:], shape[0]), dtype)
    reorder(picture, last, channels_last=True)
    np.testing.assert_array_equal(last, picture.transpose(1, 2, 0))
    back = np.zeros(shape, dtype)
    reorder(last, back, channels_last=False)
    np.testing.assert_array_equal(back, picture)
