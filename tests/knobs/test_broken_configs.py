"""Each broken configuration with exactly what is said of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainbook.errors import ConfigError, UserError
from trainbook.knobs import load, require_length

BROKEN: dict[str, tuple[str, list[str]]] = {
    "a misspelt knob in a section": (
        "optimizer:\n  lerning_rate: 1e-4\n",
        ["run.yaml:2  optimizer.lerning_rate: no such knob. Did you mean optimizer.learning_rate?"],
    ),
    "a misspelt tracker": (
        "logging: {report_to: wandbb}\n",
        [
            "run.yaml:1  logging.report_to: must be a list with any of tensorboard, wandb, but got 'wandbb' "
            "(a string). Did you mean ['wandb']?"
        ],
    ),
    "names of other trainers for what no knob is": (
        "output_dir: out\nsave_strategy: epoch\nschedule: {min_lr: 1e-4}\n",
        [
            "run.yaml:1  output_dir: no such knob. The folder of a run is an option of the command: --runs-dir DIR, "
            "with --name NAME.",
            "run.yaml:2  save_strategy: no such knob. Checkpoints are saved every checkpoint.save_steps steps, by "
            "default at each evaluation.",
            "run.yaml:3  schedule.min_lr: no such knob. Set schedule.floor, the lowest learning rate as a share of the "
            "peak, such as 0.1.",
        ],
    ),
    "a mapping that is like no section": (
        "Wibble:\n  a: 1\n",
        [
            "run.yaml:1  Wibble: no such section. The sections are model, optimizer, schedule, batch, training, "
            "precision, memory, data, distributed, evaluation, checkpoint, logging, guard."
        ],
    ),
    "a short word that is like no knob": ("foo: 1\n", ["run.yaml:1  foo: no such knob."]),
    "the name of a run": (
        "run:\n  name: first\n",
        ["run.yaml:1  run: no such knob. The name of a run is an option of the command: --name NAME."],
    ),
    "a misspelt knob at the top": (
        "seed: 1\nlerning_rate: 1e-4\n",
        ["run.yaml:2  lerning_rate: no such knob. Did you mean optimizer.learning_rate?"],
    ),
    "a misspelt alias is answered with the knob's own name": (
        "gradient_cliping: 1.0\n",
        ["run.yaml:1  gradient_cliping: no such knob. Did you mean batch.max_grad_norm?"],
    ),
    "a misspelt section": (
        "optimizr:\n  type: adamw\n",
        ["run.yaml:1  optimizr: no such section. Did you mean optimizer?"],
    ),
    "a name like no other": (
        "flux_capacitor: 1\n",
        ["run.yaml:1  flux_capacitor: no such knob."],
    ),
    "a word of several names": (
        "schedule:\n  warm-up: 100\n",
        ["run.yaml:2  schedule.warm-up: no such knob. Did you mean schedule.warmup_steps or schedule.warmup_ratio?"],
    ),
    "what belongs in the command": (
        "recipe: gpt-tiny\n",
        [
            "run.yaml:1  recipe: no such knob. Name the recipe in the command, followed by overrides: trainbook train "
            "gpt-tiny learning_rate=1e-3."
        ],
    ),
    "what belongs in a study": (
        "base: gpt-tiny\nnuisance: {optimizer.learning_rate: null}\n",
        [
            f"run.yaml:{line}  {name}: no such knob. "
            "It belongs in a study file, for `trainbook tune` and `trainbook transfer`."
            for line, name in ((1, "base"), (2, "nuisance"))
        ],
    ),
    "a knob in another knob's section": (
        "training:\n  max_steps: 10\n  batch_size: 8\n",
        ["run.yaml:3  training.batch_size: no such knob. Did you mean batch.global_batch_size?"],
    ),
    "a special name in another section": (
        "training:\n  fp16: true\n",
        ["run.yaml:2  training.fp16: no such knob. Did you mean precision.compute?"],
    ),
    "a name that several sections have": (
        "type: adamw\n",
        ["run.yaml:1  type: needs its section. Write one of model.type, optimizer.type, schedule.type."],
    ),
    "a name that says nothing without its section": (
        "enabled: false\n",
        ["run.yaml:1  enabled: needs its section. Write guard.enabled."],
    ),
    "a number out of its range": (
        "model:\n\n\n\n  dropout: 1.5\n",
        ["run.yaml:5  model.dropout: must be a number >= 0 and < 1, but got 1.5."],
    ),
    "a rate of zero": (
        "lr: 0\n",
        ["run.yaml:1  optimizer.learning_rate: must be a number > 0, but got 0."],
    ),
    "a rate that is not finite": (
        "lr: .inf\nweight_decay: .nan\n",
        [
            "run.yaml:1  optimizer.learning_rate: must be a number > 0, but got .inf.",
            "run.yaml:2  optimizer.weight_decay: must be a number >= 0, but got .nan.",
        ],
    ),
    "a number in quotes": (
        "optimizer:\n  learning_rate: '1e-4'\n",
        ["run.yaml:2  optimizer.learning_rate: must be a number > 0, but got '1e-4' (a string)."],
    ),
    "a boolean for a number": (
        "seed: true\n",
        ["run.yaml:1  training.seed: must be a whole number >= 0, but got true (a boolean)."],
    ),
    "a number for a boolean": (
        "bias: 1\n",
        ["run.yaml:1  model.bias: must be true or false, but got 1 (a number)."],
    ),
    "an old spelling of true": (
        "bias: yes\n",
        ["run.yaml:1  model.bias: must be true or false, but got 'yes' (a string). Did you mean true?"],
    ),
    "a fraction for a whole number": (
        "max_steps: 10.5\n",
        ["run.yaml:1  training.max_steps: must be a whole number >= 1 and <= 10000000 or null, but got 10.5."],
    ),
    "both bounds of a whole number": (
        "fp16: true\ninitial_scale_power: 40\n",
        ["run.yaml:2  precision.initial_scale_power: must be a whole number >= 0 and <= 32, but got 40."],
    ),
    "null where there is no null": (
        "optimizer:\n  learning_rate:\n",
        ["run.yaml:2  optimizer.learning_rate: must be a number > 0, but got null."],
    ),
    "a list for a number": (
        "lr: [1e-4, 1e-3]\n",
        ["run.yaml:1  optimizer.learning_rate: must be a number > 0, but got [1e-4, 0.001] (a list)."],
    ),
    "a mapping for a number": (
        "lr:\n  start: 1e-4\n",
        ["run.yaml:1  optimizer.learning_rate: must be a number > 0, but got a mapping."],
    ),
    "a misspelt choice": (
        "schedule:\n  type: cosin\n",
        [
            "run.yaml:2  schedule.type: must be one of constant, linear, cosine, cosine_with_restarts, polynomial, "
            "inverse_sqrt, warmup_stable_decay, but got 'cosin'. Did you mean 'cosine'?"
        ],
    ),
    "a choice that is not served": (
        "model_type: brt\n",
        [
            "run.yaml:1  model.type: must be gpt, bert, t5, hf, or your own model as package.module:Name, but got "
            "'brt'. Did you mean 'bert'?"
        ],
    ),
    "a tracker that is not served": (
        "report_to: [wandb, mlflow]\n",
        ["run.yaml:1  logging.report_to: must be a list with any of tensorboard, wandb, but got ['wandb', 'mlflow']."],
    ),
    "a scale that is neither of two kinds": (
        "fp16: true\nloss_scale: automatic\n",
        ["run.yaml:2  precision.loss_scale: must be 'dynamic' or a number > 0, but got 'automatic'."],
    ),
    "one beta": (
        "optimizer:\n  betas: 0.9\n",
        ["run.yaml:2  optimizer.betas: must be a list of two numbers, [beta1, beta2], but got 0.9."],
    ),
    "a beta out of its range": (
        "betas: [0.9, 1.0]\n",
        ["run.yaml:1  optimizer.beta2: must be a number >= 0 and < 1, but got 1."],
    ),
    "fp16 as a word": (
        "fp16: dynamic\n",
        ["run.yaml:1  fp16: must be true, false or a mapping with enabled, but got 'dynamic'."],
    ),
    "a section that is a list": (
        "optimizer:\n  - adamw\n",
        ["run.yaml:1  optimizer: must be a mapping of knobs, such as type, but got ['adamw']."],
    ),
    "the same key twice": (
        "seed: 1\nlr: 1e-3\nseed: 2\n",
        ["run.yaml:1, run.yaml:3  seed: is set twice. Keep one of the two."],
    ),
    "the same knob under two names": (
        "learning_rate: 1e-4\noptimizer:\n  lr: 1e-3\n",
        [
            "run.yaml:1, run.yaml:3  optimizer.learning_rate: is set twice, as learning_rate (1e-4) and as "
            "optimizer.lr (0.001). Keep one of the two."
        ],
    ),
    "the same knob under two names, with equal values": (
        "lr: 0.5\nlearning_rate: 0.5\n",
        [
            "run.yaml:1, run.yaml:2  optimizer.learning_rate: is set twice, as lr (0.5) and as learning_rate (0.5). "
            "Keep one of the two."
        ],
    ),
    "two kinds of half precision": (
        "fp16: true\nbf16: true\n",
        [
            "run.yaml:1, run.yaml:2  precision.compute: is set twice, as fp16 ('fp16') and as bf16 ('bf16'). "
            "Keep one of the two."
        ],
    ),
    "fp16 ruled out and chosen": (
        "fp16: false\nprecision: fp16\n",
        [
            "run.yaml:2, run.yaml:1  precision.compute: is set twice, as precision ('fp16') and as fp16 (false). "
            "Keep one of the two."
        ],
    ),
    "YAML with a fault": (
        "model: {dropout: 0.1\n",
        ["run.yaml:2  YAML: expected ',' or '}', but got '<stream end>'; the '{' of line 1 may not be closed."],
    ),
    "YAML with two values in a line": ("a: b: c\n", ["run.yaml:1  YAML: mapping values are not allowed here."]),
    "a list at the top level": (
        "- lr: 1\n",
        ["run.yaml:1  YAML: must be a mapping of sections and knobs at the top level."],
    ),
    "a word at the top level": (
        "# a comment\ngpt-tiny\n",
        ["run.yaml:2  YAML: must be a mapping of sections and knobs at the top level."],
    ),
    "a block that contains itself": (
        "config: &loop\n  model: *loop\n",
        ["run.yaml:2  YAML: 'model' contains itself."],
    ),
    "every problem at once, laws last": (
        "hidden_size: 100\nlr: -1\nmax_steps: 10\nwarmup_steps: 20\nbetas: [0.9, 2]\nsed: 1\nn_head: 6\n"
        "data:\n  tokenizer: bep\n",
        [
            "run.yaml:2  optimizer.learning_rate: must be a number > 0, but got -1.",
            "run.yaml:5  optimizer.beta2: must be a number >= 0 and < 1, but got 2.",
            "run.yaml:6  sed: no such knob. Did you mean training.seed?",
            "run.yaml:1, run.yaml:7  model.hidden_size: must be a multiple of model.num_attention_heads, but 100 is "
            "not a multiple of 6.",
            "run.yaml:9  data.tokenizer: must be byte, char, word, bpe, the path of a tokenizer.json, or that of a "
            "folder with a tokenizer, but got 'bep'. Did you mean bpe?",
            "run.yaml:4, run.yaml:3  schedule.warmup_steps: must be less than training.max_steps, but 20 is not less "
            "than 10.",
        ],
    ),
    "a kind of tokenizer that there is not, among the other problems": (
        "lr: -1\ntokenizer: wordpiece\n",
        [
            "run.yaml:1  optimizer.learning_rate: must be a number > 0, but got -1.",
            "run.yaml:2  data.tokenizer: must be byte, char, word, bpe, the path of a tokenizer.json, or that of a "
            "folder with a tokenizer, but got 'wordpiece'. Did you mean bpe?",
        ],
    ),
    "a tokenizer of the hub, among the other problems": (
        "lr: -1\ntokenizer: gpt2\n",
        [
            "run.yaml:1  optimizer.learning_rate: must be a number > 0, but got -1.",
            "run.yaml:2  data.tokenizer: must be byte, char, word, bpe, the path of a tokenizer.json, or that of a "
            "folder with a tokenizer, but got 'gpt2'. A tokenizer from the Hugging Face hub comes with its model: set "
            "model.pretrained.",
        ],
    ),
    "a law is not judged on a refused value": (
        "hidden_size: 100\nnum_attention_heads: six\n",
        ["run.yaml:2  model.num_attention_heads: must be a whole number >= 1, but got 'six' (a string)."],
    ),
}


@pytest.mark.parametrize(("text", "messages"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_says_where_what_and_how(
    text: str, messages: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load("run.yaml")
    assert [str(problem) for problem in error.value.problems] == messages
    assert str(error.value) == "\n".join(messages)


@pytest.mark.parametrize(
    ("overrides", "messages"),
    [
        (
            ["learning_rate"],
            ["override  learning_rate: must have the form key=value, such as optimizer.learning_rate=1e-3."],
        ),
        (["lerning_rate=1"], ["override  lerning_rate: no such knob. Did you mean optimizer.learning_rate?"]),
        (["model.dropot=0.1"], ["override  model.dropot: no such knob. Did you mean model.dropout?"]),
        (["lr=fast"], ["override  optimizer.learning_rate: must be a number > 0, but got 'fast' (a string)."]),
        (["betas=[0.9"], ["override  betas: the value [0.9 is not YAML: expected ',' or ']', but got '<stream end>'."]),
        (
            ["lr=1e-3", "optimizer.learning_rate=1e-4"],
            [
                "override  optimizer.learning_rate: is set twice, as lr (0.001) and as optimizer.learning_rate (1e-4). "
                "Keep one of the two."
            ],
        ),
    ],
)
def test_a_broken_override_says_what_and_how(overrides: list[str], messages: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        load(None, overrides)
    assert [str(problem) for problem in error.value.problems] == messages


def test_problems_of_the_file_and_of_the_overrides_come_together(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("lr: 0\n", encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        load(path, ["dropout=2"])
    assert [problem.where for problem in error.value.problems] == [f"{path}:1", "override"]


def test_a_missing_file_is_said_to_be_missing() -> None:
    with pytest.raises(UserError, match=r"^configs/run\.yaml: no such file\.$"):
        load("configs/run.yaml")


def test_a_folder_and_a_binary_file_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder, but a recipe, or a YAML or Python file, is needed"):
        load(tmp_path)
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="is not a UTF-8 text file"):
        load(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("docs.jsonl", '{"text": "one"}\n{"text": "two"}\n'),
        ("docs.csv", "text,label\nThis is good: yes,1\n"),
        ("docs.csv.gz", "text,label\n"),
        ("docs.txt", "It was a dark and stormy night.\n\n\tThe rain: it fell.\n"),
        ("docs.txt", "Call me Ishmael.\n"),
        ("docs.txt", "Title: Moby-Dick\nAuthor: Melville\n"),
        ("docs.md", "# Heading\n\n* one\n* two\n"),
    ],
)
def test_a_data_file_is_told_from_a_configuration(tmp_path: Path, monkeypatch, name: str, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=rf"^{name}: is a data file, .*gpt-tiny data\.source={name}\.$"):
        load(name)


def test_a_text_file_may_be_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    path.write_text("lr: 1e-3\n", encoding="utf-8")
    assert load(path).config.optimizer.learning_rate == 1e-3
    path.write_text("lr: fast\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="must be a number"):
        load(path)


@pytest.mark.parametrize("name", ["first", "runs/first"])
def test_a_run_is_told_from_a_recipe(tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    run = Path("runs/first")
    run.mkdir(parents=True)
    for file in ("manifest.json", "config.yaml"):
        (run / file).write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=rf"^{name}: is a run, .* configuration is runs/first/config\.yaml\.$"):
        load(name)


def test_a_misspelt_recipe_is_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"^large-scal: no such recipe or file\. Did you mean large-scale\?"):
        load("large-scal")


def test_a_name_too_long_for_a_file_is_no_recipe() -> None:
    with pytest.raises(UserError, match="x: no such recipe or file"):
        load("x" * 300)


def test_training_needs_a_length_and_names_the_three_ways_to_state_it() -> None:
    loaded = load(None)
    with pytest.raises(ConfigError) as error:
        require_length(loaded)
    for way in ("training.max_steps", "training.num_train_epochs", "training.max_tokens"):
        assert way in str(error.value)
    for way in ("max_steps=1", "epochs=0.5", "max_tokens=1e9"):
        require_length(load(None, [way]))
