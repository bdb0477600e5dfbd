"""Decide what a loader delivers of a field: shape, dtype, memory format, and by which steps. Reads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from h5cache.errors import SchemaError
from h5cache.format.storage import FieldStorage
from h5cache.load.augment import Augmentation, RandomCrop, RandomResizedCrop, output_size
from h5cache.schema import QUANTISABLE, Field, dtype_name
from h5cache.value_table import ValueTable

__all__ = ["Delivery", "Normalize", "parse_normalize", "plan_delivery"]

#: Mean and standard deviation of each channel, of pictures scaled to 0..1.
Normalize = tuple[tuple[float, ...], tuple[float, ...]]

KNOWN_NORMALIZE: dict[str, Normalize] = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}

#: What cv2.resize takes.
RESIZABLE = ("uint8", "uint16", "int16", "float32", "float64")


@dataclass(frozen=True, eq=False)
class Delivery:
    """How the rows of one field become the tensor a user gets.

    decode -> [expand codes] -> [crop, flip, resize] -> [other memory order] -> [table of values | cast] -> batch row
    """

    field: Field
    #: Memory order of one sample in the batch: the field's shape, cropped, CHW or HWC.
    shape: tuple[int, ...]
    #: What the batch's memory holds: numpy's name of the dtype's bits.
    memory_dtype: np.dtype[Any]
    dtype: torch.dtype
    augment: tuple[Augmentation, ...] = ()
    #: Expand stored codes before the crop is scaled or padded: codes cannot be interpolated, and no code means 0.0.
    expand_first: ValueTable | None = None
    #: Values of 8-bit pixels or codes, looked up as the last step.
    table: ValueTable | None = None
    #: The batch's memory is HWC although the field is CHW, or the other way round.
    reorder: bool = False
    #: The memory is HWC: the tensor is a (N, C, H, W) view of it.
    channels_last: bool = False
    #: Applied to the whole batch by torch, where no table can: floats that are stored as floats, and on devices.
    cast: torch.dtype | None = None
    normalize: Normalize | None = None

    @property
    def is_direct(self) -> bool:
        """True where samples are decoded straight into the batch."""
        return not (self.augment or self.expand_first or self.table or self.reorder)

    @property
    def is_cut_only(self) -> bool:
        """True where nothing is done to samples but that they are cut, scaled and mirrored."""
        return bool(self.augment) and not (self.expand_first or self.table or self.reorder)

    @property
    def cut_shape(self) -> tuple[int, ...]:
        """The shape of a sample that was cut, in the memory order in which it is stored."""
        if not self.reorder:
            return self.shape
        return (self.shape[-1], *self.shape[:-1]) if self.channels_last else (*self.shape[1:], self.shape[0])

    def as_tensor(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the batch as users see it: a view of its memory."""
        if self.dtype == torch.bfloat16 and memory.dtype != torch.bfloat16:
            memory = memory.view(torch.bfloat16)
        return memory.permute(0, 3, 1, 2) if self.channels_last else memory


def parse_normalize(value: str | Sequence[Sequence[float]] | None) -> Normalize | None:
    """Return mean and std per channel; "imagenet" is known by name."""
    if value is None:
        return None
    if isinstance(value, str):
        if value not in KNOWN_NORMALIZE:
            raise ValueError(f"normalize must be (mean, std) or one of {', '.join(KNOWN_NORMALIZE)}, got {value!r}")
        return KNOWN_NORMALIZE[value]
    try:
        mean, std = (tuple(float(number) for number in part) for part in value)
    except (TypeError, ValueError) as exc:
        raise ValueError(f"normalize must be (mean, std), a number for each channel in both, got {value!r}") from exc
    if len(mean) != len(std) or not mean or any(number == 0 for number in std):
        raise ValueError(f"normalize needs as many means as stds, and no std of 0, got {value!r}")
    return mean, std


