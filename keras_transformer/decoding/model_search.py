"""Search and scores with a model: token ids in and out, on any backend.

The searches and the model do not import each other; this module connects them. Letters: B batch, W
beam slots, S source length, T target length.
"""

from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from keras import ops

from keras_transformer.decoding.beam import make_search
from keras_transformer.decoding.engine import SearchResult
from keras_transformer.decoding.lines import learned_positions, longest_target
from keras_transformer.decoding.loop import BACKEND, pick, run_program
from keras_transformer.decoding.scores import NOT_FINITE, penalties_up_to
from keras_transformer.decoding.search import Search, StepOutput, trim
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Tensor

_SHORTEST, _TARGET_STEP = 8, 16  # tokens
# Maximum lines, source tokens and target tokens that XLA compiles on TensorFlow. With few
# sentences, a step is hundreds of small operations, and starting them costs more than computing
# them. With more, XLA gains little. A program takes 40 to 90 MiB, which TensorFlow never frees.
LARGEST = 8, 128, 512


class SearchModel(Protocol):
    """Interface that decoding uses. `Transformer` and `FrozenTransformer` implement it."""

    config: Any  # special token ids, vocabulary sizes and positions, as in `TransformerConfig`

    def __call__(self, inputs: dict[str, Tensor], /) -> Tensor: ...

    def attention_scores(self, inputs: dict[str, Tensor], /) -> dict[str, list[Tensor]]: ...

    def init_cache(self, encoder_token_ids: Tensor, /, **options: Any) -> Any: ...

    def decode_step(
        self, token_ids: Tensor, cache: Any, index: Tensor, /, **options: Any
    ) -> Any: ...


def search_model(
    model: SearchModel,
    encoder_token_ids: np.ndarray,
    settings: SearchSettings,
    n_best: int = 1,
    target_prefix: np.ndarray | None = None,
    language_ids: np.ndarray | None = None,
    shape: tuple[int, int, int] | None = None,
) -> SearchResult:
    """Finds the best translations of sentences, on any backend.

    TensorFlow runs a graph, in which tensors grow and finished sentences leave the batch; JAX
    compiles a program for a padded shape; PyTorch traces one step, for all shapes.

    Args:
        model: `Transformer`, or `FrozenTransformer`.
        encoder_token_ids: int32 array `(B, S)`, with the end tokens, padded.
        settings: `SearchSettings`.
        n_best: int. Translations of each sentence. Defaults to `1`.
        target_prefix: int32 array `(B, P)`, padded: the forced first tokens. Those beyond the
            maximum length are cut off. Optional.
        language_ids: int32 array `(B, 1)`: the tokens of languages that the decoder reads behind
            the start token. Lengths and scores leave them out, and also the token of the source's
            language. Optional.
        shape: ints B, S and T, at least those of the sentences and their translations. XLA compiles
            the search for this shape; on TensorFlow, processors and samplers cannot be compiled.
            Defaults to `padded_shape` on JAX, and elsewhere to none.

    Returns:
        `SearchResult` of NumPy arrays.

    Raises:
        ValueError: if `n_best` exceeds the beam, or log-probs are invalid.

    Example:

    >>> config = keras_transformer.TransformerConfig.tiny(50)
    >>> settings = keras_transformer.SearchSettings(beam_size=2, max_length=4)
    >>> model = keras_transformer.Transformer(config)
    >>> search_model(model, np.array([[5, 6, 2], [7, 2, 0]]), settings).token_ids.shape[:2]
    (2, 1)
    """
    ids, config = np.asarray(encoder_token_ids, "int32"), model.config
    count, pad = len(ids), config.pad_token_id
    kind = None
    if settings.sampler is not None:
        kind = "eager"
    elif shape is not None and BACKEND == "tensorflow":  # JAX compiles every search
        kind = "xla"
    if BACKEND == "jax" and shape is None:
        shape = padded_shape(ids.shape[0], ids.shape[1], settings, config)
    if shape is not None:
        ids = _padded(ids, shape[:2], pad)
    num_languages = 0 if language_ids is None else 1
    lengths = (np.count_nonzero(ids != pad, axis=1) - num_languages).tolist()
    # A source of one token is empty: it has the end token alone.
    longest = [longest_target(n, settings, config, num_languages) if n > 1 else 0 for n in lengths]
    fixed_length = None if shape is None else shape[2]
    penalties = penalties_up_to(fixed_length or max(longest, default=0), settings)
    inputs = [penalties, ids, np.array(longest, "int32")]
    if target_prefix is not None or language_ids is not None:
        no_prefix = np.zeros((count, 0), "int32")
        prefix = no_prefix if target_prefix is None else np.asarray(target_prefix, "int32")
        size = prefix.shape[1] if shape is None else round_up(prefix.shape[1])
        inputs.append(_padded(prefix, (len(ids), size), pad))
    if language_ids is not None:
        inputs.append(_padded(np.asarray(language_ids, "int32"), (len(ids), 1), pad))
    static = settings.graph_settings, n_best, fixed_length
    result = run_program(_search, model, static, *inputs, kind=kind)
    result = SearchResult(*(array[:count] for array in result))
    if np.isnan(result.scores).any():
        raise ValueError(NOT_FINITE)
    return trim(result, pad, np)


