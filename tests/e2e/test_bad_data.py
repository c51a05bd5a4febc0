"""Whatever is wrong with data, tokenizer or weights is said with its place, and leaves everything as it was.

The command line inside this process: whatever is not an exit would be a traceback on a real terminal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

SHORT = (
    "data.max_seq_length=16",
    "data.cache_dir=cache",
    "batch.global_batch_size=4",
    "training.max_steps=4",
    "schedule.warmup_steps=1",
    "evaluation.eval_steps=4",
    "evaluation.eval_max_samples=6",
)
SMALL = ("model.num_hidden_layers=1", "model.hidden_size=16", "model.num_attention_heads=2", *SHORT)
GPT = ("train", "gpt-tiny", *SMALL)
BERT = ("train", "bert-tiny", *SMALL)
T5 = ("train", "t5-tiny", *SMALL, "data.max_target_length=8")
CLASSIFY = (*BERT, "training.task=classify")
RECORDS = [{"text": f"word {number} alpha", "label": "ab"[number % 2]} for number in range(40)]


def command(*arguments: str, code: int = 2) -> Result:
    from trainbook.cli.main import app

    answer = CliRunner().invoke(app, list(arguments))
    assert answer.exception is None or isinstance(answer.exception, SystemExit), repr(answer.exception)
    assert answer.exit_code == code, answer.output
    assert "Traceback" not in answer.output
    return answer


def refused(*arguments: str) -> str:
    """What is said to a wrong input: the whole message, and no run folder is there afterwards that was not before."""
    before = set(Path("runs").glob("*"))
    answer = command(*arguments)
    assert answer.stdout == "" and answer.stderr.startswith("error: ")
    assert set(Path("runs").glob("*")) == before
    message = answer.stderr.removeprefix("error: ").rstrip("\n")
    return message.removesuffix(" To skip such records, set data.bad_lines=skip.")


def write(name: str, records: list[Any]) -> str:
    """Records a line each; a string is a line as it is."""
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    Path(name).write_text("\n".join(lines) + "\n")
    return f"data.source={name}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


# Columns


def test_a_column_that_is_asked_for_and_missing_is_named_with_those_that_are_there():
    source = write("reviews.jsonl", [{"review": "good", "stars": 3}] * 9)
    where = "reviews.jsonl:1: has no field"
    assert refused(*CLASSIFY, source, "data.label_field=star") == (
        f"{where} 'star' (data.label_field); its fields are: 'review', 'stars'. Did you mean 'stars'?"
    )
    assert refused(*GPT, source, "data.text_field=reveiw") == (
        f"{where} 'reveiw' (data.text_field); its fields are: 'review', 'stars'. Did you mean 'review'?"
    )
    assert refused(*T5, source, "training.task=seq2seq", "data.target_field=answer") == (
        f"{where} 'answer' (data.target_field); its fields are: 'review', 'stars'."
    )


@pytest.mark.parametrize(
    ("arguments", "record", "message"),
    [
        (
            CLASSIFY,
            {"text": "good", "note": ["x"]},
            "no field was recognized as the label; its fields are: 'text', 'note'. Set data.label_field.",
        ),
        (
            (*T5, "training.task=seq2seq"),
            {"text": "good", "number": 1},
            "no field was recognized as the target text; its fields are: 'text', 'number'. Set data.target_field.",
        ),
        (
            GPT,
            {"first": 1, "second": 2},
            "no field was recognized as the text; its fields are: 'first', 'second'. Set data.text_field.",
        ),
    ],
    ids=["label", "target", "text"],
)
def test_without_a_column_that_may_be_it_all_columns_are_listed(arguments, record: Any, message: str):
    assert refused(*arguments, write("data.jsonl", [record] * 9)) == f"data.jsonl:1: {message}"


@pytest.mark.parametrize("names", [("category", "topic"), ("first", "second")], ids=["known names", "only of a kind"])
def test_between_two_columns_that_may_be_the_label_nothing_is_guessed(names: tuple[str, str]):
    records = [{"text": f"text {number}", names[0]: "xy"[number % 2], names[1]: "z"} for number in range(40)]
    message = f"'{names[0]}', '{names[1]}' could each be the label. Set data.label_field."
    assert refused(*CLASSIFY, write("data.jsonl", records)) == f"data.jsonl:1: {message}"
    command(*CLASSIFY, "data.source=data.jsonl", f"data.label_field={names[0]}", "--name", "named", code=0)


def test_a_record_that_lacks_a_column_the_others_have_is_named_by_its_line():
    source = write("data.jsonl", [*RECORDS, {"text": "no label"}])
    assert refused(*CLASSIFY, source) == (
        "data.jsonl:41: has no field 'label' (data.label_field); its fields are: 'text'."
    )


def test_a_row_of_a_table_is_named_by_its_line_also_behind_cells_of_several_lines():
    Path("table.csv").write_text('text,label\n"two\nlines",a\none,b\ntoo,many,cells\n')
    assert refused(*CLASSIFY, "data.source=table.csv") == (
        "table.csv:5: must have 2 cells, one for each column, but has 3. A cell that contains a comma must be quoted."
    )


# Lines and files


def test_a_broken_line_is_named_by_its_number_and_left_out_only_on_request():
    source = write("data.jsonl", [*RECORDS[:3], '{"text": "x", "label": ', *RECORDS[3:]])
    assert refused(*CLASSIFY, source) == "data.jsonl:4: is not valid JSON: Expecting value at column 24."
    answer = command(*CLASSIFY, source, "data.bad_lines=skip", "--name", "skipping", code=0)
    (line,) = [line for line in answer.stdout.splitlines() if line.startswith("  data ")]
    assert f"; 1 bad record skipped ({1 / (len(RECORDS) + 1):.1%})" in line
    answer = command(*CLASSIFY, write("good.jsonl", RECORDS), "--name", "whole", code=0)
    assert "skipped" not in answer.stdout


def test_broken_lines_of_both_sides_are_counted_together():
    train, validation = write("train.jsonl", ["[1]", *RECORDS]), "data.validation=validation.jsonl"
    write("validation.jsonl", [*RECORDS[:6], "{", "null"])
    assert refused(*CLASSIFY, train, validation) == "train.jsonl:1: must be a JSON object, but got a list."
    answer = command(*CLASSIFY, train, validation, "data.bad_lines=skip", "--name", "skipping", code=0)
    assert "; 3 bad records skipped" in answer.stdout


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("empty.txt", "", "is empty"),
        ("blank.txt", " \n\n", "has only white space"),
        ("empty.jsonl", "", "is empty"),
        ("blank.jsonl", "\n\n", "has no records"),
        ("rows.csv", "text,label\n", "has a header ('text', 'label') and no rows"),
        ("rows.tsv", "text\tlabel\n", "has a header ('text', 'label') and no rows"),
    ],
)
def test_a_file_without_a_record_is_told_apart_from_an_empty_one(name: str, content: str, reason: str):
    Path(name).write_text(content)
    arguments = GPT if name.endswith(".txt") else CLASSIFY
    assert refused(*arguments, f"data.source={name}") == f"data.source: '{name}' has no text: the file {reason}."


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("latin.txt", b"gr\xfc\xdfe " * 50, "latin.txt: must be UTF-8 text, but has the byte 0xfc at position 2."),
        (
            "latin.jsonl",
            b'{"text": "ok", "label": "a"}\n{"text": "gr\xfc", "label": "b"}\n',
            "latin.jsonl:2: must be UTF-8 text, but has the byte 0xfc at position 12.",
        ),
        (
            "latin.csv",
            b"text,label\nok,a\ngr\xfc,b\n",
            "latin.csv:3: must be UTF-8 text, but has the byte 0xfc at position 2.",
        ),
    ],
)
def test_text_in_another_encoding_is_said_with_its_byte(name: str, content: bytes, place: str):
    Path(name).write_bytes(content)
    arguments = GPT if name.endswith(".txt") else CLASSIFY
    assert refused(*arguments, f"data.source={name}") == (
        f"{place} Convert the file first, for example from Windows-1252: "
        f"iconv -f WINDOWS-1252 -t UTF-8 '{name}' > '{name.replace('.', '-utf8.')}'"
    )


# Labels


def test_a_class_that_only_validation_has_is_named_with_its_place():
    write("validation.jsonl", [*RECORDS[:3], {"text": "x", "label": "c"}])
    assert refused(*CLASSIFY, write("train.jsonl", RECORDS), "data.validation=validation.jsonl") == (
        "validation.jsonl:4: the class 'c' is not in the training data, so the model cannot learn it; the "
        "training data has 'a', 'b'."
    )


@pytest.mark.parametrize(
    ("task", "label", "message"),
    [
        ("regress", "good", "the field 'label' must be a finite number, but got 'good'."),
        (
            "classify",
            3.5,
            "the field 'label' must be a class (a name or a whole number), but got 3.5. To predict a number, set "
            "training.task=regress.",
        ),
        (
            "classify",
            ["x"],
            "the field 'label' must be a class (a name or a whole number), but got a list. For several classes per "
            "record, set training.task=classify_many.",
        ),
        (
            "classify_many",
            3,
            "the field 'label' must be a list of classes, or a string with '|' or ',' between them, but got a number.",
        ),
    ],
)
def test_a_label_of_another_kind_is_told_the_task_that_it_fits(task: str, label: Any, message: str):
    source = write("data.jsonl", [{"text": "a text", "label": label}] * 9)
    assert refused(*BERT, f"training.task={task}", source) == f"data.jsonl:1: {message}"


def test_tags_and_words_of_another_number_are_counted():
    source = write("data.jsonl", [{"words": ["a", "b"], "tags": ["x", "y"]}] * 3 + [{"words": ["a"], "tags": []}])
    assert refused(*BERT, "training.task=tag", source) == (
        "data.jsonl:4: must have as many tags as words, but 'words' has 1 and 'tags' has 0."
    )


# Names


def test_names_are_corrected():
    Path("mine.py").write_text("def texts():\n    return ['a b c'] * 30\n\n\nclass Network:\n    pass\n")
    good = write("data.jsonl", RECORDS)
    assert refused(*GPT, "data.source=mine:text") == (
        "data.source: there is no 'text' in mine, which 'mine:text' asks for. Did you mean 'texts'?"
    )
    message = refused(*GPT, "data.source=mien:texts")
    assert message.startswith("data.source: there is no module 'mien', which 'mien:texts' asks for")
    assert message.endswith("Did you mean 'mine'?")
    assert refused(*GPT, good, "model.type=mine:Netwrok") == (
        "model.type: there is no 'Netwrok' in mine, which 'mine:Netwrok' asks for. Did you mean 'Network'?"
    )
    assert refused(*GPT, good, "training.task=mine:Netwrok") == (
        "training.task: there is no 'Netwrok' in mine, which 'mine:Netwrok' asks for. Did you mean 'Network'?"
    )
    assert refused(*GPT, good, "training.task=mine:Network") == (
        "training.task: 'mine:Network' must be a subclass of trainbook.tasks.task.Task, but is the class Network."
    )
    message = refused(*GPT, "data.source=builtin:pystdlb")
    assert message.startswith(
        "data.source: unknown built-in source 'builtin:pystdlb'; the built-in ones are builtin:pystdlib,"
    )
    assert message.endswith("Did you mean 'builtin:pystdlib'?")
    assert (
        "'builtin:copy' has no labels (one class per text), which the task needs. Of the built-in sources, "
        in refused(*CLASSIFY, "data.source=builtin:copy")
    )


def test_a_metric_that_the_task_does_not_give_is_refused_before_anything_is_read():
    assert refused(*CLASSIFY, "data.source=builtin:parity", "evaluation.metric_for_best_model=perplexity") == (
        "configuration  evaluation.metric_for_best_model: the task classify has no metric perplexity; it has loss, "
        "accuracy, f1_micro, f1_macro."
    )
    assert not Path("cache").exists()
    assert refused(*T5, "training.task=seq2seq", "metric_for_best_model=exact_match") == (
        "override  evaluation.metric_for_best_model: exact_match needs evaluation.generate, but that is off."
    )


# Models and tokenizers


class Made:
    """A trained GPT, exported, and a trained classifier: for tests that only read them, or change a copy."""

    def __init__(self, root: Path, text: str) -> None:
        self.root = root
        Path("text.txt").write_text(text)
        write("data.jsonl", RECORDS)
        command(*GPT, "data.source=text.txt", "--name", "gpt", "--quiet", code=0)
        command(*CLASSIFY, "data.source=data.jsonl", "--name", "classifier", "--quiet", code=0)
        command("export", "gpt", "--to", "hf", code=0)
        self.text = str(root / "text.txt")
        self.gpt, self.hf = str(root / "runs/gpt"), str(root / "hf")
        self.classifier = str(root / "runs/classifier")
        self.tune = ("train", "gpt-tiny", *SHORT)
        self.tune_text = (*self.tune, f"data.source={self.text}")

    def start(self, kind: str) -> tuple[str, ...]:
        """From the run, or from its folder as a model of ours or of transformers."""
        if kind == "a run":
            return (f"model.pretrained={self.gpt}",)
        return f"model.pretrained={self.hf}", f"model.type={kind}"

    def altered(self, change: Callable[[dict[str, Any]], Any]) -> str:
        """A copy, in the current folder, with other weights."""
        from safetensors.torch import load_file, save_file

        shutil.copytree(self.hf, "copy")
        weights = load_file("copy/model.safetensors")
        change(weights)
        save_file(weights, "copy/model.safetensors", metadata={"format": "pt"})
        return "model.pretrained=copy"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, make_text: Callable[..., str]) -> Iterator[Made]:
    pytest.importorskip("transformers")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root := tmp_path_factory.mktemp("made"))
        made = Made(root, make_text(1200))
    yield made


@pytest.fixture
def wordpiece() -> str:
    """A tokenizer of others that has no token to hide others with."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "alpha", "word"]
    tokenizer = Tokenizer(models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save("tokenizer.json")
    return "data.tokenizer=tokenizer.json"


def test_a_tokenizer_without_the_token_that_a_task_needs_does_not_fit(wordpiece: str):
    message = refused(*BERT, write("data.jsonl", RECORDS), wordpiece)
    assert message.startswith(
        "data.tokenizer: 'tokenizer.json' does not fit: the task needs a token for the role 'mask', such as <|mask|>, "
        "[MASK], <mask>, but the tokenizer has none."
    )
    message = refused(*T5, "data.source=data.jsonl", wordpiece)
    assert "does not fit: the task needs sentinel tokens, such as <|sentinel_0|>, <extra_id_0>" in message
    command(*CLASSIFY, "data.source=data.jsonl", wordpiece, "--name", "fits", code=0)


def test_a_tokenizer_without_a_token_that_ends_what_is_written_does_not_fit():
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = ["<pad>", "<unk>", *(f"<extra_id_{number}>" for number in range(100)), "alpha", "word"]
    tokenizer = Tokenizer(models.WordLevel({piece: number for number, piece in enumerate(pieces)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save("tokenizer.json")
    source = write("data.jsonl", [{"text": f"word {number}", "target": "alpha"} for number in range(40)])
    for task in ("span", "seq2seq"):
        assert refused(*T5, f"training.task={task}", source, "data.tokenizer=tokenizer.json") == (
            "the tokenizer does not fit: a model that generates text needs an end-of-text token."
        )


@pytest.mark.parametrize("kind", ["a run", "gpt", "hf"])
def test_a_tokenizer_with_more_tokens_than_the_model_has_rows_does_not_fit(made: Made, kind: str):
    from tokenizers import Tokenizer

    larger = Tokenizer.from_file(f"{made.hf}/tokenizer.json")
    larger.add_tokens(["alpha", "beta", "gamma"])
    larger.save("larger.json")
    message = {
        "a run": f"data.tokenizer: must fit the model, but it has 260 tokens and {made.gpt} was trained with 257. "
        "Leave data.tokenizer out to use the model's own tokenizer.",
        "gpt": f"the tokenizer does not fit the model: it has 260 tokens, but {made.hf} has only 257 embedding rows. "
        "Omit data.tokenizer to use the model's own tokenizer.",
        "hf": f"model.pretrained: {made.hf} has embeddings for 257 tokens, but the tokenizer has 260, so it belongs "
        "to other weights. Omit data.tokenizer to use the model's own tokenizer.",
    }
    assert refused(*made.tune_text, *made.start(kind), "data.tokenizer=larger.json") == message[kind]


@pytest.mark.parametrize("kind", ["a run", "gpt", "hf"])
def test_another_tokenizer_than_the_models_own_is_refused_although_it_has_few_enough_tokens(made: Made, kind: str):
    model, given = made.gpt if kind == "a run" else made.hf, made.start(kind)
    assert refused(*made.tune_text, *given, "data.tokenizer=char") == (
        f"data.tokenizer: 'char' is not the tokenizer of {model}: token 0 is '\\n', but was 'Ā' when the model was "
        "trained. Omit data.tokenizer."
    )
    # The same one under another name is no mistake.
    command(*made.tune_text, *given, "data.tokenizer=byte", "--name", "same", "--quiet", code=0)


def test_missing_extra_and_misshapen_weights_are_named(made: Made):
    pretrained = made.altered(lambda weights: weights.pop("transformer.h.0.attn.c_attn.weight"))
    assert refused(*made.tune_text, pretrained) == "copy: 1 weights are missing: transformer.h.0.attn.c_attn.weight."
    shutil.rmtree("copy")
    made.altered(lambda weights: weights.update({"transformer.h.7.other.weight": weights["transformer.ln_f.bias"] + 1}))
    assert refused(*made.tune_text, pretrained) == (
        "copy: 1 weights do not belong to this model: transformer.h.7.other.weight."
    )
    shutil.rmtree("copy")
    name = "transformer.h.0.mlp.c_fc.bias"
    made.altered(lambda weights: weights.update({name: weights[name][:3].clone()}))
    assert refused(*made.tune_text, pretrained) == (
        f"copy: 1 weights have the wrong shape: {name} is 3, but body.blocks.0.feed_forward.up.bias is 64."
    )
    Path("copy/model.safetensors").unlink()
    assert "copy" in refused(*made.tune_text, pretrained)


def test_a_run_of_a_model_of_transformers_is_to_be_exported_first(made: Made):
    tuned = ("model.type=hf", f"model.pretrained={made.hf}", "--name", "tuned", "--quiet")
    command(*made.tune_text, *tuned, code=0)
    assert refused(*made.tune_text, "model.pretrained=runs/tuned") == (
        "override  model.pretrained: runs/tuned has a model of type hf, which cannot be loaded from a run. Export it "
        "with: trainbook export runs/tuned --to DIR, and use that folder."
    )
    command("export", "tuned", "--to", "folder", code=0)
    command(*made.tune_text, "model.pretrained=folder", "--name", "next", "--quiet", code=0)


def test_a_size_that_the_folder_settles_otherwise_is_refused(made: Made):
    assert refused(*made.tune_text, f"model.pretrained={made.hf}", "model.hidden_size=32") == (
        f"override  model.hidden_size: is 32 here, but 16 in {made.hf}/config.json, and model.pretrained decides it. "
        "Omit it."
    )


@pytest.mark.parametrize(("task", "samples"), [("causal", "documents"), ("classify", "windows")])
def test_packing_is_refused_for_models_that_cannot_keep_documents_apart(made: Made, task: str, samples: str):
    model = ("model.type=hf", f"model.pretrained={made.hf}", f"training.task={task}")
    given = ("data.source=builtin:parity", f"data.samples={samples}", "data.padding=packed")
    assert refused(*made.tune, *model, *given) == (
        "override  data.padding: packed puts several documents into a row, but model.type hf cannot keep them apart. "
        "Use bucketed, which also has little padding."
    )


# What is already there


def test_what_no_format_can_hold_is_refused_with_the_knobs_in_the_way(made: Made):
    given = ("model.qk_norm=true", "model.logit_soft_cap=20", "--name", "odd", "--quiet")
    command(*GPT, f"data.source={made.text}", *given, code=0)
    assert refused("export", "odd", "--to", "exported") == (
        "no format can represent this model exactly. The closest is gpt2, but:\ngpt2  model.qk_norm: must be false, "
        "but is true.\ngpt2  model.logit_soft_cap: must be null, but is 20."
    )
    assert not Path("exported").exists() and not list(Path().glob(".exported*"))


def test_predicting_without_the_column_leaves_earlier_predictions_alone(made: Made):
    write("new.jsonl", [{"first": 1, "second": 2}])
    Path("out.jsonl").write_text("earlier\n")
    ask = ("predict", made.classifier, "new.jsonl", "--output", "out.jsonl")
    assert refused(*ask) == (
        "new.jsonl:1: no field was recognized as the text; its fields are: 'first', 'second'. Set --text-field."
    )
    write("new.jsonl", [{"sentence1": "x", "sentence2": "y"}])
    assert refused(*ask, "--text-field", "sentence") == (
        "new.jsonl:1: has no field 'sentence' (--text-field); its fields are: 'sentence1', 'sentence2'. Did you mean "
        "'sentence2'?"
    )
    write("new.jsonl", [{"text": "good"}, {"txt": "bad"}])
    remedy = "Correct or remove the record: only runs with data.bad_lines=skip skip such records."
    assert refused(*ask) == f"new.jsonl:2: has no field 'text'; its fields are: 'txt'. {remedy}"
    assert Path("out.jsonl").read_text() == "earlier\n" and not list(Path().glob(".out*"))


def test_a_run_whose_data_has_become_bad_is_refused_and_keeps_all_its_files():
    source = write("data.jsonl", RECORDS)
    command(*CLASSIFY, source, "--name", "run", "--quiet", code=0)
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    write("data.jsonl", [*RECORDS, "{"])
    more = ("resume", "run", "training.max_steps=6", "--accept-changes", "--quiet")
    assert refused(*more).startswith("data.jsonl:41: is not valid JSON: ")
    write("data.jsonl", RECORDS[:-1])
    assert "data" in refused(*more)
    after = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    assert {path for path in before if after.get(path) != before[path]} <= {Path("runs/run/report.md")}
    write("data.jsonl", RECORDS)
    command(*more, code=0)
