"""Retired names: one concept has one word in code, configuration, events, commands and guides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(path for package in ("rl2f_core", "jobs") for path in (ROOT / package).rglob("*.py"))
GUIDES = [
    *ROOT.glob("*.md"),
    *(p for d in ("rl2f_core", "jobs", "app", "data", "tests") for p in (ROOT / d).rglob("README.md")),
]

IDENTIFIERS = set(
    """
    Ranks SharedJournal SharedDir StopSignal Baton give_way aside native_bfloat16 give_back owing long_form
    StageAt Between value_at number_at whole_at in_words KVRows Packed read_blocks openings seen_BRS lays_out
    attend_by_rows rows_attention lay_out two_products plain_attention logits_of log_softmax_all selected_hidden
    wanted_BT valid_BT read_lora RowAdapters forget_speaker  speaking read_tokens open_turn end_id
    banned_ids neutralise oracle_stop LiveDialogue go_on  under_way Crew SpreadBackend SpreadEngine
    after_right not_configurable BLIND sight COLDEST Pacer Scene teaches histories TermConfig LearnsCritiques
    turn_credit dialogue_credit centred whitened credited BatchCredit Pull method_misfit row_misfit policy_rows
    imitation_rows told_row distilled_row answer_row reward_row attempt_row turn_means by_opening free_length
    needed_length norms_of unsettled  pass_over optimiser new_head pulled likeliest end_to_end reckoned
    own_passes read_as_they_come moves_on fates DataStage normalised transcribe learner_kind fed_trainer
    BestConstant right_within first_right usual_answer play_from  accepts imitate part_of speaks_of
    copies_in unsolved_in held_parts told_parts parts_of split_of told_roles told_letters told_digits told_cells
    told_steps told_counts slip_of NO_WAY GymSource harmless disarm first_leaks check_all asks_model Guarded
    AskAgain stands_shown stands_in reprice TokenStream Weighting WEIGHTINGS right_parts nats TurnStop
    LeakScanEvent context_length fresh_prompt repeat_penalty resample_tries min_parsable min_mixed start_from
    importance_cap save_every commit_every coef_schedule value_shared right_first right_last keep_cache
    read_batch_tokens score_batch_tokens clip_low clip_high teacher_rate context_tokens ratio_clip unproven
    as_was lockstep labeller HintWorth Rescan LeakScan TestOpening open_test more_labels labels_for how_it_went
    unpause must_be to_trash from_trash in_trash leashed NoRoomError Cast RunChoice PlayRequest LiveTurn
    farewell PersonLabel open_studio
    """.split()
)
"""Names of classes, functions, fields and parameters that must not come back."""
KEYS = set(
    """
    context_length fresh_prompt repeat_penalty resample_tries min_parsable min_mixed start_from importance_cap
    save_every commit_every coef_schedule value_shared right_first right_last keep_cache read_batch_tokens
    score_batch_tokens clip_low clip_high teacher_rate context_tokens ratio_clip unproven leaks history passes
    gpu_memory tensor_parallel served_model
    """.split()
)
METRICS = set(
    """
    groups/redrawn groups/frac_all_right groups/frac_zero_variance repeat_rate useful_change away_rate given_up
    ill_formed clip_frac mismatch_kl importance/mean kl/reward tokens/student curriculum/old_solve_rate
    distill/yield distill/rows outcome/right outcome/cut_off leak_scan stop/truncated
    """.split()
)
GUIDE_WORDS = re.compile(
    r"\b(baton|laid end to end|lock-?step|labellers?|redrawn|speakers?|fresh prompts?)\b",
    re.IGNORECASE,
)


def names_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield every identifier that a module defines or uses, with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute):
            yield node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg, node.value.lineno


@pytest.mark.parametrize("path", CODE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_uses_a_retired_identifier_or_metric(path: Path) -> None:
    tree = ast.parse(path.read_text("utf-8"))
    retired = {f"{name}:{line}" for name, line in names_of(tree) if name in IDENTIFIERS}
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    retired |= {
        f"{node.value}:{node.lineno}" for node in strings if node.value in METRICS | KEYS - {"leaks", "history"}
    }
    assert retired == set()


def keys_of(data: object) -> Iterator[str]:
    """Yield every key of a nested mapping; of a dotted key every part."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield from str(key).split(".")
            yield from keys_of(value)
    elif isinstance(data, list):
        for item in data:
            yield from keys_of(item)


def test_no_preset_or_recorded_configuration_has_a_retired_key() -> None:
    files = [*(ROOT / "data").rglob("*.yaml")]
    assert len(files) > 40
    retired = {path.name: sorted(set(keys_of(yaml.safe_load(path.read_text("utf-8")))) & KEYS) for path in files}
    assert {name: keys for name, keys in retired.items() if keys} == {}


def test_no_recorded_event_has_a_retired_name() -> None:
    text = (ROOT / "data/example_runs/quickstart/events.jsonl").read_text("utf-8")
    assert [name for name in (*METRICS, "right_parts", "tier", "nats", "control") if f'"{name}"' in text] == []


def test_no_command_has_a_retired_option() -> None:
    text = (ROOT / "app/commands/README.md").read_text("utf-8")
    retired = ("--studio", "--control ", "--then", "--by ", "--labeller", "--labelled", "--copy")
    assert [option for option in retired if f"`{option.strip()}" in text] == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_guide_uses_a_retired_word(path: Path) -> None:
    assert GUIDE_WORDS.findall(path.read_text("utf-8")) == []


def test_every_path_that_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    paths = [*re.findall(r"`([\w./]+\.(?:py|js|md))`", text), *re.findall(r"\]\(([^)#]+)\)", text)]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
