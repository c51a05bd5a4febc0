"""Data that is left out of training."""

from __future__ import annotations

from trainbook.knobs.bibliography import DATATROVE, GOPHER, OLMO_2, OLMO_CORE, PALM
from trainbook.knobs.knob import Case, knob
from trainbook.knobs.sections.data_shape import DataShape


class DataLeftOut(DataShape):
    """Data that is left out of training."""

    repetition_filter: bool = knob(
        False,
        what="Leave out training samples in which 1 to 13 tokens repeat 32 times or more in a row.",
        why=(
            "Endless repetition (a line of dashes, a broken page, one word for ever) teaches nothing. OLMo 2 had "
            "fewer gradient spikes without it, though not none. It is found on tokens before training, exactly, at no "
            "cost during the run."
        ),
        raised=(
            "On: documents with a repetition are left out; in a stream, every window that touches one, and another "
            "window takes its place. The number is shown at the start of the run."
        ),
        lowered="Off: all of the text is trained on.",
        cases=(
            Case("text that was checked and is clean", False),
            Case("a crawl, logs, scanned or converted text", True, "trainbook data shows what it would find"),
            Case(
                "source code or text files with rulers",
                False,
                "a line of 32 dashes is a repetition and removes its file",
            ),
        ),
        interacts=("data.source", "data.samples", "data.tokenizer", "data.gopher_filter", "data.quarantine"),
        symptoms=("bad samples", "loss spikes", "instability"),
        sources=(OLMO_2, OLMO_CORE),
        correction=(
            "OLMo-core keeps such samples and masks their labels but still divides by their tokens, so the loss of "
            "that batch looks too low. Here they are in no batch at all. Validation text is never filtered: it "
            "represents what the model will meet. With byte or character tokenizers rulers count; with bpe a ruler of "
            "64 dashes may be four tokens."
        ),
        aliases=("filter_repetitions", "ngram_filter", "instance_filter"),
    )

    gopher_filter: bool = knob(
        False,
        what=(
            "Leave out training documents that repeat themselves, by the limits of Gopher's table A1: duplicate lines "
            "and paragraphs, the most frequent 2- to 4-grams, duplicate 5- to 10-grams of words."
        ),
        why=(
            "Menus, boilerplate and generated pages repeat themselves and are overrepresented in any crawl. A model "
            "that reads much of it learns to repeat itself."
        ),
        raised=(
            "On: each document that breaks a limit is left out before tokenization; the number and the most frequent "
            "reasons are shown at the start of the run."
        ),
        lowered="Off: all documents are trained on.",
        cases=(
            Case("prose from the web", True, "its purpose"),
            Case("books, articles, your own texts", False, "look at what it would leave out first"),
            Case("source code, poems, tables, logs", False, "they repeat lines by nature"),
        ),
        interacts=("data.source", "data.repetition_filter", "data.validation_ratio", "data.tokenizer"),
        symptoms=("bad samples", "overfitting"),
        sources=(GOPHER, DATATROVE),
        correction=(
            "It is a filter for web pages: it leaves out about half of the files of Python's standard library, and it "
            "refuses conversations. It does not find duplicates of whole documents: trainbook data does. Unlike in "
            "some copies of the table, words must occur twice to count as repeated, or every text of a few words "
            "would be removed."
        ),
        aliases=("gopher_repetition", "gopher_repetition_filter"),
    )

    quarantine: str | None = knob(
        None,
        min_length=1,
        what=(
            "A run, by its folder or name, or its quarantine.jsonl: the samples that it excluded from training are "
            "excluded from this run from the start."
        ),
        why=(
            "A run that rejects an update looks for the samples responsible and records them. The next run need not "
            "pay again with a rejected step or a rollback."
        ),
        raised=(
            "Set: those samples are in no batch, and others take their place; everything else comes in the same order "
            "as without it."
        ),
        lowered="null: only samples that this run itself rejects are excluded.",
        cases=(
            Case("a first run", None),
            Case("the same data again, after a run that excluded samples", "runs/first", "its folder"),
            Case("a list that was reviewed and shortened by hand", "bad.jsonl", "lines may be removed"),
        ),
        interacts=("data.source", "data.samples", "data.tokenizer", "data.repetition_filter", "guard.quarantine"),
        symptoms=("bad samples", "loss spikes", "instability"),
        sources=(PALM,),
        correction=(
            "PaLM skipped 200 to 500 batches around a spike and found that the same batches did no harm from another "
            "checkpoint: a sample is rarely bad by itself. Look at the texts in the file before you trust it. Windows "
            "are matched only in exactly the same tokens; documents also by file and line, if the text there still "
            "starts the same."
        ),
        aliases=("quarantine_from", "skip_samples"),
    )
