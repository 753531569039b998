"""The learner: rates, updates, exact save and load, references, refusals."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rl2f_core.config.model import LoraConfig, ModelConfig
from rl2f_core.config.stage import StageConfig
from rl2f_core.errors import AdapterError, ConfigError, RunError
from rl2f_core.learning.learner.learner import Learner
from rl2f_core.learning.learner.losses import LossConfig
from rl2f_core.learning.learner.trainable_adapter import target_modules
from rl2f_core.models.backends.hf.backend import HFBackend
from rl2f_core.models.modeling.loading import load_base_model
from rl2f_core.types import TrainingSample

CPU = torch.device("cpu")
LORA = LoraConfig(rank=4, alpha=8)


def learner(tiny: Path, lora: LoraConfig = LORA, seed: int = 0) -> Learner:
    return Learner(tiny, lora, dtype=torch.float32, device=CPU, banned=[0, 1], pad=2, seed=seed)


@pytest.fixture(scope="module")
def unchanged(tiny: Path) -> Learner:
    """A learner for tests that leave it as it is."""
    return learner(tiny)


def stage(**changes: object) -> StageConfig:
    return StageConfig(**{"name": "s", "method": "sft", "steps": 10, "learning_rate": 0.01, **changes})


def told(*token_ids: int) -> TrainingSample:
    """A row to imitate from its second token on."""
    zeros = [0.0] * len(token_ids)
    return TrainingSample(token_ids, [False] * len(zeros), zeros, zeros, zeros, [0.0, *[1.0] * (len(zeros) - 1)], zeros)


def tried(*token_ids: int, advantage: float = 1.0, kl: float = 0.0, logprob: float = -5.9) -> TrainingSample:
    """A row that the policy is said to have sampled from its second token on."""
    n = len(token_ids) - 1
    weight = [0.0, *[1.0] * n]
    return TrainingSample(
        token_ids, [False, *[True] * n], [0.0, *[logprob] * n], [0.0, *[advantage] * n], weight,
        [0.0] * (n + 1), [kl * w for w in weight],
    )  # fmt: skip


ROWS = [told(50, 60, 70, 80, 90), told(51, 61, 71), told(52, 62, 72, 82)]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- the rate --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        # after 2 steps of warm-up 4 remain: 1 − 0/4, 1 − 1/4 …
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        # ½(1 + cos(π·k/4)): 1, ½(1 + √½), ½, ½(1 − √½)
        ("cosine", [0.5, 1, 1, 0.5 * (1 + math.sqrt(0.5)), 0.5, 0.5 * (1 - math.sqrt(0.5))]),
    ],
)
def test_the_rate_warms_up_and_decays(schedule: str, rates: list[float]):
    config = stage(lr_scheduler_type=schedule, warmup_steps=2, steps=6, learning_rate=0.3)
    assert [config.resolve(step, 1.0).learning_rate for step in range(6)] == pytest.approx([0.3 * r for r in rates])


def test_without_warm_up_the_first_step_has_the_peak_rate():
    for schedule in ("constant", "linear", "cosine"):
        assert stage(lr_scheduler_type=schedule, steps=4, learning_rate=0.2).resolve(0, 1.0).learning_rate == 0.2


def test_a_warm_up_as_long_as_the_stage_never_divides_by_zero():
    warmed_up = stage(lr_scheduler_type="cosine", warmup_steps=3, steps=3, learning_rate=0.3)
    assert warmed_up.resolve(2, 1.0).learning_rate == pytest.approx(0.3)


# -- updates ---------------------------------------------------------------------------------------------------
def test_imitation_lowers_the_cross_entropy_as_its_gradient_says(tiny: Path):
    trained, rate = learner(tiny), 1e-3
    seen = [trained.update(ROWS, LossConfig(), stage(learning_rate=rate, max_grad_norm=None).resolve(0, 1.0))]
    gradient = torch.cat([p.grad.flatten() for p in trained.parameters.values() if p.grad is not None])
    seen.append(trained.update(ROWS, LossConfig(), stage(learning_rate=rate).resolve(1, 1.0)))
    # 382 allowed tokens, random weights: about ln 382 = 5.9 at first
    assert seen[0]["loss/ce"] == pytest.approx(math.log(382), abs=0.3)
    # Adam moves each weight by the rate at first, against its gradient: to first order the loss falls by rate · Σ|g|
    assert seen[0]["loss/ce"] - seen[1]["loss/ce"] == pytest.approx(rate * float(gradient.abs().sum()), rel=0.1)
    assert seen[0]["loss"] == pytest.approx(seen[0]["loss/ce"])
    assert seen[0]["entropy"] == pytest.approx(math.log(382), abs=0.3)
    assert seen[0]["learning_rate"] == rate and seen[0]["optimizer_updates"] == 1 and seen[0]["grad_norm"] > 0


def test_reward_makes_a_token_likelier_and_its_lack_makes_it_rarer(tiny: Path):
    for advantage, sign in ((1.0, 1), (-1.0, -1)):
        trained = learner(tiny)
        config = LossConfig(epsilon=0.9, epsilon_high=9)
        before, after = (
            trained.update([tried(50, 60, 70, advantage=advantage)], config, stage().resolve(step, 1.0))["ratio/mean"]
            for step in range(2)
        )
        assert sign * (after - before) > 0


def test_the_first_step_of_adam_moves_each_weight_by_the_rate(tiny: Path):
    trained = learner(tiny)
    before = trained.snapshot()
    trained.update(ROWS, LossConfig(), stage(learning_rate=0.001).resolve(0, 1.0))
    moved = torch.cat([(p - before[n]).abs().flatten() for n, p in trained.parameters.items()]).detach()
    # Adam's first step is rate · g/(|g| + ε); B starts at 0, so A has no gradient yet
    assert float(moved.max()) == pytest.approx(0.001, rel=1e-3)
    assert all(torch.equal(p, before[n]) for n, p in trained.parameters.items() if "lora_A" in n)


def test_weight_decay_is_the_stages_own_even_in_an_optimiser_made_without(tiny: Path):
    trained = learner(tiny)
    before = trained.snapshot()
    trained.update(ROWS, LossConfig(), stage(learning_rate=0.01, weight_decay=0.5).resolve(0, 1.0))
    a = next(n for n in before if "lora_A" in n)
    # no gradient reaches A in the first step, so decay alone acts: w · (1 − rate · decay)
    torch.testing.assert_close(trained.parameters[a].detach(), before[a] * (1 - 0.01 * 0.5))


def test_no_rows_make_no_update(tiny: Path):
    trained = learner(tiny)
    before = trained.snapshot()
    found = trained.update([], LossConfig(), stage().resolve(3, 1.0))
    assert found == {"learning_rate": 0.01, "optimizer_updates": 0, "tokens/trained": 0}
    assert same(before, trained.snapshot())


def test_the_gradient_norm_is_clipped_but_reported_as_it_was(tiny: Path):
    free, held = learner(tiny), learner(tiny)
    a = free.update(ROWS, LossConfig(), stage(max_grad_norm=1e9).resolve(0, 1.0))
    b = held.update(ROWS, LossConfig(), stage(max_grad_norm=1e-3).resolve(0, 1.0))
    assert a["grad_norm"] == b["grad_norm"] > 1e-3
    clipped = torch.cat([p.grad.flatten() for p in held.parameters.values()]).norm()
    assert float(clipped) == pytest.approx(1e-3, rel=1e-2)


def test_minibatches_split_the_rows_into_as_many_updates(tiny: Path):
    rows = [tried(50 + i, 60 + i, 70 + i, advantage=(-1.0) ** i) for i in range(5)]
    whole, split = learner(tiny), learner(tiny)
    found = split.update(rows, LossConfig(), stage(minibatches=2).resolve(0, 1.0))
    assert found["optimizer_updates"] == 2
    # rows 0 2 4, then rows 1 3 with the weights that the first left
    first = whole.update(rows[0::2], LossConfig(), stage().resolve(0, 1.0))
    second = whole.update(rows[1::2], LossConfig(), stage().resolve(0, 1.0))
    assert same(whole.snapshot(), split.snapshot())
    assert found["loss"] == pytest.approx((first["loss"] + second["loss"]) / 2)
    assert learner(tiny).update(rows, LossConfig(), stage(minibatches=9).resolve(0, 1.0))["optimizer_updates"] == 5


def test_minibatches_of_different_streams_report_each_where_it_occurs(tiny: Path):
    found = learner(tiny).update([told(50, 60), tried(51, 61)], LossConfig(), stage(minibatches=2).resolve(0, 1.0))
    assert found["optimizer_updates"] == 2 and found["loss/ce"] > 5 and found["ratio/mean"] == pytest.approx(1, abs=0.5)


def test_estimating_the_time_of_an_update_changes_nothing(tiny: Path):
    timed, plain = learner(tiny), learner(tiny)
    assert timed.seconds_of_update(ROWS, stage()) > 0
    for each in (timed, plain):
        each.update(ROWS, LossConfig(), stage().resolve(0, 1.0))
    assert same(timed.snapshot(), plain.snapshot())


@pytest.mark.parametrize("broken", ["advantage", "logprob"])
def test_a_loss_that_is_not_finite_is_an_error_and_leaves_the_weights(tiny: Path, broken: str):
    trained = learner(tiny)
    trained.update(ROWS, LossConfig(), stage().resolve(0, 1.0))
    before = trained.snapshot()
    # an infinite advantage; or a behaviour so unlikely that the ratio e^(−5.9 + 200) overflows, times A < 0
    bad = tried(50, 60, advantage=math.inf) if broken == "advantage" else tried(50, 60, advantage=-1, logprob=-200)
    with pytest.raises(RunError, match="not a finite number"):
        trained.update([*ROWS, bad], LossConfig(), stage().resolve(1, 1.0))
    assert same(before, trained.snapshot())
    assert trained.update(ROWS, LossConfig(), stage().resolve(1, 1.0))["loss"] < 6.5


# -- save and load ---------------------------------------------------------------------------------------------
def test_a_loaded_learner_goes_on_bit_for_bit(tiny: Path, tmp_path: Path):
    config = stage(lr_scheduler_type="cosine", weight_decay=0.1)
    rows = [*ROWS, tried(53, 63, 73, kl=1.0)]
    options = LossConfig(kl_coef=0.1)
    straight = learner(tiny)
    straight.reference = straight.snapshot()
    for step in range(2):
        straight.update(rows, options, config.resolve(step, 1.0))
    straight.save(tmp_path)
    resumed = learner(tiny, seed=99)
    resumed.load(tmp_path)
    assert same(straight.snapshot(), resumed.snapshot()) and same(straight.reference, resumed.reference or {})
    for step in range(2, 4):
        assert straight.update(rows, options, config.resolve(step, 1.0)) == resumed.update(
            rows, options, config.resolve(step, 1.0)
        )
    assert same(straight.snapshot(), resumed.snapshot())
    fresh = learner(tiny)
    fresh.load_adapter(tmp_path)
    fresh.reference = straight.reference
    for step in range(2, 4):
        fresh.update(rows, options, config.resolve(step, 1.0))
    assert not same(straight.snapshot(), fresh.snapshot()), "the optimiser's state makes no difference"


def test_a_learner_without_a_reference_saves_and_loads_none(tiny: Path, tmp_path: Path):
    trained = learner(tiny)
    trained.save(tmp_path)
    assert not (tmp_path / "reference.safetensors").exists()
    other = learner(tiny)
    other.reference = other.snapshot()
    other.load(tmp_path)
    assert other.reference is None


def test_the_same_seed_gives_the_same_fresh_adapter_and_another_seed_another(tiny: Path):
    first, again, other = (learner(tiny, seed=seed).snapshot() for seed in (3, 3, 4))
    assert same(first, again) and not same(first, other)


def test_saved_adapters_are_safetensors_in_pefts_format(unchanged: Learner, tmp_path: Path):
    unchanged.save_adapter(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    names = load_file(tmp_path / "adapter_model.safetensors")
    assert all(n.startswith("base_model.model.model.layers.") for n in names)


def test_saved_files_are_those_of_peft_and_safetensors(tiny: Path, tmp_path: Path):
    trained = learner(tiny)
    trained.update(ROWS, LossConfig(), stage().resolve(0, 1.0))
    trained.save(tmp_path / "ours")
    trained.model.save_pretrained(tmp_path / "peft")
    ours, theirs = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in ("ours", "peft"))
    assert ours == theirs
    configs = (json.loads((tmp_path / name / "adapter_config.json").read_text()) for name in ("ours", "peft"))
    ours_config, theirs_config = (dict(c, target_modules=sorted(c["target_modules"])) for c in configs)
    assert ours_config == theirs_config
    stored = load_file(tmp_path / "ours" / "optimizer.safetensors")
    save_file(stored, tmp_path / "optimizer.safetensors", {"format": "pt"})
    assert (tmp_path / "ours" / "optimizer.safetensors").read_bytes() == (
        tmp_path / "optimizer.safetensors"
    ).read_bytes()
    parameter = next(iter(trained.parameters))
    assert torch.equal(
        stored[f"exp_avg|{parameter}"], trained.optimizer.state[trained.parameters[parameter]]["exp_avg"]
    )


def test_a_training_state_keeps_the_weights_of_its_time(tiny: Path, tmp_path: Path):
    trained = learner(tiny)
    before, files = trained.snapshot(), trained.state_files()
    trained.update(ROWS, LossConfig(), stage().resolve(0, 1.0))
    files.write(tmp_path)
    trained.load(tmp_path)
    assert same(before, trained.snapshot())


@pytest.mark.parametrize(
    "other",
    [{"rank": 8}, {"top_layer_fraction": 0.5}, {"target_modules": ("q_proj",)}],
    ids=["rank", "layers", "targets"],
)
def test_an_adapter_of_another_shape_is_refused(
    tiny: Path, unchanged: Learner, tmp_path: Path, other: dict[str, object]
):
    learner(tiny, LORA.model_copy(update=other)).save_adapter(tmp_path)
    before = unchanged.snapshot()
    with pytest.raises(AdapterError, match="another shape"):
        unchanged.load_adapter(tmp_path)
    assert same(before, unchanged.snapshot())


@pytest.mark.parametrize("content", [None, b"", b"\x00" * 40])
def test_a_missing_or_torn_adapter_is_refused(unchanged: Learner, tmp_path: Path, content: bytes | None):
    if content is not None:
        (tmp_path / "adapter_model.safetensors").write_bytes(content)
    with pytest.raises(AdapterError, match="cannot be read"):
        unchanged.load_adapter(tmp_path)


# -- the backend's side of adapters ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def backend(tiny: Path) -> HFBackend:
    return HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), dtype="float32", device="cpu"))


@pytest.fixture
def adapter(unchanged: Learner, tmp_path: Path) -> Path:
    unchanged.save_adapter(tmp_path / "adapter")
    return tmp_path / "adapter"


def rewrite(folder: Path, config: dict[str, object] | None = None, **tensors: torch.Tensor | None) -> None:
    """Change settings or weights of an adapter; None takes a tensor away."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **(config or {})}))
    held = {**load_file(folder / "adapter_model.safetensors"), **tensors}
    save_file({n: t for n, t in held.items() if t is not None}, folder / "adapter_model.safetensors")


