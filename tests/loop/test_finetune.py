"""Fine-tuning by the packaged recipe: a small model in Llama's format, from disk, on a few instructions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.conftest import later, needs, slow

from trainbook import api
from trainbook.errors import ConfigError
from trainbook.knobs import load, require_length

pytestmark = needs("transformers", "peft", "bitsandbytes")
transformers = later("transformers")

WORDS = ("red", "green", "blue", "one", "two", "three")


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with records and a random model with its tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    root = tmp_path_factory.mktemp("material")
    records = [{"prompt": f"Say {word}.", "answer": f"{word}!"} for word in WORDS] * 2
    (root / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>", "<unk>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([text for record in records for text in record.values()], trainer)
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(root / "llama")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=len(fast), max_position_embeddings=64, initializer_range=0.2, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(root / "llama")
    return root


def fine_tune(lab, material: Path, *overrides: str, name: str = "run"):
    given = [f"model.pretrained={material / 'llama'}", f"data.source={material / 'records.jsonl'}"]
    given += ["data.max_seq_length=64", "data.validation_ratio=0", "training.device=cpu", "learning_rate=2e-2"]
    return api.train("finetune-chat", [*given, *overrides], name=name, runs_dir=lab.runs, quiet=True)


def test_the_recipe_has_the_settings_of_the_notes_and_asks_for_a_model():
    loaded = load("finetune-chat")
    config = loaded.config
    assert (config.batch.per_device_train_batch_size, config.batch.gradient_accumulation_steps) == (1, 4)
    assert (config.training.num_train_epochs, config.optimizer.learning_rate) == (5, 2e-4)
    assert (config.precision.weights, config.optimizer.type) == ("fp16", "paged_adamw_8bit")
    assert (config.schedule.type, config.schedule.warmup_ratio) == ("cosine", 0.05)
    assert (config.checkpoint.save_total_limit, config.logging.logging_steps) == (3, 1)
    with pytest.raises(ConfigError, match=r"model.pretrained: must be set"):
        require_length(loaded)


def test_a_model_from_disk_learns_answers_by_the_recipe(lab, material: Path):
    result = fine_tune(lab, material)
    rows = list(result.run.metrics("train"))
    losses = [row["loss"] for row in rows]
    assert rows[-1]["applied_updates"] == 12 * 5 / 4
    assert losses[-1] < 0.75 * losses[0]
    # Checkpoints hold what is trained: rank 8 x (inputs + outputs) of seven matrices in each of two layers.
    weights = lab.state("run")["model"]
    trained = sum(tensor.numel() for name, tensor in weights.items() if ".lora_" in name)
    assert trained == 2 * 8 * (4 * (32 + 32) + 3 * (32 + 64))
    assert all(".lora_" in name or name == "frozen_weights" for name in weights)


@pytest.mark.parametrize("bits", [slow("none"), "4bit"])
def test_an_interrupted_run_with_adapters_continues_bit_for_bit(lab, material: Path, bits: str):
    settings = (f"model.quantize_base={bits}", "model.lora_dropout=0.1")
    fine_tune(lab, material, *settings, name="whole")
    with lab.interrupted_at(6):
        fine_tune(lab, material, *settings, name="cut")
    assert fine_tune(lab, material, *settings, name="cut").ended == "finished"
    lab.must_be_equal("whole", "cut")


def test_what_was_learned_is_written_and_exported_as_a_plain_model(lab, material: Path, tmp_path: Path):
    from trainbook.loop.export import export_run

    run = fine_tune(lab, material, "training.num_train_epochs=1").run
    assert api.generate(run.path, "Say green.", temperature=0, max_new_tokens=4)
    exported = export_run(run, tmp_path / "plain")
    network = transformers.AutoModelForCausalLM.from_pretrained(exported.folder)
    assert not any("lora" in name for name, _ in network.named_parameters())
