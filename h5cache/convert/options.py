"""The options of a conversion as one checked value: those that decide over the result, and those that do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from h5cache.codecs import CODECS, Codec
from h5cache.convert.plan import CodecChoice, parse_size
from h5cache.deal import check_split
from h5cache.errors import SchemaError
from h5cache.format.parts import is_file_output

__all__ = ["DEFAULT", "ON_ERROR", "ConvertOptions", "Default"]

ON_ERROR = ("report", "skip")


class Default(Enum):
    """Stands for an option that was left out.

    One that was given, even as it is by default, is refused where it would have no effect.
    """

    DEFAULT = "default"

    def __repr__(self) -> str:
        return self.value


DEFAULT: Final = Default.DEFAULT


@dataclass(frozen=True)
class ConvertOptions:
    """How a source becomes a dataset, beside what its samples are.

    Where the defaults come from: shuffled, because class folders are sorted and chunk shuffle would be worthless;
    `report`, because a dataset that silently lacks samples is worse than none.
    """

    codec: CodecChoice = "auto"
    seed: int = 0
    shuffle: bool = True
    split: Mapping[str, float] | None = None
    #: Folders: samples of a shard, or its bytes ("512MB"); None: 512 MB, less where there would be few shards.
    shard_size: int | str | None = None
    #: Files: samples of a part; None: about 1,024.
    part_samples: int | None = None
    on_error: str = "report"
    overwrite: bool = False
    #: Go on although the disk seems too small.
    force: bool = False
    #: True, False, or None: on terminals and in notebooks.
    progress: bool | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ON_ERROR:
            raise SchemaError(f"on_error must be one of {', '.join(ON_ERROR)}, got {self.on_error!r}")
        if not isinstance(self.seed, int) or self.seed < 0:
            raise SchemaError(f"the seed must be a whole number from 0 on, got {self.seed!r}")
        if self.split is not None:
            object.__setattr__(self, "split", check_split(self.split))
        if isinstance(self.shard_size, str):
            parse_size(self.shard_size)
        for name in ("shard_size", "part_samples"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                raise SchemaError(f"{name} must be at least 1, got {value}")
        codecs = self.codec.values() if isinstance(self.codec, Mapping) else [self.codec]
        for codec in codecs:
            if not isinstance(codec, Codec) and codec != "auto" and codec not in CODECS:
                raise SchemaError(f"unknown codec {codec!r}: use 'auto' or one of {', '.join(CODECS)}")

    def asked_samples(self, output: str) -> int | None:
        """Return the samples of a part or shard of `output` where they were asked for by number."""
        wanted = self.part_samples if is_file_output(output) else self.shard_size
        return wanted if isinstance(wanted, int) else None

    def to_config(self) -> dict[str, Any]:
        """Return what decides over the samples and bytes of the dataset as JSON values, for its provenance."""
        codec: Any = (
            {name: _codec_config(value) for name, value in self.codec.items()}
            if isinstance(self.codec, Mapping)
            else _codec_config(self.codec)
        )
        return {
            "codec": codec,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "split": None if self.split is None else dict(self.split),
        }


def _codec_config(codec: str | Codec) -> Any:
    return codec if isinstance(codec, str) else codec.to_config()