def test_an_adapter_from_another_base_is_refused(backend: HFBackend, adapter: Path):
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    rewrite(adapter, **{name.format("A"): torch.zeros(4, 64)})
    with pytest.raises(AdapterError, match=r"another base model: it changes .*q_proj by 48×64"):
        backend.load_adapter("x", adapter)
    assert "x" not in backend.adapters


def test_an_adapter_of_a_deeper_base_is_refused(backend: HFBackend, adapter: Path):
    name = "base_model.model.model.layers.29.self_attn.q_proj.lora_{}.weight"
    rewrite(adapter, **{name.format("A"): torch.zeros(4, 48), name.format("B"): torch.zeros(48, 4)})
    with pytest.raises(AdapterError, match="no such module"):
        backend.load_adapter("x", adapter)


@pytest.mark.parametrize(
    "config",
    [
        {"use_dora": True},
        {"use_rslora": True},
        {"alpha_pattern": {"q_proj": 99}},
        {"rank_pattern": {"q_proj": 2}},
        {"peft_type": "IA3"},
        {"r": 0},
        {"r": 8},
        {"lora_alpha": None},
    ],
    ids=str,
)
def test_settings_under_which_merging_would_be_wrong_are_refused(
    backend: HFBackend, adapter: Path, config: dict[str, object]
):
    rewrite(adapter, config)
    with pytest.raises(AdapterError):
        backend.load_adapter("x", adapter)


