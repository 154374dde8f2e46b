"""``ebbtide gpus``: the catalogue and the cloud offers, filtered, as a table or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ebbtide.cli.streams import writing
from ebbtide.errors import UsageError
from ebbtide.gpus import Gpu, candidates, catalogue, context_bytes, find
from ebbtide.gpus.importing import Offer, problems_by_text
from ebbtide.gpus.offers import offers as known_offers
from ebbtide.gpus.offers import refresh as refresh_offers
from ebbtide.units import parse_bytes

_MEMORY = re.compile(r"\s*(>=|<=|>|<|==?)?\s*(.+?)\s*")
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    ">=": lambda size, wanted: size >= wanted,
    "<=": lambda size, wanted: size <= wanted,
    ">": lambda size, wanted: size > wanted,
    "<": lambda size, wanted: size < wanted,
    "=": lambda size, wanted: size == wanted,
}
# Columns of the wide table need this much.
_WIDE = 120


class Sort(StrEnum):
    """What the list is ordered by."""

    MEMORY = "memory"
    BANDWIDTH = "bandwidth"
    FLOPS = "flops"
    PRICE = "price"
    NAME = "name"


def gpus(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="GPUs to show, in any usual spelling; all where none is named."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Size a GPU is sold by: '>=40GiB', '<24GiB', or '24GiB' for at least."),
    ] = None,
    max_price: Annotated[
        float | None,
        typer.Option(help="US dollars an hour for one GPU, at its cheapest known offer."),
    ] = None,
    arch: Annotated[
        str | None, typer.Option(help="Architecture, such as Ampere or Hopper.")
    ] = None,
    sort: Annotated[Sort, typer.Option(help="What to order by.")] = Sort.MEMORY,
    offers: Annotated[bool, typer.Option("--offers", help="List cloud offers instead.")] = False,
    spot: Annotated[
        bool, typer.Option("--spot", help="Count offers that can be taken back at any time.")
    ] = False,
    refresh: Annotated[
        str | None,
        typer.Option(
            metavar="URL|FILE",
            help="Read a price list first (the-full-stack or SkyPilot CSV) and keep it.",
        ),
    ] = None,
    provider: Annotated[
        str, typer.Option(help="Who offers, for a price list that does not say.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List GPUs with their memory, speed and cloud prices.

    Exit code 1 where nothing matches. The figures' sources are in the JSON.
    """
    if max_price is not None and not max_price > 0:
        raise UsageError(f"--max-price should be above 0, got {max_price}.")
    talk = Console(stderr=True, highlight=False)
    if refresh is not None:
        _refresh(refresh, provider, talk)
    priced = [one for one in known_offers() if spot or not one.spot]
    cheapest = _cheapest(priced)
    shown = [
        gpu
        for gpu in _named(names or [])
        if _fits(gpu, memory)
        and (arch is None or gpu.arch.lower() == arch.lower())
        and (max_price is None or _price(gpu, cheapest) <= max_price)
    ]
    _check_arch(arch)
    shown.sort(key=_order(sort, cheapest))
    if offers:
        keys = {gpu.key for gpu in shown}
        limit = float("inf") if max_price is None else max_price
        found = [one for one in priced if one.gpu in keys and one.usd_per_gpu_hour <= limit]
        found.sort(key=lambda one: (one.usd_per_gpu_hour, one.provider, one.count))
        _print(found, [_offer_json(one) for one in found], _offer_table, as_json)
    else:
        found_json = [_gpu_json(gpu, cheapest.get(gpu.key)) for gpu in shown] if as_json else []
        _print(shown, found_json, lambda some: _gpu_table(some, cheapest), as_json)
        found = [cheapest[gpu.key] for gpu in shown if gpu.key in cheapest]
    if not shown or (offers and not found):
        talk.print("Nothing matches.")
        raise typer.Exit(1)
    if not as_json and not offers:
        talk.print("Memory in GiB (~: derived, nobody's figure); FP: dense TFLOP/s.", style="dim")
    if found and not as_json:
        dates = sorted({one.date for one in found})
        span = str(dates[0]) if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
        talk.print(f"Prices of {span}; they change often. Sources: --json.", style="dim")


def _refresh(source: str, provider: str, talk: Console) -> None:
    found = refresh_offers(source, provider=provider)
    for line in problems_by_text(found.problems):
        talk.print(line, markup=False)
    talk.print(f"Kept {len(found.offers)} offers of {source}.", markup=False)


def _named(names: Sequence[str]) -> list[Gpu]:
    if not names:
        return list(catalogue().values())
    found: dict[str, Gpu] = {}
    for name in names:
        for gpu in candidates(name) or [find(name)]:
            found[gpu.key] = gpu
    return list(found.values())


def _fits(gpu: Gpu, memory: str | None) -> bool:
    if memory is None:
        return True
    match = _MEMORY.fullmatch(memory)
    if match is None:
        raise UsageError("--memory is empty. Write for example '>=40GiB'.")
    return _COMPARE[(match[1] or ">=").replace("==", "=")](gpu.memory_bytes, parse_bytes(match[2]))


def _check_arch(arch: str | None) -> None:
    known = sorted({gpu.arch for gpu in catalogue().values()})
    if arch is not None and arch.lower() not in (one.lower() for one in known):
        raise UsageError(f"No architecture {arch!r}. There are: {', '.join(known)}.")


def _cheapest(priced: Sequence[Offer]) -> dict[str, Offer]:
    best: dict[str, Offer] = {}
    for one in priced:
        if one.gpu not in best or one.usd_per_gpu_hour < best[one.gpu].usd_per_gpu_hour:
            best[one.gpu] = one
    return best


