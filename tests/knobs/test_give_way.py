from pathlib import Path

import pytest

from trainbook.errors import ConfigError
from trainbook.knobs import dump, load, recipes
from trainbook.knobs.derive import default_heads


def written(text: str, tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("recipe", recipes.names())
@pytest.mark.parametrize("length", ["training.max_steps=10", "training.max_steps=1", "training.max_steps=2"])
def test_every_recipe_can_be_cut_short(recipe: str, length: str) -> None:
    loaded = load(recipe, [length])
    assert (loaded.config.schedule.warmup_steps or 0) < (loaded.config.training.max_steps or 0)


@pytest.mark.parametrize(
    ("recipe", "length", "warmup", "notice"),
    [
        ("gpt-tiny", "training.max_steps=10", 1, "schedule.warmup_steps 50 -> 1: the run has 10 steps."),
        ("gpt-tiny", "training.max_steps=48", 4, "schedule.warmup_steps 50 -> 4: the run has 48 steps."),
        ("gpt-tiny", "training.max_steps=1", 0, "schedule.warmup_steps 50 -> 0: the run has 1 step."),
        ("gpt-tiny", "training.max_tokens=20480", 1, "schedule.warmup_steps 50 -> 1: the run has 10 steps."),
        # 700 of the 20,346 steps that its 10,000,000,000 tokens take
        ("gpt2-124m", "training.max_steps=500", 17, "schedule.warmup_steps 700 -> 17: the run has 500 steps."),
        # no length of its own: a tenth
        ("large-scale", "training.max_steps=500", 50, "schedule.warmup_steps 10000 -> 50: the run has 500 steps."),
    ],
)
def test_a_warm_up_keeps_its_share_of_a_run_that_is_cut_short(
    recipe: str, length: str, warmup: int, notice: str
) -> None:
    loaded = load(recipe, [length])
    assert loaded.config.schedule.warmup_steps == warmup
    assert [line.partition("  ")[2] for line in loaded.notices if "warmup" in line] == [notice]


def test_a_warm_up_that_fits_stays() -> None:
    loaded = load("gpt-tiny", ["training.max_steps=51"])
    assert loaded.config.schedule.warmup_steps == 50
    assert not any("warmup" in line for line in loaded.notices)


def test_warm_up_and_decay_fit_into_a_run_that_is_cut_short(tmp_path: Path) -> None:
    file = written(
        "schedule: {type: warmup_stable_decay, warmup_steps: 90, decay_ratio: 0.2}\ntraining: {max_steps: 900}\n",
        tmp_path,
    )
    assert load(file, ["training.max_steps=100"]).config.schedule.warmup_steps == 10


@pytest.mark.parametrize("command_line", [True, False])
def test_two_values_of_one_author_contradict_each_other(command_line: bool, tmp_path: Path) -> None:
    values = ["schedule.warmup_steps=20", "training.max_steps=10"]
    text = "schedule: {warmup_steps: 20}\ntraining: {max_steps: 10}\n"
    with pytest.raises(ConfigError, match=r"must be less than training\.max_steps, but 20 is not less than 10"):
        load("gpt-tiny", values) if command_line else load(written(text, tmp_path))


def test_a_warm_up_on_the_command_line_does_not_give_way_to_a_file() -> None:
    with pytest.raises(ConfigError, match=r"must be less than training\.max_steps"):
        load("gpt-tiny", ["schedule.warmup_steps=600"])


@pytest.mark.parametrize(
    ("text", "override", "path", "notice"),
    [
        (
            "evaluation: {eval_steps: 100}\n",
            "evaluation.eval_strategy=no",
            "evaluation.eval_steps",
            "has no effect unless evaluation.eval_strategy is 'steps', but that is 'no'.",
        ),
        (
            "evaluation: {early_stopping_patience: 3}\n",
            "evaluation.eval_strategy=no",
            "evaluation.early_stopping_patience",
            "needs evaluation, but evaluation.eval_strategy is 'no'.",
        ),
        (
            "schedule: {type: polynomial, power: 2.0}\n",
            "schedule.type=cosine",
            "schedule.power",
            "has no effect unless schedule.type is 'polynomial', but that is 'cosine'.",
        ),
        (
            "model: {type: bert}\ntraining: {mask_ratio: 0.3}\n",
            "model.type=gpt",
            "training.mask_ratio",
            "has no effect unless the task is masked or span, but it is causal.",
        ),
        (
            "precision: {compute: fp16, loss_scale: 128}\n",
            "precision.compute=bf16",
            "precision.loss_scale",
            "has no effect unless precision.compute is 'fp16', but that is 'bf16'.",
        ),
        (
            "data: {tokenizer: bpe, vocab_size: 500}\n",
            "data.tokenizer=char",
            "data.vocab_size",
            "has no effect: data.tokenizer 'char' brings its own vocabulary.",
        ),
    ],
)
def test_what_an_override_leaves_without_effect_is_a_notice(
    text: str, override: str, path: str, notice: str, tmp_path: Path
) -> None:
    file = written(text, tmp_path)
    plain = load(file)
    loaded = load(file, [override])
    told = [line for line in loaded.notices if line.startswith(f"{file}") and f"  {path}: {notice}" in line]
    assert len(told) == 1 and "override" in told[0]
    assert loaded.get(path) == plain.get(path)  # as it was, should it be asked for again
    again = tmp_path / "config.yaml"
    again.write_text(dump(loaded), encoding="utf-8")
    assert load(again).config == loaded.config
    with pytest.raises(ConfigError):  # both on the command line
        load(None, [override, f"{path}={plain.get(path)}"])


def test_an_override_without_effect_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"has no effect unless schedule\.type is 'polynomial'"):
        load("gpt-tiny", ["schedule.power=2.0"])


