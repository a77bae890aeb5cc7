"""A SavedModel with the signatures of an exported translator, which loads in a second.

It translates by upper-casing; the k-th best translation ends in k exclamation marks. Words with a
meaning: `NAN`, whose numbers are not finite; `REFUSED`, which fails the whole batch; `SLOW`, which
takes long.
"""

import json

import tensorflow as tf

BEAM_SIZE = 4
NAN, REFUSED, SLOW = "nan", "refused", "slow"
TEXT = tf.TensorSpec([None], tf.string)
CARD = {
    "name": "stand_in",
    "source_language": "en",
    "target_language": "de",
    "bleu": None,
    "search": {"beam_size": BEAM_SIZE},
}
DEFAULTS = {
    "n_best": tf.constant([BEAM_SIZE]),
    "alpha": tf.constant([0.5]),
    "target_prefix": tf.constant([""]),
}
LINES = ["ein Hund", "", "größer", NAN]


def translation_of(line):
    """The answer that is right."""
    return "" if NAN in line else line.upper()


def score_of(line):
    return None if NAN in line else -float(len(line.encode()))


def save(folder):
    module = StandIn()
    signatures = {
        "serving_default": module.serve,
        "translate_n_best": module.translate_n_best,
        "align": module.align,
        "tokenize": module.tokenize,
        "detokenize": module.detokenize,
    }
    tf.saved_model.save(module, str(folder), signatures=signatures)
    (folder / "model_card.json").write_text(json.dumps(CARD), "utf-8")
    examples = (
        {"text": line, "translation": translation_of(line), "score": score_of(line)}
        for line in LINES
    )
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in examples)
    (folder / "examples.jsonl").write_text(text, "utf-8")
    return folder


def contains(text, word):
    return tf.strings.regex_full_match(text, f"(?s).*{word}.*")


def upper(text):
    refused = contains(text, REFUSED)
    message = "A line was refused."
    with tf.control_dependencies([tf.debugging.Assert(~tf.reduce_any(refused), [message])]):
        turns = tf.where(tf.reduce_any(contains(text, SLOW)), 40_000, 0)
    turns = tf.while_loop(lambda turn: turn < turns, lambda turn: [turn + 1], [0])[0]
    with tf.control_dependencies([turns]):
        return tf.where(contains(text, NAN), "", tf.strings.upper(text, encoding="utf-8"))


def scores_of(text):
    scores = -tf.cast(tf.strings.length(text), tf.float32)
    return tf.where(contains(text, NAN), float("nan"), scores)


class StandIn(tf.Module):
    """Its methods are the signatures."""

    @tf.function(input_signature=[TEXT])
    def serve(self, text):
        truncated = tf.strings.length(text) > 1000
        return {"translation": upper(text), "score": scores_of(text), "truncated": truncated}

    @tf.function(
        input_signature=[
            TEXT,
            tf.TensorSpec([None], tf.int32, name="n_best"),
            tf.TensorSpec([None], tf.float32, name="alpha"),
            tf.TensorSpec([None], tf.string, name="target_prefix"),
        ]
    )
    def translate_n_best(
        self,
        text,
        n_best=DEFAULTS["n_best"],
        alpha=DEFAULTS["alpha"],
        target_prefix=DEFAULTS["target_prefix"],
    ):
        ranks = tf.range(tf.reduce_max(n_best))
        marks = tf.strings.substr("!" * BEAM_SIZE, tf.zeros_like(ranks), ranks)
        texts = (target_prefix + upper(text))[:, None] + marks
        scores = scores_of(text)[:, None] * alpha[:, None] - tf.cast(ranks, tf.float32)
        # As a search that finds only one translation of an empty line.
        is_missing = (tf.strings.length(text) == 0)[:, None] & (ranks > 0)
        return {
            "translations": tf.where(is_missing, "", texts),
            "scores": tf.where(is_missing, -float("inf"), scores),
            "lengths": tf.where(is_missing, 0, tf.strings.length(texts)),
        }

    @tf.function(input_signature=[TEXT, tf.TensorSpec([None], tf.string, name="target")])
    def align(self, text, target):
        source, target = (tf.strings.unicode_split(each, "UTF-8") for each in (text, target))
        rows, columns = target.to_tensor(""), source.to_tensor("")
        return {
            "attention": tf.cast(rows[:, :, None] == columns[:, None], tf.float32),
            "source_tokens": columns,
            "target_tokens": rows,
        }

    @tf.function(input_signature=[TEXT])
    def tokenize(self, text):
        ids = tf.strings.unicode_decode(text, "UTF-8")
        return {"token_ids": ids.to_tensor(0), "lengths": tf.cast(ids.row_lengths(), tf.int32)}

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def detokenize(self, token_ids):
        text = tf.strings.unicode_encode(token_ids, "UTF-8", errors="replace")
        return {"text": tf.strings.regex_replace(text, r"\x00", "")}
