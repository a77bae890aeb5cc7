"""The whole model, compared with the paper's sections 3.1-3.5 written in NumPy and float64."""

import numpy as np
import pytest

from keras_transformer import Transformer, TransformerConfig
from tests.builders import largest, padded_ids, randomize, to_numpy, token_inputs
from tests.paper_reference import PaperTransformer

SOURCE_LENGTHS, TARGET_LENGTHS = [7, 3, 9, 1], [5, 8, 1, 4]
SMALL = {"num_encoder_layers": 2, "num_decoder_layers": 2, "hidden_dim": 32}
OTHER_SIZES = {"num_encoder_layers": 3, "num_decoder_layers": 1, "key_dim": 5, "value_dim": 11}
CONFIGS = {
    "tiny": TransformerConfig.tiny(300),
    "base": TransformerConfig.base(300, num_encoder_layers=2, num_decoder_layers=2),
    "pre-norm, learned": TransformerConfig.tiny(
        50, **SMALL, normalize_first=True, positions="learned", max_sequence_length=9
    ),
    "relative": TransformerConfig.tiny(
        50, **SMALL, key_dim=6, positions="relative", max_relative_position=2
    ),
    "untied": TransformerConfig.tiny(50, **SMALL, tie_embeddings="none", source_vocabulary_size=40),
    "decoder-tied, other sizes": TransformerConfig.tiny(
        50,
        **SMALL | OTHER_SIZES | {"tie_embeddings": "decoder", "source_vocabulary_size": 40},
        **{"use_bias": False, "layer_norm_epsilon": 0.1},
    ),
}


def marked(name):
    is_large = name in ("tiny", "base")
    return pytest.param(name, marks=pytest.mark.long) if is_large else name


@pytest.fixture(scope="module", params=map(marked, CONFIGS))
def compared(request):
    """Logits and attention scores of the model, and of the paper, for the same padded batch."""
    config = CONFIGS[request.param]
    model = randomize(Transformer(config))
    source = padded_ids(SOURCE_LENGTHS, config.source_vocabulary_size, seed=1)
    target = padded_ids(TARGET_LENGTHS, config.vocabulary_size, seed=2)
    inputs = token_inputs(source, target)
    paper = PaperTransformer(model)
    expected = [
        paper(source[b, :s], target[b, :t])
        for b, (s, t) in enumerate(zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True))
    ]
    return to_numpy(model(inputs)), to_numpy(model.attention_scores(inputs)), expected


def test_logits_equal_the_paper(compared):
    logits, _, expected = compared
    largest_logit = max(largest(papers) for papers, _ in expected)
    for ours, (papers, _) in zip(logits, expected, strict=True):
        assert largest(ours[: len(papers)] - papers) <= 1e-5 * largest_logit


def test_attention_scores_equal_the_paper(compared):
    _, scores, expected = compared
    for kind, blocks in scores.items():
        for b, (_, papers) in enumerate(expected):
            assert len(blocks) == len(papers[kind])
            for ours, theirs in zip(blocks, papers[kind], strict=True):
                heads, queries, keys = theirs.shape
                assert len(ours[b]) == heads
                assert largest(ours[b, :, :queries, :keys] - theirs) <= 1e-5
                np.testing.assert_array_equal(ours[b, :, :queries, keys:], 0)
                np.testing.assert_allclose(ours[b].sum(axis=-1), 1, atol=1e-6)
