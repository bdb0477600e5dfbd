"""Pictures against the same OpenCV calls written by hand, and files that are not as they should be."""

from __future__ import annotations

import json
import pickle
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest

from h5cache.convert.pictures import PictureOptions, decode_picture, opencv_in_worker, parse_normalize
from h5cache.convert.sources import BadSampleError
from h5cache.errors import SchemaError

RAW = PictureOptions(resize=None, size=None, layout="HWC")


def photo(height: int, width: int, seed: int = 0) -> np.ndarray:
    """A smooth BGR picture with some detail."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (max(2, height // 16), max(2, width // 16), 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)


def encode(picture: np.ndarray, suffix: str = ".jpg", *options: int) -> bytes:
    return cv2.imencode(suffix, picture, list(options))[1].tobytes()


def with_exif(jpeg: bytes, orientation: int) -> bytes:
    tiff = b"II*\0" + struct.pack("<IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)
    body = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_claiming(width: int, height: int, pixels: bytes = b"") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = png_chunk(b"IDAT", zlib.compress(pixels, 9))
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + body + png_chunk(b"IEND", b"")


def by_hand(path: Path, resize: int = 256, size: int = 224) -> np.ndarray:
    """The pipeline of the issue, word for word."""
    picture = cv2.imread(str(path))
    height, width = picture.shape[:2]
    short = min(height, width)
    if short != resize:
        target = (round(width * resize / short), round(height * resize / short))
        how = cv2.INTER_AREA if resize < short else cv2.INTER_CUBIC
        picture = cv2.resize(picture, target, interpolation=how)
    height, width = picture.shape[:2]
    top, left = (height - size) // 2, (width - size) // 2
    crop = picture[top : top + size, left : left + size]
    return np.ascontiguousarray(crop[..., ::-1].transpose(2, 0, 1))


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".bmp", ".webp", ".tiff"])
@pytest.mark.parametrize(
    "shape",
    [(375, 500), (500, 375), (256, 256), (256, 301), (257, 257), (100, 130), (1, 1), (1, 40), (3, 700), (2000, 260)],
)
def test_default_options_give_the_pixels_of_the_pipeline_by_hand(tmp_path, shape, suffix):
    path = tmp_path / f"picture{suffix}"
    path.write_bytes(encode(photo(*shape), suffix))
    found = decode_picture(path, PictureOptions())
    assert found.dtype == np.uint8
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, by_hand(path))


@pytest.mark.parametrize("shape", [(97, 61), (64, 64), (40, 50), (33, 200)])
@pytest.mark.parametrize(("resize", "size"), [(64, 56), (64, 64), (40, 1), (41, 30)])
def test_other_sizes_give_the_pixels_of_the_pipeline_by_hand(tmp_path, shape, resize, size):
    path = tmp_path / "picture.png"
    path.write_bytes(encode(photo(*shape), ".png"))
    found = decode_picture(path, PictureOptions(resize=resize, size=size))
    np.testing.assert_array_equal(found, by_hand(path, resize, size))


def test_bytes_and_path_give_the_same_picture(tmp_path):
    path = tmp_path / "picture.jpg"
    path.write_bytes(encode(photo(300, 280)))
    np.testing.assert_array_equal(
        decode_picture(path, PictureOptions()), decode_picture(path.read_bytes(), PictureOptions())
    )


@pytest.mark.parametrize("color", ["rgb", "gray"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_honoured(orientation, color):
    upright = photo(48, 80)
    jpeg = encode(upright, ".jpg", cv2.IMWRITE_JPEG_QUALITY, 100)
    options = PictureOptions(resize=None, size=None, layout="HWC", color=color)
    plain = decode_picture(jpeg, options)
    turns = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a.transpose(1, 0, 2)[:, ::-1],
        7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
        8: lambda a: a.transpose(1, 0, 2)[::-1],
    }
    np.testing.assert_array_equal(decode_picture(with_exif(jpeg, orientation), options), turns[orientation](plain))


def test_layout_hwc_is_chw_transposed():
    data = encode(photo(300, 400))
    chw = decode_picture(data, PictureOptions())
    hwc = decode_picture(data, PictureOptions(layout="HWC"))
    assert hwc.flags.c_contiguous
    np.testing.assert_array_equal(hwc.transpose(2, 0, 1), chw)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_gray_is_imread_grayscale_with_one_channel(tmp_path, layout):
    path = tmp_path / "picture.jpg"
    path.write_bytes(encode(photo(256, 256)))
    found = decode_picture(path, PictureOptions(color="gray", layout=layout))
    expected = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)[16:240, 16:240]
    assert found.shape == ((1, 224, 224) if layout == "CHW" else (224, 224, 1))
    np.testing.assert_array_equal(found.reshape(224, 224), expected)


def test_greyscale_file_becomes_three_equal_channels():
    gray = photo(20, 30)[..., 0]
    found = decode_picture(encode(gray, ".png"), RAW)
    np.testing.assert_array_equal(found, np.stack([gray] * 3, axis=-1))


@pytest.mark.parametrize("suffix", [".png", ".tiff", ".webp"])
def test_transparency_is_dropped_not_blended(suffix):
    rgba = np.random.default_rng(0).integers(0, 256, (12, 9, 4), dtype=np.uint8)
    options = [cv2.IMWRITE_WEBP_QUALITY, 101] if suffix == ".webp" else []
    if suffix == ".webp":
        rgba[..., 3] = np.maximum(rgba[..., 3], 1)  # the encoder forgets colours that nobody can see
    np.testing.assert_array_equal(decode_picture(encode(rgba, suffix, *options), RAW), rgba[..., 2::-1])


def test_16_bit_png_keeps_the_high_byte():
    deep = np.random.default_rng(0).integers(0, 65536, (12, 9, 3), dtype=np.uint16)
    found = decode_picture(encode(deep, ".png"), RAW)
    np.testing.assert_array_equal(found, (deep >> 8).astype(np.uint8)[..., ::-1])


def test_16_bit_colour_tiff_is_rounded():
    deep = np.random.default_rng(0).integers(0, 65536, (12, 9, 3), dtype=np.uint16)
    found = decode_picture(encode(deep, ".tiff"), RAW).astype(float)
    assert np.abs(found - deep[..., ::-1] / 257).max() < 0.51


def test_float_tiff_is_a_bad_sample():
    with opencv_in_worker(), pytest.raises(BadSampleError):
        decode_picture(encode(np.zeros((4, 4, 3), np.float32), ".tiff"), RAW)


def cmyk_jpeg() -> bytes:
    """A baseline JPEG of four components, 8 x 8, with an Adobe marker (inverted CMYK), all coefficients zero.

    Zero coefficients are 128 in every component: C = M = Y = K = 127 of ink, so a dark grey.
    """
    tables = b"\xff\xdb" + struct.pack(">HB", 67, 0) + bytes([1] * 64)
    adobe = b"\xff\xee" + struct.pack(">H", 14) + b"Adobe" + struct.pack(">HHHB", 100, 0, 0, 0)
    parts = b"".join(struct.pack("BBB", number, 0x11, 0) for number in (1, 2, 3, 4))
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 8 + 12, 8, 8, 8, 4) + parts
    # One code each: DC size 0 is "0", AC end-of-block is "0"; 4 blocks are 8 zero bits.
    huffman = b"".join(
        b"\xff\xc4" + struct.pack(">HB", 20, kind) + bytes([1] + [0] * 15) + b"\0" for kind in (0x00, 0x10)
    )
    scan_parts = b"".join(bytes([number, 0]) for number in (1, 2, 3, 4))
    scan = b"\xff\xda" + struct.pack(">HB", 6 + 8, 4) + scan_parts + b"\0\x3f\0"
    return b"\xff\xd8" + adobe + tables + frame + huffman + scan + b"\0" + b"\xff\xd9"


def test_cmyk_jpeg_becomes_rgb():
    found = decode_picture(cmyk_jpeg(), RAW)
    assert found.shape == (8, 8, 3)
    # Inverted CMYK of 128: (128 / 255) of light through the colour, the same again through black.
    assert np.abs(found.astype(int) - 64).max() <= 2


@pytest.mark.parametrize("shape", [(300, 400), (50, 90), (90, 50), (1, 500), (224, 224)])
def test_fit_pad_scales_the_long_side_and_centres_on_black(shape):
    data = encode(photo(*shape) | 1, ".png")
    found = decode_picture(data, PictureOptions(fit="pad", layout="HWC"))
    assert found.shape == (224, 224, 3)
    height, width = (max(1, round(side * 224 / max(shape))) for side in shape)
    top, left = (224 - height) // 2, (224 - width) // 2
    inside = found[top : top + height, left : left + width]
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    if (height, width) != shape:
        how = cv2.INTER_AREA if max(shape) > 224 else cv2.INTER_CUBIC
        picture = cv2.resize(picture, (width, height), interpolation=how)
    np.testing.assert_array_equal(inside, picture[..., ::-1])
    assert int(found.astype(np.int64).sum()) == int(inside.astype(np.int64).sum())


@pytest.mark.parametrize("shape", [(300, 400), (50, 90)])
def test_fit_stretch_scales_both_sides(shape):
    picture = photo(*shape)
    how = cv2.INTER_AREA if shape[0] > 224 else cv2.INTER_CUBIC
    expected = cv2.resize(picture, (224, 224), interpolation=how)[..., ::-1]
    found = decode_picture(encode(picture, ".png"), PictureOptions(fit="stretch", layout="HWC"))
    np.testing.assert_array_equal(found, expected)


def test_fit_stretch_shrinks_one_side_and_enlarges_the_other():
    picture = photo(100, 500)
    shrunk = cv2.resize(picture, (224, 100), interpolation=cv2.INTER_AREA)
    expected = cv2.resize(shrunk, (224, 224), interpolation=cv2.INTER_CUBIC)[..., ::-1]
    found = decode_picture(encode(picture, ".png"), PictureOptions(fit="stretch", layout="HWC"))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("normalize", [None, "imagenet", (0.5, 0.25), ((0.1, 0.2, 0.3), (0.9, 0.8, 0.7))])
def test_floats_equal_torchs_to_tensor_and_normalize_bit_for_bit(layout, normalize):
    torch = pytest.importorskip("torch")
    data = encode(photo(300, 300))
    plain = torch.from_numpy(decode_picture(data, PictureOptions()))
    expected = plain.to(torch.float32).div(255)
    if normalize is not None:
        options = PictureOptions(dtype="float32", normalize=normalize)
        mean, std = (torch.tensor(part, dtype=torch.float32)[:, None, None] for part in options.normalize)
        expected = expected.sub_(mean).div_(std)
    for dtype, wanted in (("float32", expected), ("float16", expected.to(torch.float16))):
        found = decode_picture(data, PictureOptions(dtype=dtype, normalize=normalize, layout=layout))
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found if layout == "CHW" else found.transpose(2, 0, 1), wanted.numpy())


@pytest.mark.parametrize(
    "options",
    [
        PictureOptions(),
        PictureOptions(64, 32, "pad", "HWC", "gray"),
        PictureOptions(dtype="float16", normalize="imagenet", fit="stretch"),
    ],
)
def test_field_describes_the_decoded_picture(options):
    picture = decode_picture(encode(photo(300, 310)), options)
    field = options.field()
    assert (field.dtype, field.shape, field.layout) == (picture.dtype.name, picture.shape, options.layout)
    again = PictureOptions.from_config(json.loads(json.dumps(options.to_config())))
    assert (again.to_config(), again.field()) == (options.to_config(), field)
    assert again == options
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    "wrong",
    [
        {"resize": 200},
        {"resize": 0},
        {"size": -1},
        {"size": 2.5},
        {"size": True},
        {"size": 100_000, "fit": "pad"},
        {"fit": "zoom"},
        {"layout": "NCHW"},
        {"color": "bgr"},
        {"dtype": "float64"},
        {"fit": "pad", "size": None},
        {"normalize": "imagenet"},
        {"normalize": "imagenet", "dtype": "float32", "color": "gray"},
        {"normalize": (0.5, 0.0), "dtype": "float32"},
        {"normalize": (float("nan"), 1.0), "dtype": "float32"},
        {"normalize": "coco", "dtype": "float32"},
        {"normalize": ((1, 2), (1, 2)), "dtype": "float32"},
        {"normalize": 3, "dtype": "float32"},
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(SchemaError):
        PictureOptions(**wrong)


def test_pictures_without_a_size_have_no_field():
    with pytest.raises(SchemaError, match="one shape"):
        RAW.field()


def test_resize_smaller_than_size_is_fine_where_nothing_is_cropped():
    assert PictureOptions(resize=100, fit="pad").field().shape == (3, 224, 224)


def test_normalize_is_read_from_text():
    assert parse_normalize("imagenet") == "imagenet"
    assert parse_normalize("0.5,0.25") == ((0.5,), (0.25,))
    assert parse_normalize("1,2,3,4,5,6") == ((1, 2, 3), (4, 5, 6))
    for wrong in ("", "a,b", "1", "1,2,3"):
        with pytest.raises(SchemaError):
            parse_normalize(wrong)


def thumbnail_jpeg() -> bytes:
    """A JPEG whose header holds a whole smaller JPEG, end marker included."""
    jpeg, small = encode(photo(200, 200)), encode(photo(16, 16))
    body = b"Exif\0\0" + small
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


@pytest.mark.parametrize("kept", [0.05, 0.3, 0.7, 0.99, -2, -1])
@pytest.mark.parametrize("kind", [".jpg", "progressive", "thumbnail", ".png", ".bmp", ".webp", ".tiff"])
def test_truncated_file_is_a_bad_sample(kind, kept):
    if kind == "thumbnail":
        data = thumbnail_jpeg()
    elif kind == "progressive":
        data = encode(photo(200, 200), ".jpg", cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    else:
        data = encode(photo(200, 200), kind)
    with opencv_in_worker():
        decode_picture(data, RAW)
        cut = data[:kept] if kept < 0 else data[: int(len(data) * kept)]
        with pytest.raises(BadSampleError):
            decode_picture(cut, RAW)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_trailing_garbage_is_tolerated(suffix):
    data = encode(photo(60, 60), suffix)
    np.testing.assert_array_equal(decode_picture(data + b"\0garbage" * 999, RAW), decode_picture(data, RAW))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        b"hello, world\n" * 50,
        b"\xff\xd8",
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xd9",
        b"\x89PNG\r\n\x1a\n",
        b"BM",
        b"RIFF",
        b"\xff\xd8\xff\xe0\x00\x00" * 100,
        b"\xff\xd8" + b"\xff" * 1_000_000,
        png_claiming(0, 0),
    ],
)
def test_file_that_is_no_picture_is_a_bad_sample(data):
    with opencv_in_worker(), pytest.raises(BadSampleError):
        decode_picture(data, RAW)


def test_missing_file_and_folder_are_bad_samples(tmp_path):
    for path in (tmp_path / "none.jpg", tmp_path):
        with pytest.raises(BadSampleError):
            decode_picture(path, RAW)


def test_picture_smaller_than_its_crop_is_a_bad_sample():
    with pytest.raises(BadSampleError, match="smaller than the crop"):
        decode_picture(encode(photo(20, 300)), PictureOptions(resize=None, size=224))


@pytest.mark.parametrize("side", [17_000, 30_000, 100_000, 2**31 - 1])
def test_header_claiming_a_monstrous_size_is_refused_before_memory_is_asked_for(side):
    with pytest.raises(BadSampleError, match="claims"):
        decode_picture(png_claiming(side, side), RAW)


def test_jpeg_header_claiming_a_monstrous_size_is_refused():
    data = bytearray(encode(photo(64, 64)))
    place = data.index(b"\xff\xc0")
    data[place + 5 : place + 9] = struct.pack(">HH", 65_000, 65_000)
    with pytest.raises(BadSampleError, match="claims"):
        decode_picture(bytes(data), RAW)


def test_line_of_pixels_blown_up_beyond_memory_is_a_bad_sample():
    line = png_claiming(2_000_000, 1, b"\0" * 6_000_001)
    with opencv_in_worker(), pytest.raises(BadSampleError):
        decode_picture(line, PictureOptions())


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_hostile_files_cost_no_memory():
    code = (
        "import resource, sys; sys.path.insert(0, 'tests/convert')\n"
        "from test_pictures import *\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "for data in (png_claiming(100_000, 100_000), png_claiming(17_000, 17_000)):\n"
        "    try: decode_picture(data, RAW)\n"
        "    except BadSampleError: pass\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    root = Path(__file__).resolve().parents[2]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True, timeout=60)
    assert int(run.stdout) < 50_000


def test_opencv_in_worker_restores_threads_and_log_level():
    before = cv2.getNumThreads(), cv2.utils.logging.getLogLevel()
    with opencv_in_worker():
        assert cv2.getNumThreads() <= 1
        assert cv2.utils.logging.getLogLevel() == cv2.utils.logging.LOG_LEVEL_SILENT
    assert (cv2.getNumThreads(), cv2.utils.logging.getLogLevel()) == before