def test_weights_beside_lora_pairs_are_refused_and_not_dropped(backend: HFBackend, adapter: Path):
    rewrite(adapter, **{"base_model.model.lm_head.weight": torch.zeros(384, 48)})
    with pytest.raises(AdapterError, match=r"lm_head\.weight"):
        backend.load_adapter("x", adapter)


def test_half_a_pair_is_refused(backend: HFBackend, adapter: Path):
    rewrite(adapter, **{"base_model.model.model.layers.1.mlp.up_proj.lora_B.weight": None})
    with pytest.raises(AdapterError, match=r"up_proj\.lora_A"):
        backend.load_adapter("x", adapter)


def test_files_that_are_no_adapter_are_refused(backend: HFBackend, adapter: Path, tmp_path: Path):
    for number, (name, content) in enumerate(
        [
            ("adapter_config.json", b"{"),
            ("adapter_config.json", b"[]"),
            ("adapter_config.json", b"{}"),
            ("adapter_model.safetensors", b"torn"),
        ]
    ):
        copy = tmp_path / str(number)
        shutil.copytree(adapter, copy)
        (copy / name).write_bytes(content)
        with pytest.raises(AdapterError):
            backend.load_adapter("x", copy)
    with pytest.raises(AdapterError, match="no readable LoRA adapter"):
        backend.load_adapter("x", tmp_path / "nowhere")


