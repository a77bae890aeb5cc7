"""Exports a translator as a SavedModel that takes and returns strings, or token ids.

Tokenizer, model and search are in its graph: loading it needs `tensorflow` and `tensorflow_text`,
but not this package.
"""

import contextlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.saved_model import save_context

from keras_transformer import types
from keras_transformer.atomic_file import atomic_folder, restore_folder
from keras_transformer.decoding.saved_model import ENGINE
from keras_transformer.decoding.translator import Translator
from keras_transformer.export.folder_tokenizers import write_tokenizers
from keras_transformer.export.model_card import example_lines, write_examples, write_model_card
from keras_transformer.export.signatures import Signatures

VERSIONED = ("tensorflow", "keras", "tensorflow-text")


def export_saved_model(
    translator: Translator,
    path: types.Path,
    *,
    card: dict[str, Any] | None = None,
    examples: Iterable[str] | None = None,
    inspect: bool = False,
) -> Path:
    """Writes a translator as a SavedModel.

    Its signatures take and return named tensors. Letters: B lines, S source tokens, T target
    tokens, W beam slots. The signatures that take strings read whole lines:

    - `serving_default`: `text`, string `(B,)`; returns `translation`, string `(B,)`, one for each
      line and empty for an empty line; `score`, float32 `(B,)`, as `Hypothesis.score`;
      `truncated`, bool `(B,)`, whether the end of the line was left out; and `unfinished`, bool
      `(B,)`, whether the translation reached its maximum length and has no end token. A line for
      which the model computes NaN or infinity has an empty translation and the score NaN; the
      other lines are translated.
    - `translate_n_best`: `text`; and the options `n_best`, int32, at most the beam; `alpha`,
      float32; `max_length`, int32; and `target_prefix`, string: each `(B,)` or `(1,)`. A value
      out of its range counts as the nearest end of the range. Returns `translations`, string
      `(B, N)`, best first, for the largest `n_best`; `scores`, float32 `(B, N)`; `lengths`, int32
      `(B, N)`, in tokens; `truncated`; and `unfinished`, bool `(B, N)`. Missing translations are
      empty, with the score -inf. The options default to the settings of the translator, and
      `n_best` to its beam; `SignatureDef.defaults` holds these values for TensorFlow Serving. A
      model of several target languages also has the option `target_language`, string, such as
      `fra`, see `Tokenizer.from_marian`; a model with tokens of languages has `source_language`
      too. The translations of a line are distinct, if `distinct_texts` of the translator is set.
    - `score`: `source` and `target`, string `(B,)`; returns `log_prob`, float32 `(B,)`, the
      log-probability of each target with its end token; `tokens`, int32 `(B,)`, the number of
      tokens of the target; and `perplexity`, float32 `(B,)`. `log_prob` and `perplexity` are NaN
      for lines of more tokens than 2,048 or the learned positions. A model with tokens of languages
      has the options `source_language` and `target_language`; a model with tags reads sources with
      the tag of the translator's `target_language`.
    - `tokenize`: `text`, string `(B,)`; returns `token_ids`, int32 `(B, S)`, those of the source
      without end tokens, padded, and `lengths`, int32 `(B,)`.

    The signatures that take token ids take int32 rows with their end tokens, padded:

    - `search`: `token_ids` `(B, S)`; `prefix_ids`, int32 `(B, P)`, the forced first tokens without
      an end token, where P may be 0; and `n_best`, int32, `alpha`, float32, and `max_length`,
      int32, the maximum tokens of each translation: each `(B,)` or `(1,)`. Returns the fields of
      `SearchResult`: `token_ids`, int32 `(B, W, T)`, `lengths`, int32 `(B, W)`, `scores`, float32
      `(B, W)`, NaN where the model's numbers are not finite, and `log_probs`, float32 `(B, W, T)`.
      Hypotheses beyond `n_best` are missing.
    - `score_ids`: `token_ids` `(B, S)` and `target_ids` `(B, T)`; returns `log_probs`, float32
      `(B, T)`, of each target token, 0 at padding.
    - `detokenize`: `token_ids`, int32 `(B, T)`, those of the target; returns `text`, string `(B,)`.
    - `attend`, with `inspect=True`: `token_ids` and `target_ids`; returns the attention scores of L
      blocks and N heads: `encoder`, float32 `(B, L, N, S, S)`, `decoder` `(B, L, N, T, T)` and
      `encoder_decoder` `(B, L, N, T, S)`.
    - `search_tree`, with `inspect=True`: `token_ids` `(B, S)`; returns the active hypotheses after
      each of T steps: `token_ids`, int32 `(B, T, W)`, the last of each; `parents`, int32
      `(B, T, W)`, the slot of the previous step that each one extends; `log_probs`, float32
      `(B, T, W)`, -inf in empty slots; and `is_winner`, bool `(B, T, W)`, whether the translation
      begins with this hypothesis.

    With tokens of languages, `search` and `score_ids` also take `language_ids`, int32 `(B, 1)`, the
    token of each translation's language; a row of `token_ids` begins with the token of the source's
    language.

    The functions are also attributes of the loaded object, with the names of the signatures; only
    `serving_default` is called `serve`. In Python, options may be left out in a call of an
    attribute, but not in a call of a signature.

    A call with a scalar or a matrix of strings raises an `InvalidArgumentError` that names the
    shape. The same error is raised for a prefix that leaves no room for another token within the
    maximum length, a `target_language` that the model does not have, and a line that begins with a
    tag which the model does not have or which is not that of its `target_language`.

    The SavedModel searches by the settings of the translator, but it neither splits lines nor
    protects text. A line of more than `max_source_tokens` tokens is cut at a word, whatever
    `on_too_long` is, and `truncated` says so. `load_translator(path)` splits, protects and rejects
    lines as the translator does, and calls the signatures of token ids.

    A SavedModel at `path` is replaced when the new one is complete: the old one is renamed, the new
    one takes its place, and the old one is deleted. Between the two renames, which take less than a
    millisecond, there is none at `path`. If the process is killed between them, this package moves
    the old one back when it next loads `path` or exports to it. A server that loads during the
    exchange may read files of both: export every version to a new folder, as TensorFlow Serving
    expects.

    Beside the graph are `model_card.json`, `examples.jsonl` and the tokenizers, as in a folder of
    `export_ctranslate2`. A tokenizer of a user's or of KerasHub's leaves only its vocabulary there.
    Files that a user added to the folder are deleted with the old model. If `path` is a symbolic
    link, the folder that it points to is replaced.

    Args:
        translator: `Translator`.
        path: path of the folder to write. A SavedModel that is there is replaced.
        card: entries of `model_card.json` to add or replace, values of JSON, such as `name`,
            `source_language`, `target_language` and `bleu`. Optional.
        examples: lines that `examples.jsonl` holds with their translations. Defaults to some words
            of the vocabulary.
        inspect: bool. Whether to add `attend` and `search_tree`, which make the folder slower to
            write and to load. Defaults to `False`.

    Returns:
        `pathlib.Path`, the folder.

    Raises:
        TypeError: if the `graph` of a tokenizer is not a `tf.Module`.
        ValueError: if `inspect` is True for a model with tokens of languages, if a language of
            such a model is missing, or Keras does not run on TensorFlow.
        FileExistsError: if `path` exists and is not a SavedModel.
        OSError: if it cannot be written; `path` is unchanged.

    Example, on the serving side:

        import tensorflow as tf
        import tensorflow_text  # registers the tokenizer's operations

        served = tf.saved_model.load("served")
        served.serve(tf.constant(["twenty-one"]))["translation"]
    """
    path = Path(path)
    if inspect and translator.source_tokenizer.language_ids:
        raise ValueError(
            "`inspect` must be False for a model with tokens of languages: its exports have "
            "neither attention nor search tree. `load_run` returns a translator that has "
            "attention. Received: inspect=True"
        )
    if keras.config.backend() != "tensorflow":
        must = "A SavedModel is written by the TensorFlow backend: set KERAS_BACKEND=tensorflow."
        raise ValueError(f"{must} Received: the backend {keras.config.backend()!r}")
    if restore_folder(path).exists() and not tf.saved_model.contains_saved_model(str(path)):
        raise FileExistsError(f"{str(path)!r} exists and is not a SavedModel.")
    _require_graphs(translator)
    translator([])  # raises if languages are missing, or are those of single lines
    module = Signatures(translator, for_inspection=inspect)
    # The log would name the temporary folder.
    logger = tf.get_logger()
    with atomic_folder(path) as written, contextlib.ExitStack() as stack:
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel("WARNING")
        tf.saved_model.save(module, str(written), module.functions)
        described = _described(written, module.functions)
        entries: dict[str, Any] = {"engine": ENGINE, "signatures": described}
        # With a sampler there is one hypothesis, whatever `beam_size` is.
        settings = translator.all_settings | {"beam_size": translator.settings.max_hypotheses}
        write_model_card(written, translator, VERSIONED, card, settings, **entries)
        write_tokenizers(written, translator.tokenizers)
        lines = example_lines(translator, examples)
        with save_context.save_context(tf.saved_model.SaveOptions()):  # else it is traced again
            outputs = module.serve(tf.constant(lines, tf.string))
        texts = [text.decode() for text in outputs["translation"].numpy()]
        scores = outputs["score"].numpy().tolist()
        write_examples(written, zip(lines, texts, scores, strict=True))
    return path


def _require_graphs(translator):
    for tokenizer in translator.tokenizers:
        if not isinstance(graph := tokenizer.graph, tf.Module):
            raise TypeError(
                "To export a translator, the `graph` of its tokenizers must be a `tf.Module`, so "
                "that the SavedModel contains their tables; see `TokenizerLike`. Received: "
                f"{type(tokenizer).__name__} with graph={graph!r}"
            )


def _described(folder, names):
    """Returns inputs and outputs of signatures.

    They are read from the file, because reading them from the functions would trace these again.
    """
    saved = saved_model_pb2.SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    signatures = saved.meta_graphs[0].signature_def
    return {
        name: {side: _shapes(getattr(signatures[name], side)) for side in ("inputs", "outputs")}
        for name in names
    }


def _shapes(tensors):
    return {
        name: f"{tf.as_dtype(info.dtype).name} {tf.TensorShape(info.tensor_shape)}"
        for name, info in sorted(tensors.items())
    }
