"""When the model is evaluated, by which metric, and when that ends the run."""

from __future__ import annotations

from typing import Literal

from trainbook.knobs.bibliography import (
    BASELINES_AND_BIGRAMS,
    BEAM_SEARCH,
    EARLY_STOPPING,
    HF_GENERATION_DOCS,
    SPELLING_TO_SOUND,
)
from trainbook.knobs.knob import Case, knob
from trainbook.knobs.sections.evaluation_times import EvaluationTimes


class EvaluationKnobs(EvaluationTimes):
    """When the model is evaluated, by which metric, and when that ends the run."""

    metric_for_best_model: Literal[
        "loss",
        "perplexity",
        "accuracy",
        "bits_per_token",
        "bits_per_byte",
        "f1_micro",
        "f1_macro",
        "entity_f1",
        "entity_f1_macro",
        "entity_precision",
        "entity_recall",
        "exact_match",
        "word_error_rate",
        "phoneme_error_rate",
        "mean_squared_error",
        "mean_absolute_error",
        "pearson",
    ] = knob(
        "loss",
        what="The validation metric that decides which checkpoint is best and when to stop early.",
        why=(
            "The best checkpoint is the best by this metric only; loss and accuracy can disagree. Of evaluations with "
            "equal values, the one with the lowest loss is the best."
        ),
        raised=(
            "accuracy, F1, exact_match, pearson: higher is better; all but pearson count only whether an answer is "
            "right, and change in jumps."
        ),
        lowered=(
            "loss, perplexity, bits, error rates and errors: lower is better; those derived from the loss reflect the "
            "model's confidence."
        ),
        values={
            "loss": "the mean over the targets, without label smoothing or z-loss: cross entropy in nats; the mean "
            "squared error for numbers",
            "perplexity": "e to the power of the loss",
            "accuracy": "share of targets that the model ranks first; with several classes per sample, the whole set",
            "bits_per_token": "loss divided by ln 2",
            "bits_per_byte": "the loss per byte of text in bits, comparable across tokenizers; causal models",
            "f1_micro": "F1 of all classes counted together; with one class per sample it equals the accuracy",
            "f1_macro": "mean of the F1 of each class: a rare class weighs as much as a common one",
            "entity_f1": "of tags such as B-PER and I-PER: F1 of whole entities, as seqeval counts them",
            "entity_f1_macro": "the mean over the types of entities",
            "entity_precision": "share of the predicted entities that are right",
            "entity_recall": "share of the true entities that were found",
            "exact_match": (
                "share of generated texts that equal a reference; samples with the same input count once, and each of "
                "their targets is a reference; needs evaluation.generate"
            ),
            "word_error_rate": (
                "edits per reference word; with target_unit phonemes, share of words with any error; needs "
                "evaluation.generate"
            ),
            "phoneme_error_rate": "edits per reference phoneme; needs evaluation.generate and target_unit phonemes",
            "mean_squared_error": "for numbers",
            "mean_absolute_error": "for numbers: less sensitive to a few large errors",
            "pearson": "for numbers: correlation with the target, independent of scale and offset",
        },
        cases=(
            Case("language models", "loss"),
            Case(
                "only the top prediction counts", "accuracy", "overconfidence can raise the loss while accuracy holds"
            ),
            Case("imbalanced classes", "f1_macro", "the most frequent class alone gives a high accuracy"),
            Case("generated text that is scored as a whole", "exact_match", "the loss sees only the next token"),
            Case("entities", "entity_f1", "most words are outside: accuracy is high for a model that finds nothing"),
        ),
        interacts=(
            "evaluation.early_stopping_patience",
            "evaluation.early_stopping_threshold",
            "evaluation.generate",
            "evaluation.target_unit",
            "checkpoint.save_total_limit",
            "training.label_smoothing",
        ),
        symptoms=("overfitting",),
        correction=(
            "Loss, perplexity, bits_per_token and bits_per_byte rank checkpoints alike: choosing between them changes "
            "only the unit of early_stopping_threshold. The other metrics can rank them differently."
        ),
        aliases=("monitor", "best_metric"),
        value_aliases={
            "eval_loss": "loss",
            "val_loss": "loss",
            "eval_accuracy": "accuracy",
            "eval_perplexity": "perplexity",
            "f1": "f1_macro",
            "eval_f1": "f1_macro",
            "overall_f1": "entity_f1",
            "eval_overall_f1": "entity_f1",
            "bpb": "bits_per_byte",
            "wer": "word_error_rate",
            "eval_wer": "word_error_rate",
            "per": "phoneme_error_rate",
            "eval_per": "phoneme_error_rate",
            "mse": "mean_squared_error",
            "eval_mse": "mean_squared_error",
            "mae": "mean_absolute_error",
            "pearsonr": "pearson",
        },
    )

    generate: bool = knob(
        False,
        what="In evaluation, also generate an answer for each sample and score the text.",
        why=(
            "The loss gives the model the correct prefix of each answer and asks only for the next token. In use the "
            "model continues its own text, and an early mistake spoils the rest."
        ),
        raised=(
            "On: exact_match and error rates of generated text; evaluation takes many times longer, one decoder pass "
            "per token."
        ),
        lowered="Off: fast; loss and accuracy with the correct prefix given.",
        cases=(
            Case("translation, spelling to sound, answers", True, "evaluate what will be used"),
            Case("pretraining on spans", False, "the loss is the goal"),
        ),
        interacts=(
            "evaluation.num_beams",
            "evaluation.max_new_tokens",
            "evaluation.target_unit",
            "evaluation.eval_max_samples",
            "evaluation.metric_for_best_model",
        ),
        symptoms=("too slow",),
        sources=(HF_GENERATION_DOCS,),
        correction=(
            "A high token accuracy does not mean good text: at 98 % per token, an answer of 35 tokens is entirely "
            "correct in half of the cases, since 0.98^35 = 0.49."
        ),
        aliases=("predict_with_generate",),
    )

    num_beams: int = knob(
        1,
        ge=1,
        le=1000,
        what="The number of beams in generation; 1: greedy.",
        why="The most likely first token need not start the most likely answer; beam search looks further ahead.",
        raised="More probable answers, at a proportional cost; above some width the answers get worse.",
        lowered="1: the fastest; tokens are never reconsidered.",
        cases=(
            Case("evaluation during training", 1, "ranks checkpoints about as well, several times faster"),
            Case("final scores of translation or spelling to sound", 4),
        ),
        usual=(1, 10),
        interacts=("evaluation.generate", "evaluation.max_new_tokens", "evaluation.per_device_eval_batch_size"),
        symptoms=("too slow", "out of memory"),
        sources=(BEAM_SEARCH,),
        correction=(
            "A wider beam finds more probable text, which is not always better text: translation quality improves "
            "only for narrow beams and falls with wide ones, mainly because they favour short answers (Koehn & "
            "Knowles 2017)."
        ),
        aliases=("generation_num_beams", "beam_size", "beam_width"),
    )

    prompts: tuple[str, ...] | None = knob(
        None,
        min_length=1,
        what=(
            "Texts that the model continues, or answers, at every evaluation; the board shows the results step by "
            "step. null: none."
        ),
        why=(
            "A loss is an average. What the model writes shows at a glance what it does not: text that repeats, that "
            "does not end, or that was learned by heart."
        ),
        raised="More prompts: a broader view; evaluation takes longer, one pass of the model per token.",
        lowered="null: nothing is generated.",
        cases=(
            Case("pretraining", ("The",), "how far grammar and topic hold"),
            Case("chat", ("Who are you?", "What is 7 * 8?"), "the questions that users will ask"),
        ),
        interacts=("evaluation.max_new_tokens", "evaluation.eval_steps"),
        symptoms=("too slow",),
        correction=(
            "A sample is no measurement: with temperature 0.8, as here, one good text out of a few says little. Decide "
            "by the validation metric. The texts are in generations.jsonl; training is the same with and without."
        ),
        aliases=("sample_prompts", "generation_prompts"),
    )

    max_new_tokens: int | None = knob(
        None,
        ge=1,
        what=(
            "The maximum number of generated tokens per answer; null: data.max_target_length, and 100 for "
            "evaluation.prompts."
        ),
        why=(
            "A model that does not end its answer would generate for ever, and one such sample delays its whole batch."
        ),
        raised="Long answers are not cut; an untrained model, which rarely ends, makes evaluation slow.",
        lowered="A bounded cost; a longer answer is cut and counts as wrong.",
        cases=(
            Case("answers as long as the training targets", None),
            Case("short answers, long inputs", 32, "slightly more than the longest reference"),
        ),
        usual=(1, 1024),
        interacts=("evaluation.generate", "evaluation.prompts", "evaluation.num_beams", "data.max_target_length"),
        symptoms=("too slow",),
        sources=(HF_GENERATION_DOCS,),
        aliases=("generation_max_length",),
    )

    target_unit: Literal["words", "phonemes"] = knob(
        "words",
        what="What the space-separated symbols of a target are; this decides what an error rate counts.",
        why=(
            "The same name has two meanings: in speech recognition a word error rate counts words of a sentence; in "
            "spelling-to-sound conversion, where a sample is one word, it counts samples with any error."
        ),
        raised=(
            "phonemes: phoneme_error_rate is edits per phoneme, word_error_rate the share of samples that equal none "
            "of their references."
        ),
        lowered="words: word_error_rate is edits per word of the nearest reference.",
        values={
            "words": "a target is a sentence, its symbols are words",
            "phonemes": "a target is the pronunciation of one word, its symbols are phonemes",
        },
        cases=(
            Case("translation, transcription, summaries", "words"),
            Case("spelling to sound", "phonemes"),
        ),
        interacts=("evaluation.generate", "evaluation.metric_for_best_model"),
        sources=(SPELLING_TO_SOUND,),
        correction=(
            "A word error rate can exceed 1, because every extra word is an edit. It is not a share of wrong words."
        ),
    )

    baseline: bool = knob(
        False,
        what=(
            "Fit a baseline before training, and show its score next to the model's: for classify the accuracy of a "
            "linear model on the words of the same texts, for regress the mean squared error of always predicting the "
            "mean."
        ),
        why=(
            "A score means something only relative to a cheap baseline. TF-IDF with a linear classifier takes "
            "seconds to minutes on a CPU; simple linear models of words and pairs of words are strong in sentiment "
            "and topic classification (Wang & Manning 2012)."
        ),
        raised="On: training starts slightly later; every evaluation shows baseline_accuracy or "
        "baseline_mean_squared_error.",
        lowered="Off: no baseline.",
        cases=(
            Case("a new labelled dataset", True, "know what there is to gain before using a GPU"),
            Case("any other task", False, "only one label or number per text (classify, regress) has a baseline"),
        ),
        interacts=("training.task", "data.label_field", "evaluation.metric_for_best_model"),
        symptoms=("underfitting",),
        sources=(BASELINES_AND_BIGRAMS,),
        aliases=("linear_baseline",),
    )

    early_stopping_patience: int | None = knob(
        None,
        ge=1,
        what="Stop after this many evaluations in a row without an improvement; null: never stop early.",
        why=(
            "Once the validation metric only gets worse, further training costs time and adds overfitting; waiting a "
            "few evaluations keeps one noisy value from ending the run."
        ),
        raised="Tolerates noise and plateaus; time is spent after the best point.",
        lowered="Stops soon after the turning point; at 1 a single noisy evaluation ends the run.",
        cases=(
            Case("pretraining with a decaying learning rate", None, "the length is planned; let the decay finish"),
            Case("fine-tuning on little data", 3, "overfitting starts within a few epochs"),
        ),
        usual=(2, 20),
        interacts=(
            "evaluation.eval_steps",
            "evaluation.early_stopping_threshold",
            "evaluation.metric_for_best_model",
            "schedule.type",
            "training.num_train_epochs",
        ),
        symptoms=("overfitting", "too slow"),
        sources=(EARLY_STOPPING,),
        correction=(
            "With a decaying learning rate, a plateau in the middle is not the end: much of the gain comes as the "
            "learning rate falls, and stopping early forgoes it. The best checkpoint is kept either way, so stopping "
            "saves time, not quality."
        ),
        aliases=("patience",),
    )

    early_stopping_threshold: float = knob(
        0.0,
        ge=0,
        what=(
            "An evaluation counts as an improvement only if it beats the last one that counted by more than this, in "
            "units of the metric."
        ),
        why="A loss that falls by a ten-thousandth at a time would keep a run going for ever.",
        raised="Stops sooner; slow but real progress does not count.",
        lowered="Any progress counts, including chance; the run continues longer.",
        cases=(
            Case("loss, smooth curve", 0.0),
            Case("loss, slow decrease at the end", 0.001, "below what matters in practice"),
        ),
        usual=(0.0, 0.05),
        interacts=(
            "evaluation.early_stopping_patience",
            "evaluation.metric_for_best_model",
            "evaluation.eval_max_samples",
        ),
        symptoms=("overfitting", "too slow"),
        sources=(EARLY_STOPPING,),
        correction="Its unit is the metric's: 0.01 is much for a loss of 1.5 and nothing for a perplexity of 40.",
        aliases=("min_delta",),
    )
