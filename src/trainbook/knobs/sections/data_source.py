"""Where text comes from, and which part of a record it is."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import OPT_CHRONICLES, PALM
from trainbook.knobs.knob import Case, Section, knob


class DataSource(Section):
    """Where text comes from, and which part of a record it is."""

    source: str = knob(
        "builtin:pystdlib",
        min_length=1,
        what="The data to train on: a built-in set, a file (text, JSONL, JSON, CSV, TSV, Parquet, CoNLL), a folder, a "
        "glob, a list of those (@list.txt), a Hugging Face dataset on disk, or a Python function as "
        "package.module:function. Text files may be compressed (.gz, .bz2, .xz, .zst).",
        why="Nothing matters more than the data. The built-in source, Python's own standard library split by file, is "
        "on every machine, so that a first run needs no download.",
        raised="More text: less repetition, less overfitting, a longer epoch; variety helps more than volume.",
        lowered="Less text: the model soon knows it by heart; the training loss falls while the validation loss rises.",
        cases=(
            Case("trying things out", "builtin:pystdlib", "source code, there already, no network"),
            Case("one document a line, with fields", "corpus.jsonl", "the text is in data.text_field"),
            Case("a classifier to try", "builtin:wordnet", "117,659 definitions in 45 classes"),
            Case("text to text, to try", "builtin:cmudict", "letters to sounds; builtin:reverse is made up"),
            Case("one split of a saved Hugging Face dataset", "folder#train", "train is taken if none is named"),
            Case("many files", "texts/*.txt", "each file is a document"),
            Case("thousands of shards", "shards/*.jsonl.gz", "prepared one by one, shared among processes"),
            Case("shards in an order of your own", "@shards.txt", "a file, a folder or a glob a line"),
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
        sources=(OPT_CHRONICLES, PALM),
        correction="A loss spike is not always the optimizer's: long runs of one token or broken documents cause "
        "spikes as well, and a loss that is suddenly too low points at repeated text. Nor is it always the data's: "
        "PaLM's spiking batches did no harm from another checkpoint.",
        aliases=("dataset", "train_file", "data_path", "train_data"),
    )

    validation: str | None = knob(
        None,
        min_length=1,
        what="A source of its own for validation, in the same forms as data.source; None holds out a part of the "
        "source.",
        why="A validation loss says something only about text that training has not seen. A source of its own fixes "
        "that text, so runs with other training data or another ratio stay comparable.",
        raised="Set: all of data.source is trained on, and the same text judges every run.",
        lowered="None: data.validation_ratio of the source is held out.",
        cases=(
            Case("one corpus, nothing else", None, "validation_ratio holds documents out"),
            Case("a published split", "valid.jsonl", "numbers can be compared with those of others"),
        ),
        interacts=("data.source", "data.validation_ratio", "data.text_field", "evaluation.eval_strategy"),
        symptoms=("overfitting", "fluctuating validation"),
        correction="The same documents in both sources make the validation loss look good and mean nothing: look for "
        "duplicates before trusting a small gap.",
        aliases=("validation_file", "eval_source", "val_data", "validation_source"),
    )

    validation_ratio: float = knob(
        0.1,
        ge=0,
        lt=1,
        what="Share of the documents held out for validation when data.validation is not set; of fewer than ten "
        "documents, the last part of each.",
        why="Whole documents are held out, not windows: neighbouring windows share names and phrases, and would make "
        "the validation loss too good.",
        raised="A steadier validation loss, slower evaluation, less text to train on.",
        lowered="More training text and a noisier validation loss; 0 means no validation, hence no best checkpoint "
        "and no early stopping.",
        cases=(
            Case("a few megabytes", 0.1),
            Case("gigabytes", 0.01, "a hundredth is already many thousands of windows"),
            Case("the last run, on everything", 0.0, "nothing judges it any more"),
        ),
        usual=(0.005, 0.3),
        interacts=(
            "data.validation",
            "data.source",
            "evaluation.eval_max_samples",
            "evaluation.early_stopping_patience",
        ),
        symptoms=("fluctuating validation", "overfitting"),
        correction="The last part of a single text may differ from the rest in kind (a last chapter, an index): a gap "
        "between the losses is then no proof of overfitting.",
        aliases=("val_split", "validation_split"),
    )

    text_field: str | None = knob(
        None,
        min_length=1,
        what="The field of each record that holds the text (of tagged records the words, of conversations the messages "
        "or the prompt); None finds it.",
        why="A record carries more than text (title, date, origin); only this field is read. It is found by a usual "
        "name, such as text, content or sentence, or because it is the only field of its kind; where several could be "
        "meant, the message lists them.",
        raised="Set: this field and no other; a record without it is an error.",
        lowered="None: found in the first 100 records, and shown at the start of the run.",
        cases=(
            Case("most published corpora", None, "a field text, content or sentence is found"),
            Case("several fields of text", "body", "title and body are both texts: say which"),
        ),
        interacts=("data.source", "data.validation", "data.label_field", "data.target_field"),
        aliases=("text_column", "text_column_name", "text_key", "dataset_text_field"),
    )

    label_field: str | None = knob(
        None,
        min_length=1,
        what="The field of each record that holds its label (of tagged records the list of tags); None finds it.",
        why="The label is what a classifier, a tagger or a regression learns to predict. Of the wrong field, such as a "
        "number of the record, everything can be learned by heart and nothing holds for new text.",
        raised="Set: this field and no other; a record without it is an error.",
        lowered="None: a usual name (label, class, category; tags, ner_tags) or the only field of its kind.",
        cases=(
            Case("a field named label", None, "found by its name"),
            Case("several things to predict", "category", "one run predicts one of them"),
            Case("named entities of a dataset that has parts of speech too", "ner_tags"),
        ),
        interacts=("data.source", "data.text_field", "training.task"),
        symptoms=("loss not decreasing", "overfitting"),
        correction="Labels that are numbers are not always numbers to predict: five stars are classes for "
        "training.task=classify and numbers for regress, which knows that four is nearer to five than one is.",
        aliases=("label_column", "label_column_name", "label_key"),
    )

    target_field: str | None = knob(
        None,
        min_length=1,
        what="The field of each record that holds the text to produce (of a prompt, the response); None finds it.",
        why="A model that turns one text into another learns from pairs: data.text_field is what it reads, this is "
        "what it writes.",
        raised="Set: this field and no other; a record without it is an error.",
        lowered="None: a usual name (target, output, response, completion, summary) or the only other text.",
        cases=(
            Case("summaries", None, "a field summary is found"),
            Case("translation, a field for each language", "de", "with data.text_field=en: the direction is yours"),
        ),
        interacts=("data.source", "data.text_field", "training.task", "data.mask_prompt"),
        symptoms=("loss not decreasing",),
        aliases=("summary_column", "target_column", "response_field", "target_key"),
    )

    group_field: str | None = knob(
        None,
        min_length=1,
        what="A field whose equal values keep records on one side of the split, such as an author; None: only records "
        "with the same text stay together.",
        why="Records of one author, patient or page share more than their text. With some of them in training, the "
        "validation loss judges how well that author is known, not how well a new one will be.",
        raised="Set: no value of the field is on both sides; the validation loss is often worse, and truer.",
        lowered="None: records are divided one by one.",
        cases=(
            Case("independent records", None),
            Case("several records of one person or page", "author", "a new one is what will come in use"),
        ),
        interacts=("data.source", "data.validation_ratio"),
        symptoms=("overfitting", "fluctuating validation"),
        correction="A random split is no proof that a model works on new authors, pages or days: only a split along "
        "that line is.",
        aliases=("group_column", "group_key"),
    )

    bad_lines: Literal["error", "skip"] = knob(
        "error",
        what="What to do with a record that cannot be used: broken JSON, a row with too few cells, a missing field, a "
        "value of the wrong type.",
        why="One broken line in a million should not stop a run, but a thousand of them point at a mistake that a run "
        "would hide.",
        raised="skip: they are left out, and the number is shown at the start of the run.",
        lowered="error: the first one stops the run with its file, line and reason.",
        values={
            "error": "the first one is an error that names its place",
            "skip": "they are counted and left out",
        },
        cases=(
            Case("data of your own", "error", "look at the line first"),
            Case("a crawl that nobody will repair", "skip", "look at the number that is shown"),
        ),
        interacts=("data.source", "data.validation"),
        correction="Leaving out is not harmless: lines that fail are often of one kind (the longest, or those with "
        "quotation marks), so what is left is no longer the same data.",
        aliases=("on_bad_lines", "bad_records"),
    )

    chat_template: str | None = knob(
        None,
        min_length=1,
        what="How a conversation is written as one text: chatml, plain, or the path of a Jinja file; None takes the "
        "tokenizer's own, else plain.",
        why="A model tells who speaks by the marks between turns. One that was trained on conversations knows the "
        "marks of its own template: another template makes it start anew.",
        raised="Set: this template, whatever the tokenizer brings.",
        lowered="None: what the model was trained with, where its tokenizer says so.",
        cases=(
            Case("a model that has a template", None, "its tokenizer_config.json or chat_template.jinja has it"),
            Case("a base model of your own", "plain", "needs no special tokens"),
            Case("a base model whose vocabulary has <|im_start|>", "chatml"),
        ),
        interacts=("data.tokenizer", "data.mask_prompt", "data.text_field", "data.target_field"),
        symptoms=("loss not decreasing", "underfitting"),
        correction="The marks only count as single tokens if the vocabulary has them: with another tokenizer, "
        "<|im_start|> is several ordinary ones. It works, but costs room in every turn.",
        aliases=("chat_template_path", "prompt_template"),
    )

    mask_prompt: bool = knob(
        True,
        what="Learn from the assistant's turns of a conversation only; the rest is read and not predicted.",
        why="What users ask and what a system says is given in use, so a model need not learn to write it.",
        raised="On: every update is about answers, ends of turns included; a batch has fewer targets.",
        lowered="Off: prompts are learned as well; more targets, which can help where answers are short and data is "
        "little.",
        cases=(
            Case("fine-tuning on conversations", True),
            Case("answers of a few words, little data", False, "prompts teach the language of the subject"),
        ),
        interacts=("data.chat_template", "data.target_field", "batch.global_batch_size"),
        symptoms=("underfitting", "overfitting"),
        correction="The end of a turn must be among what is learned, or the model never stops; and the loss is "
        "divided by the targets of the whole batch, not of each conversation, or short answers would count most.",
        aliases=("completion_only_loss", "assistant_only_loss", "mask_inputs"),
    )
