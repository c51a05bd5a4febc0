from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import needs

pytestmark = needs("transformers")

GO_ON = (
    "gpt-tiny",
    "data.source=text.txt",
    "data.cache_dir=cache",
    "training.max_steps=2",
    "schedule.warmup_steps=1",
    "batch.global_batch_size=4",
    "optimizer.learning_rate=1e-5",
    "evaluation.eval_steps=1",
    "evaluation.eval_max_samples=6",
)


def test_a_run_becomes_a_folder_that_transformers_writes_on_from(trained):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    answer = trained.json("export", "run", "--to", "models/small", "--json")
    assert answer["format"] == "gpt2" and answer["architecture"] == "GPT2LMHeadModel" and answer["difference"] <= 1e-4
    assert answer["folder"] == "models/small"
    tokenizer: Any = AutoTokenizer.from_pretrained("models/small")
    model: Any = AutoModelForCausalLM.from_pretrained("models/small")
    ids = tokenizer("alpha ", return_tensors="pt")
    written = model.generate(**ids, max_new_tokens=9, do_sample=False)[0, ids["input_ids"].shape[1] :]
    ours = trained("generate", "run", "alpha ", "--temperature", "0", "--max-new-tokens", "9").stdout
    assert "alpha " + tokenizer.decode(written) == ours.removesuffix("\n")


def test_what_was_done_is_said(trained):
    said = trained("export", "runs/run", "--to", "said", "--checkpoint", "latest").stdout
    own = json.loads(Path("runs/run/events.jsonl").read_text().splitlines()[0])["num_parameters"]
    added = int(said.split(" parameters (")[1].split()[0].replace(",", ""))
    assert f", {own + added:,} parameters (" in said and "zeros, such as biases" in said
    assert "said: GPT2LMHeadModel (gpt2)" in said and "compared: logits differ by" in said


def test_an_exported_run_is_where_another_one_starts(trained):
    trained("export", "run", "--to", "start")
    trained("train", *GO_ON, "model.pretrained=start", "--name", "second", "--quiet")
    before = [json.loads(line) for line in Path("runs/run/metrics.jsonl").read_text().splitlines()]
    after = [json.loads(line) for line in Path("runs/second/metrics.jsonl").read_text().splitlines()]
    ended = [row["loss"] for row in before if row["split"] == "eval"][-1]
    began = next(row["loss"] for row in after if row["split"] == "eval")
    assert abs(began - ended) < 0.05


@pytest.mark.parametrize("lora", [(), ("model.lora_rank=2",)], ids=["whole", "adapters"])
@pytest.mark.parametrize("kind", ["gpt", "hf"])
def test_fine_tuned_models_are_exported_with_adapters_merged(trained, kind: str, lora: tuple[str, ...]):
    name = f"{kind}-{len(lora)}"
    if not Path("base").exists():
        trained("export", "run", "--to", "base")
    options = ("data.max_seq_length=16", f"model.type={kind}", *lora)
    trained("train", *GO_ON, "model.pretrained=base", *options, "--name", name, "--quiet")
    answer = trained.json("export", name, "--to", f"models/{name}", "--json")
    assert answer["format"] == "gpt2" and answer["difference"] <= 1e-4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--to", "text.txt"), "text.txt exists already"),
        (("run", "--to", "new", "--format", "llama"), "model.position: must be rotary, but is 'learned'"),
        (("run", "--to", "new", "--format", "gtp2"), "must be one of auto, gpt2, llama, mistral, qwen2, qwen3"),
        (("run", "--to", "new", "--checkpoint", "newest"), "checkpoint: must be best, latest or a step"),
        (("runn", "--to", "new"), "Did you mean runs/run?"),
        (("run",), "Missing option"),
    ],
)
def test_a_mistake_is_a_message_and_leaves_no_folder(trained, arguments, message: str):
    assert message in trained("export", *arguments, code=2).stderr
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("verb", "where", "said"),
    [
        (("export", "run", "--to", "out"), "trainbook.loop.export.load_task", "interrupted: nothing was exported"),
        (("generate", "run"), "trainbook.loop.generate.load_task", "interrupted"),
        (("predict", "run", "text.txt"), "trainbook.loop.predict.load_task", "before the first prediction"),
    ],
)
def test_ctrl_c_says_what_is_true_of_the_verb(trained, verb, where: str, said: str, monkeypatch: pytest.MonkeyPatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupted)
    answer = trained(*verb, code=130)
    assert said in answer.stderr and "step" not in answer.stderr


def test_the_help_names_every_family():
    from typer.main import get_command

    from trainbook.cli.main import app
    from trainbook.knobs.formats import OF_TYPE

    command: Any = get_command(app)
    (option,) = [each for each in command.commands["export"].params if each.name == "format"]
    assert all(family in option.help for families in OF_TYPE.values() for family in families)