def test_a_value_that_cannot_stay_is_replaced(tmp_path: Path) -> None:
    loaded = load("finetune-chat", ["model.lora_rank=null", "model.pretrained=null"])
    assert loaded.config.precision.weights == "fp32"
    assert any("precision.weights 'fp16' -> 'fp32': fp16 is only for frozen weights" in line for line in loaded.notices)


@pytest.mark.parametrize(
    ("text", "overrides", "batch"),
    [
        ("{global_batch_size: 256, per_device_train_batch_size: 32}", ["global_batch_size=4"], (4, None, None)),
        ("{global_batch_size: 256, per_device_train_batch_size: 32}", ["global_batch_size=64"], (64, 32, None)),
        (
            "{per_device_train_batch_size: 1, gradient_accumulation_steps: 4}",
            ["global_batch_size=8"],
            (8, 1, None),
        ),
        (
            "{global_batch_size: 64, per_device_train_batch_size: 8, gradient_accumulation_steps: 8}",
            ["per_device_train_batch_size=16"],
            (64, 16, None),
        ),
        (
            "{global_batch_size: 64, per_device_train_batch_size: 8, gradient_accumulation_steps: 8}",
            ["gradient_accumulation_steps=2"],
            (64, None, 2),
        ),
    ],
)
def test_the_rest_of_the_batch_follows_from_what_is_overridden(
    text: str, overrides: list[str], batch: tuple[int | None, ...], tmp_path: Path
) -> None:
    given = load(written(f"batch: {text}\n", tmp_path), overrides).config.batch
    assert (given.global_batch_size, given.per_device_train_batch_size, given.gradient_accumulation_steps) == batch


def test_heads_of_a_recipe_follow_an_overridden_width() -> None:
    model = load("gpt2-124m", ["model.hidden_size=64"]).config.model
    assert model.num_attention_heads == 1
    model = load("llama-1b", ["model.hidden_size=96"]).config.model
    assert (model.num_attention_heads, model.num_key_value_heads) == (2, 2)
    assert load("gpt-tiny", ["model.hidden_size=64"]).config.model.num_attention_heads == 4
    with pytest.raises(ConfigError, match=r"must be a multiple of model\.num_attention_heads"):
        load("gpt2-124m", ["model.hidden_size=64", "model.num_attention_heads=12"])


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (384, 6),
        (768, 12),
        (1024, 16),
        (64, 1),
        (128, 2),
        (32, 1),
        (96, 2),
        (100, 2),
        (80, 1),
        (97, 1),
        (4096, 64),
        (1, 1),
    ],
)
def test_heads_have_64_numbers_or_the_nearest_divisor(width: int, heads: int) -> None:
    assert default_heads(width) == heads
    assert load(None, [f"model.hidden_size={width}"]).config.model.num_attention_heads == heads


def test_the_number_of_heads_says_where_it_comes_from(tmp_path: Path) -> None:
    loaded = load(None, ["model.hidden_size=768"])
    assert loaded.origins["model.num_attention_heads"].where == "heads of 64"
    assert load(None).origins["model.num_attention_heads"].kind == "default"
    assert load(None, ["model.hidden_size=768", "model.head_width=128"]).config.model.num_attention_heads == 6
    old = tmp_path / "config.yaml"  # of a run before the rule: it has the number in it
    old.write_text("model: {hidden_size: 768, num_attention_heads: 6}\n", encoding="utf-8")
    assert load(old).config.model.num_attention_heads == 6


@pytest.mark.parametrize(("width", "heads"), [(88, 1), (156, 2), (510, 5)])
def test_heads_are_of_the_width_that_is_nearest_to_64_by_ratio(width: int, heads: int) -> None:
    """Of 510, 102 is 1.6 times 64 and 34 less than half of it, though 34 is nearer by difference."""
    assert default_heads(width) == heads
