"""What notebooks show: datasets, views, schemas and loaders in HTML, and the grid of pictures."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from h5cache import Field, H5TensorDataset, Schema, Writer
from h5cache.load.picture import as_numbers, display_span, picture_axes, to_display
from h5cache.markup import Bar, Series, bars, columns_chart, escape, histogram_chart, line_chart

CLASSES = ("cat", "dog", "<owl>")
MEAN, STD = np.float32(0.45), np.float32(0.22)


def pictures(count: int, side: int = 80) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    ramp = np.add.outer(np.arange(side), np.arange(side)) + rng.integers(0, 90, (count, 3, 1, 1))
    return ramp.astype(np.uint8)


def write(path: Path, image: np.ndarray[Any, Any]) -> H5TensorDataset:
    labels = (np.arange(len(image)) % 3).astype(np.int64)
    keys = [f"{CLASSES[label]}/{number}.jpg" for number, label in enumerate(labels.tolist())]
    with Writer(path, classes=CLASSES) as writer:
        writer.append(image=image, label=labels, key=keys)
    return H5TensorDataset(path)


@pytest.fixture
def ds(tmp_path: Path) -> H5TensorDataset:
    return write(tmp_path / "train.h5", pictures(60))


class _Balance(HTMLParser):
    """Raises where tags are not closed in order."""

    VOID = frozenset({"img", "meta", "br", "rect", "circle", "line", "path"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "img":
            named = dict(attrs)
            assert named["alt"]
            assert named["src"].startswith("data:image/")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def check_html(text: str) -> None:
    parser = _Balance()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    assert "http" not in text
    assert "<script" not in text


def decoded_pictures(text: str) -> list[np.ndarray[Any, Any]]:
    found = re.findall(r'src="data:image/\w+;base64,([^"]+)"', text)
    return [cv2.imdecode(np.frombuffer(base64.b64decode(one), np.uint8), cv2.IMREAD_COLOR) for one in found]


def test_dataset_shows_fields_sizes_pictures_and_classes(ds: H5TensorDataset) -> None:
    text = ds._repr_html_()
    check_html(text)
    for word in ("train.h5", "60 samples", "3x80x80 CHW", "uint8", "smaller than the tensors", "cat", "3 classes"):
        assert word in text
    assert "<owl>" not in text
    assert "&lt;owl&gt;" in text
    assert len(decoded_pictures(text)) == 10


def test_view_says_that_it_is_one_and_counts_its_own_classes(ds: H5TensorDataset) -> None:
    text = ds.select(np.flatnonzero(ds.targets.numpy() == 1))._repr_html_()
    assert "20 of 60 samples" in text
    assert re.search(r'title="cat">cat</span><span class="h5c-track" aria-hidden="true"></span>', text)


def test_dataset_of_vectors_shows_itself_without_pictures(tmp_path: Path) -> None:
    with Writer(tmp_path / "v.h5") as writer:
        writer.append(x=np.ones((5, 7), np.float32), score=np.arange(5.0))
    ds = H5TensorDataset(tmp_path / "v.h5")
    check_html(ds._repr_html_())
    assert "<img" not in ds._repr_html_()
    with pytest.raises(ValueError, match=r"no field has pictures; the fields are x \[7\], score \[\]"):
        ds.show()


def test_damaged_dataset_still_shows_what_it_is(ds: H5TensorDataset) -> None:
    with open(ds.path, "r+b") as file:
        file.truncate(4000)
    text = H5TensorDataset._repr_html_(ds)
    assert "3x80x80" in text
    assert "cannot be read" in text


def test_schema_shows_a_table() -> None:
    text = Schema.of({"image": Field("uint8", (3, 8, 8)), "label": Field("int64")})._repr_html_()
    check_html(text)
    assert "3x8x8" in text
    assert "192 B" in text


def test_loader_shows_batches_delivery_order_and_the_last_epoch(ds: H5TensorDataset) -> None:
    with ds.loader(16, shuffle=True, normalize="imagenet", memory_format="channels_last", threads=1) as loader:
        before = loader._repr_html_()
        for _ in loader:
            pass
        after = loader._repr_html_()
    check_html(before)
    check_html(after)
    for word in ("60 samples in 4 batches of 16", "full shuffle, seed 0", "torch.float32", "(N, 3, 80, 80)", "(N,)"):
        assert word in before
    assert "last epoch" not in before
    assert "last epoch: 60 samples" in after


def test_show_returns_a_grid_with_labels_in_html_and_as_a_picture(ds: H5TensorDataset, tmp_path: Path) -> None:
    grid = ds.show(7, columns=3)
    check_html(grid._repr_html_())
    assert len(decoded_pictures(grid._repr_html_())) == 7
    assert "repeat(3," in grid._repr_html_()
    for name in ("grid.png", "grid.jpg"):
        grid.save(tmp_path / name)
        saved = cv2.imread(str(tmp_path / name))
        assert saved.shape == grid.to_array().shape
    assert (cv2.imread(str(tmp_path / "grid.png"))[..., ::-1] == grid.to_array()).all()
    grid.save(tmp_path / "grid.html")
    assert (tmp_path / "grid.html").read_text().startswith("<!doctype html>")
    assert not list(tmp_path.glob("*.partial"))
    with pytest.raises(ValueError, match="end it in .png"):
        grid.save(tmp_path / "grid.tiff")


def test_show_is_the_same_for_the_same_seed_and_of_the_view(ds: H5TensorDataset) -> None:
    assert [one.sample for one in ds.show(5, seed=1).tiles] == [one.sample for one in ds.preview(5, seed=1).tiles]
    assert [one.sample for one in ds.show(4, seed=None).tiles] == [0, 1, 2, 3]
    view = ds.select([50, 7])
    assert [(one.sample, one.caption) for one in view.show(9).tiles] == [(50, "<owl>"), (7, "dog")]
    assert "dog/7.jpg" in view.show(9).tiles[1].alt


@pytest.mark.parametrize("n, columns", [(0, None), (4, 0)])
def test_show_refuses_empty_grids(ds: H5TensorDataset, n: int, columns: int | None) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ds.show(n, columns)


def test_pictures_come_out_in_their_own_colours(tmp_path: Path) -> None:
    red = np.zeros((4, 3, 16, 16), np.uint8)
    red[:, 0] = 200
    shown = decoded_pictures(write(tmp_path / "red.h5", red).show(1)._repr_html_())[0]
    assert tuple(shown[8, 8]) == (0, 0, 200)  # OpenCV reads BGR


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["CHW", "HWC"])
def test_normalised_floats_look_like_the_picture_they_were(dtype: str, layout: str) -> None:
    pixels = np.random.default_rng(0).permutation(np.arange(4 * 3 * 32 * 32) % 256)
    pixels = pixels.reshape(4, 3, 32, 32).astype(np.uint8)
    floats = ((pixels / np.float32(255) - MEAN) / STD).astype(dtype)
    rows = floats if layout == "CHW" else np.ascontiguousarray(floats.transpose(0, 2, 3, 1))
    shown = np.stack(to_display(rows, Field(dtype, rows.shape[1:])))
    expected = pixels.transpose(0, 2, 3, 1).astype(int)
    assert np.abs(shown - expected).max() <= 2


def test_floats_from_zero_to_one_are_scaled_as_they_are() -> None:
    rows = np.full((1, 3, 8, 8), 0.5, np.float32)
    assert to_display(rows, Field("float32", (3, 8, 8)))[0][0, 0].tolist() == [128, 128, 128]


def test_nan_infinity_and_constants_do_not_spoil_the_grid() -> None:
    rows = np.random.default_rng(0).normal(size=(2, 3, 16, 16)).astype(np.float32)
    rows[0, 0, 0, 0], rows[0, 1, 1, 1], rows[1] = np.nan, np.inf, 7
    field = Field("float32", (3, 16, 16))
    shown = to_display(rows, field)
    assert shown[0].std() > 10
    assert shown[0][0, 0, 0] == 0
    nothing = np.full((1, 3, 16, 16), np.nan, np.float32)
    assert to_display(nothing, field)[0].max() == 0
    assert np.isfinite(display_span(nothing, field)).all()


def test_masks_depth_and_bfloat16_can_be_looked_at() -> None:
    mask = np.zeros((1, 16, 16), bool)
    mask[0, :8] = True
    assert sorted(np.unique(to_display(mask, Field("bool", (16, 16)))[0])) == [0, 255]
    depth = np.linspace(900, 4000, 256).astype(np.uint16).reshape(1, 16, 16)
    shown = to_display(depth, Field("uint16", (16, 16)))[0]
    assert (shown.min(), shown.max()) == (0, 255)
    bits = (np.array([1.5, -2.0], np.float32).view(np.uint32) >> 16).astype(np.uint16)
    assert as_numbers(bits, Field("bfloat16", (2,))).tolist() == [1.5, -2.0]


@pytest.mark.parametrize(
    "shape, axes",
    [((3, 8, 8), "CHW"), ((8, 8, 3), "HWC"), ((28, 28), "HW"), ((4, 600), None), ((7,), None), ((), None)],
)
def test_picture_axes(shape: tuple[int, ...], axes: str | None) -> None:
    assert picture_axes(Field("uint8", shape)) == axes


def test_charts_are_drawn_and_say_what_they_show() -> None:
    one = Series("a <b>", [1.0, 0.5, 0.0])
    for chart in (
        histogram_chart([one], [(0, "0"), (1, "9")], "label <x>"),
        line_chart(["p", "q", "r"], [one, Series("c", [0.2, 0.3, 1.4], "s1")], "label <x>"),
        columns_chart(["p", "q", "r"], [one], [["1", "½", "0"]], "label <x>"),
    ):
        check_html(chart)
        assert 'role="img" aria-label="label &lt;x&gt;"' in chart
        assert "nan" not in chart
    assert "width:50.00%" in bars([Bar("x", 2, "2"), Bar("y", 1, "1")])
    check_html(bars([Bar("nothing", 0, "0")]))


def test_histogram_cuts_a_spike_and_marks_it() -> None:
    chart = histogram_chart([Series("x", [1000.0, *[3.0] * 60])], [], "x")
    assert "↑" in chart
    assert "↑" not in histogram_chart([Series("x", [1000.0, *[3.0] * 60])], [], "x", cut_spikes=False)


def test_empty_charts_are_empty() -> None:
    assert histogram_chart([], [], "x") == line_chart([], [], "x") == columns_chart([], [], [], "x") == ""


def test_control_characters_are_spelt_out() -> None:
    assert escape("a\x1b[2J'\"") == "a\\x1b[2J&#x27;&quot;"
