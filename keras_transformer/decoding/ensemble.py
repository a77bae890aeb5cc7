"""An ensemble: several models that are searched as one."""

import math
from collections.abc import Sequence
from typing import Any

from keras import ops, tree

from keras_transformer.decoding.lines import learned_positions
from keras_transformer.present_weights import present_weights
from keras_transformer.types import Tensor

_SHARED = "vocabulary_size source_vocabulary_size pad_token_id start_token_id end_token_id"


class Ensemble:
    """Computes the mean of the next-token probabilities of several models.

    The mean is of probabilities, not of log-probs: a token that one model rules out (log-prob -inf)
    keeps the probability that the others give it. Searches and `Translator` take an ensemble as a
    model; its logits are log-probs.

    Args:
        models: list of `Transformer`. They may differ in everything but the vocabularies.

    Attributes:
        models: tuple of the models.
        config: that of the model with the fewest learned positions, or of the first one.

    Raises:
        ValueError: if there is no model, or their sizes of vocabulary or special tokens differ.
    """

    def __init__(self, models: Sequence[Any]) -> None:
        self.models = tuple(models)
        if not self.models:
            raise ValueError("An ensemble must have a model. Received: none")
        configs = [model.config for model in self.models]
        for name in _SHARED.split():
            values = [getattr(config, name) for config in configs]
            if len(set(values)) > 1:
                raise ValueError(
                    "The models of an ensemble must have the same vocabularies and special tokens. "
                    f"Received: {name}={values}"
                )
        self.config = min(configs, key=lambda config: learned_positions(config) or math.inf)

    @property
    def weights(self) -> list[Any]:
        """The weights of all models."""
        return [weight for model in self.models for weight in present_weights(model)]

    def __call__(self, inputs: dict[str, Tensor], /) -> Tensor:
        """Returns the logarithm of the mean probabilities, float32 `(B, T, V)`."""
        return _log_mean([model(inputs) for model in self.models])

    def attention_scores(self, inputs: dict[str, Tensor], /) -> Any:
        """Returns the mean of the models' `attention_scores`; their blocks and heads must match."""
        all_scores = [model.attention_scores(inputs) for model in self.models]
        shapes = [tree.map_structure(lambda block: block.shape[1], scores) for scores in all_scores]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(
                "Attention of an ensemble needs models with the same numbers of blocks and heads. "
                f"Received: heads of each block {shapes}"
            )
        return tree.map_structure(lambda *blocks: sum(blocks) / len(blocks), *all_scores)

    def init_cache(self, encoder_token_ids: Tensor, /, **options: Any) -> tuple[Any, ...]:
        """Returns the cache of each model."""
        return tuple(model.init_cache(encoder_token_ids, **options) for model in self.models)

    def decode_step(
        self, token_ids: Tensor, cache: tuple[Any, ...], index: Any, /, **options: Any
    ) -> tuple[Tensor, tuple[Any, ...]]:
        """Returns the log-probs of the next tokens, and the extended caches."""
        steps = [
            model.decode_step(token_ids, model_cache, index, **options)
            for model, model_cache in zip(self.models, cache, strict=True)
        ]
        logits, caches = zip(*steps, strict=True)
        return _log_mean(logits), caches


def _log_mean(logits):
    """Returns the logarithm of the mean probabilities of models, from the logits of each."""
    log_probs = ops.stack([ops.log_softmax(model_logits, axis=-1) for model_logits in logits])
    return ops.logsumexp(log_probs, axis=0) - math.log(len(logits))