def _search(
    model,
    settings,
    n_best,
    fixed_length,
    penalties,
    ids,
    longest,
    target_prefix=None,
    language_ids=None,
):
    options = {"fixed_length": fixed_length, "penalties": penalties, "language_ids": language_ids}
    search, inputs = make_model_search(model, ids, longest, settings, n_best, **options)
    return search.run(*inputs, target_prefix)


def make_model_search(
    model: SearchModel,
    encoder_token_ids: Tensor,
    max_lengths: Tensor,
    settings: SearchSettings,
    n_best: int = 1,
    fixed_length: int | None = None,
    language_ids: Tensor | None = None,
    **options: Any,
) -> tuple[Search, tuple[Any, Tensor, Any]]:
    """Returns a search with a model, and its inputs: cache, maximum lengths and start token.

    With `language_ids`, the cache holds the start token, and the search starts with these tokens.

    Args:
        model, settings, n_best: as in `search_model`.
        encoder_token_ids: int32 tensor `(B, S)`.
        max_lengths: int32 tensor `(B,)`.
        language_ids: int32 tensor `(B, 1)`, as in `search_model`. Optional.
        fixed_length, **options: as in `Search`.
    """
    config, slots = model.config, settings.max_hypotheses
    num_read = 0 if language_ids is None else 1  # tokens that are in the cache before step 0
    cache_options = {}
    if fixed_length is not None:
        cache_options = {"max_length": fixed_length + num_read, "beam_size": slots}
    suppressed = {*settings.suppressed_tokens, getattr(config, "forbidden_token_id", None)} - {None}
    settings = replace(settings, suppressed_tokens=sorted(suppressed))

    def step(token_ids, parents, cache, index):
        parents = None if slots == 1 else parents
        return StepOutput(*model.decode_step(token_ids, cache, index + num_read, parents=parents))

    search = make_search(
        settings,
        n_best,
        step_fn=step,
        end_token_id=config.end_token_id,
        pad_token_id=config.pad_token_id,
        fixed_length=fixed_length,
        step_key=(model, num_read),
        **options,
    )
    cache = model.init_cache(encoder_token_ids, **cache_options)
    if language_ids is None:
        return search, (cache, max_lengths, config.start_token_id)
    parents = ops.zeros((shape_of(language_ids)[0], slots), "int32")
    _, cache = step(parents + config.start_token_id, parents, cache, -num_read)
    return search, (cache, max_lengths, language_ids)


def score_model(
    model: SearchModel,
    encoder_token_ids: Tensor,
    target_token_ids: Tensor,
    language_ids: Tensor | None = None,
) -> Tensor:
    """Returns the log-prob of each token of given translations, by a teacher-forced pass.

    Args:
        model: `Transformer`.
        encoder_token_ids: int32 tensor `(B, S)`, with the end tokens, padded.
        target_token_ids: int32 tensor `(B, T)`, with the end tokens, padded.
        language_ids: as in `search_model`. Optional.

    Returns:
        float32 tensor `(B, T)`, 0 at padding.
    """
    config = model.config
    logits = model(teacher_forcing(config, encoder_token_ids, target_token_ids, language_ids))
    logits = logits if language_ids is None else logits[:, 1:]
    # Not Keras's cross-entropy: on JAX it is NaN where the logit of any token is -inf.
    log_probs = ops.log_softmax(ops.cast(logits, "float32"))
    log_probs = pick(log_probs, target_token_ids[:, :, None])[:, :, 0]
    return ops.where(target_token_ids == config.pad_token_id, 0.0, log_probs)


