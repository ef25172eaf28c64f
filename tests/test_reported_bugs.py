"""Faults that users of other engines reported in public, and the tests that replay them here.

Numbers only tell the reports apart. `REPLAYED` names the tests; `NOT_HERE` says why a
case cannot occur. What no other test replays is replayed below.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from tests import fake
from tests.engine.test_equality import decode, model
from tests.engine.test_prefix_cache import PAGE, assert_as_prefilled
from tests.fake import MASK, FakeBackbone, Script, encode

from recguide.core import FinishReason, SamplingParams, Vocabulary
from recguide.engine.engine import Engine, EngineConfig

TESTS = Path(__file__).parent

REPLAYED: dict[int, tuple[str, ...]] = {
    # Stop, length and end of sequence inside an accepted block
    1: (
        "engine/test_rounds.py::test_end_of_sequence_and_cap_at_every_pair_of_places",
        "engine/test_commit.py::test_end_of_sequence_stop_string_and_cap_at_every_place",
    ),
    2: (
        "engine/test_rounds.py::test_a_stop_string_cuts_exactly_wherever_it_falls_in_a_block",
        "test_reported_bugs.py::test_a_stop_that_cuts_one_choice_leaves_the_other_alone",
    ),
    3: (
        "engine/test_structures.py::test_a_stop_string_before_the_grammars_end_in_one_block_wins",
        "engine/test_structures.py::test_the_grammars_end_comes_before_a_stop_string_that_the_model_wanted_later",
    ),
    5: ("serving/test_completions.py::test_token_ids_and_logprobs_agree_with_usage_under_a_stop",),
    7: ("serving/test_hearing.py::test_reasoning_tokens_are_a_part_of_the_completions",),
    9: (
        "engine/test_commit.py::test_min_tokens_puts_every_end_off",
        "speculation/test_picks.py::test_min_tokens_counts_slot_by_slot",
    ),
    10: (
        "models/test_families.py::test_generation_config_says_what_ends_a_text",
        "test_reported_bugs.py::test_every_end_of_sequence_ends_a_text_and_ignoring_ignores_all",
    ),
    11: (
        "serving/test_chat.py::test_a_stop_string_is_never_said_nor_begun",
        "engine/test_text.py::test_the_earliest_stop_string_cuts_and_never_leaks",
    ),
    12: (
        "engine/test_text.py::test_a_held_back_tail_is_released_at_the_end",
        "serving/test_chat.py::test_what_a_stop_string_held_back_is_said_if_it_does_not_come",
    ),
    # Is it really lossless?
    15: (
        "test_reported_bugs.py::test_one_word_again_and_again_is_continued_as_plain_decoding_does",
        "bench/test_verify.py::test_built_in_prompts_hold_the_one_that_caught_bugs_elsewhere",
    ),
    17: (
        "benchmarks/test_exact_mode.py::test_every_condition_and_method_has_a_row_and_no_token_differs",
        "attention/test_triton.py::test_exact_results_are_the_same_to_the_last_bit_however_they_come_about",
    ),
    18: (
        "speculation/test_picks.py::test_penalties_grow_inside_a_block",
        "engine/test_equality.py::test_speculative_text_is_plain_text",
    ),
    20: (
        "attention/test_triton.py::test_exact_results_are_the_same_to_the_last_bit_however_they_come_about",
    ),
    21: (
        "engine/test_prefix_cache.py::test_pages_that_are_found_hold_what_a_prefill_would_write",
        "engine/test_draft_rows.py::test_a_draft_row_leaves_the_caches_bytes_unchanged",
    ),
    23: (
        "engine/test_equality.py::test_every_request_of_a_batch_may_have_its_own_method_block_and_sampling",
    ),
    24: (
        "engine/test_equality.py::test_choices_differ_and_the_first_is_the_request_of_its_own",
        "serving/test_soak.py::test_a_thousand_requests",
    ),
    27: (
        "models/ops/test_exact.py::test_a_tokens_bits_do_not_depend_on_its_company",
        "bench/test_exactness.py::test_follow_lists_every_token_that_plain_decoding_would_not_have_picked",
    ),
    # Penalties and parameters
    28: ("test_reported_bugs.py::test_one_word_again_and_again_is_continued_as_plain_decoding_does",),
    29: ("test_reported_bugs.py::test_one_word_again_and_again_is_continued_as_plain_decoding_does",),
    30: (
        "engine/test_equality.py::test_speculative_text_is_plain_text",
        "serving/test_completions.py::test_whole_and_streamed_text_is_the_offline_engines",
    ),
    32: (
        "serving/test_completions.py::test_speculation_is_the_requests_choice_and_changes_no_text",
        "engine/test_planning.py::test_requests_of_several_policies_and_methods_share_forwards",
    ),
    # Log-probabilities
    33: (
        "serving/test_completions.py::test_logprobs_are_the_engines_one_for_each_token",
        "serving/test_chat.py::test_logprobs_have_one_entry_a_token_and_so_many_alternatives",
    ),
    34: ("serving/test_completions.py::test_logprobs_of_an_echoed_prompt_are_aligned_with_its_tokens",),
    35: ("serving/clients/test_lm_eval.py::test_loglikelihoods",),
    # KV, abort, preemption
    37: ("kv/test_tables.py::TestTables",),
    38: (
        "engine/test_prefix_cache.py::test_texts_stay_the_same_while_pages_are_evicted",
        "engine/test_prefix_cache.py::test_a_second_identical_prompt_takes_all_whole_pages_but_runs_its_last_token",
    ),
    39: ("engine/test_rounds.py::test_preempted_requests_keep_output_budget_and_statistics",),
    40: (
        "engine/test_prefix_cache.py::test_the_tree_knows_committed_tokens_alone",
        "engine/test_prefix_cache.py::test_a_text_that_goes_on_from_an_earlier_one_is_that_of_a_cold_start",
    ),
    43: ("engine/test_cancellation.py::test_any_order_of_requests_steps_and_aborts",),
    44: (
        "engine/test_faults.py::test_a_prefill_without_memory_fails_alone",
        "serving/test_faults.py::test_what_the_model_cannot_do_fails_one_request_and_no_other",
    ),
    46: (
        "engine/test_cancellation.py::test_a_prefill_can_be_aborted_at_each_chunk_and_asked_again_at_once",
        "engine/test_client.py::test_closing_a_stream_aborts_it_and_its_id_is_free_at_once",
    ),
    48: ("test_reported_bugs.py::test_rows_that_accept_differently_leave_no_stray_keys_behind",),
    49: (
        "engine/test_scheduler.py::test_three_times_the_pools_demand_all_finish_with_few_preemptions",
        "serving/test_faults.py::test_three_times_the_caches_demand_is_all_answered",
    ),
    # Context limit, shapes, graphs
    51: (
        "engine/test_faults.py::test_a_prompt_near_the_limit_is_taken_or_refused_with_both_numbers",
        "serving/test_completions.py::test_a_prompt_at_the_contexts_limit",
    ),
    53: (
        "serving/test_completions.py::test_one_token_is_one_token_and_no_draft",
        "serving/test_completions.py::test_echo_alone_costs_no_token",
        "engine/test_rounds.py::test_a_draft_never_reaches_past_the_cap",
    ),
    54: (
        "engine/test_graphs_gpu.py::test_a_graphs_logits_are_those_of_the_rows_alone",
        "engine/test_graphs_gpu.py::test_graphs_and_forwards_without_them_agree",
    ),
    56: (
        "engine/test_memory.py::test_keys_and_values_take_what_weights_and_graphs_leave",
        "engine/test_memory.py::test_a_full_device_is_refused_with_what_fills_it",
    ),
    57: (
        "engine/test_demo_model.py::test_the_adapter_is_applied",
        "engine/test_graphs_gpu.py::test_an_adapter_that_changes_nothing_is_refused_at_the_start",
    ),
    # Scheduling and health
    60: ("serving/test_clients.py::test_health_is_green_while_the_engine_is_busy",),
    62: (
        "engine/test_client.py::test_those_who_left_the_queue_are_never_computed",
        "serving/test_disconnects.py::test_what_nobody_waits_for_is_not_computed",
    ),
    # Adaptive blocks, branches, calibration
    64: (
        "engine/test_planning.py::test_a_mixed_load_uses_more_than_one_block",
        "engine/test_planning.py::test_an_engine_says_at_its_start_who_chooses",
    ),
    65: ("guidance/test_simulation.py::test_the_price_beats_every_fixed_block_and_the_paper",),
    66: ("engine/test_planning.py::test_a_random_walk_over_plans_writes_plain_text",),
    69: ("engine/test_planning.py::test_plain_steps_of_a_policy_run_ahead",),
    70: (
        "guidance/test_cost.py::test_a_stepped_table_charges_the_bucket",
        "guidance/test_sweep.py::test_the_best_rate_is_that_of_the_best_of_all_combinations",
    ),
    71: (
        "engine/test_planning.py::test_worthless_drafts_leave_plain_decoding",
        "guidance/test_policies.py::test_idle_compute_drafts_and_full_compute_decodes_plainly",
    ),
    72: ("engine/test_planning.py::test_a_shorter_verification_computes_less",),
    73: ("bench/test_doctor.py::test_acceptance_is_held_against_its_band",),
    74: ("bench/acceptance/test_process.py::test_results_carry_label_and_residuals",),
    75: (
        "engine/test_tracing.py::test_warm_up_is_none_of_it",
        "bench/calibration/test_reliability.py::test_support_says_which_blocks_a_policy_seldom_chose",
    ),
    # Benchmarks and metrics
    77: (
        "engine/test_observing.py::test_drafted_accepted_and_emitted_are_what_their_names_say",
        "serving/test_statistics.py::test_the_counts_agree_with_one_another",
    ),
    78: (
        "serving/test_statistics.py::test_several_choices_add_up_and_each_is_told",
        "serving/test_following.py::test_an_aborted_request_still_tells_its_acceptance",
    ),
    79: (
        "serving/test_metrics.py::test_rounds_add_up_to_the_statistics_of_the_requests",
        "engine/test_graphs_gpu.py::test_the_host_waits_once_a_forward",
    ),
    # The shape of OpenAI's API
    80: (
        "serving/test_completions.py::test_whole_and_streamed_text_is_the_offline_engines",
        "serving/test_chat.py::test_whole_and_streamed_answers_are_the_offline_engines",
    ),
    82: (
        "serving/test_completions.py::test_only_a_true_stream_is_a_stream",
        "serving/test_chat.py::test_only_a_true_stream_is_a_stream",
    ),
    83: (
        "serving/test_clients.py::test_models_are_listed",
        "serving/test_gate.py::test_models_are_listed_under_their_names",
    ),
    84: ("serving/test_completions.py::test_usage_comes_last_and_only_when_asked_for",),
    # Diffusion models
    86: ("engine/test_scheduler.py::test_three_times_the_pools_demand_all_finish_with_few_preemptions",),
    87: (
        "bench/test_doctor.py::test_the_mask_token_is_named",
        "models/test_loading.py::test_a_wrong_mask_token",
    ),
    88: (
        "attention/test_visibility.py::test_every_token_sees_itself_and_no_other_request",
        "engine/test_faults.py::test_nan_anywhere_fails_the_request_that_has_it",
    ),
    89: ("attention/test_reference.py::test_a_request_alone_equals_the_request_among_others",),
    90: (
        "engine/test_prefix_cache.py::test_a_second_identical_prompt_takes_all_whole_pages_but_runs_its_last_token",
        "kv/test_tables.py::test_a_page_that_is_not_full_of_committed_tokens_is_not_shared",
    ),
    91: (
        "models/test_tokenizer.py::test_special_tokens",
        "test_llm.py::test_a_stream_says_something_before_its_end",
    ),
    93: (
        "models/test_transformers.py::test_nld_in_causal_mode_is_ministral_3",
        "engine/test_demo_model.py::test_plain_greedy_text_is_transformers",
    ),
    94: (
        "speculation/test_statistics.py::test_logprobs_are_raw",
        "serving/test_soak.py::test_a_thousand_requests",
    ),
    # Structured output
    95: (
        "engine/test_structures.py::test_structured_text_is_plain_decodings",
        "speculation/test_grammar.py::test_a_matcher_may_be_asked_anything_in_any_order",
    ),
}

NOT_HERE: dict[int, str] = {
    26: "one model is not spread over devices, so no ranks sample",
    42: "the same: no ranks that a cancelled prefill could part",
    67: "replicas share nothing and plan for themselves",
    92: "requests of users of other engines for this kind of model, not a fault",
}


@cache
def names_in(file: str) -> frozenset[str]:
    """What a test file defines at its top, and what it assigns."""
    found = set[str]()
    for node in ast.parse((TESTS / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(found)


@pytest.mark.parametrize("case", REPLAYED)
def test_a_case_is_replayed_by_tests_that_exist(case):
    assert case not in NOT_HERE
    for test in REPLAYED[case]:
        file, _, name = test.partition("::")
        assert name in names_in(file), test


def tiny_engine():
    return Engine(model("llama"), decode, EngineConfig(page_size=PAGE, kv_cache_tokens=512))


# --- 2, 10: ends --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [1, 2, 8, 32])
def test_a_stop_that_cuts_one_choice_leaves_the_other_alone(block):
    """Noise goes by position, so nothing has to be wound back where a block is cut."""
    params = {"max_tokens": 24, "temperature": 1.0, "seed": 5, "n": 2, "ignore_eos": True}
    machine = tiny_engine()
    whole, other = fake.complete(machine, [(5, 9, 7)], SamplingParams(method="ar", **params))
    stops = {whole.text[at : at + 5] for at in range(2, 17, 3)}
    for stop in stops:
        wanted = SamplingParams(method="linear", block_size=block, stop=[stop], **params)
        cut, untouched = fake.complete(machine, [(5, 9, 7)], wanted)
        assert cut.text == whole.text[: whole.text.index(stop)]
        assert cut.stop_reason == stop
        if stop not in other.text:
            assert untouched.token_ids == other.token_ids


class TwoEnds(FakeBackbone):
    vocabulary = Vocabulary(size=260, eos=(256, 7), mask=MASK)


@pytest.mark.parametrize("method", ["ar", "linear", "recguide", "tidar"])
@pytest.mark.parametrize("end", TwoEnds.vocabulary.eos)
def test_every_end_of_sequence_ends_a_text_and_ignoring_ignores_all(end, method):
    prompt, answer = tuple(encode("Say: ")), encode("the quick brown fox")
    block = {} if method == "ar" else {"block_size": 8}
    for at in range(1, 12):
        script = Script(prompt, (*answer[:at], end, *answer[at:]))
        machine = Engine(TwoEnds(script), fake.decode, EngineConfig())
        params = {"max_tokens": 16, "method": method, **block}
        (ended,) = fake.complete(machine, [prompt], SamplingParams(**params))
        assert ended.finish_reason is FinishReason.STOP
        assert ended.stop_reason == end
        assert ended.token_ids == script.answer[: at + 1]
        (whole,) = fake.complete(machine, [prompt], SamplingParams(ignore_eos=True, **params))
        assert whole.finish_reason is FinishReason.LENGTH
        assert whole.token_ids == script.answer[:16]


# --- 15, 28, 29: loops --------------------------------------------------------------------------------------

PENALTIES = {
    "none": {},
    "repetition": {"repetition_penalty": 1.8},
    "frequency": {"frequency_penalty": 1.5},
    "presence": {"presence_penalty": 2.0},
}


@pytest.mark.parametrize("penalty", PENALTIES)
def test_one_word_again_and_again_is_continued_as_plain_decoding_does(penalty):
    params = {"max_tokens": 32, **PENALTIES[penalty]}
    (plain,) = fake.complete(tiny_engine(), [(6,) * 48], SamplingParams(method="ar", **params))
    (loose,) = fake.complete(tiny_engine(), [(6,) * 48], SamplingParams(method="ar", max_tokens=32))
    assert (plain.token_ids == loose.token_ids) is (penalty == "none"), "the penalty counts"
    machine = tiny_engine()
    requests = [
        machine.add((6,) * 48, SamplingParams(method=method, block_size=block, **params))[0]
        for method in ("linear", "recguide", "tidar")
        for block in (1, 8, 16, 32)
    ]
    fake.run(machine)
    assert {request.completion().token_ids for request in requests} == {plain.token_ids}


# --- 48: acceptance that differs ----------------------------------------------------------------------------


def test_rows_that_accept_differently_leave_no_stray_keys_behind():
    """After every round each request's keys and values are those of a prefill of its committed tokens."""
    machine = tiny_engine()
    prompts = ((5, 9, 7), (11,), (6,) * 9, tuple(range(4, 21)))
    blocks = (2, 8, 16, 32)
    requests = [
        machine.add(prompt, SamplingParams(max_tokens=20, method="recguide", block_size=block))[0]
        for prompt, block in zip(prompts, blocks, strict=True)
    ]
    while machine.busy:
        machine.step()
        for request in requests:
            if request.finish_reason is None and request.cached:
                assert_as_prefilled(machine, request.committed, request.table.pages)
    accepted = sum((request.stats.acceptance for request in requests), start=requests[0].stats.acceptance)
    assert len(accepted) >= 3
