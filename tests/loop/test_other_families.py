"""Models of other families with their own tokenizers, from training to metrics, generation and export."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.conftest import later, needs

from trainbook import api
from trainbook.errors import UserError
from trainbook.loop.export import export_run
from trainbook.loop.load_task import load_task
from trainbook.loop.predict import predict
from trainbook.runs import RunFolder

pytestmark = needs("transformers")
transformers = later("transformers")

CPU = torch.device("cpu")
WORDS = ("red", "green", "blue", "one", "two", "three")
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SMALL = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
}
SIZES: dict[str, dict[str, Any]] = {
    "llama": SMALL,
    "qwen2": SMALL | {"num_key_value_heads": 2},
    "bert": SMALL,
    "gpt2": {"n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 64},
    "t5": {"d_model": 32, "d_ff": 64, "d_kv": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 3},
    "bart": {
        "d_model": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "max_position_embeddings": 64,
        "dropout": 0.0,
        "decoder_start_token_id": 2,
        "forced_eos_token_id": 2,
    },
}
SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<mask>"]
AROUND = {
    "llama": ("<s> $A", ""),
    "gpt2": ("$A", ""),
    "qwen2": ("$A", ""),
    "t5": ("$A </s>", ""),
    "bart": ("<s> $A </s>", ""),
    "bert": ("<s> $A </s>", ""),
}


def tokenizer_of(family: str, *, pad: bool = True, chat_template: str | None = None) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = SPECIAL if pad else [name.replace("<pad>", "<spare>") for name in SPECIAL]
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    numbers = ["1984 1984"] if family == "qwen2" else []
    tokenizer.train_from_iterator([" ".join([*WORDS, *numbers])] * 4, trainer)
    ids = [(name, tokenizer.token_to_id(name)) for name in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single=AROUND[family][0], special_tokens=ids)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    names |= {"pad_token": "<pad>"} if pad else {}
    names |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"} if family in ("bert", "bart") else {}
    more = ["<|im_start|>", "<|im_end|>"]
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, additional_special_tokens=more, chat_template=chat_template, **names
    )
    return fast


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """A folder with a small random model of a family and its tokenizer."""

    def make(family: str, auto: str, *, pad: bool = True, chat_template: str | None = None, **more: Any) -> Path:
        fast = tokenizer_of(family, pad=pad, chat_template=chat_template)
        ids = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3 if pad else None}
        settings = {"vocab_size": len(fast), **ids, **SIZES[family], **more}
        torch.manual_seed(0)
        network = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(family, **settings))
        folder = tmp_path / family
        network.save_pretrained(folder)
        fast.save_pretrained(folder)
        return folder

    return make


def written(folder: Path, records: list[dict[str, Any]]) -> Path:
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def train(folder: Path, source: Path, *overrides: str, name: str = "run", steps: int = 3) -> RunFolder:
    config = {
        "model": {"pretrained": str(folder)},
        "data": {"source": str(source), "max_seq_length": 32, "validation_source": str(source)},
        "batch": {"global_batch_size": 6},
        "training": {"max_steps": steps, "device": "cpu"},
        "optimizer": {"learning_rate": 1e-2, "weight_decay": 0.0},
        "schedule": {"type": "constant", "warmup_steps": 0},
    }
    return api.train(config, list(overrides), name=name, runs_dir=folder.parent / "runs", quiet=True).run


PAIRS = [{"text": word, "target": word[::-1]} for word in WORDS]
LABELLED = [{"text": f"{word} {word}", "label": "number" if word in WORDS[3:] else "colour"} for word in WORDS]


# Special tokens and metrics


def test_right_answers_of_a_bart_are_exact_matches(model, tmp_path: Path):
    """BART writes <s> before an answer: no part of the text."""
    run = train(
        model("bart", "AutoModelForSeq2SeqLM"),
        written(tmp_path, PAIRS),
        "model.type=hf",
        "training.task=seq2seq",
        "evaluation.generate=true",
        "evaluation.eval_steps=60",
        steps=60,
    )
    assert run.metrics("eval")[-1]["loss"] < 0.05
    assert run.metrics("eval")[-1]["exact_match"] == 1.0
    prediction = predict(run, str(tmp_path / "records.jsonl"))
    assert [answer["output"] for answer in prediction] == [pair["target"] for pair in PAIRS]
    assert prediction.metrics()["exact_match"] == 1.0
    assert api.generate(run.path, "red", temperature=0) == "der"


@pytest.mark.parametrize("family", AROUND)
def test_a_text_for_readers_has_the_special_tokens_of_no_family(tmp_path: Path, family: str):
    from trainbook.data import load_tokenizer

    fast = tokenizer_of(family)
    fast.save_pretrained(tmp_path)
    ours = load_tokenizer(tmp_path)
    ids = fast("red green")["input_ids"]
    around = [5, *ids[:2], 3, *ids[2:], 4, 3, 3]
    assert ours.decode_plain(around) == fast.decode(around, skip_special_tokens=True) == "red green"


# What ends an answer


CONVERSATIONS = [{"prompt": f"Say {word}.", "answer": f"{word}!"} for word in WORDS]


@pytest.mark.parametrize("kind", ["ours", "hf"])
def test_an_answer_ends_at_every_end_token_and_export_writes_them_all(model, tmp_path: Path, kind: str):
    folder = model("llama", "AutoModelForCausalLM", chat_template=CHATML)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps(settings | {"eos_token_id": [2, 6, 9]}))
    more = ("model.type=hf",) if kind == "hf" else ()
    run = train(
        folder,
        written(tmp_path, CONVERSATIONS),
        *more,
        "training.task=chat",
        "evaluation.eval_strategy=no",
        steps=60,
    )
    task = load_task(run, "latest", CPU).task
    # </s> of the tokenizer, <|im_end|> of the template, <mask> of generation_config.json; 9 is an ordinary token.
    assert task.facts.ends == (2, 5, 6)
    for word in WORDS[:2]:
        assert api.generate(run.path, f"Say {word}.", temperature=0, max_new_tokens=30) == f"{word}!"
    exported = export_run(run, tmp_path / "exported").folder
    network = transformers.AutoModelForCausalLM.from_pretrained(exported)
    assert network.generation_config.eos_token_id == [2, 5, 6]
    fast = transformers.AutoTokenizer.from_pretrained(exported)
    prompt = [{"role": "user", "content": "Say red."}]
    inputs = fast.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = network.generate(**inputs, max_new_tokens=30, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    assert fast.decode(answer, skip_special_tokens=True) == "red!"
    assert answer[-1] == 5


# Heads over labels


@pytest.mark.parametrize(("family", "task"), [("t5", "classify"), ("bart", "classify"), ("t5", "tag")])
def test_a_classifier_with_a_decoder_is_exported_with_its_logits(model, tmp_path: Path, family: str, task: str):
    records = [{"words": ["red", "two"], "tags": ["colour", "number"]}] * 6 if task == "tag" else LABELLED
    run = train(
        model(family, "AutoModelForSeq2SeqLM"),
        written(tmp_path, records),
        "model.type=hf",
        f"training.task={task}",
        "evaluation.eval_strategy=no",
    )
    exported = export_run(run, tmp_path / "exported")
    assert exported.difference < 1e-5
    auto = "AutoModelForTokenClassification" if task == "tag" else "AutoModelForSequenceClassification"
    network = getattr(transformers, auto).from_pretrained(exported.folder)
    fast = transformers.AutoTokenizer.from_pretrained(exported.folder)
    if task == "tag":
        assert network.config.id2label == {0: "colour", 1: "number"}
        return
    logits = network(**fast("red red", return_tensors="pt")).logits[0].softmax(-1)
    (answer,) = predict(run, str(written(tmp_path, [{"text": "red red"}])))
    assert answer["probability"] == pytest.approx(logits.max().item(), abs=1e-5)
    assert answer["label"] == network.config.id2label[int(logits.argmax())]


def test_a_head_that_transformers_does_not_have_is_refused_before_training(model, tmp_path: Path):
    source = written(tmp_path, [{"words": ["red", "two"], "tags": ["colour", "number"]}] * 6)
    message = r"transformers has no head for training\.task=tag.*bart"
    with pytest.raises(UserError, match=message):
        train(model("bart", "AutoModelForSeq2SeqLM"), source, "model.type=hf", "training.task=tag")


@pytest.mark.parametrize("family", ["t5", "bart"])
@pytest.mark.parametrize("lacks", ["end", "pad"])
def test_a_head_that_reads_at_the_end_token_refuses_texts_without_one(model, tmp_path: Path, family: str, lacks: str):
    folder = model(family, "AutoModelForSeq2SeqLM", pad=lacks != "pad")
    if lacks == "end":
        about = json.loads((folder / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(about | {"post_processor": None}))
    message = {"end": r"head of (t5|bart) reads at the end token \(2\), but the tokenizer puts nothing around a text"}
    message["pad"] = r"reads at the end token \(2\), which is the padding token too"
    with pytest.raises(UserError, match=message[lacks]):
        train(folder, written(tmp_path, LABELLED), "model.type=hf", "training.task=classify")


# A classifier without a padding token


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_classifier_without_a_padding_token_pads_with_its_end_of_text(model, tmp_path: Path, family: str):
    """Texts of different lengths in one batch have the logits that each has alone in transformers."""
    records = [{"text": " ".join([word] * (1 + number)), "label": str(number % 2)} for number, word in enumerate(WORDS)]
    source = written(tmp_path, records)
    folder = model(family, "AutoModelForCausalLM", pad=False)
    run = train(folder, source, "model.type=hf", "training.task=classify", "evaluation.eval_strategy=no")
    network = export_run(run, tmp_path / "exported").folder
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(network)
    fast = transformers.AutoTokenizer.from_pretrained(network)
    assert theirs.config.pad_token_id == fast.pad_token_id == 2
    inputs = fast([record["text"] for record in records], padding=True, return_tensors="pt")
    together = theirs(**inputs).logits.softmax(-1)
    for record, answer, row in zip(records, predict(run, str(source)), together, strict=True):
        alone = theirs(**fast(record["text"], return_tensors="pt")).logits[0].softmax(-1)
        assert answer["probability"] == pytest.approx(alone.max().item(), abs=1e-5)
        assert answer["probability"] == pytest.approx(row.max().item(), abs=1e-5)


def test_a_borrowed_padding_token_is_told(model, tmp_path: Path):
    from trainbook.data import build as build_data
    from trainbook.knobs import load
    from trainbook.loop.build import request_of

    folder = model("gpt2", "AutoModelForCausalLM", pad=False)
    given = {"model": {"pretrained": str(folder), "type": "hf"}, "training": {"task": "classify", "max_steps": 1}}
    config = load(given, [f"data.source={written(tmp_path, LABELLED)}", f"data.cache_dir={tmp_path / 'cache'}"]).config
    data = build_data(config.data, 0, request_of(config))
    assert (
        "The tokenizer has no padding token: its end-of-text token '</s>' is used for padding, and masked."
        in data.summary["notices"]
    )


# What the tokenizer puts before a text


@pytest.mark.parametrize("kind", ["ours", "hf"])
def test_a_text_begins_as_the_tokenizer_begins_it(model, tmp_path: Path, kind: str):
    from trainbook.data.batches.plan import eval_batches
    from trainbook.knobs import load
    from trainbook.loop.build import build as build_job

    folder = model("llama", "AutoModelForCausalLM")
    source = written(tmp_path, [{"text": word} for word in WORDS])
    given = {"model": {"pretrained": str(folder)}, "training": {"max_steps": 1, "device": "cpu"}}
    given["data"] = {"source": str(source), "samples": "documents", "cache_dir": str(tmp_path / "cache")}
    given["data"] |= {"max_seq_length": 16, "validation_ratio": 0}
    config = load(given, ["model.type=hf"] if kind == "hf" else []).config
    data = build_job(config, CPU).data
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    texts = {tuple(fast(word)["input_ids"] + [fast.eos_token_id]) for word in WORDS}
    tokens = [row for batch in eval_batches(data.train, 2, None) for row in batch.tokens.split()]
    assert {tuple(row.tolist()) for row in tokens} == texts


def test_each_document_of_a_stream_begins_as_the_tokenizer_begins_it(model, tmp_path: Path):
    """Windows are cut out of what run_clm of transformers joins, with an end of text between documents."""
    from trainbook.data import build as build_data
    from trainbook.knobs import load
    from trainbook.loop.build import request_of

    folder = model("llama", "AutoModelForCausalLM")
    source = written(tmp_path, [{"text": word} for word in WORDS])
    given: dict[str, Any] = {"model": {"pretrained": str(folder)}, "training": {"max_steps": 1, "device": "cpu"}}
    given["data"] = {
        "source": str(source),
        "max_seq_length": 8,
        "validation_ratio": 0,
        "cache_dir": str(tmp_path / "c"),
    }
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    joined = [number for word in WORDS for number in (*fast(word)["input_ids"], fast.eos_token_id)]
    for samples in ("windows", "documents", "windows"):  # each finds its own in the cache
        config = load(given, [f"data.samples={samples}"]).config
        data = build_data(config.data, 0, request_of(config))
        begun = [number for number in joined if samples == "windows" or number != fast.bos_token_id]
        assert data.train.tokens.tolist() == begun[:-1]
        assert data.train.documents is not None
        assert [data.train.documents.source(number) for number in (0, 1)] == [f"{source}:1", f"{source}:2"]
    spoken = [data.tokenizer.decode(data.train.tokens[start : start + 2]) for start in data.train.documents.starts]
    assert all(word.startswith(begin[:1]) for word, begin in zip(WORDS, spoken, strict=True))


@pytest.mark.parametrize("flags", [{"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_flags_beside_a_tokenizer_say_nothing_as_in_transformers(model, family: str, flags: dict[str, bool]):
    from trainbook.data import load_tokenizer
    from trainbook.data.tokenizers.around import template

    folder = model(family, "AutoModelForCausalLM")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | flags))
    fast = transformers.AutoTokenizer.from_pretrained(folder)
    before, behind = template(load_tokenizer(folder))
    plain = fast("red", add_special_tokens=False)["input_ids"]
    assert [*before, *plain, *behind] == fast("red")["input_ids"]


# What transformers makes of a tokenizer


def test_a_tokenizer_that_transformers_builds_differently_is_found_before_training(model, tmp_path: Path):
    """Beside a Qwen2 transformers divides texts by its own pattern, which parts digits; this one joins them."""
    folder = model("qwen2", "AutoModelForCausalLM")
    source = written(tmp_path, [{"text": f"{word} {word}"} for word in WORDS])
    with pytest.raises(UserError, match=r"transformers would read .* differently beside a qwen2 model: .*1984"):
        train(folder, source, "training.task=causal")
    assert not any((tmp_path / "runs").glob("*/checkpoints/*"))
    saved = tmp_path / "as-transformers-reads-it"
    transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(saved)
    run = train(folder, source, "training.task=causal", f"data.tokenizer={saved}", name="mended")
    assert export_run(run, tmp_path / "exported").architecture == "Qwen2ForCausalLM"


def test_a_tokenizer_that_transformers_cannot_load_is_a_message_before_training(model, tmp_path: Path, monkeypatch):
    def fails(*_: Any, **__: Any) -> None:
        raise TypeError("a vocabulary of another kind")

    folder = model("llama", "AutoModelForCausalLM")
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", fails)
    source = written(tmp_path, [{"text": f"{word} {word}"} for word in WORDS])
    with pytest.raises(UserError, match=r"transformers cannot load this tokenizer.*\(a vocabulary of another kind\)"):
        train(folder, source, "training.task=causal")


@pytest.mark.parametrize("kind", ["ours", "hf"])
def test_tokens_without_embeddings_are_named_before_training(model, tmp_path: Path, kind: str):
    """The tokenizer is the model's own, so to leave data.tokenizer out would not help."""
    from tokenizers import Tokenizer

    folder = model("llama", "AutoModelForCausalLM")
    library = Tokenizer.from_file(str(folder / "tokenizer.json"))
    rows = library.get_vocab_size()
    library.add_tokens(["zebra", "gnu"])
    library.save(str(folder / "tokenizer.json"))
    source = written(tmp_path, [{"text": f"{word} {word}"} for word in WORDS])
    overrides = ["training.task=causal", *(["model.type=hf"] if kind == "hf" else [])]
    with pytest.raises(
        UserError, match=rf"embeddings for {rows} only: none for 'zebra' \({rows}\), 'gnu'.*resize_token"
    ):
        train(folder, source, *overrides)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    network.resize_token_embeddings(rows + 2)
    network.save_pretrained(folder)
    run = train(folder, source, *overrides, "evaluation.eval_strategy=no", name="mended")
    assert export_run(run, tmp_path / "exported").difference < 1e-5


