"""What only the Blosc codecs have: typesizes, frames, and C-Blosc2 called by ctypes."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import h5cache.codecs
from h5cache.codecs import Blosc, Blosc2, ChunkGeometry, Zstd, blosc2_library, is_own_frame
from h5cache.codecs.blosc2_library import FallbackDecompressor, LibraryDecompressor, decompressor
from h5cache.errors import CodecError

ROOT = Path(h5cache.codecs.__file__).parents[2]
FILTERS = ("none", "bytedelta", "shuffle", "bitshuffle", "shuffle+bytedelta")


@given(
    items=st.integers(1, 400_000),
    itemsize=st.sampled_from((1, 2, 4, 8, 16)),
    channels=st.integers(1, 5),
    filter_name=st.sampled_from(FILTERS),
)
def test_typesize_of_any_geometry_divides_the_sample(items, itemsize, channels, filter_name):
    geometry = ChunkGeometry(itemsize, items * itemsize, 1, 2, channels)
    for codec in (Blosc2(filter=filter_name), Blosc(shuffle=filter_name if "bytedelta" not in filter_name else "none")):
        resolved = codec.resolve(geometry)
        assert 1 <= resolved.typesize <= 255
        assert geometry.sample_nbytes % resolved.typesize == 0
        assert resolved.block_nbytes % resolved.typesize == 0
        assert resolved.block_nbytes == geometry.block_nbytes


@pytest.mark.parametrize(
    ("geometry", "filter_name", "typesize", "resolved_filter"),
    [
        (ChunkGeometry(1, 3 * 224 * 224, 1, 16), "bytedelta", 2, "bytedelta"),
        (ChunkGeometry(1, 3 * 225 * 225, 1, 16), "bytedelta", 3, "bytedelta"),
        (ChunkGeometry(1, 3 * 224 * 224, 1, 16, 3), "shuffle+bytedelta", 3, "shuffle+bytedelta"),
        (ChunkGeometry(4, 4 * 1009, 1, 16), "shuffle", 4, "shuffle"),
        (ChunkGeometry(1, 251 * 251, 1, 16), "bytedelta", 251, "bytedelta"),
        (ChunkGeometry(1, 251 * 251, 1, 16), "shuffle+bytedelta", 1, "none"),
        (ChunkGeometry(1, 257, 1, 16), "bytedelta", 1, "none"),
        (ChunkGeometry(1, 257, 1, 16), "bitshuffle", 1, "bitshuffle"),
        (ChunkGeometry(1, 1, 16, 16), "bytedelta", 1, "none"),
    ],
)
def test_typesize_of_a_known_geometry_is_as_documented(geometry, filter_name, typesize, resolved_filter):
    resolved = Blosc2(filter=filter_name).resolve(geometry)
    assert (resolved.typesize, resolved.filter) == (typesize, resolved_filter)


def test_typesize_that_does_not_divide_the_sample_raises():
    with pytest.raises(CodecError, match="typesize 4 does not divide"):
        Blosc2(typesize=4).resolve(ChunkGeometry(1, 3 * 225 * 225, 1, 2))


def test_typesize_beyond_the_streams_of_bytedelta_raises():
    with pytest.raises(CodecError, match="127"):
        Blosc2(filter="shuffle+bytedelta", typesize=200).resolve(ChunkGeometry(1, 2000, 1, 2))


def test_block_larger_than_blosc2_allows_raises():
    with pytest.raises(CodecError, match="exceed"):
        Blosc2().resolve(ChunkGeometry(1, 600_000_000, 1, 1))


def test_codec_without_resolve_raises_on_encode():
    with pytest.raises(CodecError, match="resolve"):
        Blosc2().encode(np.zeros((2, 100), np.uint8))


def test_all_zero_chunk_has_blocks_of_no_bytes_and_no_header(make):
    case = make("zeros")
    codec = Blosc2().resolve(case.geometry)
    spans = codec.locate_blocks(codec.encode(case.chunk))
    assert spans.nbytes.tolist() == [0] * 4
    assert spans.header == b""


def test_incompressible_chunk_has_raw_blocks(make):
    case = make("noise")
    codec = Blosc2().resolve(case.geometry)
    stored = codec.encode(case.chunk)
    spans = codec.locate_blocks(stored)
    assert spans.nbytes.tolist() == [case.geometry.block_nbytes] * 4
    assert stored[spans.offsets[1] :][: case.geometry.block_nbytes] == case.chunk[1].tobytes()


def test_constant_chunk_is_coded_in_few_bytes(make):
    case = make("constant-255")
    codec = Blosc2().resolve(case.geometry)
    stored = codec.encode(case.chunk)
    assert len(stored) < 500
    assert len(codec.locate_blocks(stored).header) == 32


def test_block_coded_to_just_its_own_size_is_stored_raw(make, monkeypatch):
    case = make("mixed")
    codec = Blosc2().resolve(case.geometry)
    original = Blosc2.locate_blocks

    def with_one_full_block(self, data):
        spans = original(self, data)
        if spans.header:
            spans.nbytes[2] = self.block_nbytes
        return spans

    monkeypatch.setattr(Blosc2, "locate_blocks", with_one_full_block)
    stored = codec.encode(case.chunk)
    assert set(original(codec, stored).nbytes.tolist()) == {case.geometry.block_nbytes}


def test_zstd_frame_of_just_the_chunks_size_is_made_longer(make, monkeypatch):
    from numcodecs import zstd

    case = make("uint8")
    codec = Zstd().resolve(case.geometry)
    frame = codec.encode(case.chunk)
    padding = case.chunk.nbytes - len(frame) - 8
    skippable = bytes.fromhex("502a4d18") + padding.to_bytes(4, "little") + bytes(padding)
    monkeypatch.setattr(zstd, "compress", lambda *args: frame + skippable)
    stored = codec.encode(case.chunk)
    assert len(stored) == case.chunk.nbytes + 8
    out = np.empty_like(case.chunk)
    codec.decode(stored, out)
    np.testing.assert_array_equal(out, case.chunk)


def test_frame_with_b2nd_metalayer_is_refused_by_name(blosc2_decoder):
    import blosc2

    pixels = np.arange(4 * 3 * 32 * 32, dtype=np.uint8).reshape(4, 3, 32, 32)
    stored = blosc2.asarray(pixels, chunks=pixels.shape, blocks=(1, 3, 16, 16)).to_cframe()
    out = np.zeros_like(pixels)
    with pytest.raises(CodecError, match="b2nd"):
        Blosc2().resolve(ChunkGeometry(1, 3072, 1, 4)).decode(stored, out)
    assert not out.any()
    assert not is_own_frame(stored)


def test_frame_with_another_metalayer_is_refused():
    import blosc2

    data = np.zeros(4096, np.uint8) + 3
    stored = blosc2.SChunk(chunksize=4096, data=data, contiguous=True, meta={"mine": 1}).to_cframe()
    with pytest.raises(CodecError, match="metalayers"):
        Blosc2().decode(stored, np.empty_like(data))


def test_frame_of_nan_chunk_without_bytes_is_refused():
    import blosc2

    chunk = blosc2.SChunk(chunksize=4096, contiguous=True, cparams={"typesize": 4})
    chunk.fill_special(1024, blosc2.SpecialValue.NAN)
    with pytest.raises(CodecError, match="h5py"):
        Blosc2().decode(chunk.to_cframe(), np.empty(1024, np.float32))


def test_own_frame_is_recognised(case):
    codec = Blosc2().resolve(case.geometry)
    assert is_own_frame(codec.encode(case.chunk))
    assert not is_own_frame(b"")
    assert not is_own_frame(case.chunk.tobytes())


def test_block_decoder_without_header_raises_on_a_coded_block():
    decoder = Blosc2().resolve(ChunkGeometry(1, 3000, 1, 4)).block_decoder(b"")
    with pytest.raises(CodecError, match="no coded chunk"):
        decoder.decode(b"12345678", np.empty(3000, np.uint8))


def test_block_decoder_with_header_of_another_field_raises(make):
    case, other = make("chw-225"), make("uint8")
    codec = Blosc2().resolve(case.geometry)
    header = codec.locate_blocks(codec.encode(case.chunk)).header
    with pytest.raises(CodecError, match="one coded block"):
        Blosc2().resolve(other.geometry).block_decoder(header)
    with pytest.raises(CodecError, match="32"):
        codec.block_decoder(header[:20])


def test_filter_options_are_those_of_hdf5plugin():
    import hdf5plugin

    geometry = ChunkGeometry(1, 3000, 1, 4)
    ours = Blosc2(cname="zstd", clevel=3, filter="bitshuffle").filter_options(geometry)
    assert ours == hdf5plugin.Blosc2("zstd", 3, hdf5plugin.Blosc2.BITSHUFFLE).filter_options
    assert (
        Blosc(clevel=3).filter_options(geometry) == hdf5plugin.Blosc("zstd", 3, hdf5plugin.Blosc.SHUFFLE).filter_options
    )
    assert Zstd(level=3).filter_options(geometry) == hdf5plugin.Zstd(3).filter_options


def test_library_is_found_in_the_blosc2_package():
    assert isinstance(decompressor(), LibraryDecompressor)
    assert isinstance(decompressor("fallback"), FallbackDecompressor)
    assert decompressor() is decompressor()


def test_missing_library_falls_back_and_says_so(monkeypatch, caplog):
    monkeypatch.setattr(blosc2_library, "_loaded", {})
    monkeypatch.setattr(blosc2_library, "_library_paths", lambda: iter(()))
    with caplog.at_level(logging.WARNING):
        assert isinstance(decompressor(), FallbackDecompressor)
    assert "slower" in caplog.text


def test_library_that_cannot_be_loaded_falls_back(monkeypatch, tmp_path):
    broken = tmp_path / "libblosc2.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(blosc2_library, "_loaded", {})
    monkeypatch.setattr(blosc2_library, "_library_paths", lambda: iter([broken]))
    assert isinstance(decompressor(), FallbackDecompressor)


def test_library_that_decodes_wrongly_falls_back(monkeypatch):
    monkeypatch.setattr(blosc2_library, "_loaded", {})
    monkeypatch.setattr(LibraryDecompressor, "__call__", lambda self, chunk, out: out.fill(0))
    assert isinstance(decompressor(), FallbackDecompressor)


def test_context_of_a_thread_is_freed_when_it_ends(make):
    case = make("uint8")
    codec = Blosc2().resolve(case.geometry)
    stored = codec.encode(case.chunk)
    contexts = []

    def decode():
        codec.decode(stored, np.empty_like(case.chunk))
        contexts.append(weakref.ref(decompressor()._contexts.context))

    threads = [threading.Thread(target=decode) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(contexts) == 4
    assert [context() for context in contexts] == [None] * 4


@pytest.mark.parametrize("codec", [Blosc2(), Blosc(), Zstd()], ids=lambda codec: codec.name)
def test_gil_is_released_while_decoding(codec, blosc2_decoder):
    samples = np.tile(np.random.default_rng(0).integers(0, 40, (1, 1 << 20), dtype=np.uint8), (48, 1))
    codec = codec.resolve(ChunkGeometry(1, 1 << 20, 1, 48))
    stored, out = codec.encode(samples), np.empty_like(samples)
    codec.decode(stored, out)  # loads what is loaded lazily
    state = {"started": False, "finished": False}

    def decode():
        state["started"] = True
        for _ in range(4):
            codec.decode(stored, out)
        state["finished"] = True

    # With so long an interval a thread keeps the GIL unless it gives it up of its own accord.
    interval = sys.getswitchinterval()
    sys.setswitchinterval(30)
    try:
        thread = threading.Thread(target=decode)
        thread.start()
        steps = 0
        while not state["finished"]:
            steps += state["started"]
            time.sleep(0.0002)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert steps > 1


def test_decoding_after_fork_while_others_decode_is_right():
    code = """
