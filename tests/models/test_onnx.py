"""A model as a file of ONNX, run by onnxruntime, against the model itself."""

import numpy as np
import pytest

from tests.builders import new_transformer, padded_ids, to_numpy, token_inputs

pytestmark = [
    pytest.mark.tensorflow_only,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:In the future `np.object`:FutureWarning"),  # of Keras
]
V = 40
# Batch, source and target lengths; all sources of a batch but the first have padding.
SHAPES = [(2, 5, 3), (1, 1, 1), (3, 9, 7), (5, 4, 12)]


@pytest.mark.long
@pytest.mark.parametrize(
    "options",
    [
        {"positions": "relative", "max_relative_position": 3, "key_dim": 5, "value_dim": 7},
        {"normalize_first": True, "tie_embeddings": "none"},
        {"positions": "learned", "max_sequence_length": 16},
    ],
)
def test_logits_of_onnx_are_those_of_the_model_at_any_batch_and_lengths(options, tmp_path):
    import onnxruntime  # an error, not a skipped test, where it is missing

    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    model, path = new_transformer(V, **sizes, **options), str(tmp_path / "model.onnx")
    batches = [
        token_inputs(
            padded_ids([max(1, source - row) for row in range(batch)], V, width=source),
            padded_ids([target] * batch, V),
        )
        for batch, source, target in SHAPES
    ]
    expected = [to_numpy(model(inputs)) for inputs in batches]
    model.export(path, format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(path)
    for inputs, logits in zip(batches, expected, strict=True):
        np.testing.assert_allclose(session.run(None, inputs)[0], logits, rtol=0, atol=1e-5)
