"""Read price lists that others keep, and catch the errors such lists are known for.

Two layouts are understood, told apart by their header: the CSV tables of Full Stack
Deep Learning, and SkyPilot's catalogue (one file a provider). What cannot be trusted
is left out and said; what the row itself corrects is corrected and said.
"""

from __future__ import annotations

import ast
import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from io import StringIO
from math import isfinite

from ebbtide.errors import UsageError
from ebbtide.gpus.lookup import candidates
from ebbtide.gpus.spec import Gpu
from ebbtide.units import GiB, MiB

Row = Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A GPU that somebody rents out.

    Attributes:
        provider: who.
        gpu: key in the catalogue.
        count: GPUs in the instance.
        usd_per_gpu_hour: price of one of them for an hour, US dollars.
        spot: whether the instance can be taken back at any time.
        serverless: whether only the seconds in use are billed.
        instance: the provider's name for it; empty where it has none.
        source: the price list.
        date: of the price list.
    """

    provider: str
    gpu: str
    count: int
    usd_per_gpu_hour: float
    spot: bool
    serverless: bool
    instance: str
    source: str
    date: date


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """Something wrong in a price list.

    Attributes:
        line: of the file, counted from 1.
        text: what, in a sentence.
        dropped: whether the row was left out; otherwise it was corrected.
    """

    line: int
    text: str
    dropped: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceList:
    """What came out of one file."""

    offers: tuple[Offer, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Raw:
    """A row before it is checked: prices are for the whole instance and hour."""

    provider: str
    name: str
    count: int
    memory_bytes: int | None
    total_memory_bytes: int | None
    price: float | None
    per_gpu_price: float | None
    spot_price: float | None
    serverless: bool
    instance: str


class _Bad(Exception):
    """A row that cannot be used; the message says why."""


def read_prices(text: str, *, source: str, dated: date, provider: str = "") -> PriceList:
    """Offers from a price list.

    Args:
        text: the file.
        source: what to call it in the offers.
        dated: of the list.
        provider: who offers, for layouts without a column for it.

    Raises:
        UsageError: the header is of no known layout.
    """
    reader = csv.DictReader(StringIO(text), restval="")
    layout = _layout(reader.fieldnames or [])
    offers: list[Offer] = []
    problems: list[Problem] = []
    seen: set[Offer] = set()
    for line, row in _numbered(reader):
        try:
            raw = layout(row, provider)
            made, notes = _checked(raw, source, dated)
        except _Bad as bad:
            problems.append(Problem(line=line, text=str(bad), dropped=True))
            continue
        problems.extend(Problem(line=line, text=note, dropped=False) for note in notes)
        offers.extend(offer for offer in made if offer not in seen)
        seen.update(made)
    return PriceList(offers=tuple(offers), problems=tuple(problems))


def _numbered(reader: csv.DictReader[str]) -> Iterator[tuple[int, Row]]:
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(f"Line {reader.line_num} of this price list is no CSV: {error}") from error


def _layout(header: Sequence[str]) -> Callable[[Row, str], _Raw]:
    if {"GPU Type", "GPUs", "GPU RAM"} <= set(header):
        return _full_stack
    if {"InstanceType", "AcceleratorName", "AcceleratorCount", "Price"} <= set(header):
        return _skypilot
    raise UsageError(
        f"This price list has columns that are not known: {', '.join(header) or '(none)'}. Known "
        "are the tables of the-full-stack/website (GPU Type, GPUs, GPU RAM, ...) and SkyPilot's "
        "(InstanceType, AcceleratorName, AcceleratorCount, Price, ...)."
    )


def _full_stack(row: Row, provider: str) -> _Raw:
    name, _, size = row["GPU Type"].partition("(")
    total = _number(row["GPU RAM"].lower().removesuffix("gb"))
    count = round(_number(row["GPUs"]) or 0)
    each = _number(size.rstrip(") ").lower().removesuffix("gb").strip())
    # Where the name does not say the size, one GPU's total does.
    each = each or (total if count == 1 else None)
    return _Raw(
        provider=row.get("Cloud") or row.get("Vendor") or provider,
        name=name.strip(),
        count=count,
        memory_bytes=None if each is None else round(each * GiB),
        total_memory_bytes=None if total is None else round(total * GiB),
        price=_number(row.get("On-demand") or row.get("Per-Hour") or ""),
        per_gpu_price=_number(row.get("Per-GPU") or ""),
        spot_price=_number(row.get("Spot") or ""),
        serverless="Vendor" in row,
        instance=row.get("Name") or "",
    )


def _skypilot(row: Row, provider: str) -> _Raw:
    if not row["AcceleratorName"]:
        raise _Bad("no GPU in this instance")
    try:
        info = ast.literal_eval(row.get("GpuInfo") or "{}")
        size = info["Gpus"][0]["MemoryInfo"]["SizeInMiB"] if info else 0
        total = info.get("TotalGpuMemoryInMiB", 0)
    except (ValueError, SyntaxError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise _Bad(f"GpuInfo cannot be read: {row.get('GpuInfo')!r}") from error
    return _Raw(
        provider=provider,
        name=row["AcceleratorName"],
        count=round(_number(row["AcceleratorCount"]) or 0),
        memory_bytes=round(size * MiB) or None,
        total_memory_bytes=round(total * MiB) or None,
        price=_number(row["Price"]),
        per_gpu_price=None,
        spot_price=_number(row.get("SpotPrice") or ""),
        serverless=False,
        instance=row["InstanceType"],
    )


def _number(text: str) -> float | None:
    text = text.strip().lstrip("$")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError as error:
        raise _Bad(f"{text!r} is no number") from error
    if not isfinite(number):
        raise _Bad(f"{text!r} is no number to reckon with")
    return number


def _checked(raw: _Raw, source: str, dated: date) -> tuple[list[Offer], list[str]]:
    notes: list[str] = []
    if raw.count < 1:
        raise _Bad(f"{raw.count} GPUs")
    gpu = _which(raw, notes)
    if raw.price is None and raw.spot_price is not None:
        raise _Bad(f"{raw.name}: a spot price without an on-demand price")
    price = _price(raw, notes)
    offers = [_offer(raw, gpu, price / raw.count, False, source, dated)]
    if raw.spot_price is not None:
        if raw.spot_price > price:
            notes.append(
                f"{raw.name}: spot {raw.spot_price} above on-demand {price}; spot left out"
            )
        else:
            offers.append(_offer(raw, gpu, raw.spot_price / raw.count, True, source, dated))
    return offers, notes


def _which(raw: _Raw, notes: list[str]) -> Gpu:
    """The GPU, by its name and the memory that the row gives for one."""
    size, total = raw.memory_bytes, raw.total_memory_bytes
    if size is not None and size < GiB:
        notes.append(f"{raw.name}: {size // MiB} MiB a GPU is GiB in a field for MiB")
        size *= 1024
    if total is not None and total < GiB:
        total *= 1024
    if size is not None and total is not None and abs(total / (size * raw.count) - 1) > 0.05:
        equal = raw.count > 1 and abs(total / size - 1) <= 0.05
        if equal and not candidates(raw.name, size) and candidates(raw.name, size // raw.count):
            notes.append(f"{raw.name}: the memory of one GPU is that of all {raw.count}")
            size //= raw.count
        elif equal:
            notes.append(f"{raw.name}: the total memory of {raw.count} GPUs is that of one")
        else:
            notes.append(
                f"{raw.name}: {raw.count} GPUs of {size / GiB:g} GiB are not {total / GiB:g} GiB"
            )
    found = candidates(raw.name, size)
    if found:
        return found[0]
    if candidates(raw.name):
        said = "no" if size is None else f"{size / GiB:g} GiB"
        raise _Bad(f"{raw.name}: {said} memory fits none of the GPUs of that name")
    raise _Bad(f"{raw.name}: no such GPU in the catalogue")


def _price(raw: _Raw, notes: list[str]) -> float:
    """Dollars an hour for the whole instance."""
    price, each = raw.price, raw.per_gpu_price
    if price is None and each is not None and raw.count == 1:
        price = each
    if price is None or price <= 0:
        raise _Bad(
            f"{raw.name}: no price for {raw.count} GPUs together, and what stands under "
            f"one GPU ({each}) cannot be checked"
        )
    if each is not None and abs(each * raw.count / price - 1) > 0.03 + 0.006 / price:
        notes.append(
            f"{raw.name}: {raw.count} GPUs at {each} are not {price}; the price of all is taken"
        )
    return price


def _offer(raw: _Raw, gpu: Gpu, each: float, spot: bool, source: str, dated: date) -> Offer:
    return Offer(
        provider=raw.provider,
        gpu=gpu.key,
        count=raw.count,
        usd_per_gpu_hour=round(each, 4),
        spot=spot,
        serverless=raw.serverless,
        instance=raw.instance,
        source=source,
        date=dated,
    )


def problems_by_text(problems: tuple[Problem, ...]) -> Iterator[str]:
    """One line a problem, as shown to the user."""
    for problem in problems:
        yield f"line {problem.line}: {problem.text}" + (" (left out)" if problem.dropped else "")
