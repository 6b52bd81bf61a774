# SPDX-License-Identifier: Apache-2.0
"""Checks of ``metadata`` that all kinds share."""

from __future__ import annotations

from collections.abc import Callable

from dispatcher.local.cluster import names
from dispatcher.local.cluster.status import Cause, required, wrong
from dispatcher.local.cluster.store import Json

REFERENCE_FIELDS = ("apiVersion", "kind", "name", "uid")


def metadata_faults(metadata: Json, name_faults: Callable[[str], list[str]]) -> list[Cause]:
    """Return what is wrong with the metadata of an object that is to be stored.

    :param name_faults: judges the name.
    """
    causes = []
    name = metadata.get("name")
    if not name:
        causes.append(required("metadata.name", "name or generateName is required"))
    else:
        causes += [wrong("metadata.name", name, fault) for fault in name_faults(name)]
    causes += _label_faults(metadata.get("labels", {}))
    causes += _annotation_faults(metadata.get("annotations", {}))
    causes += _owner_faults(metadata.get("ownerReferences", []))
    return causes


def _label_faults(labels: dict[str, str]) -> list[Cause]:
    causes = []
    for key, value in labels.items():
        causes += [wrong("metadata.labels", key, fault) for fault in names.label_key_faults(key)]
        causes += [wrong("metadata.labels", value, fault) for fault in names.label_value_faults(value)]
    return causes


def _annotation_faults(annotations: dict[str, str]) -> list[Cause]:
    causes = []
    for key in annotations:
        causes += [wrong("metadata.annotations", key, fault) for fault in names.label_key_faults(key.lower())]
    size = sum(len(key.encode()) + len(value.encode()) for key, value in annotations.items())
    if size > names.ANNOTATIONS_BYTES:
        hint = f"Too long: must have at most {names.ANNOTATIONS_BYTES} bytes"
        causes.append(Cause("metadata.annotations", hint, "FieldValueTooLong"))
    return causes


def _owner_faults(references: list[Json]) -> list[Cause]:
    return [
        wrong(f"metadata.ownerReferences.{field}", "", f"{field} must not be empty")
        for reference in references
        for field in REFERENCE_FIELDS
        if not reference.get(field)
    ]
