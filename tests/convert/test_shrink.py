"""A picture that is cut before it is scaled gives, to the pixel, what scaling it whole and cutting gives."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from h5cache.convert import pictures, shrink
from h5cache.convert.pictures import PictureOptions, decode_picture
from h5cache.convert.shrink import crops_exactly, shrink_centre

# Noise, with lines that a weight too much or too little would show in.
NOISE = np.random.default_rng(0).integers(0, 256, (1100, 1100, 3), dtype=np.uint8)
NOISE[::7], NOISE[:, ::5] = 255, 0


def by_hand(picture: np.ndarray, target: tuple[int, int], size: int) -> np.ndarray:
    scaled = cv2.resize(picture, target[::-1], interpolation=cv2.INTER_AREA)
    top, left = (target[0] - size) // 2, (target[1] - size) // 2
    return scaled[top : top + size, left : left + size]


@settings(max_examples=150, deadline=None)
@given(
    short=st.integers(2, 700),
    longer=st.integers(0, 400),
    resize=st.sampled_from([256, 256, 224, 232, 128, 96, 37, 1]),
    size=st.integers(1, 256),
    lies=st.booleans(),
    gray=st.booleans(),
)
@example(short=400, longer=133, resize=256, size=224, lies=True, gray=False)
@example(short=512, longer=0, resize=256, size=224, lies=False, gray=False)  # OpenCV's way for halves
@example(short=257, longer=1, resize=256, size=256, lies=False, gray=True)
def test_any_geometry_gives_the_pixels_of_the_whole(
    short: int, longer: int, resize: int, size: int, lies: bool, gray: bool
) -> None:
    height, width = (short, short + longer) if lies else (short + longer, short)
    target = round(height * resize / short), round(width * resize / short)
    assume(resize >= size and target[0] < height and target[1] < width)
    picture = np.ascontiguousarray(NOISE[:height, :width, 0] if gray else NOISE[:height, :width])
    assert np.array_equal(shrink_centre(picture, target, size), by_hand(picture, target, size))


def test_less_is_scaled_than_the_whole() -> None:
    rows, columns = shrink._plan_side(533, 341, 224), shrink._plan_side(400, 256, 224)
    assert rows.stop < 533
    assert (columns.start, columns.skip) == (25, 0)
    assert columns.stop < 400


def test_an_opencv_that_computes_otherwise_gets_whole_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    true_resize = cv2.resize

    def other_resize(source: np.ndarray, dsize: object, **options: object) -> np.ndarray:
        scaled = true_resize(source, dsize, **options)
        return scaled if dsize is not None else scaled ^ 1

    data = cv2.imencode(".png", NOISE[:533, :400])[1].tobytes()
    expected = decode_picture(data, PictureOptions())
    monkeypatch.setattr(cv2, "resize", other_resize)
    crops_exactly.cache_clear()
    try:
        assert not crops_exactly()
        assert np.array_equal(decode_picture(data, PictureOptions()), expected)
    finally:
        crops_exactly.cache_clear()
    assert pictures.crops_exactly is crops_exactly
