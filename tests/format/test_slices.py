"""A slice of a batch costs its own bytes on disk, not the batch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from h5cache import Field, H5TensorDataset, Writer

SHAPE = (3, 32, 32)
SAMPLE_NBYTES = 3 * 32 * 32 * 4


@pytest.fixture(scope="module")
def batch():
    return torch.randn(256, *SHAPE, generator=torch.Generator().manual_seed(0))


def written_nbytes(path, tensor, codec="none"):
    with Writer(path, {"x": Field("float32", SHAPE, codec)}) as writer:
        writer.append(x=tensor)
    assert torch.equal(H5TensorDataset(path)[:][0].reshape(-1), tensor.reshape(-1))
    return path.stat().st_size


def test_torch_save_of_a_slice_costs_the_whole_batch(batch, tmp_path):
    torch.save(batch[7], tmp_path / "slice.pt")
    assert (tmp_path / "slice.pt").stat().st_size > 256 * SAMPLE_NBYTES


@pytest.mark.parametrize("codec", ["none", "blosc2", "zstd", "auto"])
def test_one_sample_of_a_batch_costs_one_sample(batch, tmp_path, codec):
    overhead = 16_000  # an HDF5 file with its tables, whatever it holds
    assert written_nbytes(tmp_path / "x.h5", batch[7], codec) < SAMPLE_NBYTES + overhead


@pytest.mark.parametrize(
    "view",
    [
        lambda b: b[3:5],
        lambda b: b[::100],
        lambda b: b[[9, 4]],
        lambda b: b.flip(0)[:2],
        lambda b: b[:1].expand(2, *SHAPE),
    ],
    ids=["range", "strided", "chosen", "flipped", "expanded"],
)
def test_view_costs_its_own_elements(batch, tmp_path, view):
    chosen = view(batch)
    # An edge block is padded: less than two samples here.
    assert written_nbytes(tmp_path / "x.h5", chosen) < (len(chosen) + 2) * SAMPLE_NBYTES + 16_000


def test_transposed_view_is_stored_in_its_own_order(batch, tmp_path):
    picture = batch[:2].permute(0, 2, 3, 1)  # (N, H, W, C) view of CHW memory
    with Writer(tmp_path / "x.h5", {"x": Field("float32", (32, 32, 3), "none", layout=None)}) as writer:
        writer.append(x=picture)
    np.testing.assert_array_equal(H5TensorDataset(tmp_path / "x.h5")[:][0].numpy(), picture.numpy())
