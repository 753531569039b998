"""Retired names: one concept has one word in code, configuration, events, commands and guides."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml
from source_trees import nodes

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(path for package in ("rl2f_core", "jobs", "app") for path in (ROOT / package).rglob("*.py"))
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Reads YAML as `yaml.safe_load` does; in C where the package has it."""
APP = [path for path in CODE if path.is_relative_to(ROOT / "app")]
SCRIPTS = sorted((ROOT / "app").rglob("*.js"))
GUIDES = [
    *ROOT.glob("*.md"),
    *(p for d in ("rl2f_core", "jobs", "app", "data", "tests") for p in (ROOT / d).rglob("README.md")),
]

IDENTIFIERS = set(
    """
    _alone _ask_aside _average _begun _behaviour _blamed _close_up _Ground _hear _heard _judge _judge_end
    _listen_to_students _listen_to_teachers _mix _never _not_now _pass_on _plain_errors _put_back _ray_actor
    _ray_agent _ray_link _ray_room _schema_1 _seat _sit_down _stand_up _Starting _tail _take _Tape _try_out _weights
    _without_gaps _write_ahead accepts Activations after_right AGAIN Answer answer_row ANSWER_SECONDS any_of as_was
    aside AskAgain Asked asks_model at_hand attempt_row attend_by_rows bad_lines banned_ids BASIC BatchCredit Baton
    BEAT behaviour_N BestConstant Between BLANK BLIND_DRAWS board_data Bounds Breaker BY by_opening Cast centred Change
    check_all check_room Checked CLEAN cli_runs clip_high clip_low ClusterRoom coef_schedule COLD COLDEST commit_every
    context_length context_limit context_tokens copies_in copy_name Course credited Crew Critic DAILY DataStage
    Decoder dialogue_credit disarm Dispute distilled_row draw_hint Drawn DRAWS during_runs end_id end_to_end Ended
    EngineServer EVERY Exit export_cli Failure farewell Fate fates fed_trainer Finding first_leaks first_right Floor
    FLUSH forget_speaker form_schedule form_sources form_yaml Found FOUR free_length fresh_prompt fresh_turns
    from_main from_trash gave_up generation_of give_back give_way go_on gradio_start Guarded GymSource hack_suite HALF
    harmless HEARD heard held_parts HintWorth histories History Host how_it_went imitate Imitates imitation_rows
    importance_cap in_trash in_words insert_all joblog keep_cache KEPT Kept kept_one KNOWN KNOWN_X KVRows Labelled
    labeller labels_for LAST_WORDS lay_out Layout lays_out leak_benchmark leak_derivation leak_probe leak_trial
    leaks_board LeakScan LeakScanEvent learner_kind LearnsCritiques LEASH leashed likeliest LiveDialogue LiveTurn
    load_base lockstep log_softmax_all log_softmax_at LOGGED LOGIT_ROWS logits_of long_form low_precision made_since
    MAPPED MARK Member Merger method_misfit min_mixed min_parsable Mismatch MISUSED model_sources Models more_labels
    MOST MOST_BIASED moves_on MUCH must_be native_bfloat16 nats needed_length NEUTRAL neutralise NEVER new_head NO_WAY
    Normalised normalised Norms norms_of NoRoomError not_configurable number_at open_studio open_test open_turn
    opening_rows openings optimiser options_misfit oracle_stop Origin owing OWN own_passes Pacer Packed part_of
    parts_of Pass pass_over PATIENCE_HOURS PAUSE Pending PERIOD PersonLabel Piece PLACE Place plain_attention Plan
    Play play_from Played played_turns Player PlayRequest plot_cards plot_compare plot_data plot_evaluation plot_run
    plot_series Point policy_rows Prompt Pull pulled QUIET Ranks ratio_clip ray_room read_as_they_come
    read_batch_tokens read_blocks read_lora read_tokens Reader reckoned reindex_command Renderer repeat_penalty
    reprice resample_tries Rescan rescans Reward reward_row right_first right_last right_parts right_within ROOM_
    room_for row_adapters row_misfit RowAdapters ROWS rows_and_masks rows_attention RunChoice Said Sample Sampling
    save_every Saved Scene SchedulerHeld schedules score_batch_tokens seconds_in_all seen_BRS Sees selected_hidden
    set_rates settings_of SHARE SharedDir SharedEngine SharedJournal SHORTEST_BEGINNING sight SILENT Slip slip_of
    SMALL SMALLER SPEAKER Speaker speaking speaks_of split_of spread_ray SpreadBackend SpreadEngine Stack StageAt
    standing stands_in stands_shown STILL Stop StopSignal store_board store_labels store_load store_worth
    Student teacher_rate teaches TermConfig TestOpening TICK Ticket TIMEOUT to_trash token_credit TokenStream
    told_cells told_counts told_digits told_letters told_parts told_roles told_row told_steps transcribe TRIES
    trl_adapter TRUE TRUNCATED turn_credit turn_means TurnStop two_products under_way Undone unpause unproven
    unsettled unsolved_in Used useful_groups usual_answer valid_BT Value value_at value_shared Versions View
    vllm_process vllm_server vllm_standin vllm_wire Wanted wanted_BT Wants WARM Weighting WEIGHTINGS whitened whole_at
    WIDTH worker_pool WORTH
    """.split()
)
"""Names of classes, functions, fields and parameters that must not come back."""
VALID_IN_APP = {"Exit", "View"}
"""`typer.Exit` and the component `View`; the retired names were an exit status and a text of the leak detectors."""
APP_IDENTIFIERS = set(
    """
    About ABOUT ACTS board Chosen Edited ENDING FAMILIES Given halves HELD Hinted Judged labelled labeller labellers
    LOOK Moved Named Opened PATIENCE people picked Place Placed plain_errors played quiet_gradio said share shares
    speaker speakers Switch tier tiers Times unlike Which without_apps worth
    """.split()
)
"""Names that must not come back in the studio; environments use some of them for their own subject."""
PARAMETERS = set(
    """
    as board by control draw drawn dlg labeller labelled member part_of place person share speaker speakers studio then
    tier todo which worth
    """.split()
)
"""Parameters of the pages' addresses that must not come back."""
CLASS_WORDS = set(
    """
    board dispute disputes floor hello labeller older people said share speaker stranger tier told turner unsteady waits
    worth
    """.split()
)
"""Words between the hyphens of CSS classes that must not come back."""
INTERFACE_WORDS = re.compile(
    r"\b(baton|lock-?step|labell\w+|redrawn|rescans?|speakers?|fresh prompts?|tiers?|players?|test half|cast|worth [+−]"
    r"|colours?|normalis\w+|optimis\w+|behaviours?|all right|all wrong|right at turn|by people|κ of people"
    r"|waits in the queue|at once on the processor|goes on from|comes? of it|as played|as it was|no words|asked again"
    r"|on its way|took|draw again|mend|take out of|things? (is|are) wrong|spoke for|speaks? for|set the problem)\b",
    re.IGNORECASE,
)
"""Words and phrases of the interface that were replaced."""
KEYS = set(
    """
    context_length fresh_prompt repeat_penalty resample_tries min_parsable min_mixed importance_cap
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


def names_of(source: str) -> Iterator[tuple[str, int]]:
    """Yield every identifier that a module defines or uses, with its line."""
    for node in nodes(source):
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


def strings_of(source: str) -> Iterator[tuple[str, int]]:
    """Yield every string constant with its line."""
    for node in nodes(source):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def docstrings_of(source: str) -> set[str]:
    """Return the texts that are statements of their own."""
    statements = [node.value for node in nodes(source) if isinstance(node, ast.Expr)]
    return {node.value for node in statements if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def class_words_of(text: str) -> set[str]:
    """Return the words of the CSS classes, such as `rl-small`, in a tag or a list of classes; not their prefixes."""
    if not re.fullmatch(r"[\w.:# -]*", text):
        return set()
    return {word for name in re.findall(r"[a-z]{2,4}(?:-[a-z]+)+", text) for word in name.split("-")[1:]}


def parameters_of(source: str) -> Iterator[tuple[str, int]]:
    """Yield the parameters that addresses of pages are made of and fields are kept in."""
    for node in nodes(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "page_url":
                yield from ((keyword.arg, node.lineno) for keyword in node.keywords if keyword.arg)
            elif node.func.id == "QueryFields" and isinstance(node.args[0], ast.Dict):
                yield from ((str(ast.literal_eval(key)), key.lineno) for key in node.args[0].keys if key)


@cache
def source_of(path: Path) -> str:
    """Return the text of a module."""
    return path.read_text("utf-8")


def found_in(path: Path, items: Iterable[tuple[str, int]]) -> list[str]:
    """Return where each of these texts is: `app/pages/run/page.py:12: text`."""
    return [f"{path.relative_to(ROOT)}:{line}: {text}" for text, line in items]


def test_no_module_uses_a_retired_identifier_or_metric() -> None:
    keys = METRICS | KEYS - {"leaks", "history"}
    retired: list[str] = []
    for path in CODE:
        names = (IDENTIFIERS | APP_IDENTIFIERS) - VALID_IN_APP if path in APP else IDENTIFIERS
        retired += found_in(path, (each for each in names_of(source_of(path)) if each[0] in names))
        retired += found_in(path, (each for each in strings_of(source_of(path)) if each[0] in keys))
    assert CODE
    assert retired == []


def test_no_text_class_or_parameter_of_the_studio_is_retired() -> None:
    retired: list[str] = []
    for path in APP:
        source = source_of(path)
        ignored = docstrings_of(source)
        texts = [(text, line) for text, line in strings_of(source) if text not in ignored]
        retired += found_in(path, (each for each in texts if INTERFACE_WORDS.search(each[0])))
        retired += found_in(path, (each for each in texts if CLASS_WORDS & class_words_of(each[0])))
        retired += found_in(path, (each for each in parameters_of(source) if each[0] in PARAMETERS))
    assert APP
    assert retired == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_has_a_retired_word_or_a_name_with_underscores(path: Path) -> None:
    text = path.read_text("utf-8")
    names = re.findall(r"\b(?:function|const|let)\s+([\w$]+)", text)
    assert names and [name for name in names if name in APP_IDENTIFIERS or re.search("[a-z]_[a-z]", name)] == []
    assert INTERFACE_WORDS.findall(text) == []


def test_no_rule_of_the_stylesheet_has_a_retired_class() -> None:
    path = ROOT / "app/static/theme.css"
    text = path.read_text("utf-8")
    classes = set(re.findall(r"\.([a-z][\w-]*)", re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", text, flags=re.DOTALL)))
    assert len(classes) > 200
    assert {name for name in classes if CLASS_WORDS & set(name.split("-")[1:])} == set()


def test_no_rule_of_the_stylesheet_selects_a_class_that_nothing_has() -> None:
    text = re.sub(r"\{[^{}]*\}|/\*.*?\*/", "", (ROOT / "app/static/theme.css").read_text("utf-8"), flags=re.DOTALL)
    prefixes = r"rl|run|runs|nr|rf|dl|dv|gv|tx|lb|bd|fk|fork|ch|chat|ex|compare"
    classes = set(re.findall(rf"[.#]((?:{prefixes})-[\w-]+)", text))
    used = "\n".join(path.read_text("utf-8") for path in (*APP, *SCRIPTS))
    assert len(classes) > 300
    # `mark.kind` of `app.components.elements.transcript`
    made = {f"tx-{kind}" for kind in ("found", "labeled", "pending")}
    words = set(re.findall(r"[\w-]+", used))
    assert classes - made - words == set()


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
    retired = {path.name: sorted(set(keys_of(yaml.load(path.read_text("utf-8"), LOADER))) & KEYS) for path in files}
    assert {name: keys for name, keys in retired.items() if keys} == {}


def test_no_recorded_event_has_a_retired_name() -> None:
    text = (ROOT / "data/example_runs/quickstart/events.jsonl").read_text("utf-8")
    assert [name for name in (*METRICS, "right_parts", "tier", "nats", "control") if f'"{name}"' in text] == []


def test_no_command_has_a_retired_option() -> None:
    text = (ROOT / "app/commands/README.md").read_text("utf-8")
    retired = ("--studio", "--control ", "--then", "--by ", "--labeller", "--labelled", "--copy")
    assert [option for option in retired if f"`{option.strip()}" in text] == []


def test_the_configuration_reference_has_no_python_types() -> None:
    text = (ROOT / "data/configs/REFERENCE.md").read_text("utf-8")
    assert re.findall(r"Annotated|FieldInfo|Literal|NoneType|typing\.|rl2f_core\.", text) == []
    assert re.findall(r"^## .*\[.*", text, re.MULTILINE) == []


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_guide_uses_a_retired_word(path: Path) -> None:
    assert GUIDE_WORDS.findall(path.read_text("utf-8")) == []


def test_every_path_that_contributing_names_exists() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    paths = [*re.findall(r"`([\w./]+\.(?:py|js|md))`", text), *re.findall(r"\]\(([^)#]+)\)", text)]
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).exists()] == []
    named = re.findall(r"`(\w+)`(?: and `\w+`)? in `([\w./]+\.py)`", text)
    assert len(named) > 10
    assert [pair for pair in named if pair[0] not in (ROOT / pair[1]).read_text("utf-8")] == []


def test_every_module_that_a_guide_names_exists() -> None:
    known = set[str]()
    for name in ("app", "jobs", "rl2f_core", "tests", "data", ".ci"):
        for suffix in ("py", "js", "css"):
            for parts in (path.relative_to(ROOT).parts for path in (ROOT / name).rglob(f"*.{suffix}")):
                known |= {"/".join(parts[start:]) for start in range(len(parts))}
    missing = {}
    for guide in (ROOT / name for name in ("app", "jobs", "rl2f_core")):
        for path in guide.rglob("README.md"):
            named = re.findall(r"`(?:\.\./)*(\w[\w./]*\.(?:py|js|css))`", path.read_text("utf-8"))
            if gone := [name for name in named if name not in known]:
                missing[str(path.relative_to(ROOT))] = gone
    assert missing == {}