import os, threading
import numpy as np
from h5cache.codecs import Blosc2, ChunkGeometry
chunk = np.random.default_rng(0).integers(0, 9, (8, 30000), dtype=np.uint8)
codec = Blosc2().resolve(ChunkGeometry(1, 30000, 1, 8))
stored = codec.encode(chunk)
spans = codec.locate_blocks(stored)
decoder = codec.block_decoder(spans.header)
def check():
    out = np.empty_like(chunk)
    codec.decode(stored, out)
    assert np.array_equal(out, chunk)
    block = np.empty(30000, np.uint8)
    decoder.decode(stored[spans.offsets[3]:spans.offsets[3] + spans.nbytes[3]], block)
    assert np.array_equal(block, chunk[3])
stop = threading.Event()
def busy():
    while not stop.is_set():
        check()
threads = [threading.Thread(target=busy) for _ in range(3)]
for t in threads: t.start()
check()
for _ in range(20):
    pid = os.fork()
    if pid == 0:
        try:
            check()
            inner = threading.Thread(target=check); inner.start(); inner.join()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
stop.set()
for t in threads: t.join()
print("right")
"""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code]
    result = subprocess.run(command, capture_output=True, cwd=ROOT, timeout=60, text=True, check=False)
    assert (result.returncode, result.stdout.strip()) == (0, "right"), result.stderr
