"""How transforms are called, what they may return, and that their identity follows their code and nothing else."""

from __future__ import annotations

import functools
import importlib
import json
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from h5cache.convert.identity import digest_of
from h5cache.convert.sources import BadSampleError, SourceError
from h5cache.convert.transform import Transform, load_transform

SAMPLE = {"image": np.zeros((3, 4, 4), np.uint8), "label": 2}


def brighten(sample: dict[str, Any]) -> dict[str, Any]:
    return {"image": sample["image"] + 1, "label": sample["label"]}


class Scale:
    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, sample: dict[str, Any]) -> Any:
        return sample["image"] * self.by


def by_argument(sample: dict[str, Any], amount: int) -> Any:
    return sample["image"] + amount


def adder(amount: Any) -> Any:
    def add(sample: dict[str, Any]) -> Any:
        return sample["image"] + amount

    return add


def test_dict_result_is_the_sample():
    found = Transform(lambda sample: {"x": 1, "y": sample["label"]}).apply(SAMPLE)
    assert found == {"x": 1, "y": 2}


def test_tuple_result_is_in_the_order_of_the_fields():
    found = Transform(lambda sample: (sample["image"] + 1, 7)).apply(SAMPLE)
    assert list(found) == ["image", "label"]
    assert found["label"] == 7


def test_tuple_result_may_be_named():
    found = Transform(lambda sample: (1, 2, 3), fields=("a", "b", "c")).apply(SAMPLE)
    assert found == {"a": 1, "b": 2, "c": 3}


def test_single_result_replaces_the_first_field():
    found = Transform(lambda sample: sample["image"].astype(np.float32)).apply(SAMPLE)
    assert found["image"].dtype == np.float32
    assert found["label"] == 2


def test_batch_transform_gets_stacked_arrays():
    batch = {"image": np.zeros((5, 3, 4, 4), np.uint8), "label": np.arange(5)}
    found = Transform(lambda batch: batch["image"].mean(axis=(1, 2, 3)), per="batch").apply(batch)
    assert found["image"].shape == (5,)
    assert found["label"].shape == (5,)


def test_transform_cannot_change_the_mapping_it_was_given():
    def drop(sample: dict[str, Any]) -> Any:
        del sample["label"]
        return sample

    given = dict(SAMPLE)
    assert list(Transform(drop).apply(given)) == ["image"]
    assert list(given) == ["image", "label"]


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda sample: 1 / 0, "ZeroDivisionError"),
        (lambda sample: None, "returned None"),
        (lambda sample: (1, 2, 3), "3 values"),
    ],
)
def test_failing_transform_is_a_bad_sample_with_its_reason(function, problem):
    with pytest.raises(BadSampleError, match=problem):
        Transform(function).apply(SAMPLE)


@pytest.mark.parametrize("wrong", [{"function": 3}, {"function": len, "per": "epoch"}])
def test_wrong_transforms_are_refused(wrong):
    with pytest.raises(SourceError):
        Transform(**wrong)


def test_transform_pickles():
    again = pickle.loads(pickle.dumps(Transform(brighten)))
    assert again.apply(SAMPLE)["image"].max() == 1


def test_transform_of_a_cell_function_survives_cloudpickle():
    cloudpickle = pytest.importorskip("cloudpickle")
    again = pickle.loads(cloudpickle.dumps(Transform(adder(3))))
    assert again.apply(SAMPLE)["image"].max() == 3


def write_module(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(textwrap.dedent(text))
    return name


@pytest.fixture
def modules(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("h5cache_test_module")]:
        del sys.modules[name]


def test_transform_is_loaded_by_name(modules):
    write_module(
        modules,
        "h5cache_test_module_a",
        """
        def fine(sample):
            return sample

        class Space:
            @staticmethod
            def inner(sample):
                return sample

        number = 3
        """,
    )
    assert load_transform("h5cache_test_module_a:fine").name == "h5cache_test_module_a:fine"
    assert load_transform("h5cache_test_module_a:Space.inner", per="batch").per == "batch"
    for spec, problem in [
        ("h5cache_test_module_a", "package.module:function"),
        (":fine", "package.module:function"),
        ("h5cache_test_module_a:", "package.module:function"),
        ("h5cache_test_module_a:none", "has no 'none'"),
        ("h5cache_test_module_a:number", "not a function"),
        ("h5cache_test_module_none:fine", "no module"),
        ("h5cache_test_module_none.deep:fine", "no module"),
    ]:
        with pytest.raises(SourceError, match=problem) as caught:
            load_transform(spec)
        assert len(str(caught.value).splitlines()) == 1


def test_module_that_fails_to_import_says_why(modules):
    write_module(modules, "h5cache_test_module_b", "import h5cache_no_such_library\n")
    write_module(modules, "h5cache_test_module_c", "1 / 0\n")
    write_module(modules, "h5cache_test_module_d", "def broken(:\n")
    for name, problem in [("b", "needs 'h5cache_no_such_library'"), ("c", "ZeroDivisionError"), ("d", "SyntaxError")]:
        with pytest.raises(SourceError, match=problem):
            load_transform(f"h5cache_test_module_{name}:f")


def test_identity_is_json_with_name_and_source():
    identity = Transform(brighten).identity()
    assert json.loads(json.dumps(identity)) == identity
    assert identity["name"].endswith(":brighten")
    assert identity["source"].startswith("def brighten")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (brighten, by_argument),
        (adder(1), adder(2)),
        (adder(1), adder(1.0)),
        (adder(True), adder(1)),
        (adder(np.arange(3)), adder(np.arange(4))),
        (adder(np.zeros(3, np.float32)), adder(np.zeros(3, np.float64))),
        (adder({"a": [1, 2]}), adder({"a": [1, 3]})),
        (adder({1, 2}), adder({1, 3})),
        (functools.partial(by_argument, amount=1), functools.partial(by_argument, amount=2)),
        (functools.partial(by_argument, amount=1), by_argument),
        (Scale(1.0), Scale(2.0)),
        (Scale(1.0).__call__, Scale(2.0).__call__),
        (lambda sample: 1, lambda sample: 2),
        (lambda sample, k=1: k, lambda sample, k=2: k),
        (lambda sample: [x + 1 for x in (1, 2)], lambda sample: [x + 2 for x in (1, 2)]),
        (lambda sample: np.sin(1), lambda sample: np.cos(1)),
        (np.sin, np.cos),
    ],
)
def test_identity_tells_functions_and_settings_apart(left, right):
    assert Transform(left).identity()["digest"] != Transform(right).identity()["digest"]


