"""Where text comes from, and which part of a record it is."""

from __future__ import annotations

from trainbook.knobs.knob import Case, Section, knob


class DataSource(Section):
    """Where text comes from, and which part of a record it is."""

    source: str = knob(
        "builtin:pystdlib",
        min_length=1,
        what="The text to train on: builtin:pystdlib, a text file, a folder, a glob, or JSONL.",
        why="Nothing matters more than the data. The built-in source, Python's own standard library split by file, is "
        "on every machine, so that a first run needs no download.",
        raised="More text: less repetition, less overfitting, a longer epoch; variety helps more than volume.",
        lowered="Less text: the model soon knows it by heart; the training loss falls while the validation loss rises.",
        cases=(
            Case("trying things out", "builtin:pystdlib", "source code, there already, no network"),
            Case("one document a line, with fields", "corpus.jsonl", "the text is in data.text_field"),
            Case("many files", "texts/*.txt", "each file is a document"),
        ),
        interacts=(
            "data.validation",
            "data.validation_ratio",
            "data.text_field",
            "data.tokenizer",
            "data.samples",
            "training.num_train_epochs",
        ),
        symptoms=("overfitting", "loss spikes", "underfitting"),
        sources=("playbook notes", "OPT-175B and GLM-130B training logs", "PaLM, arXiv 2204.02311"),
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

    text_field: str = knob(
        "text",
        min_length=1,
        what="The field of each JSONL line that holds the text.",
        why="A JSONL line carries more than text (title, date, origin); only this field is trained on.",
        raised="No direction: name the field that your file has.",
        lowered="No direction: other kinds of source (text files, folders, the built-in one) do not read it.",
        cases=(
            Case("most published corpora", "text"),
            Case("source code corpora", "content", "the field name common there"),
        ),
        interacts=("data.source", "data.validation"),
        aliases=("text_column", "text_column_name", "text_key"),
    )
