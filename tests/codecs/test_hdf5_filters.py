"""What the codecs write is read by HDF5's own filters, without h5cache."""

from __future__ import annotations

import h5py
import hdf5plugin
import numpy as np
import pytest

from h5cache.codecs import Blosc, Blosc2, Raw, Zstd, is_own_frame

CODECS = [
    Raw(),
    Zstd(),
    Blosc(),
    Blosc(shuffle="bitshuffle"),
    Blosc2(),
    Blosc2(filter="shuffle"),
    Blosc2(filter="shuffle+bytedelta"),
    Blosc2(filter="none", clevel=3),
    Blosc2(cname="lz4", filter="bitshuffle"),
]


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: "-".join(str(v) for v in c.to_config().values()))
def test_chunk_written_directly_is_read_by_h5py(codec, case, tmp_path):
    codec = codec.resolve(case.geometry)
    with h5py.File(tmp_path / "file.h5", "w", libver=("v110", "v110")) as file:
        options = {"compression": codec.filter_id, "compression_opts": codec.filter_options(case.geometry)}
        dataset = file.create_dataset(
            "field",
            case.chunk.shape,
            case.chunk.dtype,
            chunks=case.chunk.shape,
            **(options if codec.filter_id is not None else {}),
        )
        dataset.id.write_direct_chunk((0,) * case.chunk.ndim, codec.encode(case.chunk))
    with h5py.File(tmp_path / "file.h5", "r") as file:
        assert file["field"][()].tobytes() == case.chunk.tobytes()


def test_frame_written_by_hdf5plugin_for_pictures_is_not_our_own(tmp_path, make):
    chunk = make("chw-225").chunk
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file.create_dataset("field", data=chunk, chunks=chunk.shape, compression=hdf5plugin.Blosc2("zstd", 1))
        _, stored = file["field"].id.read_direct_chunk((0,) * chunk.ndim)
    assert not is_own_frame(stored)


@pytest.mark.parametrize("plugin", [hdf5plugin.Blosc("zstd", 1), hdf5plugin.Zstd(1)], ids=["blosc", "zstd"])
def test_chunk_written_by_hdf5_filter_is_decoded(plugin, tmp_path, make):
    case = make("chw-225")
    codec = {32001: Blosc(), 32015: Zstd()}[plugin.filter_id]
    with h5py.File(tmp_path / "file.h5", "w") as file:
        file.create_dataset("field", data=case.chunk, chunks=case.chunk.shape, compression=plugin)
        _, stored = file["field"].id.read_direct_chunk((0,) * case.chunk.ndim)
    out = np.empty_like(case.chunk)
    codec.decode(stored, out)
    np.testing.assert_array_equal(out, case.chunk)
