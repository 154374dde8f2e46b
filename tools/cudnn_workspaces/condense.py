"""Condense cuDNN's answers to decision trees: `condense.py RELEASE=ANSWERS.jsonl...`.

Writes src/ebbtide/vgpu/kernels/data/cudnn_workspaces.json and prints how often the trees
are right about layers that they have not seen. Needs numpy and scikit-learn.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from ask import GPUS, SEED, output_of
from sklearn.model_selection import (  # type: ignore[import-not-found]
    GroupKFold,
    cross_val_predict,
)
from sklearn.tree import DecisionTreeClassifier  # type: ignore[import-not-found]

from ebbtide.vgpu.kernels.cudnn import features

OUT = Path(__file__).parents[2] / "src/ebbtide/vgpu/kernels/data/cudnn_workspaces.json"
LEAVES, LEAST_IN_LEAF = 48, 5
# Less than this, absolutely or next to the tensors, is nothing: tables of offsets.
SMALL_BYTES, SMALL_SHARE = 1 << 19, 0.03
NAMES = """log2_batch channels out_channels groups height out_height kernel_area
kernel_longest stride dilation log2_input log2_output log2_weight log2_batch_out_area
channels_mod_4 out_channels_mod_4 channels_mod_8 out_channels_mod_8 least_channels
channels_per_group depthwise out_over_in input_over_output""".split()


def sizes(row: list[Any]) -> tuple[int, int]:
    """Bytes of what the direction reads, and of all three tensors."""
    _, dtype, _, direction, x, layer = row[:6]
    item = 4 if dtype == "float32" else 2
    tensors = [math.prod(shape) * item for shape in (x, layer[1], output_of(x, layer))]
    result = {"fwd": 2, "dgrad": 0, "wgrad": 1}[direction]
    return sum(tensors) - tensors[result], sum(tensors)


def kind(row: list[Any], workspace: int) -> int:
    """0 nothing, 1 the operands, 2 all three tensors, 3 about twice that."""
    operands, everything = sizes(row)
    if workspace <= SMALL_BYTES or workspace < SMALL_SHARE * everything:
        return 0
    candidates = ((1, operands), (2, everything), (3, 2 * everything))
    return min(candidates, key=lambda c: abs(math.log(workspace / c[1])))[0]


def values(row: list[Any]) -> tuple[float, ...]:
    """The row's features."""
    x, layer = row[4], row[5]
    _, w, stride, _, dilation, groups = layer
    return features(x, w, output_of(x, layer), groups, stride, dilation)


def nested(tree: Any, node: int = 0) -> list[Any]:
    """A fitted tree as lists: [feature, threshold, below, above], leaves as counts."""
    if tree.children_left[node] == -1:
        shares = tree.value[node][0]
        full = [0, 0, 0, 0]
        for label, share in zip(tree.labels, shares, strict=True):
            full[int(label)] = round(float(share) * int(tree.n_node_samples[node]))
        return full
    below, above = tree.children_left[node], tree.children_right[node]
    threshold = float(f"{tree.threshold[node]:.6g}")
    return [int(tree.feature[node]), threshold, nested(tree, below), nested(tree, above)]


class Fitted:
    """scikit-learn's arrays with the labels beside them."""

    def __init__(self, model: Any) -> None:
        self.labels = model.classes_
        inner = model.tree_
        for name in ("children_left", "children_right", "feature", "threshold", "value"):
            setattr(self, name, getattr(inner, name))
        self.n_node_samples = inner.n_node_samples


def grow(rows: list[list[Any]], workspaces: list[int]) -> tuple[dict[str, Any], float]:
    """A tree and its share of right answers, weighted by size, on layers left out."""
    table = np.array([values(row) for row in rows])
    labels = np.array([kind(row, w) for row, w in zip(rows, workspaces, strict=True)])
    groups = [hash(json.dumps(row[5])) for row in rows]
    weights = np.array([sizes(row)[1] for row in rows], float)
    model = DecisionTreeClassifier(
        max_leaf_nodes=LEAVES, min_samples_leaf=LEAST_IN_LEAF, random_state=SEED
    )
    guesses = cross_val_predict(model, table, labels, cv=GroupKFold(5), groups=groups)
    right = float(((guesses == labels) * weights).sum() / weights.sum())
    ratios = defaultdict(list)
    for row, label, workspace in zip(rows, labels, workspaces, strict=True):
        if label:
            ratios[int(label)].append(workspace / sizes(row)[0 if label == 1 else 1])
    default = {1: 1.0, 2: 1.0, 3: 2.0}
    scale = [0.0] + [
        round(statistics.median(ratios[k]), 3) if ratios[k] else default[k] for k in (1, 2, 3)
    ]
    model.fit(table, labels)
    return {"scale": scale, "tree": nested(Fitted(model))}, right


def main(arguments: list[str]) -> None:
    """Grow a tree for every combination that was asked about."""
    trees: dict[str, Any] = {}
    for argument in arguments:
        release, path = argument.split("=")
        parts: dict[str, list[tuple[list[Any], int]]] = defaultdict(list)
        with open(path, encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                arch, dtype, layout, direction, *_, first, plain = row
                if first:
                    parts[f"{release}/{arch}/{dtype}/{layout}/{direction}"].append((row, first[1]))
                if plain and int(arch.replace(".", "")) >= 80:
                    key = f"{release}/{arch}/{dtype}-plain/{layout}/{direction}"
                    parts[key].append((row, plain[1]))
        for key, answers in sorted(parts.items()):
            trees[key], right = grow([row for row, _ in answers], [w for _, w in answers])
            print(f"{key:40} {len(answers):5} {right:6.1%} {trees[key]['scale']}")
    data = {
        "source": "Heuristics of cuDNN 9.8.0.87 and 9.20.0.48 (wheels nvidia-cudnn-cu12), asked "
        "without a device by tools/cudnn_workspaces in 2026-11.",
        "gpus": {arch: figures[0] for arch, figures in GPUS.items()},
        "kinds": ["nothing", "operands", "operands and result", "twice all tensors or so"],
        "features": NAMES,
        "trees": trees,
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
