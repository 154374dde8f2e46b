"""Cloud offers: those bundled with Ebbtide, and those the user has refreshed.

A refreshed list is kept in the user's cache directory and stands in for the bundled
offers of the same providers.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, fields
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

from ebbtide.errors import UsageError
from ebbtide.gpus.catalogue import catalogue
from ebbtide.gpus.importing import Offer, PriceList, read_prices

# the-full-stack/website @ 2bddc6d5, docs/cloud-gpus (MIT); last edited on this day.
_BUNDLED_SOURCE = "the-full-stack/website @ 2bddc6d5"
_BUNDLED_DATE = date(2025, 3, 7)
_BUNDLED_FILES = ("fsdl_cloud_gpus.csv", "fsdl_serverless_gpus.csv")

_MAX_BYTES = 32 * 1024 * 1024
_TIMEOUT_S = 20.0
_VERSION = 1


@cache
def bundled() -> PriceList:
    """The offers that come with Ebbtide, and what was wrong in their lists."""
    lists = [
        read_prices(
            files("ebbtide.gpus").joinpath("data", name).read_text(encoding="utf-8"),
            source=_BUNDLED_SOURCE,
            dated=_BUNDLED_DATE,
        )
        for name in _BUNDLED_FILES
    ]
    return PriceList(
        offers=tuple(offer for one in lists for offer in one.offers),
        problems=tuple(problem for one in lists for problem in one.problems),
    )


def offers(cache_dir: Path | None = None) -> tuple[Offer, ...]:
    """All offers known: the refreshed ones, and the bundled ones of other providers.

    Args:
        cache_dir: where refreshed offers are kept; the user's own where None.

    Raises:
        UsageError: the refreshed offers cannot be read; the message names the file.
    """
    path = _store(cache_dir)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return bundled().offers
    fresh = _load(path, text)
    renewed = {offer.provider for offer in fresh}
    return fresh + tuple(offer for offer in bundled().offers if offer.provider not in renewed)


def refresh(source: str, *, provider: str = "", cache_dir: Path | None = None) -> PriceList:
    """Read a price list and keep its offers for later calls of `offers`.

    Args:
        source: an address (http, https) or a file, in a layout that
            `ebbtide.gpus.importing` knows.
        provider: who offers, for lists that do not say.
        cache_dir: where to keep them; the user's own where None.

    Returns:
        What was read. What was kept of the same providers before is replaced.

    Raises:
        UsageError: the source cannot be reached or read, holds no usable offer, or
            does not say who offers. Nothing is changed then.
    """
    text, dated = _download(source) if "://" in source else _read(Path(source))
    found = read_prices(text, source=source, dated=dated, provider=provider)
    if not found.offers:
        reasons = "; ".join(problem.text for problem in found.problems[:3])
        raise UsageError(f"{source} holds no offer that can be used. {reasons}".rstrip())
    if any(not offer.provider for offer in found.offers):
        raise UsageError(f"{source} does not say who offers. Add --provider NAME.")
    path = _store(cache_dir)
    renewed = {offer.provider for offer in found.offers}
    before = _load(path, path.read_text(encoding="utf-8")) if path.exists() else ()
    kept = tuple(offer for offer in before if offer.provider not in renewed)
    _write(path, kept + found.offers)
    return found


def _store(cache_dir: Path | None) -> Path:
    if cache_dir is None:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        cache_dir = Path(base).expanduser() / "ebbtide"
    return cache_dir / "offers.json"


def _read(path: Path) -> tuple[str, date]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise UsageError(f"{path} is larger than {_MAX_BYTES} bytes: that is no price list.")
        text = path.read_text(encoding="utf-8")
        return text, datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The price list {str(path)!r} cannot be read: {error}") from error


def _download(url: str) -> tuple[str, date]:
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"{url!r}: prices are read from http, https or a file.")
    try:
        with urlopen(url, timeout=_TIMEOUT_S) as answer:
            data: bytes = answer.read(_MAX_BYTES + 1)
            modified = answer.headers.get("Last-Modified")
    except (URLError, TimeoutError, OSError, ValueError) as error:
        raise UsageError(
            f"{url} cannot be reached: {error}. Without a network, give a file that you have "
            "downloaded; the bundled offers work without either."
        ) from error
    if len(data) > _MAX_BYTES:
        raise UsageError(f"{url} is larger than {_MAX_BYTES} bytes: that is no price list.")
    try:
        dated = parsedate_to_datetime(modified).date() if modified else None
    except ValueError:
        dated = None
    try:
        return data.decode(), dated or datetime.now(UTC).date()
    except UnicodeDecodeError as error:
        raise UsageError(f"{url} is no text: {error}") from error


def _write(path: Path, kept: tuple[Offer, ...]) -> None:
    """Write all or nothing: a reader sees the old file or the new one."""
    entries = [asdict(offer) | {"date": offer.date.isoformat()} for offer in kept]
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=".offers-", delete=False
        ) as file:
            temporary = file.name
            json.dump({"version": _VERSION, "offers": entries}, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise UsageError(f"The offers cannot be kept in {path}: {error}") from error


def _load(path: Path, text: str) -> tuple[Offer, ...]:
    try:
        data = json.loads(text)
        if data["version"] != _VERSION:
            raise ValueError(f"version {data['version']!r}")
        return tuple(_offer(entry) for entry in data["offers"] if entry["gpu"] in catalogue())
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"The refreshed offers in {path} cannot be read ({error}). Delete the file, or "
            "refresh again."
        ) from error


def _offer(entry: dict[str, Any]) -> Offer:
    known = {field.name for field in fields(Offer)}
    if set(entry) != known:
        raise ValueError(f"an offer has {sorted(entry)}, not {sorted(known)}")
    return Offer(**entry | {"date": date.fromisoformat(entry["date"])})