def attend_model(
    model: SearchModel,
    encoder_token_ids: Tensor,
    target_token_ids: Tensor,
    language_ids: Tensor | None = None,
) -> dict[str, list[Tensor]]:
    """Returns the attention scores of given translations, see `Engine.attend`.

    The arguments are as in `score_model`.
    """
    inputs = teacher_forcing(model.config, encoder_token_ids, target_token_ids, language_ids)
    scores = model.attention_scores(inputs)
    if language_ids is not None:  # the first row predicts the language
        for name in ("decoder", "encoder_decoder"):
            scores[name] = [block[:, :, 1:] for block in scores[name]]
    return scores


def teacher_forcing(config, encoder_token_ids, target_token_ids, language_ids=None):
    """Returns inputs of a model; the decoder gets the start token, then all tokens but the last.

    With `language_ids`, the language follows the start token.
    """
    start = ops.full_like(target_token_ids[:, :1], config.start_token_id)
    begin = [start] if language_ids is None else [start, language_ids]
    read_token_ids = ops.concatenate([*begin, target_token_ids[:, :-1]], axis=1)
    return {"encoder_token_ids": encoder_token_ids, "decoder_token_ids": read_token_ids}


def run_on_pairs(
    function: Any,
    model: SearchModel,
    source: np.ndarray,
    target: np.ndarray,
    language_ids: np.ndarray | None = None,
) -> Any:
    """Returns `function(model, source, target)`, such as `score_model`, as NumPy arrays.

    On JAX, which compiles each shape, ids and result are padded to one of few shapes: the result
    may have more rows and tokens than `target`.
    """
    if BACKEND == "jax":
        rows, config = _power_of_2(len(source)), model.config
        num_languages = 0 if language_ids is None else 1  # of a target; a source row has its own
        source, target = (
            _padded(ids, (rows, _padded_length(ids.shape[1], config, number)), config.pad_token_id)
            for ids, number in ((source, 0), (target, num_languages))
        )
    if language_ids is None:
        return run_program(function, model, (), source, target)
    languages = _padded(language_ids, (len(source), 1), model.config.pad_token_id)
    return run_program(function, model, (), source, target, languages)


def padded_shape(rows: int, length: int, settings: Any, config: Any) -> tuple[int, int, int]:
    """Returns the shape `(B, S, T)` that a search is compiled for: one of few.

    Args:
        rows, length: ints, the shape of the sources.
        settings: `SearchSettings`.
        config: as in `SearchModel`.
    """
    source = _padded_length(length, config)
    target = longest_target(source, settings, config)
    return _power_of_2(rows), source, -(-target // _TARGET_STEP) * _TARGET_STEP


def compiled_shape(
    rows: int, length: int, settings: SearchSettings, config: Any
) -> tuple[int, int, int]:
    """Returns the `padded_shape` of a search that XLA can compile, see `KerasEngine.compile`.

    Raises:
        ValueError: if searches of this kind are not compiled.
    """
    shape = padded_shape(rows, length, settings, config)
    is_large = any(size > largest for size, largest in zip(shape, LARGEST, strict=True))
    stays_graph = BACKEND == "tensorflow" and (is_large or bool(settings.processors))
    if BACKEND == "torch" or stays_graph or settings.sampler is not None:
        raise ValueError(
            "Searches without a sampler are compiled on JAX; on TensorFlow those of at most {} "
            "lines of at most {} tokens, with translations of at most {} tokens, and without "
            "processors. ".format(*LARGEST)
            + f"Received: {rows} lines of {length} tokens on {BACKEND}, {settings}"
        )
    return shape


def round_up(length: int) -> int:
    """Rounds up to one of 8, 16, 24, 32, 48, 64, 96, 128, 192, ... tokens."""
    step = max(_SHORTEST, _power_of_2(length) // 4)
    return max(1, -(-length // step)) * step


def _padded_length(length, config, num_languages=0):
    return min(round_up(length), learned_positions(config, num_languages) or round_up(length))


def _power_of_2(number):
    return 2 ** (int(number) - 1).bit_length()


def _padded(ids, shape, pad):
    """Returns ids `(B, L)`, padded to a larger shape."""
    widths = [(0, padded - size) for padded, size in zip(shape, ids.shape, strict=True)]
    return np.pad(ids, widths, constant_values=pad)
