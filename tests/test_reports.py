"""Which test checks which public report about other memory estimators.

The numbers are our own; a report is a repository and the number of its issue or pull
request. A report stands here once a test has its figures, or what they come from.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CASES = "workloads/test_cases.py"
TORCH = "vgpu/test_torch_cases.py"
USERS = "prediction/test_users_reports.py"

# Number: what was reported, and the tests.
CHECKED: dict[str, tuple[str, tuple[str, ...]]] = {
    "P1": (
        "huggingface/accelerate#3297",
        (
            f"{CASES}::test_p1_weights_are_counted_in_the_dtype_they_are_held_in",
            f"{CASES}::test_p1_p33_the_cache_grows_by_its_own_bytes",
            f"{USERS}::test_a_kv_cache_has_its_own_line",
            "workloads/test_inference.py::test_every_layer_holds_every_token",
        ),
    ),
    "P2": (
        "huggingface/accelerate#2980",
        (
            "cli/test_app.py::test_every_verb_loads_and_explains_itself",
            "cli/test_app.py::test_the_module_runs_as_a_program",
        ),
    ),
    "P3": (
        "pytorch/pytorch#126738",
        (
            f"{CASES}::test_p3_what_fake_tensors_stumble_over_runs",
            "workloads/test_hf_models.py::test_text_and_what_goes_with_it",
        ),
    ),
    "P5": (
        "TylerYep/torchinfo#149",
        (f"{TORCH}::test_p5_what_evaluation_no_longer_needs_is_freed",),
    ),
    "P6": (
        "TylerYep/torchinfo#187, sksq96/pytorch-summary#202",
        (
            f"{USERS}::test_the_same_question_has_the_same_answer",
            f"{USERS}::test_three_figures_and_their_gap_is_explained",
            "prediction/test_result.py::test_the_same_each_time",
        ),
    ),
    "P7": (
        "deepspeedai/DeepSpeed#4527",
        (f"{TORCH}::test_p7_sharding_gathers_a_layer_and_keeps_activations",),
    ),
    "P10": (
        "deepspeedai/DeepSpeed#1861",
        (f"{CASES}::test_p10_which_formula_of_activations_holds",),
    ),
    "P11": (
        "Lightning-AI/pytorch-lightning#8028, #9625",
        (
            f"{USERS}::test_what_the_first_step_leaves_is_there_in_the_second",
            "prediction/test_build.py::test_steps_are_replayed_as_they_stand",
            "workloads/test_script.py::test_a_script_that_does_with_less",
        ),
    ),
    "P13": (
        "Lightning-AI/pytorch-lightning#3259, #11295, #20614",
        (
            f"{USERS}::test_no_absurd_batch",
            "prediction/test_curve.py::test_the_search_stops_at_its_cap",
        ),
    ),
    "P14": (
        "EleutherAI/lm-evaluation-harness#1678",
        (
            f"{CASES}::test_p14_all_logits_at_the_longest_request",
            f"{USERS}::test_logits_of_the_longest_request_decide_the_batch",
            "workloads/test_inference.py::test_logits_of_the_last_token_or_of_all",
        ),
    ),
    "P16": (
        "rentruewang/aioway#23",
        (
            f"{USERS}::test_nothing_unknown_is_skipped_in_silence",
            "vgpu/test_unknown.py::test_it_is_tried_once_and_listed_with_its_name",
            "vgpu/test_unknown.py::test_without_a_kernel_it_is_refused",
        ),
    ),
    "P17": (
        "huggingface/peft#2196",
        (f"{CASES}::test_p17_adapters_on_a_resnet_add_activations",),
    ),
    "P19": (
        "RahulSChand/gpu_poor#5",
        (f"{CASES}::test_p19_rank_and_targets_move_the_figure",),
    ),
    "P20": (
        "meta-pytorch/torchtune#794",
        (
            f"{CASES}::test_p20_full_training_may_take_less_than_adapters",
            "workloads/test_training.py::"
            "test_a_step_in_backward_moves_the_parameters_as_a_step_after_it",
        ),
    ),
    "P21": (
        "huggingface/peft#779, PrimeIntellect-ai/prime-rl#1118, pytorch/pytorch#37250",
        (f"{USERS}::test_three_figures_and_their_gap_is_explained",),
    ),
    "P22": (
        "pytorch/pytorch#97712, meta-pytorch/torchtune#389",
        (
            f"{CASES}::test_p22_each_implementation_has_its_own_peak",
            "workloads/test_training.py::test_each_implementation_of_an_optimizer",
        ),
    ),
    "P23": (
        "pytorch/pytorch#97514, lucidrains/x-transformers#325",
        (
            f"{TORCH}::test_p23_a_mask_is_kept_as_numbers_by_each_layer",
            f"{TORCH}::test_p23_the_kernel_decides",
            "vgpu/kernels/test_attention.py::test_a_mask_takes_the_efficient_kernel",
            "vgpu/kernels/test_attention.py::test_half_precision_by_architecture",
            "vgpu/kernels/test_attention.py::test_head_dimensions",
        ),
    ),
    "P25": (
        "NVIDIA-NeMo/Automodel#3907, huggingface/trl#6858",
        (f"{CASES}::test_p25_chunked_cross_entropy_never_holds_all_logits",),
    ),
    "P27": (
        "EleutherAI/gpt-neox#1123, huggingface/trl#4511",
        (
            f"{CASES}::test_p27_accumulation_adds_gradients_once",
            "trace/test_recorder.py::test_accumulation_is_one_step",
        ),
    ),
    "P28": (
        "pytorch/pytorch#48049, #45910, ecmwf/anemoi-core#134",
        (f"{TORCH}::test_p28_casts_of_weights_stay_until_autocast_ends",),
    ),
    "P30": (
        "pytorch/pytorch#120381, #161889, #197838",
        (
            "vgpu/api/test_compile.py::test_a_compiled_module_is_the_module",
            f"{TORCH}::test_p30_a_compiled_step_is_the_eager_one_and_says_so",
        ),
    ),
    "P31": (
        "pytorch/pytorch#93642, pytorch/executorch#8727",
        (
            f"{CASES}::test_p31_linears_of_few_bits_are_known",
            "workloads/test_quantize.py::test_bytes_are_those_of_the_format",
        ),
    ),
    "P33": (
        "unslothai/unsloth#4757, gpustack/gpustack#2412",
        (
            f"{CASES}::test_p1_p33_the_cache_grows_by_its_own_bytes",
            f"{CASES}::test_p33_a_window_and_a_latent_hold_less",
            "workloads/test_inference.py::test_a_sliding_window_bounds_the_cache",
            "workloads/test_inference.py::"
            "test_latent_attention_is_cached_as_transformers_caches_it",
        ),
    ),
    "P34": (
        "cli99/llm-analysis#18, #19, OpenLMLab/LOMO#16",
        (f"{CASES}::test_p34_activations_of_a_7b_model",),
    ),
    "P36": (
        "pytorch/pytorch#13412, kazuto1011/deeplab-pytorch#74",
        (
            f"{USERS}::test_a_workspace_that_doubles_memory_is_a_range",
            "vgpu/kernels/test_cudnn.py::test_benchmark_mode_tries_everything",
        ),
    ),
    "P37": (
        "pytorch/pytorch#35901, #29554, #173049",
        (
            f"{USERS}::test_fragmentation_is_shown_with_its_largest_hole",
            "prediction/test_build.py::test_fragmentation_and_largest_hole_at_the_peak",
        ),
    ),
}
# Number: what was reported, why no test has its figures, and the tests of what is done instead.
INSTEAD: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "P8": (
        "deepspeedai/DeepSpeed#4093",
        "How memory goes with the number of GPUs is not predicted: a script that asks for "
        "more processes than one is refused, and never answered with a share of one.",
        ("vgpu/api/test_distributed.py::test_more_processes_are_refused",),
    ),
}
NUMBERS = (
    *(1, 2, 3, 5, 6, 7, 8, 10, 11, 13, 14, 16, 17, 19, 20, 21, 22, 23, 25, 27, 28, 30, 31),
    *(33, 34, 36, 37),
)


@cache
def functions(file: str) -> frozenset[str]:
    """Names of the tests in `file`."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    found = (node.name for node in tree.body if isinstance(node, ast.FunctionDef))
    return frozenset(name for name in found if name.startswith("test_"))


def named() -> dict[str, tuple[str, ...]]:
    """Number to tests."""
    instead = {number: tests for number, (_, _, tests) in INSTEAD.items()}
    return {number: tests for number, (_, tests) in CHECKED.items()} | instead


def test_every_report_has_its_place() -> None:
    assert not set(CHECKED) & set(INSTEAD)
    assert set(named()) == {f"P{number}" for number in NUMBERS}
    assert len(INSTEAD) <= 3


@pytest.mark.parametrize("number", named())
def test_its_tests_exist(number: str) -> None:
    tests = named()[number]
    assert tests
    for test in tests:
        file, _, name = test.partition("::")
        assert name in functions(file), f"{number}: there is no test {test}"


@pytest.mark.parametrize("file", [CASES, TORCH])
def test_a_test_that_names_a_report_is_listed(file: str) -> None:
    for name in functions(file):
        for number in re.findall(r"_p(\d+)(?=_)", name):
            assert f"{file}::{name}" in named()[f"P{number}"], f"list {name} under P{number}"


def test_a_report_can_be_looked_up() -> None:
    for number in named():
        about = (CHECKED.get(number) or INSTEAD[number])[0]
        assert re.match(r"[\w.-]+/[\w.-]+#\d+", about), about
