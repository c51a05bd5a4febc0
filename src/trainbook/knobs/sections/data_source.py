"""Where text comes from, and which field of a record holds it."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import OLMO_2, OPT_CHRONICLES, PALM
from trainbook.knobs.knob import Case, Section, knob


class DataSource(Section):
    """Where text comes from, and which field of a record holds it."""

    source: str = knob(
        "builtin:pystdlib",
        min_length=1,
        what="The data to train on: a built-in set, a file (text, JSONL, JSON, CSV, TSV, Parquet, CoNLL), a folder, a "
        "glob, a list of those (@list.txt), a Hugging Face dataset on disk, or a Python function as "
        "package.module:function. Text files may be compressed (.gz, .bz2, .xz, .zst).",
        why=(
            "Nothing matters more than the data. The built-in source, Python's standard library split by file, is on "
            "every machine, so a first run needs no download."
        ),
        raised="More text: less repetition, less overfitting, a longer epoch; variety helps more than volume.",
        lowered="Less text: the model soon overfits: the training loss falls while the validation loss rises.",
        cases=(
            Case("trying things out", "builtin:pystdlib", "source code that is already there, no network"),
            Case("one document per line, with fields", "corpus.jsonl", "the text is in data.text_field"),
            Case("a classifier to try", "builtin:wordnet", "117,659 definitions in 45 classes"),
            Case("text to text, to try", "builtin:cmudict", "letters to phonemes; builtin:reverse is synthetic"),
            Case("one split of a saved Hugging Face dataset", "folder#train", "default: train"),
            Case("many files", "texts/*.txt", "each file is a document"),
            Case("thousands of shards", "shards/*.jsonl.gz", "prepared one by one, shared among processes"),
            Case("shards in your own order", "@shards.txt", "a file, a folder or a glob per line"),
        ),
        interacts=(
            "data.validation",
            "data.validation_ratio",
            "data.text_field",
            "data.label_field",
            "data.target_field",
            "data.bad_lines",
            "data.repetition_filter",
            "data.gopher_filter",
            "data.tokenizer",
            "data.samples",
            "training.num_train_epochs",
        ),
        symptoms=("overfitting", "loss spikes", "underfitting"),
        sources=(OLMO_2, OPT_CHRONICLES, PALM),
        correction=(
            "A loss spike is not always the optimizer's fault: long repetitions cause spikes too (OLMo 2), and a "
            "perplexity that is unreasonably low points to broken text (OPT-175B found formatting errors that way). "
            "Nor is it always the data's fault: PaLM's spiking batches did no harm from another checkpoint."
        ),
        aliases=("dataset", "train_file", "data_path", "train_data"),
    )

    validation: str | None = knob(
        None,
        min_length=1,
        what=(
            "A separate source for validation, in the same forms as data.source; null: part of the source is held out."
        ),
        why=(
            "A validation loss is meaningful only on text that training has not seen. A separate source fixes that "
            "text, so runs with other training data or another ratio stay comparable."
        ),
        raised="Set: all of data.source is used for training, and the same text judges every run.",
        lowered="null: data.validation_ratio of the source is held out.",
        cases=(
            Case("a single corpus", None, "validation_ratio holds documents out"),
            Case("a published split", "valid.jsonl", "results are comparable with those of others"),
        ),
        interacts=("data.source", "data.validation_ratio", "data.text_field", "evaluation.eval_strategy"),
        symptoms=("overfitting", "fluctuating validation"),
        correction=(
            "The same documents in both sources make the validation loss look good and mean nothing: look for "
            "duplicates before trusting a small gap."
        ),
        aliases=("validation_file", "eval_source", "val_data", "validation_source"),
    )

    validation_ratio: float = knob(
        0.1,
        ge=0,
        lt=1,
        what=(
            "The share of documents held out for validation when data.validation is not set; with fewer than ten "
            "documents, the last part of each."
        ),
        why=(
            "Whole documents are held out, not windows: neighbouring windows share names and phrases and would make "
            "the validation loss too good."
        ),
        raised="A less noisy validation loss, slower evaluation, less training text.",
        lowered=(
            "More training text and a noisier validation loss; 0 means no validation, so no best checkpoint and no "
            "early stopping."
        ),
        cases=(
            Case("a few megabytes", 0.1),
            Case("gigabytes", 0.01, "a hundredth is already many thousands of windows"),
            Case("the final run, on all data", 0.0, "nothing evaluates it any more"),
        ),
        usual=(0.005, 0.3),
        interacts=(
            "data.validation",
            "data.source",
            "evaluation.eval_max_samples",
            "evaluation.early_stopping_patience",
        ),
        symptoms=("fluctuating validation", "overfitting"),
        correction=(
            "The last part of a single text may differ in kind from the rest (a last chapter, an index): a gap "
            "between the losses then does not prove overfitting."
        ),
        aliases=("val_split", "validation_split"),
    )

    text_field: str | None = knob(
        None,
        min_length=1,
        what=(
            "The field of each record that holds the text (for tagged records the words, for conversations the "
            "messages or the prompt); null: detected."
        ),
        why=(
            "A record contains more than text (title, date, origin); only this field is read. It is detected by a "
            "usual name, such as text, content or sentence, or because it is the only field of its kind; if several "
            "fields qualify, the message lists them."
        ),
        raised="Set: this field and no other; a record without it is an error.",
        lowered="null: detected in the first 100 records and shown at the start of the run.",
        cases=(
            Case("most published corpora", None, "a field named text, content or sentence is detected"),
            Case("several text fields", "body", "title and body are both texts: choose one"),
        ),
        interacts=("data.source", "data.validation", "data.label_field", "data.target_field"),
        aliases=("text_column", "text_column_name", "text_key", "dataset_text_field"),
    )

    label_field: str | None = knob(
        None,
        min_length=1,
        what="The field of each record that holds its label (for tagged records the list of tags); null: detected.",
        why=(
            "The label is what a classifier, a tagger or a regression learns to predict. With the wrong field, such "
            "as a record number, the model can only memorize, and nothing generalizes to new text."
        ),
        raised="Set: this field and no other; a record without it is an error.",
        lowered="null: a usual name (label, class, category; tags, ner_tags) or the only field of its kind.",
        cases=(
            Case("a field named label", None, "detected by its name"),
            Case("several things to predict", "category", "one run predicts one of them"),
            Case("named entities in a dataset that also has parts of speech", "ner_tags"),
        ),
        interacts=("data.source", "data.text_field", "training.task"),
        symptoms=("loss not decreasing", "overfitting"),
        correction=(
            "Numeric labels are not always numbers to predict: five stars are classes for training.task=classify and "
            "numbers for regress, which knows that four is closer to five than one is."
        ),
        aliases=("label_column", "label_column_name", "label_key"),
    )

    target_field: str | None = knob(
        None,
        min_length=1,
        what="The field of each record that holds the target text (for a prompt, the response); null: detected.",
        why="A text-to-text model learns from pairs: data.text_field is the input, this is the output.",
        raised="Set: this field and no other; a record without it is an error.",
        lowered="null: a usual name (target, output, response, completion, summary) or the only other text field.",
        cases=(
            Case("summaries", None, "a field named summary is detected"),
            Case("translation, one field per language", "de", "with data.text_field=en: you choose the direction"),
        ),
        interacts=("data.source", "data.text_field", "training.task", "data.mask_prompt"),
        symptoms=("loss not decreasing",),
        aliases=("summary_column", "target_column", "response_field", "target_key"),
    )

    group_field: str | None = knob(
        None,
        min_length=1,
        what=(
            "A field whose equal values keep records on one side of the split, such as an author; null: only records "
            "with the same text stay together."
        ),
        why=(
            "Records of one author, patient or page share more than their text. If some of them are in training, the "
            "validation loss measures how well that author is known, not how well a new one will be handled."
        ),
        raised="Set: no value of the field is on both sides; the validation loss is often worse and more realistic.",
        lowered="null: records are split individually.",
        cases=(
            Case("independent records", None),
            Case("several records per person or page", "author", "new ones are what the model will meet"),
        ),
        interacts=("data.source", "data.validation_ratio"),
        symptoms=("overfitting", "fluctuating validation"),
        correction=(
            "A random split does not prove that a model works on new authors, pages or days: only a split by that "
            "field does."
        ),
        aliases=("group_column", "group_key"),
    )

    bad_lines: Literal["error", "skip"] = knob(
        "error",
        what=(
            "What to do with an unusable record: broken JSON, a row with too few cells, a missing field, a value of "
            "the wrong type."
        ),
        why=(
            "One broken line in a million should not stop a run, but a thousand of them point to a mistake that would "
            "otherwise stay hidden."
        ),
        raised="skip: unusable records are skipped, and their number is shown at the start of the run.",
        lowered="error: the first one stops the run with its file, line and reason.",
        values={
            "error": "the first one is an error that names its file and line",
            "skip": "they are counted and skipped",
        },
        cases=(
            Case("your own data", "error", "look at the line first"),
            Case("a crawl that nobody will repair", "skip", "look at the number that is shown"),
        ),
        interacts=("data.source", "data.validation"),
        correction=(
            "Skipping is not harmless: lines that fail are often of one kind (the longest, or those with quotation "
            "marks), so the remaining data is biased."
        ),
        aliases=("on_bad_lines", "bad_records"),
    )

    chat_template: str | None = knob(
        None,
        min_length=1,
        what=(
            "How a conversation is formatted as one text: chatml, plain, or the path of a Jinja file; null: the "
            "tokenizer's own template, else plain."
        ),
        why=(
            "A model identifies speakers by the markers between turns. A chat model was trained with the markers of "
            "its own template: with another template it has to learn them again."
        ),
        raised="Set: this template, whatever the tokenizer contains.",
        lowered="null: the template the model was trained with, if its tokenizer has one.",
        cases=(
            Case("a model with a template", None, "it is in tokenizer_config.json or chat_template.jinja"),
            Case("your own base model", "plain", "needs no special tokens"),
            Case("a base model whose vocabulary has <|im_start|>", "chatml"),
        ),
        interacts=("data.tokenizer", "data.mask_prompt", "data.text_field", "data.target_field"),
        symptoms=("loss not decreasing", "underfitting"),
        correction=(
            "Markers are single tokens only if the vocabulary contains them: with another tokenizer, <|im_start|> is "
            "several ordinary tokens. That works, but uses context in every turn."
        ),
        aliases=("chat_template_path", "prompt_template"),
    )

    mask_prompt: bool = knob(
        True,
        what="Learn only from the assistant's turns of a conversation; the rest is context and not predicted.",
        why="In use, the user's and the system's text is given, so the model need not learn to generate it.",
        raised="On: every update is about responses, including ends of turns; a batch has fewer targets.",
        lowered=(
            "Off: prompts are learned too; more targets, which can help when responses are short and data is scarce."
        ),
        cases=(
            Case("fine-tuning on conversations", True),
            Case("responses of a few words, little data", False, "prompts teach the language of the domain"),
        ),
        interacts=("data.chat_template", "data.target_field", "batch.global_batch_size"),
        symptoms=("underfitting", "overfitting"),
        correction=(
            "The end of a turn must be among the targets, or the model never stops; and the loss is divided by the "
            "targets of the whole batch, not of each conversation, or short responses would count most."
        ),
        aliases=("completion_only_loss", "assistant_only_loss", "mask_inputs"),
    )
