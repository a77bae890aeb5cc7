"""Step function, length penalty and state of the sentences, which all searches share.

Depends on a step function only, not on a model. Letters: B batch, W beam slots, R hypotheses
returned (`n_best`), P prefix length, T target length, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from keras import ops, tree

from keras_transformer.decoding.engine import SearchResult
from keras_transformer.decoding.loop import BACKEND, processed, run_loop
from keras_transformer.decoding.next_tokens import Constraints
from keras_transformer.decoding.processors import force_end, suppress_tokens
from keras_transformer.decoding.scores import IMPOSSIBLE, PENALTY_BASES, penalties_up_to
from keras_transformer.decoding.search_settings import SearchSettings
from keras_transformer.tensor_shape import shape_of
from keras_transformer.types import Tensor


class StepOutput(NamedTuple):
    """Result of a step function, which is called as `step_fn(token_ids, parents, cache, index)`.

    `token_ids` `(B, W)` are the last tokens of W hypotheses per sentence; at step 0, the start
    token. `parents[b, w]` is the previous beam slot of hypothesis w; at step 0, it is 0. A step
    function that caches state per hypothesis must gather it by `parents`. `index` is the number of
    tokens decoded before.

    Args:
        logits: float tensor `(B, W, V)` of the next token. V must be static.
        cache: nest of tensors, the cache after this step, in the same structure as before. Every
            tensor has the sentences on its first axis; the other axes may change their length.
    """

    logits: Tensor
    cache: Any


StepFunction: TypeAlias = Callable[[Tensor, Tensor, Any, Any], StepOutput]


def trim(result: SearchResult, pad_token_id: int, xp: Any = ops) -> SearchResult:
    """Cuts a result to its longest hypothesis, and pads the others.

    Args:
        result: `SearchResult`.
        pad_token_id: int.
        xp: `keras.ops` or, for arrays, `numpy`.
    """
    longest = xp.max(result.lengths, initial=0)
    is_token = xp.arange(longest) < result.lengths[:, :, None]
    return result._replace(
        token_ids=xp.where(is_token, result.token_ids[:, :, :longest], pad_token_id),
        log_probs=xp.where(is_token, result.log_probs[:, :, :longest], 0.0),
    )


class Tokens(NamedTuple):
    """Tokens and their log-probs: `(B, W)` one per hypothesis, or `(B, W, T)` all so far."""

    token_ids: Tensor  # int32
    log_probs: Tensor  # float32


class Sentences(NamedTuple):
    """The sentences that are still in the batch."""

    row: Tensor  # int32 (B,): the row of each sentence in the results
    done: Tensor  # bool (B,)
    failed: Tensor  # bool (B,): the log-probs of a step were invalid, see `best_next_tokens`
    max_lengths: Tensor  # int32 (B,)
    alphas: Tensor  # float32 (B,)
    wanted: Tensor  # int32 (B,): the sentence is done when this many hypotheses are final
    target_prefix: Tensor  # int32 (B, P), padded; P = 0 without a prefix
    cache: Any  # nest of tensors (B, ...)


def penalty(lengths: Any, settings: SearchSettings, alpha: Tensor) -> Tensor:
    """Returns the length penalty. A score is the sum of the log-probs divided by it.

    Args:
        lengths: int or int tensor of tokens, end tokens included.
        settings: `SearchSettings`.
        alpha: float32 tensor that broadcasts with `lengths`; used instead of `settings.alpha`.

    Returns:
        float32 tensor of the shape of `lengths` and `alpha`.

    Reference:
        [Wu et al., 2016](https://arxiv.org/abs/1609.08144), section 7.
    """
    # float64, because the last bit of a float32 power depends on the position in the batch.
    base = PENALTY_BASES[settings.length_penalty](ops.cast(lengths, "float64"))
    return ops.cast(base ** ops.cast(alpha, "float64"), "float32")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Base class of a search. A subclass defines:

    - `start(sentences, start_token_id)`: returns the state before the first step;
    - `step(index, state)`: extends the hypotheses by one token, and does not change the result of
      sentences that are done.

    A state is a NamedTuple of nests of tensors. The first axis is the sentences; the second is
    static, except in the cache. Its fields are `sentences`, `history`, the `Tokens` so far, and
    `finished`, the `SearchResult` so far, whose values at padding are arbitrary.

    Args:
        step_fn, end_token_id, pad_token_id: as in `beam_search`.
        settings: `SearchSettings`.
        n_best: int. Number of hypotheses to keep per sentence. Defaults to `1`.
        alpha: float32 tensor, a scalar or `(B,)`: replaces `settings.alpha`, on TensorFlow only.
            Optional.
        wanted: int32 tensor `(B,)`, at most `n_best`: how many hypotheses of a sentence must be
            final before its search may stop; the rest are the best so far. Defaults to `n_best`.
        fixed_length: int. All tensors, including the cache, have room for this number of tokens
            from the start: XLA needs constant shapes. No sentence's maximum length may exceed it.
            The result is neither checked nor trimmed. Defaults to `None`: the tensors grow.
        penalties: float32 tensor, the result of `penalties_up_to` for the greatest maximum length.
            Defaults to the penalties of the settings and `alpha`.
        step_key: tuple: the model that `step_fn` calls, then the other values that its result
            depends on. PyTorch traces a step once for equal keys. Defaults to `None`: no tracing.
        is_plain: bool. Whether no step is constrained. Defaults to `False`: each step calls
            `is_constrained`.
    """

    step_fn: StepFunction
    end_token_id: int
    pad_token_id: int
    settings: SearchSettings
    n_best: int = 1
    alpha: Tensor | None = None
    wanted: Tensor | None = None
    fixed_length: int | None = None
    penalties: Tensor | None = None
    step_key: tuple[Any, ...] | None = None
    is_plain: bool = False

    def run(self, cache, max_lengths, start_token_id, target_prefix=None, compaction=True):
        """Returns the `SearchResult`. The arguments are those of `beam_search`."""
        search = self
        if BACKEND != "tensorflow" and self.penalties is None:
            longest = self.fixed_length or int(ops.max(max_lengths, initial=0))
            search = replace(self, penalties=penalties_up_to(longest, self.settings))
        state = search.first_state(cache, max_lengths, start_token_id, target_prefix)
        result = run_loop(search, state, compaction)
        return result if self.is_fixed else trim(result, self.pad_token_id)

    def final(self, state):
        """Returns the result; a failed sentence has the score NaN and the length 0."""
        result, failed = state.finished, state.sentences.failed[:, None]
        return result._replace(
            lengths=ops.where(failed, 0, result.lengths),
            scores=ops.where(failed, float("nan"), result.scores),
        )

    def no_tokens(self, batch_size, slots):
        """Returns an empty history `(B, slots, T)`."""
        shape = (batch_size, slots, self.fixed_length or 0)
        return Tokens(ops.zeros(shape, "int32"), ops.zeros(shape, "float32"))

    def extend(self, history, tokens, index):
        """Appends the next tokens, `(B, W)`, to a history of `index` tokens."""
        is_next = ops.arange(self.fixed_length or 0) == index

        def extended(past, last):
            if self.is_fixed:
                return ops.where(is_next, last[:, :, None], past)
            return ops.concatenate([past, last[:, :, None]], axis=2)

        return tree.map_structure(extended, history, tokens)

    def first_state(self, cache, max_lengths, start_token_id, target_prefix=None):
        """Returns the state before the first step.

        Args:
            cache, max_lengths, start_token_id, target_prefix: as in `beam_search`.
        """
        batch_size = shape_of(max_lengths)[0]

        def per_sentence(value, dtype):
            return ops.broadcast_to(ops.cast(value, dtype), (batch_size,))

        if target_prefix is None:
            target_prefix = ops.zeros((batch_size, 0), "int32")
        target_prefix = ops.convert_to_tensor(target_prefix, "int32")
        sentences = Sentences(
            row=ops.arange(batch_size),
            done=max_lengths <= 0,
            failed=ops.zeros((batch_size,), "bool"),
            max_lengths=max_lengths,
            alphas=per_sentence(
                self.settings.alpha if self.alpha is None else self.alpha, "float32"
            ),
            wanted=per_sentence(self.n_best if self.wanted is None else self.wanted, "int32"),
            target_prefix=target_prefix,
            cache=cache,
        )
        return self.start(sentences, start_token_id)

    def penalty(self, sentences, lengths):
        """Returns the length penalty; `lengths` broadcast to `(B, W)`."""
        if self.penalties is None:
            return penalty(lengths, self.settings, sentences.alphas[:, None])
        return ops.take(self.penalties, lengths, axis=0)

    @property
    def is_fixed(self):
        """Whether no shape changes."""
        return self.fixed_length is not None

    def is_constrained(self, state, index):
        """Whether the next token has constraints besides suppressed tokens.

        Returns:
            a bool; or a bool tensor, if that depends on the sentences or on a tensor `index`.
        """
        sentences, prefix = state.sentences, state.sentences.target_prefix
        is_constrained = bool(self.settings.processors)
        if self.settings.force_end:
            is_last = index + 1 >= sentences.max_lengths
            is_constrained |= ops.any(is_last & ~sentences.done)
        if prefix.shape[1] != 0:
            is_constrained |= index < shape_of(prefix)[1]
        return is_constrained

    def constraints(self, state, index):
        """Returns the constraints on the next token, for `best_next_tokens`."""
        sentences, prefix = state.sentences, state.sentences.target_prefix
        processors, suppressed = [*self.settings.processors], self.settings.suppressed_tokens
        if suppressed:
            processors.append(suppress_tokens(suppressed))
        if self.settings.force_end:
            limits = sentences.max_lengths[:, None, None]
            processors.append(force_end(limits, self.end_token_id))
        has_prefix = prefix.shape[1] != 0

        def apply(model_log_probs):
            log_probs, token_ids = model_log_probs, state.history.token_ids
            is_compiled = self.settings.sampler is None
            for processor in processors:
                log_probs = processed(
                    processor, log_probs, token_ids, index, self.is_fixed, is_compiled
                )
            if has_prefix:
                return self._force(prefix, index, model_log_probs, log_probs)
            return log_probs

        is_active = False if self.is_plain else self.is_constrained(state, index)
        return Constraints(apply, suppressed, is_active)

    def _force(self, prefix, index, model_log_probs, log_probs):
        """Within the prefix, allows only its next token, even if a processor forbade it."""
        prefix = ops.pad(prefix, [[0, 0], [0, 1]], constant_values=self.pad_token_id)
        token = prefix[:, ops.minimum(index, shape_of(prefix)[1] - 1)][:, None, None]
        is_token = ops.arange(log_probs.shape[-1]) == token
        forced = ops.where(is_token, model_log_probs, IMPOSSIBLE)
        return ops.where(token == self.pad_token_id, log_probs, forced)
