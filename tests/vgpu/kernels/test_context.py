import pytest

from ebbtide.vgpu.kernels.context import KernelContext


def context(**environment: str) -> KernelContext:
    return KernelContext(capability=(8, 6), torch_version=(2, 13), environment=environment)


def test_sm_is_one_number() -> None:
    assert context().sm == 86
    assert KernelContext(capability=(12, 0), torch_version=(2, 8)).sm == 120


@pytest.mark.parametrize("text", ["1", "on", "ON", "Yes", "true", "y"])
def test_flag_says_yes(text: str) -> None:
    assert context(SWITCH=text).flag("SWITCH") is True


@pytest.mark.parametrize("text", ["0", "off", "No", "FALSE", "n"])
def test_flag_says_no(text: str) -> None:
    assert context(SWITCH=text).flag("SWITCH") is False


@pytest.mark.parametrize("text", ["", "2", "perhaps"])
def test_flag_neither(text: str) -> None:
    assert context(SWITCH=text).flag("SWITCH") is None


def test_flag_unset() -> None:
    assert context().flag("SWITCH") is None


def test_contexts_key_a_cache() -> None:
    plain, tuned = context(), context(CUBLAS_WORKSPACE_CONFIG=":16:8")
    assert hash(plain) == hash(context())
    assert plain == context()
    assert plain != tuned
    assert len({plain: 1, tuned: 2, context(): 3}) == 2
