"""The contract of `h5cache.codecs.codec`, kept by every codec on every kind of chunk."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import h5cache.codecs
from h5cache.codecs import CODECS, ChunkGeometry, codec_from_config, codec_from_name, encode_verified
from h5cache.errors import CodecError

ROOT = Path(h5cache.codecs.__file__).parents[2]
GUARD = 64


def guarded(nbytes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return memory filled with a mark, and the part of it that may be written."""
    memory = np.full(nbytes + 2 * GUARD, 0xA5, np.uint8)
    return memory, memory[GUARD : GUARD + nbytes]


def assert_guards_untouched(memory: np.ndarray) -> None:
    assert (memory[:GUARD] == 0xA5).all()
    assert (memory[-GUARD:] == 0xA5).all()


def test_whole_chunk_encoded_and_decoded_is_the_same(codec, case):
    resolved = codec.resolve(case.geometry)
    memory, out = guarded(case.chunk.nbytes)
    resolved.decode(resolved.encode(case.chunk), out)
    assert out.tobytes() == case.chunk.tobytes()
    assert_guards_untouched(memory)


def test_every_block_decoded_alone_is_the_same(codec, case):
    resolved = codec.resolve(case.geometry)
    stored = resolved.encode(case.chunk)
    spans = resolved.locate_blocks(stored)
    decoder = resolved.block_decoder(spans.header)
    size = decoder.block_nbytes
    assert len(spans.offsets) == len(spans.nbytes) == case.chunk.nbytes // size
    for i, (offset, nbytes) in enumerate(zip(spans.offsets.tolist(), spans.nbytes.tolist(), strict=True)):
        expected = case.chunk.tobytes()[i * size : (i + 1) * size]
        memory, out = guarded(size)
        decoder.decode(stored[offset : offset + nbytes], out)
        assert out.tobytes() == expected
        scratch = np.empty(decoder.prefix_nbytes + nbytes + 7, np.uint8)
        scratch[decoder.prefix_nbytes : decoder.prefix_nbytes + nbytes] = np.frombuffer(
            stored, np.uint8, nbytes, offset
        )
        out.fill(1)
        decoder.bind(scratch, out[np.newaxis])(nbytes, 0)
        assert out.tobytes() == expected
        assert_guards_untouched(memory)


def test_blocks_of_a_codec_with_blocks_are_the_blocks_asked_for(encoder, case):
    decoder = encoder.resolve(case.geometry).block_decoder(b"")
    expected = case.geometry.block_nbytes if encoder.has_blocks else case.geometry.chunk_nbytes
    assert decoder.block_nbytes == expected


def test_encoding_twice_gives_the_same_bytes(encoder, case):
    resolved = encoder.resolve(case.geometry)
    here = resolved.encode(case.chunk)
    elsewhere = []
    thread = threading.Thread(target=lambda: elsewhere.append(resolved.encode(case.chunk)))
    thread.start()
    thread.join()
    assert [here] == elsewhere


def test_encoding_in_another_process_gives_the_same_bytes(encoder, make, tmp_path):
    case = make("mixed")
    resolved = encoder.resolve(case.geometry)
    np.save(tmp_path / "chunk.npy", case.chunk)
    code = (
        "import sys, json, numpy as np; from h5cache.codecs import codec_from_config;"
        "codec = codec_from_config(json.loads(sys.argv[1]));"
        "sys.stdout.buffer.write(codec.encode(np.load(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, json.dumps(resolved.to_config()), str(tmp_path / "chunk.npy")]
    result = subprocess.run(command, capture_output=True, cwd=ROOT, check=True, timeout=60)
    assert result.stdout == resolved.encode(case.chunk)


def test_verified_encoding_returns_what_encode_returns(encoder, case):
    resolved = encoder.resolve(case.geometry)
    stored, spans = encode_verified(resolved, case.chunk)
    assert stored == resolved.encode(case.chunk)
    assert spans.header == resolved.locate_blocks(stored).header


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    items=st.integers(1, 700),
    itemsize=st.sampled_from((1, 2, 4, 8)),
    block_samples=st.integers(1, 5),
    num_blocks=st.integers(1, 4),
    channels_last=st.integers(1, 5),
    levels=st.sampled_from((1, 2, 7, 256)),
    seed=st.integers(0, 2**32 - 1),
)
def test_chunk_of_any_geometry_survives(
    encoder, items, itemsize, block_samples, num_blocks, channels_last, levels, seed
):
    samples = block_samples * num_blocks
    chunk = np.random.default_rng(seed).integers(0, levels, (samples, items * itemsize), dtype=np.uint8)
    geometry = ChunkGeometry(itemsize, items * itemsize, block_samples, samples, channels_last)
    encode_verified(encoder.resolve(geometry), chunk)


def test_coded_blocks_never_have_the_length_of_raw_ones(encoder, case):
    resolved = encoder.resolve(case.geometry)
    spans = resolved.locate_blocks(resolved.encode(case.chunk))
    size = resolved.block_decoder(b"").block_nbytes
    if spans.header:
        assert not (spans.nbytes == size).any()
    elif encoder.has_blocks:
        assert set(spans.nbytes.tolist()) <= {0, size}


