"""Storages that play the same part in layers that repeat: they are chosen together."""

from __future__ import annotations

from ebbtide.plan.graph import StepGraph


def classes(graph: StepGraph) -> list[list[int]]:
    """The droppable storages by what made them, from what, and who reads them; each in order.

    In a model of equal layers a class has one member a layer, so that a question is asked
    once for all of them.
    """
    readers: dict[int, list[tuple[str, int]]] = {}
    for call in graph.calls:
        for source in call.sources:
            readers.setdefault(source.storage, []).append((call.name, len(call.sources)))
    found: dict[object, list[int]] = {}
    for each in sorted(graph.droppable):
        storage = graph.storages[each]
        makers = tuple(
            (
                graph.calls[call].name,
                graph.calls[call].flops,
                tuple(graph.storages[one.storage].nbytes for one in graph.calls[call].sources),
            )
            for call in storage.calls
        )
        key = (storage.nbytes, makers, tuple(readers.get(each, ())))
        found.setdefault(key, []).append(each)
    return list(found.values())
