"""Tags and tokens of languages in a graph, by the rules of `decoding/languages.py`."""

from collections.abc import Mapping

import tensorflow as tf

from keras_transformer.decoding.languages import UNKNOWN_LANGUAGE, WRONG_TAG
from keras_transformer.export.graph_errors import require_rows

# A tag as a tokenizer reads it: after any white space, from ">>" to the first "<<".
_TAG = r"(?s)^[\s\v\x1c-\x1f\x{85}\p{Z}]*(>>.*?<<)"


def tag_lines(text: tf.Tensor, languages: tf.Tensor, codes: list[str]) -> tf.Tensor:
    """Returns lines with the tags of their target languages in front.

    A line that begins with this tag gets no second one. If no language is asked for, a line may
    begin with any tag of the model. Lines without text get none.

    Args:
        text: string tensor `(B,)`.
        languages: string tensor `(B,)` or `(1,)`, codes such as `"fra"`; `""` if none is asked for.
        codes: the languages that the model has tags for, at least one.

    Raises:
        ValueError, or in a graph InvalidArgumentError: if the model does not have a language; or
            if a line begins with two tags, with a tag that the model does not have, or with that
            of another language.
    """
    all_codes, tags = ", ".join(codes), [f">>{code}<<" for code in codes]
    languages = tf.broadcast_to(languages, tf.shape(text))
    requested_tags = tf.where(languages == "", "", tf.strings.join([">>", languages, "<<"]))
    tag, after_tag = _split(text)
    second_tag, _ = _split(after_tag)
    is_known = _is_one_of(languages, ["", *codes])
    is_allowed = _is_one_of(tag, tags) & ((requested_tags == "") | (tag == requested_tags))
    is_right = (tag == "") | (is_allowed & ~_is_one_of(second_tag, tags))
    lines = tf.range(tf.size(text)) + 1
    checks = [
        require_rows(is_known, UNKNOWN_LANGUAGE.format(all_codes, "{}"), languages),
        require_rows(is_right, WRONG_TAG.format(all_codes, "{}", "{}"), lines, tag),
    ]
    with tf.control_dependencies(checks):
        needs_no_tag = (tag != "") | (requested_tags == "") | (tf.strings.strip(text) == "")
    text = tf.where(needs_no_tag, text, tf.strings.join([requested_tags, " ", text]))
    # A line that has a tag loses the white space before it.
    return tf.where(tag == "", text, tf.strings.join([tag, after_tag]))


def language_tokens(
    languages: tf.Tensor, name: str, language_ids: Mapping[str, int], rows: tf.Tensor
) -> tf.Tensor:
    """Returns the tokens of the languages of lines, int32 `(B,)`.

    Args:
        languages: string tensor `(B,)` or `(1,)`, the model's own codes.
        name: of the input, for errors.
        language_ids: dict from the codes to the tokens.
        rows: int tensor, B.

    Raises:
        ValueError, or in a graph InvalidArgumentError: if a code is none of the model's.
    """
    languages = tf.broadcast_to(languages, [rows])
    is_code = languages[:, None] == tf.constant([*language_ids])
    must = f"`{name}` must be a language of the model, such as {', '.join([*language_ids][:3])}. "
    is_known = require_rows(tf.reduce_any(is_code, axis=1), must + "Received: {}", languages)
    with tf.control_dependencies([is_known]):
        places = tf.argmax(is_code, axis=1)
    return tf.gather(tf.constant([*language_ids.values()], tf.int32), places)


def _is_one_of(text, choices):
    return tf.reduce_any(text[:, None] == tf.constant(choices), axis=1)


def _split(text):
    """Returns the tags of lines, empty where there is none, and what follows."""
    is_tagged = tf.strings.regex_full_match(text, _TAG + ".*")
    tags = tf.strings.regex_replace(text, _TAG + ".*", r"\1")
    return tf.where(is_tagged, tags, ""), tf.strings.regex_replace(text, _TAG, "")