def test_identity_of_equal_functions_and_settings_is_equal():
    pairs = [
        (adder(1), adder(1)),
        (Scale(2.0), Scale(2.0)),
        (functools.partial(by_argument, amount=1), functools.partial(by_argument, amount=1)),
        (adder(np.arange(3)), adder(np.arange(3))),
        (adder(adder(Scale(3))), adder(adder(Scale(3)))),
    ]
    for left, right in pairs:
        assert Transform(left).identity() == Transform(right).identity()


def test_identity_of_tensors_and_modules_follows_their_values():
    torch = pytest.importorskip("torch")
    one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    two.load_state_dict(one.state_dict())
    assert digest_of(adder(one)) == digest_of(adder(two))
    with torch.no_grad():
        two.weight += 1
    assert digest_of(adder(one)) != digest_of(adder(two))
    assert digest_of(adder(torch.zeros(2))) != digest_of(adder(torch.ones(2)))


def test_object_that_holds_itself_or_cannot_be_described_has_an_identity():
    import threading

    circle: list[Any] = [1]
    circle.append(circle)
    assert digest_of(adder(circle)) == digest_of(adder(circle))
    assert digest_of(adder(threading.Lock())) == digest_of(adder(threading.Lock()))


MODULE = """
import numpy as np
LEVELS = {levels}

def helper(x):
    return x + {helper}

class Thing:
    def __init__(self):
        self.names = {{"a", "b", "c", "d"}}
    def __call__(self, sample):
        return helper(sample["image"])

def function(sample):
    return helper(sample["image"]) + LEVELS[0]

small = lambda sample: sample["image"] in {{"x", "y", "z", {levels}[0]}}
thing = Thing()
"""


def identities(folder: Path, levels: str = "[1, 2]", helper: str = "1", seed: str = "0") -> dict[str, str]:
    """Digests of the module's transforms, taken in a fresh process."""
    write_module(folder, "h5cache_test_module_e", MODULE.format(levels=levels, helper=helper))
    code = (
        "import json, h5cache_test_module_e as m\n"
        "from h5cache.convert.identity import digest_of\n"
        "print(json.dumps({n: digest_of(getattr(m, n)) for n in ('function', 'small', 'thing')}))"
    )
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join([str(folder), root])}
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(run.stdout)
    return found


def test_identity_is_the_same_in_every_process_and_place(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert identities(tmp_path / "a", seed="1") == identities(tmp_path / "b", seed="2")


def test_identity_changes_with_a_constant_and_with_a_helper(tmp_path):
    before = identities(tmp_path)
    other_constant = identities(tmp_path, levels="[3, 2]")
    assert other_constant["function"] != before["function"]
    assert other_constant["small"] != before["small"]
    other_helper = identities(tmp_path, helper="2")
    assert other_helper["function"] != before["function"]
    assert other_helper["thing"] != before["thing"]


def test_identity_of_a_function_without_source_follows_its_bytecode():
    def typed(text: str) -> Any:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(text, names)
        return names["f"]

    one = digest_of(typed("def f(sample):\n    return sample['x'] + 1"))
    moved = digest_of(typed("\n\n\ndef f(sample):\n    return sample['x'] + 1"))
    two = digest_of(typed("def f(sample):\n    return sample['x'] + 2"))
    assert one == moved
    assert one != two
    assert importlib.import_module("h5cache.convert.identity").source_of(typed("f = lambda s: s")) is None