@pytest.mark.parametrize("full", [False, True])
def test_weights_copied_in_memory_are_those_of_the_file(tiny: Path, tmp_path: Path, full: bool):
    trained = learner(tiny, LoraConfig(full_finetuning=True) if full else LORA)
    trained.update(ROWS, LossConfig(), stage().resolve(0, 1.0))
    trained.save_adapter(tmp_path)
    sampler = HFBackend(HFBackend.Config(), ModelConfig(name=str(tiny), device="cpu", dtype="float32"))
    sampler.load_adapter("file", tmp_path)
    assert sampler.copy_adapter("memory", *trained.adapter_tensors())
    trained.update(ROWS, LossConfig(), stage().resolve(1, 1.0))  # the sampler keeps what it copied
    file, memory = (vars(sampler.adapters[name]) for name in ("file", "memory"))
    if full:
        assert same(file["tensors"], memory["tensors"])
    else:
        assert file["scale"] == memory["scale"] == 2 and file["pairs"].keys() == memory["pairs"].keys()
        assert all(
            torch.equal(a, b)
            for name in file["pairs"]
            for a, b in zip(file["pairs"][name], memory["pairs"][name], strict=True)
        )
    assert sampler.score([[5, 6, 7]], "file") == sampler.score([[5, 6, 7]], "memory")


