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


@pytest.mark.parametrize(
    ("release", "cuda", "cudnn"),
    [
        ((2, 3), (12, 1), 8902),
        ((2, 6), (12, 4), 90100),
        ((2, 7), (12, 6), 90501),
        ((2, 10), (12, 8), 91002),
        ((2, 13), (13, 0), 92000),
        ((2, 20), (13, 0), 92000),
        ((1, 13), (11, 7), 8500),
    ],
)
def test_a_release_brings_its_libraries(
    release: tuple[int, int], cuda: tuple[int, int], cudnn: int
) -> None:
    found = KernelContext.of((8, 6), release, 28, {})
    assert (found.cuda_version, found.cudnn_version) == (cuda, cudnn)


@pytest.mark.parametrize(
    ("capability", "threads"),
    [((7, 0), 2048), ((7, 5), 1024), ((8, 0), 2048), ((8, 6), 1536), ((9, 0), 2048)],
)
def test_threads_of_a_multiprocessor(capability: tuple[int, int], threads: int) -> None:
    assert KernelContext.of(capability, (2, 13), 80, {}).threads_per_sm == threads


def test_the_environment_is_taken_as_it_is_now() -> None:
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    found = KernelContext.of((8, 6), (2, 13), 28, environment)
    environment.clear()
    assert found.environment["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
