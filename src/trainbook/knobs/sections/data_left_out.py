"""What of the data is not trained on."""

from __future__ import annotations

from trainbook.knobs.bibliography import DATATROVE, GOPHER, OLMO_2, OLMO_CORE, PALM
from trainbook.knobs.knob import Case, knob
from trainbook.knobs.sections.data_shape import DataShape


class DataLeftOut(DataShape):
    """What of the data is not trained on."""

    repetition_filter: bool = knob(
        False,
        what="Leave out training samples in which 1 to 13 tokens come 32 times or more in a row.",
        why="Endless repetition (a ruler of dashes, a broken page, one word for ever) teaches nothing, and batches of "
        "it have made losses spike. It is found on tokens before training, exactly, at no cost during the run.",
        raised="On: of documents those with a repeat are left out; of a stream, every window that touches one, and "
        "another window takes its place. The number is shown at the start of the run.",
        lowered="Off: all of the text is trained on.",
        cases=(
            Case("text that was read over and is clean", False),
            Case("a crawl, logs, scanned or converted text", True, "trainbook data shows what it would find"),
            Case("source code or text files with rulers", False, "a line of 32 dashes is a repeat, and costs its file"),
        ),
        interacts=("data.source", "data.samples", "data.tokenizer", "data.gopher_filter", "data.quarantine"),
        symptoms=("bad samples", "loss spikes", "instability"),
        sources=(OLMO_2, OLMO_CORE),
        correction="OLMo-core keeps such samples and masks their labels, but still divides by their tokens, so the "
        "loss of that batch looks too low. Here they are not in a batch at all. Validation text is never filtered: it "
        "judges what the model will meet. With a tokenizer of bytes or characters rulers count, with bpe a ruler of 64 "
        "dashes may be four tokens.",
        aliases=("filter_repetitions", "ngram_filter", "instance_filter"),
    )

    gopher_filter: bool = knob(
        False,
        what="Leave out training documents that repeat themselves, by the limits of Gopher's table A1: duplicate lines "
        "and paragraphs, the most frequent 2 to 4 words, duplicate 5 to 10 words.",
        why="Menus, boilerplate and generated pages say the same thing over and over. A model that reads much of it "
        "learns to repeat itself, and such pages are over-represented in any crawl.",
        raised="On: each document that breaks a limit is left out before tokenising; the number and the commonest "
        "reasons are shown at the start of the run.",
        lowered="Off: all documents are trained on.",
        cases=(
            Case("prose from the web", True, "what it was made for"),
            Case("books, articles, texts of your own", False, "look at what it would leave out first"),
            Case("source code, poems, tables, logs", False, "lines that come again are their nature"),
        ),
        interacts=("data.source", "data.repetition_filter", "data.validation_ratio", "data.tokenizer"),
        symptoms=("bad samples", "overfitting"),
        sources=(GOPHER, DATATROVE),
        correction="It is a filter for web pages: of Python's standard library it leaves out about half of the files, "
        "and conversations it refuses. Duplicates of whole documents are no matter of it: trainbook data finds those. "
        "Unlike in some copies of the table, words must come twice to count as repeated, or every text of a few words "
        "would go.",
        aliases=("gopher_repetition", "gopher_repetition_filter"),
    )

    quarantine: str | None = knob(
        None,
        min_length=1,
        what="A run, by its folder or name, or its quarantine.jsonl: the samples that it kept out of training are kept "
        "out of this one from the start.",
        why="A run that rejects an update looks for the samples to blame and writes them down. What one run paid for, "
        "with a rejected step or a rollback, the next one need not pay again.",
        raised="Set: those samples are in no batch, and others take their places; everything else comes in the same "
        "order as without.",
        lowered="None: only what this run itself finds to be bad is kept out.",
        cases=(
            Case("a first run", None),
            Case("the same data again, after a run that kept samples out", "runs/first", "its folder"),
            Case("a list that was looked over and shortened by hand", "bad.jsonl", "lines may be taken out"),
        ),
        interacts=("data.source", "data.samples", "data.tokenizer", "data.repetition_filter", "guard.quarantine"),
        symptoms=("bad samples", "loss spikes", "instability"),
        sources=(PALM,),
        correction="PaLM skipped 200 to 500 batches around a spike, and found that the same batches did no harm from "
        "another checkpoint: a sample is rarely bad by itself. Look at the texts in the file before you trust it. "
        "Windows are found again in the very same tokens only; documents also by their file and line, if the text "
        "there still begins the same.",
        aliases=("quarantine_from", "skip_samples"),
    )
