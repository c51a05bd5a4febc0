"""Where text comes from, how it is tokenized and sampled, and how batches are loaded."""

from __future__ import annotations

from trainbook.knobs.bibliography import DATATROVE, GOPHER, OLMO_2, OLMO_CORE, PALM, TORCH_DATA_DOCS
from trainbook.knobs.knob import Case, Section, knob
from trainbook.knobs.sections.data_shape import DataShape
from trainbook.knobs.sections.data_source import DataSource

# Data that is left out of training.


class DataLeftOut(Section):
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


# Groups stand in the order of their knobs from the last to the first, as Python looks them up.
class DataKnobs(DataLeftOut, DataShape, DataSource):
    """Where text comes from, how it is tokenized, and how tokens form samples."""

    shuffle: bool = knob(
        True,
        what="Draw samples in random order, again in each epoch.",
        why=(
            "An update assumes that a batch resembles the whole dataset. Neighbouring samples of a corpus are alike, "
            "so batches in file order pull the model in changing directions."
        ),
        raised=(
            "On: batches are mixed; the loss curve is smooth and comparable from step to step. The order follows from "
            "training.seed."
        ),
        lowered=(
            "Off: the order of the source; the loss follows the current topic, and the last part of the data is "
            "remembered best."
        ),
        cases=(
            Case("training", True),
            Case("a meaningful order, or a sample-by-sample comparison", False, "such as a curriculum"),
        ),
        interacts=("training.seed", "data.source", "batch.global_batch_size"),
        symptoms=("fluctuating validation", "loss spikes", "loss not decreasing"),
        aliases=("shuffle_data",),
    )

    num_workers: int = knob(
        0,
        ge=0,
        le=1024,
        what="The number of processes that prepare batches; 0: the training process prepares them.",
        why=(
            "A GPU that waits for data is idle. Text is tokenized once and cached, so making a batch is mostly "
            "slicing, which is often cheaper than receiving it from another process."
        ),
        raised=(
            "Preparation overlaps with computation. Each worker takes memory and start-up time, and more workers than "
            "free cores slow everything down."
        ),
        lowered="Fewer processes, easier debugging; at 0 the step waits while a batch is made.",
        cases=(
            Case("tokenized windows, small model", 0),
            Case("fast GPU, padded documents", 4, "raise until the GPU no longer waits"),
        ),
        usual=(0, 16),
        interacts=("data.prefetch_factor", "data.pin_memory", "data.samples", "training.deterministic"),
        symptoms=("too slow",),
        correction=(
            "More is not faster: the right number is the smallest at which the device no longer waits for data."
        ),
        aliases=("dataloader_num_workers", "loader_workers"),
    )

    prefetch_factor: int = knob(
        2,
        ge=1,
        le=1024,
        what="The number of batches that each worker prepares ahead; no effect when data.num_workers is 0.",
        why="A queue of batches absorbs those that take longer to make.",
        raised="Absorbs longer delays; takes memory for num_workers × prefetch_factor batches.",
        lowered="Less memory; a slow batch delays training at once.",
        cases=(
            Case("steady preparation time", 2, "PyTorch's default"),
            Case("slow or shared disk", 4),
        ),
        usual=(1, 8),
        interacts=("data.num_workers", "data.pin_memory", "batch.per_device_train_batch_size"),
        symptoms=("too slow",),
        sources=(TORCH_DATA_DOCS,),
        correction="It does not help a loader that is too slow on average: the queue runs empty. Add workers instead.",
        aliases=("dataloader_prefetch_factor", "prefetch"),
    )

    pin_memory: bool = knob(
        True,
        what="Keep batches in page-locked host memory; matters on CUDA only.",
        why="The GPU can copy from page-locked memory by itself, so the copy overlaps with computation.",
        raised="On: faster copies that overlap with computation; a little host memory that cannot be swapped out.",
        lowered="Off: each copy passes through a buffer, and the training process waits for it.",
        cases=(
            Case("CUDA", True),
            Case("a host short of memory", False, "token batches are small, so little is lost"),
        ),
        interacts=("training.device", "data.num_workers", "data.prefetch_factor"),
        symptoms=("too slow",),
        sources=(TORCH_DATA_DOCS,),
        correction=(
            "It concerns host memory only: it neither saves nor costs GPU memory. Token ids are small, so the gain "
            "for text is modest."
        ),
        aliases=("dataloader_pin_memory", "pinned_memory"),
    )

    cache_dir: str | None = knob(
        None,
        min_length=1,
        what=(
            "The folder for tokenized data; null: $TRAINBOOK_CACHE, or trainbook in the user's cache folder (~/.cache)."
        ),
        why=(
            "Tokenizing a large corpus takes long and always gives the same result; the next run with the same source "
            "and tokenizer reads it from here."
        ),
        raised="Set: choose a fast local disk with enough room, or a folder that several people share.",
        lowered="null: the folder in your home, which may be small or on a slow network disk.",
        cases=(
            Case("your own machine", None),
            Case("a cluster with a small home", "/scratch/trainbook", "fast, local, large"),
        ),
        interacts=("data.source", "data.tokenizer", "data.vocab_size"),
        symptoms=("too slow",),
        aliases=("data_cache", "cache_folder"),
    )