# -- which layers ----------------------------------------------------------------------------------------------
def test_all_linear_layers_but_the_output_are_adapted(tiny: Path):
    names = target_modules(load_base_model(str(tiny), torch.float32, CPU), LoraConfig())
    kinds = {f"self_attn.{k}_proj" for k in "qkvo"} | {f"mlp.{k}_proj" for k in ("gate", "up", "down")}
    assert set(names) == {f"model.layers.{i}.{kind}" for i in (0, 1) for kind in kinds}


@pytest.mark.parametrize(("share", "layers"), [(1.0, {0, 1}), (0.5, {1}), (0.01, {1})])
def test_a_share_of_the_layers_is_taken_from_the_top(tiny: Path, share: float, layers: set[int]):
    lora = LoraConfig(top_layer_fraction=share, target_modules=("q_proj", "up_proj"))
    names = target_modules(load_base_model(str(tiny), torch.float32, CPU), lora)
    expected = {f"model.layers.{i}.{kind}" for i in layers for kind in ("self_attn.q_proj", "mlp.up_proj")}
    assert set(names) == expected
    adapted = {n.split(".lora_")[0].removeprefix("base_model.model.") for n in learner(tiny, lora).parameters}
    assert adapted == expected


def test_targets_that_name_no_layer_are_refused_with_those_there_are(tiny: Path):
    with pytest.raises(ConfigError, match="q_proj") as error:
        target_modules(load_base_model(str(tiny), torch.float32, CPU), LoraConfig(target_modules=("query",)))
    assert "query" in str(error.value)


