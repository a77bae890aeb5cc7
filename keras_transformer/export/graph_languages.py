"""The tags of target languages in a graph, by the rules of `decoding/languages.py`."""

import tensorflow as tf

from keras_transformer.decoding.languages import SHOWN, UNKNOWN_LANGUAGE, WRONG_TAG
from keras_transformer.export.graph_lines import refuse_first

# Behind white space, what a tokenizer with tags reads as one: up to the first "<<".
_TAG = r"(?s)^[\s\v\x1c-\x1f\x{85}\p{Z}]*(>>.*?<<)"


def tag_lines(text: tf.Tensor, languages: tf.Tensor, codes: list[str]) -> tf.Tensor:
    """Returns lines with the tags of their target languages in front, each once.

    A line that begins with a tag of the model keeps it. Lines without text get none.

    Args:
        text: string tensor `(B,)`.
        languages: string tensor `(B,)` or `(1,)`, codes such as `"fra"`; `""` if none is asked for.
        codes: the languages that the model has tags for, at least one.

    Raises:
        ValueError, or in a graph InvalidArgumentError: if a language is none of the model's; or if
            a line begins with a tag that is none of the model's or not that of its language, or
            with two tags.
    """
    known, is_asked = ", ".join(codes), languages != ""
    text = refuse_first(
        is_asked & ~_is_one_of(languages, codes),
        UNKNOWN_LANGUAGE,
        [tf.constant(known), languages],
        text,
    )
    tags = [f">>{code}<<" for code in codes]
    shape = tf.shape(text)
    is_asked = tf.broadcast_to(is_asked, shape)
    asked = tf.strings.join([">>", tf.broadcast_to(languages, shape), "<<"])
    given, rest = split_tags(text)
    second, _ = split_tags(rest)
    second = tf.where(_is_one_of(second, tags), second, "")
    text = refuse_first(
        (given != "") & (~_is_one_of(given, tags) | (is_asked & (given != asked)) | (second != "")),
        WRONG_TAG,
        [
            tf.where(is_asked, tf.strings.join(["`target_language`, ", asked]), known),
            tf.strings.as_string(tf.range(1, tf.size(text) + 1)),
            tf.strings.join([_shown(given), second]),
        ],
        text,
    )
    has_no_tag = ~is_asked | (tf.strings.strip(text) == "")
    text = tf.where(has_no_tag, text, tf.strings.join([asked, " ", text]))
    return tf.where(given == "", text, tf.strings.join([given, rest]))


def _is_one_of(text, choices):
    return tf.reduce_any(text[:, None] == tf.constant(choices, tf.string), axis=1)


def split_tags(text: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the tags of lines, empty where there is none, and what follows."""
    is_tagged = tf.strings.regex_full_match(text, _TAG + ".*")
    tags = tf.strings.regex_replace(text, _TAG + ".*", r"\1")
    return tf.where(is_tagged, tags, ""), tf.strings.regex_replace(text, _TAG, "")


def _shown(tags):
    """Returns tags as an error shows them: in one line, not too long, valid UTF-8."""
    short = tf.strings.substr(tf.strings.regex_replace(tags, r"\s", " "), 0, SHOWN)
    return tf.strings.unicode_transcode(short, "UTF-8", "UTF-8", replace_control_characters=True)