def test_from_scratch_it_is_told_that_transformers_builds_the_tokenizer_differently(tmp_path: Path):
    from trainbook.knobs import load
    from trainbook.loop.build import build as build_job

    (tmp_path / "text.txt").write_text("In 1984 and 1984 and 1985 again.\n" * 200)
    given: dict[str, Any] = {"training": {"max_steps": 1, "device": "cpu"}}
    given["model"] = {"type": "gpt", "position": "rotary", "norm": "rmsnorm", "activation": "swiglu", "hidden_size": 32}
    given["data"] = {"source": str(tmp_path / "text.txt"), "tokenizer": "bpe", "max_seq_length": 16}
    given["data"] |= {"vocab_size": 280, "cache_dir": str(tmp_path / "cache")}
    for qkv_bias in (False, True):
        given["model"]["qkv_bias"] = qkv_bias
        notices = build_job(load(given).config, CPU).data.summary["notices"]
        assert any("transformers would read 'bpe' differently" in notice for notice in notices) == qkv_bias


def test_a_tokenizer_is_compared_by_a_dry_run_too(model, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from trainbook.cli.main import app

    source = written(tmp_path, [{"text": f"{word} {word}"} for word in WORDS])
    for family, code in (("qwen2", 2), ("llama", 0)):
        folder = model(family, "AutoModelForCausalLM")
        words = ["train", "gpt-tiny", f"model.pretrained={folder}", f"data.source={source}", "--dry-run"]
        with pytest.raises(SystemExit) as ended:
            app([*words, "--runs-dir", str(tmp_path / "runs")])
        said = " ".join("".join(capsys.readouterr()).split())
        assert (ended.value.code or 0) == code, said
        assert ("transformers would read" in said) == (code == 2)


def test_a_tokenizer_that_transformers_reads_differently_in_its_own_folder_is_told(model, tmp_path: Path):
    """Its settings name a class that takes the vocabulary alone, and divides texts in its own way."""
    from trainbook.knobs import load
    from trainbook.loop.build import build as build_job

    folder = model("gpt2", "AutoModelForCausalLM")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "BertTokenizer"}))
    source = written(tmp_path, [{"text": f"{word} {word}"} for word in WORDS])
    given = {"model": {"pretrained": str(folder)}, "training": {"max_steps": 1, "device": "cpu"}}
    given["data"] = {"source": str(source), "max_seq_length": 16, "cache_dir": str(tmp_path / "cache")}
    notices = build_job(load(given).config, CPU).data.summary["notices"]
    assert any(notice.startswith(f"transformers reads the tokenizer of {folder} differently") for notice in notices)