# -- the reference of the KL -----------------------------------------------------------------------------------
def drifted(tiny: Path) -> Learner:
    """A learner whose adapter is not the base."""
    trained = learner(tiny)
    generator = torch.Generator().manual_seed(1)
    trained.restore({n: 0.3 * torch.randn(p.shape, generator=generator) for n, p in trained.parameters.items()})
    return trained


SEEN = tried(50, 60, 70, 80, advantage=0.0, kl=1.0)


def kl_of(trained: Learner, reference: str) -> float:
    config = stage(ref_model=reference, learning_rate=1e-12)
    return trained.update([SEEN], LossConfig(kl_coef=0.5), config.resolve(0, 1.0))["kl"]


def test_the_reference_is_the_base_or_the_start_of_the_stage(tiny: Path):
    trained = drifted(tiny)
    trained.reference = trained.snapshot()
    assert kl_of(trained, "stage_start") == pytest.approx(0, abs=1e-9)
    assert kl_of(trained, "base") > 1e-3
    trained.reference = {n: torch.zeros_like(p) for n, p in trained.snapshot().items()}
    assert kl_of(trained, "stage_start") == pytest.approx(kl_of(trained, "base"), rel=1e-3)


def test_a_stage_without_reference_weights_is_an_error(tiny: Path):
    with pytest.raises(RunError, match="no reference"):
        kl_of(learner(tiny), "stage_start")


@pytest.mark.parametrize("reference", ["base", "stage_start"])
def test_the_kl_term_brings_the_policy_back_to_its_reference(tiny: Path, reference: str):
    trained = drifted(tiny)
    trained.reference = {n: torch.zeros_like(p) for n, p in trained.snapshot().items()}
    config = stage(ref_model=reference, learning_rate=1e-4)
    before, after = (
        trained.update([SEEN], LossConfig(kl_coef=1.0), config.resolve(step, 1.0))["kl"] for step in range(2)
    )
    assert 0 < after < before


@pytest.mark.parametrize("reference", ["base", "stage_start"])
def test_scoring_the_reference_neither_moves_the_weights_nor_loses_gradients(tiny: Path, reference: str):
    trained = drifted(tiny)
    trained.reference = {n: torch.zeros_like(p) for n, p in trained.snapshot().items()}
    other = drifted(tiny)
    other.reference = trained.reference
    rows = [tried(50 + i, 60 + i, 70 + i, *range(80, 80 + i), advantage=(-1.0) ** i, kl=1.0) for i in range(4)]
    # one micro-batch, or one a row: the reference is read between backward passes
    a = trained.update(rows, LossConfig(kl_coef=0.5), stage(ref_model=reference).resolve(0, 1.0))
    b = other.update(rows, LossConfig(kl_coef=0.5), stage(ref_model=reference, micro_batch_tokens=16).resolve(0, 1.0))
    assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=1e-4) and a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    assert all(p.requires_grad for p in trained.parameters.values())