def _price(gpu: Gpu, cheapest: dict[str, Offer]) -> float:
    offer = cheapest.get(gpu.key)
    return float("inf") if offer is None else offer.usd_per_gpu_hour


def _order(sort: Sort, cheapest: dict[str, Offer]) -> Callable[[Gpu], tuple[Any, ...]]:
    if sort is Sort.PRICE:
        return lambda gpu: (_price(gpu, cheapest), -gpu.usable_bytes, gpu.key)
    if sort is Sort.BANDWIDTH:
        return lambda gpu: (-gpu.bandwidth_bytes_s, gpu.key)
    if sort is Sort.FLOPS:
        return lambda gpu: (-gpu.rate("float16"), gpu.key)
    if sort is Sort.NAME:
        return lambda gpu: (gpu.key,)
    return lambda gpu: (-gpu.memory_bytes, -gpu.bandwidth_bytes_s, gpu.key)


def _print(
    found: Sequence[Any],
    entries: list[dict[str, Any]],
    table: Callable[[Sequence[Any]], Table],
    as_json: bool,
) -> None:
    with writing():
        if as_json:
            print(json.dumps(entries, indent=2))
        elif found:
            Console().print(table(found))


def _new_table(gap: int = 2) -> Table:
    return Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))


def _gpu_table(shown: Sequence[Gpu], cheapest: dict[str, Offer]) -> Table:
    wide = Console().width >= _WIDE
    table = _new_table()
    table.add_column("GPU", no_wrap=True)
    if wide:
        table.add_column("name", no_wrap=True, overflow="ellipsis")
        table.add_column("arch")
    for title in ("sold as", "usable", "TB/s", "FP32", "FP16", "FP8"):
        table.add_column(title, justify="right", no_wrap=True)
    if wide:
        for title in ("link GB/s", "SMs", "CUDA", "ctx MiB"):
            table.add_column(title, justify="right", no_wrap=True)
    table.add_column("$/h from", justify="right", no_wrap=True)
    if wide:
        table.add_column("at", no_wrap=True)
    for gpu in shown:
        offer = cheapest.get(gpu.key)
        row = [gpu.key]
        row += [gpu.name, gpu.arch] if wide else []
        row += [_gib(gpu.memory_bytes), _gib(gpu.usable_bytes, gpu.sources["usable_bytes"].derived)]
        row += [f"{gpu.bandwidth_bytes_s / 1e12:.2f}"]
        row += [_tera(gpu, dtype) for dtype in ("float32", "float16", "float8")]
        row += _wide_cells(gpu) if wide else []
        row.append("" if offer is None else f"{offer.usd_per_gpu_hour:.2f}")
        row += [offer.provider if offer else ""] if wide else []
        table.add_row(*row)
    return table


def _wide_cells(gpu: Gpu) -> list[str]:
    capability = gpu.compute_capability
    return [
        f"{gpu.link_bytes_s / 1e9:.0f}" if gpu.link_bytes_s else "",
        str(gpu.sm_count) if gpu.sm_count else "",
        "" if capability is None else f"{capability[0]}.{capability[1]}",
        f"{context_bytes(gpu).likely / 2**20:.0f}",
    ]


def _gib(size: int, derived: bool = False) -> str:
    return f"{'~' if derived else ''}{size / 2**30:.1f}"


def _tera(gpu: Gpu, dtype: str) -> str:
    return f"{gpu.flops[dtype] / 1e12:.0f}" if dtype in gpu.flops else ""


def _offer_table(found: Sequence[Offer]) -> Table:
    wide = Console().width >= _WIDE
    table = _new_table(gap=2 if wide else 1)
    # The widths that hold their cells, so that only the last columns give way.
    for title, cells in (
        ("GPU", [one.gpu for one in found]),
        ("$/h each", []),
        ("GPUs", []),
        ("$/h all", []),
        ("provider", [one.provider for one in found]),
        ("kind", ["serverless"]),
    ):
        width = max(len(text) for text in (title, *cells))
        right = title in ("$/h each", "GPUs", "$/h all")
        table.add_column(title, justify="right" if right else "left", no_wrap=True, min_width=width)
    table.add_column("instance", no_wrap=True, overflow="ellipsis")
    if wide:
        table.add_column("source", no_wrap=True, overflow="ellipsis")
        table.add_column("date", no_wrap=True)
    for one in found:
        kind = "serverless" if one.serverless else "spot" if one.spot else "on demand"
        each, total = one.usd_per_gpu_hour, one.usd_per_gpu_hour * one.count
        row = [one.gpu, f"{each:.2f}", str(one.count), f"{total:.2f}", one.provider, kind]
        row += [one.instance, one.source, str(one.date)] if wide else [one.instance]
        table.add_row(*row)
    return table


def _offer_json(offer: Offer) -> dict[str, Any]:
    return asdict(offer) | {"date": offer.date.isoformat()}


def _gpu_json(gpu: Gpu, offer: Offer | None) -> dict[str, Any]:
    return {
        "gpu": gpu.key,
        "name": gpu.name,
        "vendor": gpu.vendor,
        "arch": gpu.arch,
        "compute_capability": gpu.compute_capability,
        "memory_bytes": gpu.memory_bytes,
        "usable_bytes": gpu.usable_bytes,
        "bandwidth_bytes_s": gpu.bandwidth_bytes_s,
        "link_bytes_s": gpu.link_bytes_s or None,
        "sm_count": gpu.sm_count or None,
        "l2_bytes": gpu.l2_bytes or None,
        "flops": dict(gpu.flops),
        "context_bytes": asdict(context_bytes(gpu)),
        "cheapest_offer": None if offer is None else _offer_json(offer),
        "sources": {
            figure: {"title": source.title, "url": source.url, "date": source.date.isoformat()}
            for figure, source in gpu.sources.items()
        },
    }
