"""A second caching allocator, written for the tests: slow, simple, nothing shared.

Memory is a list of segments; a segment is a list of pieces ``[address, size, request]``
in the order of addresses, `request` None for a free one. Every search looks at
everything. It knows ordinary segments, streams, splitting, merging, the retry and
`empty_cache`; of the settings `max_split_size_mb` and the rounding to divisions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass
class Segment:
    address: int
    size: int
    stream: int
    small: bool
    born: int
    pieces: list[list] = field(default_factory=list)

    @property
    def unused(self) -> bool:
        return len(self.pieces) == 1 and self.pieces[0][2] is None


class NoMemory(Exception):
    pass


class ReferenceAllocator:
    def __init__(self, capacity=None, *, divisions=0, max_split=None, rounding=20 * MIB):
        self.capacity = capacity
        self.divisions = divisions
        self.max_split = max_split
        self.rounding = rounding
        self.segments: list[Segment] = []
        self.end = 0x7F00_0000_0000
        self.born = 0
        self.peak_allocated = 0
        self.peak_reserved = 0

    # figures

    @property
    def allocated(self):
        return sum(p[1] for s in self.segments for p in s.pieces if p[2] is not None)

    @property
    def reserved(self):
        return sum(s.size for s in self.segments)

    # requests

    def rounded(self, nbytes):
        if self.divisions > 1 and nbytes > 512 * self.divisions:
            power = 1
            while power * 2 <= nbytes:
                power *= 2
            if power == nbytes:
                return nbytes
            step = power // self.divisions
            at = power
            while at < nbytes:
                at += step
            return at
        return max(512, -(-nbytes // 512) * 512)

    def malloc(self, nbytes, stream=0):
        size = self.rounded(nbytes)
        small = size <= MIB
        found = self.best(size, stream, small)
        if found is None:
            found = self.new(size, stream, small)
        if found is None and self.max_split is not None and self.give_back_big(size, stream, small):
            found = self.new(size, stream, small)
        if found is None:
            self.empty_cache()
            found = self.new(size, stream, small)
        if found is None:
            raise NoMemory
        segment, piece = found
        rest = piece[1] - size
        if small:
            split = rest >= 512
        else:
            split = rest > MIB and (self.max_split is None or size < self.max_split)
        if split:
            at = segment.pieces.index(piece)
            segment.pieces.insert(at + 1, [piece[0] + size, rest, None])
            piece[1] = size
        piece[2] = nbytes
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return piece[0]

    def best(self, size, stream, small):
        choices = [
            (piece[1], segment.born, piece[0], segment, piece)
            for segment in self.segments
            if segment.stream == stream and segment.small == small
            for piece in segment.pieces
            if piece[2] is None and piece[1] >= size
        ]
        if not choices:
            return None
        free, _, _, segment, piece = min(choices, key=lambda c: c[:3])
        if self.max_split is not None:
            if size < self.max_split <= free:
                return None
            if size >= self.max_split and free >= size + self.rounding:
                return None
        return segment, piece

    def new(self, size, stream, small):
        if small:
            whole = 2 * MIB
        elif size < 10 * MIB:
            whole = 20 * MIB
        else:
            whole = -(-size // (2 * MIB)) * 2 * MIB
        if self.capacity is not None and self.reserved + whole > self.capacity:
            return None
        self.born += 1
        segment = Segment(self.end, whole, stream, small, self.born, [[self.end, whole, None]])
        self.end += whole
        self.segments.append(segment)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return segment, segment.pieces[0]

    def give_back_big(self, size, stream, small):
        goal = max(size, self.max_split)
        mine = sorted(
            (s.pieces[0][1], s.born, s.address, s)
            for s in self.segments
            if s.unused and s.stream == stream and s.small == small
        )
        for free, _, _, segment in mine:
            if free >= goal:
                self.segments.remove(segment)
                return True
        gone = 0
        for free, _, _, segment in reversed(mine):
            if gone >= goal or free < self.max_split:
                break
            self.segments.remove(segment)
            gone += free
        return gone >= goal

    def free(self, address):
        for segment in self.segments:
            for at, piece in enumerate(segment.pieces):
                if piece[0] == address and piece[2] is not None:
                    piece[2] = None
                    self.merge(segment, at)
                    return
        raise KeyError(address)

    def merge(self, segment, at):
        pieces = segment.pieces
        while at + 1 < len(pieces) and pieces[at + 1][2] is None:
            pieces[at][1] += pieces.pop(at + 1)[1]
        while at > 0 and pieces[at - 1][2] is None:
            pieces[at - 1][1] += pieces.pop(at)[1]
            at -= 1

    def empty_cache(self):
        self.segments = [s for s in self.segments if not s.unused]