def test_generation_begins_as_the_tokenizer_begins_a_text(model, tmp_path: Path):
    folder = model("llama", "AutoModelForCausalLM")
    source = written(tmp_path, [{"text": f"{word} {word}"} for word in WORDS])
    run = train(
        folder, source, "training.task=causal", "data.samples=documents", "evaluation.eval_strategy=no", steps=9
    )
    exported = export_run(run, tmp_path / "exported").folder
    network = transformers.AutoModelForCausalLM.from_pretrained(exported)
    fast = transformers.AutoTokenizer.from_pretrained(exported)
    inputs = fast("red", return_tensors="pt")
    assert inputs["input_ids"][0, 0] == fast.bos_token_id
    answer = network.generate(**inputs, max_new_tokens=12, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    ours = api.generate(run.path, "red", temperature=0, max_new_tokens=12)
    assert ours == fast.decode(answer, skip_special_tokens=True)
    (likelihood,) = predict(run, str(written(tmp_path, [{"text": "red red"}])))
    ids = torch.tensor([fast("red red")["input_ids"] + [fast.eos_token_id]])
    assert likelihood["loss"] == pytest.approx(network(input_ids=ids, labels=ids).loss.item(), abs=1e-5)


@pytest.mark.parametrize("kind", ["words", "metaspace", "bytes"])
def test_a_continuation_is_joined_to_its_prompt_as_in_the_whole_text(kind: str):
    """Decoded alone, a first word has no blank before it: "the fox" went on as "the foxsees"."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from trainbook.data.tokenizers import LibraryBackedTokenizer
    from trainbook.loop.prompts import continuation

    marks = {"words": "", "metaspace": "▁", "bytes": "Ġ"}
    texts = ["the", "fox", "sees", "it"]
    vocabulary = {mark + text: number for number, text in enumerate(texts) for mark in [marks[kind]]}
    library = Tokenizer(models.WordLevel(vocabulary | {"</s>": 4}, unk_token="</s>"))
    if kind == "words":
        library.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        library.decoder = decoders.Metaspace() if kind == "metaspace" else decoders.ByteLevel()
    tokenizer = LibraryBackedTokenizer(library)
    assert continuation(tokenizer, [4, 0, 1], [2, 3, 4]) == " sees it"
    assert continuation(tokenizer, [], [2, 3]) == tokenizer.decode([2, 3])


# What the base says of itself


@pytest.mark.parametrize("adapted", [False, True])
def test_an_export_keeps_what_else_the_base_says(model, tmp_path: Path, adapted: bool):
    folder = model("llama", "AutoModelForCausalLM", hidden_act="silu")
    said = {"id2label": {"0": "no", "1": "yes", "2": "maybe"}, "label2id": {"no": 0, "yes": 1, "maybe": 2}}
    said |= {"torch_dtype": "bfloat16", "eos_token_id": [2, 5], "of_my_own": {"a": [1]}}
    wrong = {"sep_token_id": 77}  # an ordinary token
    dropped = {"_name_or_path": "somewhere/else", "transformers_version": "4.0.0"}
    _add(folder / "config.json", said | dropped | wrong)
    generates = {"temperature": 0.6, "top_p": 0.9, "do_sample": True, "max_length": 99, "eos_token_id": [2, 5]}
    _add(folder / "generation_config.json", generates)
    source = written(tmp_path, [{"text": f"{word} {word}"} for word in WORDS])
    overrides = ["model.lora_rank=2"] if adapted else []
    run = train(folder, source, "training.task=causal", "evaluation.eval_strategy=no", *overrides)
    again = train(run.path, source, "training.task=causal", "evaluation.eval_strategy=no", name="again")
    for number, each in enumerate([run] if adapted else [run, again]):
        exported = export_run(each, tmp_path / f"exported-{number}").folder
        config = json.loads((exported / "config.json").read_text())
        assert {key: config.get(key) for key in said} == said | {"torch_dtype": "float32"}
        assert config["dtype"] == "float32" and config["bos_token_id"] == 1
        assert not (dropped | wrong).keys() & config.keys()
        generation = transformers.GenerationConfig.from_pretrained(exported)
        assert {key: getattr(generation, key) for key in generates} == generates


def _add(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
