"""What a run is, kept beside its parts: a later run goes on with them only if it is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from h5cache.convert.decide import Decision
from h5cache.convert.options import ConvertOptions
from h5cache.convert.recipe import Recipe
from h5cache.convert.sources import IterableSource, Source
from h5cache.format.encode import checksum
from h5cache.format.layout import FieldLayout
from h5cache.format.parts import is_file_output
from h5cache.format.shard import FieldPlan
from h5cache.format.tables import IndexRows
from h5cache.format.versions import library_versions
from h5cache.quantise import Quantiser

__all__ = ["Origin", "RunRecord", "describe_change", "make_fingerprint", "make_provenance"]

RECORD_VERSION = 1


@dataclass(frozen=True)
class RunRecord:
    """The fingerprint of a run and the decisions that all its parts share."""

    fingerprint: Mapping[str, Any]
    decision: Decision
    part_samples: int
    #: Fields whose exact codes did not hold for some sample: stored as floats.
    as_floats: tuple[str, ...] = ()

    def to_config(self) -> dict[str, Any]:
        return {
            "converter": RECORD_VERSION,
            "fingerprint": self.fingerprint,
            "plans": [[name, plan_to_config(plan)] for name, plan in self.decision.plans.items()],
            "stored_nbytes": self.decision.stored_nbytes,
            "part_samples": self.part_samples,
            "as_floats": list(self.as_floats),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RunRecord | None:
        """Return the record; None where the parts are not a converter's (a Writer's, another version's)."""
        if config.get("converter") != RECORD_VERSION:
            return None
        plans = {name: plan_from_config(plan) for name, plan in config["plans"]}
        return cls(
            fingerprint=config["fingerprint"],
            decision=Decision(plans, float(config["stored_nbytes"])),
            part_samples=int(config["part_samples"]),
            as_floats=tuple(config["as_floats"]),
        )


def plan_to_config(plan: FieldPlan) -> dict[str, Any]:
    quantiser = None if plan.quantiser is None else plan.quantiser.to_config()
    return {"layout": plan.layout.to_config(), "quantiser": quantiser}


def plan_from_config(config: Mapping[str, Any]) -> FieldPlan:
    quantiser = None if config["quantiser"] is None else Quantiser.from_config(config["quantiser"])
    return FieldPlan(FieldLayout.from_config(config["layout"]), quantiser)


@dataclass(frozen=True)
class Origin:
    """What tells this source and this preprocessing from others. Taken once: it may read all of an array."""

    source: Mapping[str, Any]
    transform: Mapping[str, Any] | None
    versions: Mapping[str, str]

    @classmethod
    def of(cls, source: Source | IterableSource, recipe: Recipe) -> Origin:
        versions = library_versions()
        if source.needs_cv2:
            import cv2

            versions["opencv"] = cv2.__version__  # decodes and scales, so it decides over pixels
        return cls(dict(source.fingerprint()), recipe.identity(), versions)


def make_provenance(origin: Origin, options: ConvertOptions, split: str | None) -> dict[str, Any]:
    """Return where a dataset comes from: nothing of clock, host, workers or the place it is written to."""
    return {
        "source": origin.source,
        "transform": origin.transform,
        "options": options.to_config(),
        "split": split,
        "versions": dict(origin.versions),
    }


def make_fingerprint(
    provenance: Mapping[str, Any], options: ConvertOptions, output: str, index: IndexRows
) -> dict[str, Any]:
    """Return what makes a run this one: its provenance, the bounds of its parts, and its samples in order."""
    return {
        **provenance,
        "parts": {"part_samples": options.part_samples}
        if is_file_output(output)
        else {"shard_size": options.shard_size},
        "keys": f"{checksum(index['key'].tobytes()):016x}",
    }


def describe_change(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Say in a few words what differs between two fingerprints; empty where nothing does."""
    changes = []
    if old.get("keys") != new["keys"] and old.get("options") == new["options"]:
        changes.append("other samples")
    before, after = old.get("source") or {}, new["source"]
    for name in sorted({*before, *after} - {"pictures"}):
        if before.get(name) != after.get(name):
            changes.append(f"{name} of the source")
    changes += _differences(before.get("pictures") or {}, after.get("pictures") or {})
    if old.get("transform") != new["transform"]:
        changes.append("the transform")
    for group in ("options", "parts", "versions"):
        changes += _differences(old.get(group) or {}, new[group])
    if old.get("split") != new["split"]:
        changes.append(f"split {old.get('split')} -> {new['split']}")
    return ", ".join(changes)


def is_same_but_for_files(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """True where the samples are the same by name, and all options too: some files were repaired, say.

    Only sources of one file per sample say so: their fingerprint has one digest of all files, and the index table of
    each part holds size and time of its own.
    """
    if old == new:
        return True
    sources = old.get("source") or {}, new["source"]
    if not all(isinstance(source.get("files"), str) for source in sources):
        return False
    return {**old, "source": without_files(sources[0])} == {**new, "source": without_files(sources[1])}


def without_files(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source's fingerprint without the digest of all its files: what holds for each part by itself."""
    return {name: value for name, value in source.items() if name != "files" or not isinstance(value, str)}


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = sorted({*before, *after})
    return [f"{name} {before.get(name)} -> {after.get(name)}" for name in names if before.get(name) != after.get(name)]
