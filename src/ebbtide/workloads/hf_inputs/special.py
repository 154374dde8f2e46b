"""Families whose inputs follow no general rule."""

from __future__ import annotations

from ebbtide.workloads.hf_inputs.request import Maker

MAKERS: dict[str, Maker] = {}
# By model type, then by name of the input. A name that is listed is always given.
RULES: dict[str, dict[str, Maker]] = {}
# Model types whose own loss needs more than labels: the sum of their outputs serves.
WITHOUT_LABELS: frozenset[str] = frozenset()