def test_header_of_coded_chunks_of_one_field_is_constant(encoder, make):
    case = make("mixed")
    resolved = encoder.resolve(case.geometry)
    chunks = [case.chunk, case.chunk[::-1], np.maximum(case.chunk, 3), case.chunk // 16, case.chunk * 0 + 200]
    headers = {resolved.locate_blocks(resolved.encode(np.ascontiguousarray(c))).header for c in chunks}
    assert len(headers - {b""}) <= 1


def test_block_decoder_made_from_another_chunks_header_decodes(codec, make):
    case = make("mixed")
    resolved = codec.resolve(case.geometry)
    header = resolved.locate_blocks(resolved.encode(case.chunk)).header
    other = np.ascontiguousarray(case.chunk[::-1])
    stored = resolved.encode(other)
    spans = resolved.locate_blocks(stored)
    decoder = pickle.loads(pickle.dumps(resolved.block_decoder(header)))
    out = np.empty(decoder.block_nbytes, np.uint8)
    decoder.decode(stored[spans.offsets[-1] : spans.offsets[-1] + spans.nbytes[-1]], out)
    assert out.tobytes() == other.tobytes()[-decoder.block_nbytes :]


def test_many_threads_decoding_at_once_get_their_own_bytes(codec, make):
    case = make("mixed")
    resolved = codec.resolve(case.geometry)
    chunks = [np.roll(case.chunk, shift) for shift in range(8)]
    stored = [resolved.encode(chunk) for chunk in chunks]

    def decode(i: int) -> bool:
        out = np.empty_like(case.chunk)
        resolved.decode(stored[i % 8], out)
        return np.array_equal(out, chunks[i % 8])

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(decode, range(400)))


def test_decoding_into_a_typed_array_fills_it(codec, make):
    case = make("float32")
    resolved = codec.resolve(case.geometry)
    out = np.empty_like(case.chunk)
    resolved.decode(memoryview(resolved.encode(case.chunk)), out)
    np.testing.assert_array_equal(out, case.chunk)


def test_decoding_into_memory_of_another_size_raises_and_writes_nothing(codec, make):
    case = make("uint8")
    resolved = codec.resolve(case.geometry)
    stored = resolved.encode(case.chunk)
    for nbytes in (0, case.chunk.nbytes - 1, case.chunk.nbytes + 1):
        memory, out = guarded(nbytes)
        with pytest.raises(CodecError, match=str(case.chunk.nbytes)):
            resolved.decode(stored, out)
        assert (memory == 0xA5).all()


def test_decoding_into_unfit_memory_raises(codec, make):
    case = make("uint8")
    resolved = codec.resolve(case.geometry)
    stored = resolved.encode(case.chunk)
    frozen = np.zeros_like(case.chunk)
    frozen.flags.writeable = False
    for out in (frozen, np.zeros_like(case.chunk).transpose(0, 2, 3, 1)):
        with pytest.raises(CodecError, match="writable"):
            resolved.decode(stored, out)


def test_block_that_does_not_fit_its_scratch_raises(codec, make):
    decoder = codec.resolve(make("uint8").geometry).block_decoder(b"")
    out = np.empty(decoder.block_nbytes, np.uint8)
    for stored_nbytes in (-1, 100):
        with pytest.raises(CodecError, match="scratch"):
            decoder.bind(np.empty(decoder.prefix_nbytes + 10, np.uint8), out[np.newaxis])(stored_nbytes, 0)


def test_codec_config_through_json_is_the_same_codec(encoder, make):
    resolved = encoder.resolve(make("uint8").geometry)
    assert codec_from_config(json.loads(json.dumps(resolved.to_config()))) == resolved
    assert pickle.loads(pickle.dumps(resolved)) == resolved
    assert hash(resolved) == hash(codec_from_config(resolved.to_config()))


def test_resolving_twice_changes_nothing(encoder, case):
    resolved = encoder.resolve(case.geometry)
    assert resolved.resolve(case.geometry) == resolved


def test_geometry_of_broken_blocks_raises(encoder, make):
    geometry = make("uint8").geometry
    with pytest.raises(CodecError, match="whole blocks"):
        encoder.resolve(ChunkGeometry(1, geometry.sample_nbytes, 3, 4))


def test_chunk_that_is_not_contiguous_raises(encoder, make):
    case = make("uint8")
    with pytest.raises(CodecError, match="contiguous"):
        encoder.resolve(case.geometry).encode(case.chunk.transpose(0, 2, 3, 1))


def test_codec_by_name_is_the_class_in_the_table():
    for name, cls in CODECS.items():
        assert type(codec_from_name(name)) is cls
        assert cls.name == name


def test_unknown_codec_name_raises_and_says_which_are_known():
    with pytest.raises(CodecError, match="'gzip': known are none, blosc2, blosc, zstd"):
        codec_from_name("gzip")


def test_unknown_codec_option_raises():
    with pytest.raises(CodecError, match="speed"):
        codec_from_config({"name": "zstd", "speed": 3})


@pytest.mark.parametrize(
    "config",
    [
        {"name": "blosc2", "cname": "gzip"},
        {"name": "blosc2", "filter": "delta"},
        {"name": "blosc2", "clevel": 10},
        {"name": "blosc", "cname": "lz4"},
        {"name": "blosc", "shuffle": "yes"},
        {"name": "zstd", "level": 0},
    ],
)
def test_option_value_out_of_range_raises_and_says_what_is_allowed(config):
    with pytest.raises(CodecError, match="expected one of"):
        codec_from_config(config)


def test_verified_encoding_of_a_broken_codec_raises(make, monkeypatch):
    case = make("uint8")
    resolved = codec_from_name("blosc2").resolve(case.geometry)
    wrong = np.ascontiguousarray(case.chunk[::-1])
    stored = resolved.encode(wrong)
    monkeypatch.setattr(type(resolved), "encode", lambda self, chunk: stored)
    with pytest.raises(CodecError, match="first at byte"):
        encode_verified(resolved, case.chunk)


def test_importing_the_codecs_loads_no_compressor():
    code = (
        "import sys, h5cache.codecs;"
        "print([m for m in ('blosc2', 'numcodecs', 'torch', 'h5py', 'hdf5plugin', 'cv2') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, cwd=ROOT, check=True, timeout=60)
    assert result.stdout.strip() == b"[]"