def plan_delivery(
    storage: FieldStorage,
    *,
    dtype: torch.dtype | None = None,
    normalize: Normalize | None = None,
    memory_format: torch.memory_format | None = None,
    augment: Sequence[Augmentation] = (),
    on_device: bool = False,
) -> Delivery:
    """Return how a field is delivered. Options that are for pictures leave other fields as they are.

    `dtype` is for pictures and float fields. With `on_device`, cast and normalisation are left to the device.
    """
    field = storage.layout.field
    wanted = _wanted_dtype(field, dtype, normalize)
    plain = Delivery(field, field.shape, field.stored_dtype, getattr(torch, field.dtype))
    if field.layout is None:
        plan = replace(plain, table=storage.table, **_memory(plain.dtype))
        return _with_values(plan, storage, wanted, None, on_device)
    height, width = field.shape[1:] if field.layout == "CHW" else field.shape[:2]
    out_height, out_width = output_size(augment, (height, width))
    stored_last = field.layout == "HWC"
    last = stored_last if memory_format is None else memory_format == torch.channels_last
    shape = (out_height, out_width, field.channels) if last else (field.channels, out_height, out_width)
    plan = replace(plain, shape=shape, augment=tuple(augment), reorder=last != stored_last, channels_last=last)
    scaled = any(isinstance(step, RandomResizedCrop) for step in augment)
    if scaled and field.dtype not in RESIZABLE:
        raise SchemaError(f"RandomResizedCrop cannot scale {field.dtype} pictures; store them as uint8 or float32")
    if storage.table is not None:
        padded = any(isinstance(step, RandomCrop) and step.padding for step in augment)
        first = scaled or padded
        plan = replace(plan, expand_first=storage.table) if first else replace(plan, table=storage.table)
    return _with_values(plan, storage, wanted, normalize, on_device)


def _wanted_dtype(field: Field, dtype: torch.dtype | None, normalize: Normalize | None) -> torch.dtype:
    own: torch.dtype = getattr(torch, field.dtype)
    is_picture = field.layout is not None
    if dtype is not None and (is_picture or own.is_floating_point):
        return dtype
    if normalize is not None and is_picture and not own.is_floating_point:
        return torch.float32
    return own


def _with_values(
    plan: Delivery, storage: FieldStorage, wanted: torch.dtype, normalize: Normalize | None, on_device: bool
) -> Delivery:
    """Add cast and normalisation: by a table where rows are 8-bit, by torch on the batch otherwise."""
    if normalize is not None and len(normalize[0]) not in (1, plan.field.channels):
        raise SchemaError(f"normalize has {len(normalize[0])} channels, the pictures have {plan.field.channels}")
    if wanted == plan.dtype and normalize is None:
        return plan
    name = dtype_name(wanted)
    eight_bit = plan.table is not None or (plan.field.dtype == "uint8" and plan.expand_first is None)
    if on_device or not eight_bit or name not in (*QUANTISABLE, "bfloat16"):
        return replace(plan, cast=wanted, normalize=normalize)
    return replace(plan, table=_value_table(plan, wanted, normalize), dtype=wanted, **_memory(wanted))


def _memory(dtype: torch.dtype) -> dict[str, Any]:
    return {"memory_dtype": np.dtype(np.uint16 if dtype == torch.bfloat16 else dtype_name(dtype))}


def _value_table(plan: Delivery, wanted: torch.dtype, normalize: Normalize | None) -> ValueTable:
    """Return what each 8-bit value becomes. Computed by torch, so that it equals the same steps on tensors."""
    if plan.table is not None:
        values = torch.from_numpy(plan.table.bits.view(plan.table.dtype).copy())
    else:
        values = torch.arange(256, dtype=torch.uint8).repeat(plan.field.channels, 1)
    values = apply_values(values, wanted, normalize, channel_dim=0)
    bits = values.view(torch.uint16).numpy() if wanted == torch.bfloat16 else values.numpy()
    unsigned = np.dtype(f"u{bits.dtype.itemsize}")
    return ValueTable(dtype_name(wanted), bits.view(unsigned), np.ones(bits.shape, bool))


def apply_values(
    values: torch.Tensor, wanted: torch.dtype, normalize: Normalize | None, channel_dim: int
) -> torch.Tensor:
    """Cast and normalise as ToTensor and Normalize do: 8-bit pixels are scaled to 0..1 first. New memory."""
    if normalize is None:
        return values.to(wanted)
    pixels = values.to(torch.float32).div(255) if values.dtype == torch.uint8 else values.to(torch.float32)
    shape = [1] * values.ndim
    shape[channel_dim] = -1
    mean, std = (torch.tensor(part, dtype=torch.float32, device=values.device).view(shape) for part in normalize)
    return pixels.sub(mean).div(std).to(wanted)
