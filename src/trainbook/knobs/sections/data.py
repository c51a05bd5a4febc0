"""Where text comes from, how it becomes tokens, and how tokens become samples."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.knob import Case, Section, knob


class Data(Section):
    """Where text comes from, how it becomes tokens, and how tokens become samples."""

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

    tokenizer: str = knob(
        "byte",
        min_length=1,
        what="How text becomes tokens: byte, char, bpe, or the path of a tokenizer.json.",
        why="It sets how much text a token carries, hence how much a window of max_seq_length sees, and how large "
        "embedding and logits are.",
        raised="From byte towards a large bpe: fewer tokens for the same text, so more context and faster epochs; more "
        "parameters in the embedding and more memory for logits.",
        lowered="Towards byte: nothing to train, nothing unknown, a tiny embedding; sequences are several times "
        "longer.",
        values={
            "byte": "the bytes of the UTF-8 text; any text can be written",
            "char": "the characters that occur in the source and in data.validation",
            "bpe": "byte-pair encoding trained on the source, data.vocab_size entries (4096 unless set)",
        },
        cases=(
            Case("small model, small text", "byte", "no parameters spent on a vocabulary"),
            Case("natural language, more than a few megabytes", "bpe", "more text in each window"),
            Case("continuing with a known vocabulary", "tokenizer.json", "the path of the file"),
        ),
        interacts=("data.vocab_size", "data.max_seq_length", "model.vocab_multiple", "model.tie_embeddings"),
        symptoms=("too slow", "out of memory", "underfitting"),
        sources=("Sennrich et al. 2015, arXiv 1508.07909",),
        correction="Loss and perplexity are counted a token, so they cannot be compared between tokenizers: at 3 "
        "bytes a token, a bpe loss of 3.0 is worth a byte loss of 1.0. Compare the loss a byte of text.",
        aliases=("tokenizer_name", "tokenizer_path", "tokenizer_file"),
    )

    vocab_size: int | None = knob(
        None,
        ge=2,
        what="Number of entries of a bpe tokenizer trained on the source; None takes 4096.",
        why="Longer pieces make shorter sequences, but each entry costs hidden_size parameters and a logit at every "
        "position: logits take 10-14 bytes for each position and entry, often the largest item of a small model.",
        raised="Shorter sequences and more context; more embedding parameters, more logit memory, and rare entries "
        "that are hardly trained.",
        lowered="A smaller embedding and smaller logits; longer sequences for the same text.",
        cases=(
            Case("a few megabytes, small model", 4096),
            Case("gigabytes, 100M parameters and more", 32768, "the size of many published vocabularies"),
        ),
        usual=(512, 262144),
        interacts=(
            "data.tokenizer",
            "data.max_seq_length",
            "model.hidden_size",
            "model.vocab_multiple",
            "model.tie_embeddings",
        ),
        symptoms=("out of memory", "too slow"),
        sources=("Sennrich et al. 2015, arXiv 1508.07909",),
        correction="A larger vocabulary raises the loss a token by itself, since there is more to choose from: at the "
        "start it is ln(vocab_size), 8.3 for 4096 and 5.5 for 256.",
        aliases=("vocabulary_size",),
    )

    max_seq_length: int = knob(
        256,
        ge=1,
        what="Number of positions that the model sees at once, in tokens.",
        why="It bounds how far back a prediction can look. Activations and logits grow in proportion to it, the work "
        "of attention with its square.",
        raised="More context and more tokens an update at the same batch; more memory, slower steps. Little gain "
        "beyond the length of the documents.",
        lowered="Fits more easily and runs faster; dependencies longer than the window cannot be learned.",
        cases=(
            Case("tiny model on a CPU", 256),
            Case("BERT-like, fine-tuning", 512, "the length in the notes"),
            Case("GPT of 100M parameters and more", 1024, "the notes name 1024 or 2048"),
            Case("large model", 2048),
        ),
        usual=(64, 8192),
        interacts=(
            "batch.global_batch_size",
            "batch.per_device_train_batch_size",
            "memory.gradient_checkpointing",
            "data.samples",
            "data.padding",
            "data.truncation",
            "data.tokenizer",
            "model.position",
            "model.rope_theta",
        ),
        symptoms=("out of memory", "too slow", "underfitting"),
        sources=("playbook notes",),
        correction="Memory grows with the square of the length only where attention scores are stored; with a fused "
        "attention kernel it grows in proportion, and only the time keeps the square. Doubling the length also doubles "
        "the tokens of a batch: halve the number of sequences to compare like with like.",
        aliases=(
            "sequence_length",
            "seq_length",
            "seq_len",
            "block_size",
            "context_length",
            "max_length",
            "n_positions",
            "max_position_embeddings",
        ),
    )

    samples: Literal["windows", "documents"] = knob(
        "windows",
        what="What one sample is: a window of the stream of all text, or a document.",
        why="Windows are all full, so no computation is wasted; documents keep what belongs together apart from the "
        "rest, at the price of padding and cutting.",
        raised="documents: each text starts at position 0 and nothing of another text is in sight; short ones are "
        "padded, long ones cut.",
        lowered="windows: no padding; a window may hold the end of one text and the beginning of the next.",
        values={
            "windows": "all text as one stream, cut into windows of max_seq_length at an offset drawn anew each epoch "
            "if shuffled",
            "documents": "each document is a sample, cut and padded as data.truncation and data.padding say",
        },
        cases=(
            Case("language-model pretraining", "windows", "every position carries a target"),
            Case("short texts that must not mix", "documents", "dialogues, records, questions with answers"),
        ),
        interacts=("data.max_seq_length", "data.padding", "data.truncation", "memory.compile"),
        symptoms=("too slow", "overfitting"),
        correction="Cutting at fixed places shows the same windows every epoch; the new offset each epoch moves the "
        "cuts, so a second epoch is not an exact repetition of the first.",
        aliases=("sample_by",),
    )

    padding: Literal["longest", "max_length"] = knob(
        "longest",
        what="How far the samples of a batch are filled up; matters for data.samples=documents only.",
        why="A batch is a rectangle, so short documents are filled up. Padding is left out of the loss but not out of "
        "the computation: it costs time and memory.",
        raised="max_length: every batch has the same shape, which suits compiled models and shows the peak of memory "
        "at once; short documents waste most of it.",
        lowered="longest: only as wide as the longest document of the batch; the least waste, but shapes vary and "
        "memory peaks when a long one comes.",
        values={
            "longest": "to the longest document of the batch",
            "max_length": "always to max_seq_length",
        },
        cases=(
            Case("documents of mixed length", "longest"),
            Case("compiled model, documents nearly all full", "max_length", "one shape, compiled once"),
        ),
        interacts=("data.samples", "data.max_seq_length", "data.truncation", "memory.compile"),
        symptoms=("too slow", "out of memory"),
        sources=("playbook notes",),
        correction='"longest" and "dynamic padding" are one and the same, not two strategies, and padding never cuts: '
        "a document that is too long is a matter of data.truncation.",
        aliases=("pad_to",),
        value_aliases={True: "longest", "dynamic": "longest"},
    )

    truncation: bool = knob(
        True,
        what="Cut documents that are longer than max_seq_length; matters for data.samples=documents only.",
        why="A position beyond max_seq_length does not exist for the model. Cutting loses the end of a text; refusing "
        "makes you notice.",
        raised="On: long documents are cut and their ends never seen.",
        lowered="Off: a longer document is an error.",
        cases=(
            Case("a few documents are too long", True),
            Case("the end of a document carries the answer", False, "cutting would silently remove the target"),
        ),
        interacts=("data.samples", "data.max_seq_length", "data.padding"),
        symptoms=("underfitting", "loss not decreasing"),
        sources=("playbook notes",),
        correction="Cutting is no harmless default: look at the lengths of your documents before choosing "
        "max_seq_length.",
        aliases=("truncate",),
    )

    shuffle: bool = knob(
        True,
        what="Draw samples in a random order, anew each epoch.",
        why="An update supposes that a batch is like the whole. Neighbouring samples of a corpus are alike, so "
        "batches in file order pull the model one way and then another.",
        raised="On: batches mix; the loss curve is smooth and comparable from step to step. The order follows from "
        "training.seed.",
        lowered="Off: the order of the source; the loss follows the subject of the moment, and the last part of the "
        "data is remembered best.",
        cases=(
            Case("training", True),
            Case("an order with a meaning, or a comparison sample by sample", False, "such as easy texts first"),
        ),
        interacts=("training.seed", "data.source", "batch.global_batch_size"),
        symptoms=("fluctuating validation", "loss spikes", "loss not decreasing"),
        aliases=("shuffle_data",),
    )

    num_workers: int = knob(
        0,
        ge=0,
        what="Processes that prepare batches; 0 prepares them in the training process.",
        why="A GPU that waits for data is idle. Text is tokenised once and cached, so making a batch is mostly "
        "slicing: often cheaper than handing it from another process.",
        raised="Preparation overlaps with computation; each worker takes memory and start-up time, and more workers "
        "than free cores slow everything down.",
        lowered="Fewer processes, easier debugging; at 0 the step waits while a batch is made.",
        cases=(
            Case("tokenised windows, small model", 0),
            Case("fast GPU, padded documents", 4, "raise until the GPU no longer waits"),
        ),
        usual=(0, 16),
        interacts=("data.prefetch_factor", "data.pin_memory", "data.samples", "training.deterministic"),
        symptoms=("too slow",),
        sources=("playbook notes",),
        correction="More is not faster: the right number is the smallest at which the device no longer waits for data.",
        aliases=("dataloader_num_workers", "loader_workers"),
    )

    prefetch_factor: int = knob(
        2,
        ge=1,
        what="Batches that each worker prepares ahead; without effect when data.num_workers is 0.",
        why="A stock of batches evens out those that take longer to make.",
        raised="Rides out longer hiccups; memory for num_workers x prefetch_factor batches.",
        lowered="Less memory; a slow batch is felt at once.",
        cases=(
            Case("steady preparation time", 2, "PyTorch's value"),
            Case("slow or shared disk", 4),
        ),
        usual=(1, 8),
        interacts=("data.num_workers", "data.pin_memory", "batch.per_device_train_batch_size"),
        symptoms=("too slow",),
        sources=("PyTorch documentation of DataLoader",),
        correction="It does not cure a loader that is too slow on average: the stock runs out. Add workers instead.",
        aliases=("dataloader_prefetch_factor", "prefetch"),
    )

    pin_memory: bool = knob(
        True,
        what="Keep batches in page-locked host memory; matters on CUDA only.",
        why="The GPU can fetch from locked pages by itself, so the copy runs beside the computation.",
        raised="On: faster copies that overlap with computation; a little host memory that cannot be swapped out.",
        lowered="Off: each copy passes through a buffer and the training process waits for it.",
        cases=(
            Case("CUDA", True),
            Case("a host short of memory", False, "token batches are small, so the loss is small"),
        ),
        interacts=("training.device", "data.num_workers", "data.prefetch_factor"),
        symptoms=("too slow",),
        sources=("PyTorch documentation of DataLoader",),
        correction="It concerns host memory: it neither saves nor costs GPU memory. Token ids are small, so for text "
        "the gain is modest.",
        aliases=("dataloader_pin_memory", "pinned_memory"),
    )

    cache_dir: str | None = knob(
        None,
        min_length=1,
        what="Folder in which tokenised data is kept; None takes $TRAINBOOK_CACHE, or trainbook in the user's cache "
        "folder (~/.cache).",
        why="Tokenising a large corpus takes long and gives the same result each time; the next run with the same "
        "source and tokenizer reads it from here.",
        raised="Set: choose a fast local disk with room, or a folder that several people share.",
        lowered="None: the folder in your home, which may be small or on a slow network disk.",
        cases=(
            Case("your own machine", None),
            Case("a cluster with a small home", "/scratch/trainbook", "fast, local, large"),
        ),
        interacts=("data.source", "data.tokenizer", "data.vocab_size"),
        symptoms=("too slow",),
        aliases=("data_cache", "cache_folder"),
    )
