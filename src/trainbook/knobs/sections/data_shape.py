"""How text becomes tokens, and tokens samples."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import BERT, BPE, GPT_2, GPT_3, HF_TRUNCATION_DOCS, PACKING
from trainbook.knobs.knob import Case, knob
from trainbook.knobs.sections.data_source import DataSource


class DataShape(DataSource):
    """How text becomes tokens, and tokens samples."""

    tokenizer: str = knob(
        "byte",
        min_length=1,
        what="How text becomes tokens: byte, char, word, bpe, or the path of a tokenizer.json or of a folder that has "
        "one, such as a Hugging Face model's.",
        why="It sets how much text a token carries, hence how much a window of max_seq_length sees, and how large "
        "embedding and logits are.",
        raised="From byte towards a large bpe: fewer tokens for the same text, so more context and faster epochs; more "
        "parameters in the embedding and more memory for logits.",
        lowered="Towards byte: nothing to train, nothing unknown, a tiny embedding; sequences are several times "
        "longer.",
        values={
            "byte": "the bytes of the UTF-8 text; any text can be written",
            "char": "the characters that occur in the source and in data.validation",
            "word": "the words between blanks that occur there: for symbols, such as phonemes; others are unknown",
            "bpe": "byte-pair encoding trained on the source, data.vocab_size entries (4096 unless set)",
        },
        cases=(
            Case("small model, small text", "byte", "no parameters spent on a vocabulary"),
            Case("sequences of symbols: phonemes, moves, notes", "word", "each symbol is one token, and there are few"),
            Case("natural language, more than a few megabytes", "bpe", "more text in each window"),
            Case("continuing with a known vocabulary", "tokenizer.json", "the path of the file"),
            Case("a pretrained model", "path/to/model", "its folder: a model understands its own tokens only"),
        ),
        interacts=("data.vocab_size", "data.max_seq_length", "model.vocab_multiple", "model.tie_embeddings"),
        symptoms=("too slow", "out of memory", "underfitting"),
        sources=(BPE,),
        correction="Loss and perplexity are counted a token, so they cannot be compared between tokenizers: at 3 "
        "bytes a token, a bpe loss of 3.0 is worth a byte loss of 1.0. Compare the loss a byte of text. Tokens with a "
        "role (padding, mask, separator, sentinels) need no knob: these four get those that the task asks for, "
        "and of a tokenizer from elsewhere they are found by name, or by its tokenizer_config.json; where one is "
        "missing, the run says so before it starts.",
        aliases=("tokenizer_name", "tokenizer_path", "tokenizer_file"),
    )

    vocab_size: int | None = knob(
        None,
        ge=2,
        what="Number of entries of a bpe tokenizer trained on the source; None takes 4096. Tokens with a role, such as "
        "the mask or 100 sentinels, come on top where the task asks for them.",
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
        sources=(BPE,),
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
        sources=(BERT, GPT_2, GPT_3),
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
        what="What one sample is: a window of the stream of all text, or a document. Records with labels, pairs and "
        "conversations are always documents.",
        why="Windows are all full, so no computation is wasted; documents keep what belongs together apart from the "
        "rest, at the price of padding and cutting.",
        raised="documents: each text starts at position 0 and nothing of another text is in sight; short ones are "
        "padded or packed, long ones cut.",
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

    padding: Literal["longest", "max_length", "bucketed", "packed"] = knob(
        "longest",
        what="How documents of different lengths are made into rectangles: filled up, sorted first, or several in a "
        "row; matters for data.samples=documents only.",
        why="A batch is a rectangle, so short documents are filled up. Padding is left out of the loss but not out of "
        "the computation: it costs time and memory. With lengths of a long tail, most of a random batch is padding.",
        raised="Towards packed: hardly any padding, so more documents a second. packed counts rows, so a batch of the "
        "same size holds several times the documents: lower batch.global_batch_size, or expect fewer, larger updates.",
        lowered="Towards max_length: the simplest shapes and the most waste.",
        values={
            "longest": "to the longest document of the micro-batch; documents are drawn at random",
            "max_length": "always to max_seq_length: one shape, and the peak of memory is seen at once",
            "bucketed": "to the longest document of the micro-batch, whose documents are of similar length: drawn at "
            "random, sorted within large chunks, and the micro-batches put in random order",
            "packed": "several documents in a row of max_seq_length, each seen by itself alone: attention, positions "
            "and targets stop at its borders. One shape, hardly any padding; a sample is a row",
        },
        cases=(
            Case("documents of similar length, or few of them", "longest"),
            Case("fine-tuning on texts of mixed length", "bucketed", "same documents an update, far less padding"),
            Case("many short documents, compiled model", "packed", "one shape and almost every position used"),
            Case("compiled model, documents nearly all full", "max_length", "one shape, compiled once"),
        ),
        interacts=(
            "data.samples",
            "data.max_seq_length",
            "data.max_target_length",
            "data.truncation",
            "data.shuffle",
            "batch.per_device_train_batch_size",
            "batch.global_batch_size",
            "memory.compile",
        ),
        symptoms=("too slow", "out of memory"),
        sources=(PACKING,),
        correction='"longest" and "dynamic padding" are one and the same, not two strategies, and padding never cuts: '
        "a document that is too long is a matter of data.truncation. Packing that resets positions but lets attention "
        "cross into the neighbouring document is not the same training; here the packed loss is the unpacked one. "
        "Evaluation is sorted by length instead of packed, so its number of samples means samples.",
        aliases=("pad_to",),
        value_aliases={
            True: "longest",
            "dynamic": "longest",
            "group_by_length": "bucketed",
            "length_grouped": "bucketed",
            "packing": "packed",
        },
    )

    truncation: bool = knob(
        True,
        what="Cut documents that are longer than max_seq_length; matters for data.samples=documents only.",
        why="A position beyond max_seq_length does not exist for the model. Cutting loses a part of a text; refusing "
        "makes you notice.",
        raised="On: long documents are cut and one side of them is never seen.",
        lowered="Off: a longer document is an error.",
        cases=(
            Case("a few documents are too long", True),
            Case("the end of a document carries the answer", False, "cutting would silently remove the target"),
        ),
        interacts=(
            "data.samples",
            "data.max_seq_length",
            "data.max_target_length",
            "data.truncation_side",
            "data.padding",
        ),
        symptoms=("underfitting", "loss not decreasing"),
        correction="Cutting is no harmless default: look at the lengths of your documents before choosing "
        "max_seq_length.",
        aliases=("truncate",),
    )

    truncation_side: Literal["right", "left"] = knob(
        "right",
        what="Which side of a document that is too long is cut off; matters for data.samples=documents only.",
        why="What a task needs may stand at the end: the last turn of a conversation, a verdict, the question behind a "
        "long passage. Tokens that the task puts around a document are never cut off by it.",
        raised="left: the end of each document is kept.",
        lowered="right: the beginning is kept.",
        values={
            "right": "the beginning of a document is kept; a causal model sees no end of text behind it, since the "
            "text goes on",
            "left": "the end of a document is kept; it begins in the middle",
        },
        cases=(
            Case("articles, reviews", "right", "what matters tends to come first"),
            Case("conversations, logs, stack traces", "left", "what matters comes last"),
        ),
        interacts=("data.truncation", "data.max_seq_length", "data.samples"),
        symptoms=("underfitting", "loss not decreasing"),
        sources=(HF_TRUNCATION_DOCS,),
        correction="It decides about inputs only: a text to produce is always cut at its end.",
        value_aliases={"start": "left", "end": "right"},
    )

    max_target_length: int | None = knob(
        None,
        ge=1,
        what="Positions of a text to produce, in tokens, for a model that reads one text and writes another; None "
        "takes max_seq_length.",
        why="Summaries and labels are shorter than what they are made of: a limit of their own saves the memory and "
        "time of the second half of the model.",
        raised="Longer answers can be learned; more memory, and more padding with data.padding=max_length or packed.",
        lowered="Cheaper; longer targets are cut, and the model learns to stop early.",
        cases=(
            Case("classes written as text", 16),
            Case("summaries", 128),
            Case("translation", None, "about as long as the input"),
        ),
        usual=(8, 1024),
        interacts=("data.max_seq_length", "data.truncation", "data.padding"),
        symptoms=("out of memory", "too slow", "underfitting"),
        correction="A target that is cut still ends with the end of text, as is usual for these models, so many cut "
        "ones teach it to stop there: look at the lengths of your targets.",
        aliases=("target_length", "max_output_length"),
    )
