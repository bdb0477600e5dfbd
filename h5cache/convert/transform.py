"""The user's own preprocessing: how it is called, what it may return, and what tells one version of it from another.

The function gets one sample as a dict, `{"image": ndarray, "label": 3}`, exactly as it would have been stored without
it: pictures are decoded, scaled, cropped and laid out as the picture options say. `PictureOptions(resize=None,
size=None, layout="HWC")` hands over decoded pictures at full size. Per batch it gets a dict of stacked arrays, one row
per sample. Arrays are its own, to write into as it likes.

It returns
- a dict: the fields of the sample (of the batch), whatever their names;
- a tuple or list: values in the order of the fields it was given, or of `fields`;
- an array, tensor or number: it replaces the first field, the others stay.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from h5cache.convert.identity import digest_of, name_of, source_of
from h5cache.convert.sources.naming import check_names, to_value
from h5cache.convert.sources.source import BadSampleError, SourceError

__all__ = ["Transform", "load_transform"]


@dataclass(frozen=True)
class Transform:
    """A function and how it is to be called. Pickles as well as the function does.

    Args:
        function: any callable; see the module for what it gets and returns.
        per: "sample" or "batch".
        fields: names of what it returns as a tuple; None: those it was given.

    >>> double = Transform(lambda sample: sample["x"] * 2)
    >>> double.apply({"x": 3, "label": 1})
    {'x': 6, 'label': 1}
    """

    function: Callable[[dict[str, Any]], Any]
    per: str = "sample"
    fields: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SourceError(f"a transform must be callable, got {type(self.function).__name__}")
        if self.per not in ("sample", "batch"):
            raise SourceError(f"a transform is called per 'sample' or per 'batch', got {self.per!r}")
        object.__setattr__(self, "fields", check_names(self.fields))

    @property
    def name(self) -> str:
        return name_of(self.function)

    def apply(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Call the function with a sample (or batch) and return its fields. BadSampleError where it raises."""
        try:
            result = self.function(dict(values))
        except Exception as exc:  # the user's code: whatever it raises concerns this sample
            raise BadSampleError(f"transform {self.name}: {type(exc).__name__}: {exc}") from exc
        return self._name(result, values)

    def identity(self) -> dict[str, Any]:
        """Return what provenance and fingerprint keep, as JSON values; the digest changes with the code and settings.

        Compute it where the function was defined: a function that travelled to a worker has left its source behind.
        """
        return {
            "name": self.name,
            "per": self.per,
            "fields": None if self.fields is None else list(self.fields),
            "source": source_of(self.function),
            "digest": digest_of(self.function),
        }

    def _name(self, result: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        if result is None:
            raise BadSampleError(f"transform {self.name} returned None; it must return the sample")
        if isinstance(result, Mapping):
            return {str(name): to_value(value) for name, value in result.items()}
        if isinstance(result, tuple | list):
            names = self.fields or tuple(given)
            if len(names) != len(result):
                raise BadSampleError(
                    f"transform {self.name} returned {len(result)} values for the fields {', '.join(names)}; return a "
                    "dict, or name them by fields="
                )
            return dict(zip(names, (to_value(value) for value in result), strict=True))
        first = (self.fields or tuple(given))[0]
        others = {name: value for name, value in list(given.items())[1:] if name != first}
        return {first: to_value(result), **others}


def load_transform(spec: str, per: str = "sample", fields: tuple[str, ...] | None = None) -> Transform:
    """Import `package.module:function` (dots after the colon reach into classes); SourceError says what is wrong."""
    module_name, colon, attribute = spec.partition(":")
    if not colon or not module_name or not attribute:
        raise SourceError(f"a transform is given as package.module:function, got {spec!r}")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as exc:
        missing = exc.name or module_name
        if module_name == missing or module_name.startswith(missing + "."):
            raise SourceError(
                f"transform {spec}: there is no module {missing!r} (looked in the current folder and sys.path)"
            ) from exc
        raise SourceError(f"transform {spec}: its module needs {missing!r}, which is not installed") from exc
    except Exception as exc:  # the module is the user's code and may fail in any way
        raise SourceError(f"transform {spec}: importing its module failed: {type(exc).__name__}: {exc}") from exc
    try:
        function = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as exc:
        raise SourceError(f"transform {spec}: module {module_name} has no {attribute!r}") from exc
    if not callable(function):
        raise SourceError(f"transform {spec}: is a {type(function).__name__}, not a function")
    return Transform(function, per, fields)
