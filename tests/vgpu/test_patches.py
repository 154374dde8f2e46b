"""Replacing attributes and putting them back."""

from __future__ import annotations

import sys
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.vgpu.patches import PatchSet


class Base:
    inherited = "base"

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of(cls) -> str:
        return cls.__name__


class Child(Base):
    own = "child"


def test_a_module_attribute_comes_back() -> None:
    module = types.ModuleType("one")
    module.value = 1  # type: ignore[attr-defined]
    patches = PatchSet()
    patches.set(module, "value", 2)
    assert module.value == 2
    patches.undo()
    assert module.value == 1


def test_a_missing_attribute_is_missing_again() -> None:
    module = types.ModuleType("one")
    with PatchSet() as patches:
        patches.set(module, "fresh", 1)
        assert module.fresh == 1
    assert not hasattr(module, "fresh")


def test_an_inherited_attribute_is_not_copied_down() -> None:
    with PatchSet() as patches:
        patches.set(Child, "inherited", "mine")
        assert Child.inherited == "mine"
        assert Base.inherited == "base"
    assert "inherited" not in vars(Child)
    assert Child.inherited == "base"


def test_static_and_class_methods_keep_their_kind() -> None:
    before = dict(vars(Base))
    with PatchSet() as patches:
        patches.set(Base, "static", staticmethod(lambda: "new"))
        patches.set(Base, "of", classmethod(lambda cls: "other"))
        assert Base.static() == Base().static() == "new"
        assert Base.of() == "other"
    assert dict(vars(Base)) == before
    assert Base().static() == "static"
    assert Child.of() == "Child"


def test_wrap_sees_what_was_there() -> None:
    module = types.ModuleType("one")
    module.double = lambda x: 2 * x  # type: ignore[attr-defined]
    with PatchSet() as patches:
        patches.wrap(module, "double", lambda old: lambda x: old(x) + 1)
        patches.wrap(module, "double", lambda old: lambda x: old(x) * 10)
        assert module.double(3) == 70
    assert module.double(3) == 6


def test_undone_after_an_error() -> None:
    module = types.ModuleType("one")
    module.value = 1  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError), PatchSet() as patches:
        patches.set(module, "value", 2)
        _ = 1 / 0
    assert module.value == 1


def test_one_failure_does_not_keep_the_others_from_being_undone() -> None:
    module = types.ModuleType("one")
    module.value = 1  # type: ignore[attr-defined]
    patches = PatchSet()
    patches.set(module, "value", 2)
    patches.set(module, "gone", 3)
    patches.set(module, "value", 4)
    del module.gone
    with pytest.raises(ExceptionGroup) as caught:
        patches.undo()
    assert [type(error) for error in caught.value.exceptions] == [AttributeError]
    assert module.value == 1
    assert len(patches) == 0


def test_undoing_twice_is_harmless() -> None:
    module = types.ModuleType("one")
    module.value = 1  # type: ignore[attr-defined]
    patches = PatchSet()
    patches.set(module, "value", 2)
    patches.undo()
    module.value = 9  # type: ignore[attr-defined]
    patches.undo()
    assert module.value == 9


def test_items_of_a_mapping() -> None:
    mapping = {"a": 1}
    with PatchSet() as patches:
        patches.set_item(mapping, "a", 2)
        patches.set_item(mapping, "b", 3)
        assert mapping == {"a": 2, "b": 3}
    assert mapping == {"a": 1}


def test_everywhere_reaches_other_names_and_modules_imported_meanwhile() -> None:
    class Old:
        pass

    class New:
        pass

    early = types.ModuleType("early")
    early.alias = Old  # type: ignore[attr-defined]
    late = types.ModuleType("late")
    sys.modules["early"], sys.modules["late"] = early, late
    try:
        with PatchSet() as patches:
            patches.everywhere([(Old, New)])
            assert early.alias is New
            late.taken = New  # type: ignore[attr-defined]
        assert early.alias is Old
        assert late.taken is Old
    finally:
        del sys.modules["early"], sys.modules["late"]


def test_one_replacement_cannot_stand_for_two() -> None:
    new = object()
    patches = PatchSet()
    with pytest.raises(ValueError, match="of its own"):
        patches.everywhere([(object(), new), (object(), new)])
    assert len(patches) == 0


def test_on_undo_runs_in_its_place() -> None:
    module = types.ModuleType("one")
    module.value = 1  # type: ignore[attr-defined]
    seen: list[int] = []
    with PatchSet() as patches:
        patches.set(module, "value", 2)
        patches.on_undo(lambda: seen.append(module.value))
        patches.set(module, "value", 3)
    assert seen == [2]


def test_a_slot_is_refused() -> None:
    class Slotted:
        __slots__ = ("value",)

    with PatchSet() as patches, pytest.raises(TypeError):
        patches.set(Slotted(), "value", 1)


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(), max_size=6),
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers()), max_size=20),
)
def test_any_sequence_of_replacements_is_undone(
    start: dict[str, int], steps: list[tuple[str, int]]
) -> None:
    module = types.ModuleType("one")
    vars(module).update(start)
    before = dict(vars(module))
    patches = PatchSet()
    for name, value in steps:
        patches.set(module, name, value)
    expected = {**before, **dict(steps)}
    assert dict(vars(module)) == expected
    patches.undo()
    assert dict(vars(module)) == before
