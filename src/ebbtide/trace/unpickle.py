"""Read a pickle of plain data without executing anything, within bounds.

A memory snapshot is a pickle. Unpickling a file from somebody else runs whatever
that file says, so this reader knows only the instructions that build numbers,
texts, lists, tuples, dicts and sets: a pickle that names a class or a function is
refused. Python's own unpickler with every class refused would not do: a memo index
of 2**32 makes it allocate 64 GiB, a length of 2**40 that much, and a deeply nested
key overflows its stack. Here a claimed length is checked against the bytes that are
there, the memo is a dict, nothing recurses, and so memory is bounded by a multiple
of the file's size.

Source of the instruction set: Python's `pickletools`, protocols 2 to 5.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

from ebbtide.errors import SnapshotError

_LONGEST_INT = 16  # bytes; addresses and sizes take 8
_LONGEST_KEY = 8  # parts of a tuple that is a key; private pool ids have 2

_U32 = struct.Struct("<I").unpack_from
_I32 = struct.Struct("<i").unpack_from


def loads(data: bytes) -> Any:
    """The plain data that the pickle `data` describes, however deeply nested.

    Raises:
        SnapshotError: `data` is no pickle of protocol 2 to 5, is cut off or damaged, or
            holds anything but plain data.
    """
    if data[:1] != b"\x80":
        raise SnapshotError("not a pickle of protocol 2 to 5")
    machine = _Machine(data)
    try:
        return machine.run()
    except (IndexError, struct.error):
        raise SnapshotError(
            f"the pickle is cut off or damaged near byte {machine.at} of {len(data)}"
        ) from None
    except (ValueError, TypeError, OverflowError):  # UnicodeError is a ValueError
        raise SnapshotError(
            f"the pickle is damaged near byte {machine.at} of {len(data)}"
        ) from None
    except KeyError as error:
        raise SnapshotError(f"the pickle refers to value {error}, which it has not made") from None


class _Machine:
    """The stack machine that a pickle is a program for."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        """Run to the end. The instructions that fill a snapshot are written out here.

        A slice beyond the end comes out short; the next instruction then lies beyond
        the end, and is an IndexError.
        """
        data, stack, marks, memo, table = self.data, self.stack, self.marks, self.memo, _TABLE
        push = stack.append
        intern, from_bytes = sys.intern, int.from_bytes
        at = 0
        while True:
            code = data[at]
            at += 1
            if code == 0x6A:  # LONG_BINGET
                push(memo[_U32(data, at)[0]])
                at += 4
            elif code == 0x68:  # BINGET
                push(memo[data[at]])
                at += 1
            elif code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif code == 0x8A:  # LONG1
                end = at + 1 + data[at]
                if data[at] > _LONGEST_INT:
                    raise SnapshotError(f"the pickle holds a number of {data[at]} bytes")
                push(from_bytes(data[at + 1 : end], "little", signed=True))
                at = end
            elif code == 0x28:  # MARK
                marks.append(len(stack))
            elif code == 0x4B:  # BININT1
                push(data[at])
                at += 1
            elif code == 0x75:  # SETITEMS
                self.at = at
                items = self.since_mark()
                _put(self.top(dict), items)
            elif code == 0x7D:  # EMPTY_DICT
                push({})
            elif code == 0x8C:  # SHORT_BINUNICODE
                end = at + 1 + data[at]
                push(intern(str(data[at + 1 : end], "utf-8", "surrogatepass")))
                at = end
            elif code == 0x4A:  # BININT
                push(_I32(data, at)[0])
                at += 4
            elif code == 0x71:  # BINPUT
                memo[data[at]] = stack[-1]
                at += 1
            elif code == 0x72:  # LONG_BINPUT
                memo[_U32(data, at)[0]] = stack[-1]
                at += 4
            elif code == 0x2E:  # STOP
                if len(stack) != 1 or marks:
                    raise SnapshotError("the pickle ends with something other than one value")
                return stack[0]
            else:
                self.at = at
                handler = table[code]
                if handler is None:
                    raise SnapshotError(_refusal(code, at - 1))
                handler(self)
                at = self.at

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise SnapshotError(
                f"the pickle is cut off: it claims {count} bytes at byte {self.at}, "
                f"of {len(self.data)} in all"
            )
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def unsigned(self, count: int) -> int:
        return int.from_bytes(self.take(count), "little")

    def text(self, count: int) -> str:
        # File names are whatever the file system holds: `surrogatepass` as in Python itself.
        return str(self.take(count), "utf-8", "surrogatepass")

    def long(self, count: int) -> int:
        if count > _LONGEST_INT:
            raise SnapshotError(f"the pickle holds a number of {count} bytes")
        return int.from_bytes(self.take(count), "little", signed=True)

    def since_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def top(self, kind: type) -> Any:
        # A mark hides what lies below it, as it does in Python's own reader.
        value = self.stack[-1]
        hidden = bool(self.marks) and self.marks[-1] == len(self.stack)
        if hidden or type(value) is not kind:
            raise SnapshotError(
                f"the pickle is damaged near byte {self.at}: no {kind.__name__} to fill"
            )
        return value


def _put(into: dict[Any, Any], items: list[Any]) -> None:
    keys = items[::2]
    for key in keys:
        if type(key) is not str:
            _key(key)
    into.update(zip(keys, items[1::2], strict=True))


def _key(key: Any) -> Any:
    # Flat keys only: hashing a nested one recurses, and can take for ever.
    if isinstance(key, (str, int, float, bytes, type(None))):
        return key
    if isinstance(key, tuple) and len(key) <= _LONGEST_KEY:
        if all(isinstance(part, (str, int, float, bytes, type(None))) for part in key):
            return key
    raise SnapshotError(f"the pickle uses a {type(key).__name__} as a key")


def _append(m: _Machine) -> None:
    value = m.stack.pop()
    m.top(list).append(value)


def _appends(m: _Machine) -> None:
    items = m.since_mark()
    m.top(list).extend(items)


def _setitem(m: _Machine) -> None:
    value = m.stack.pop()
    key = m.stack.pop()
    m.top(dict)[_key(key)] = value


def _additems(m: _Machine) -> None:
    items = m.since_mark()
    m.top(set).update(_key(item) for item in items)


def _dict(m: _Machine) -> None:
    items = m.since_mark()
    m.stack.append({})
    _put(m.stack[-1], items)


def _tuple(count: int) -> Callable[[_Machine], None]:
    def build(m: _Machine) -> None:
        if len(m.stack) < count:
            raise IndexError
        m.stack[len(m.stack) - count :] = [tuple(m.stack[len(m.stack) - count :])]

    return build


def _push(make: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    def build(m: _Machine) -> None:
        m.stack.append(make(m))

    return build


def _proto(m: _Machine) -> None:
    version = m.unsigned(1)
    if not 2 <= version <= 5:
        raise SnapshotError(f"the pickle has protocol {version}; 2 to 5 can be read")


def _frame(m: _Machine) -> None:
    m.take(8)  # how much to read ahead: of no use here


def _refusal(code: int, at: int) -> str:
    name = _REFUSED.get(code)
    if name is None:
        return f"not a pickle of plain data: byte {at} is {code:#04x}"
    return (
        f"the pickle asks to load a class or run code ({name} at byte {at}). "
        "A memory snapshot holds plain data only; this file is refused."
    )


_REFUSED = {
    0x63: "GLOBAL",
    0x93: "STACK_GLOBAL",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x92: "NEWOBJ_EX",
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}

_HANDLERS: dict[int, Callable[[_Machine], Any]] = {
    0x80: _proto,
    0x95: _frame,
    0x30: lambda m: m.stack.pop(),
    0x31: _Machine.since_mark,  # POP_MARK
    0x32: _push(lambda m: m.stack[-1]),  # DUP
    0x4E: _push(lambda m: None),
    0x88: _push(lambda m: True),
    0x89: _push(lambda m: False),
    0x4D: _push(lambda m: m.unsigned(2)),
    0x8B: _push(lambda m: m.long(m.unsigned(4))),
    0x47: _push(lambda m: struct.unpack(">d", m.take(8))[0]),
    0x58: _push(lambda m: m.text(m.unsigned(4))),
    0x8D: _push(lambda m: m.text(m.unsigned(8))),
    0x42: _push(lambda m: m.take(m.unsigned(4))),
    0x43: _push(lambda m: m.take(m.unsigned(1))),
    0x8E: _push(lambda m: m.take(m.unsigned(8))),
    0x96: _push(lambda m: m.take(m.unsigned(8))),  # BYTEARRAY8, kept as bytes
    0x5D: _push(lambda m: []),
    0x61: _append,
    0x65: _appends,
    0x6C: _push(_Machine.since_mark),  # LIST
    0x73: _setitem,
    0x64: _dict,
    0x29: _push(lambda m: ()),
    0x74: _push(lambda m: tuple(m.since_mark())),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    0x8F: _push(lambda m: set()),
    0x90: _additems,
    0x91: _push(lambda m: frozenset(_key(item) for item in m.since_mark())),
}
_TABLE = [_HANDLERS.get(code) for code in range(256)]
