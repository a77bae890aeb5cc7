"""TransformerConfig: presets, round trips, and errors that name the field."""

import dataclasses
import json

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer import TransformerConfig
from keras_transformer.settings import read_yaml
from tests.examples import examples

RATE = st.floats(0, 1, exclude_max=True)
SIZE = st.integers(1, 64)


@st.composite
def configs(draw):
    pad, start, end, unk = draw(st.permutations(range(6)))[:4]
    tie_embeddings = draw(st.sampled_from(["all", "decoder", "none"]))
    positions = draw(st.sampled_from(["sinusoidal", "tensor2tensor", "learned", "relative"]))
    output_bias = draw(st.booleans())
    num_heads = draw(SIZE)
    return TransformerConfig(
        vocabulary_size=draw(st.integers(6, 1000)),
        source_vocabulary_size=None if tie_embeddings == "all" else draw(st.integers(6, 1000)),
        num_encoder_layers=draw(SIZE),
        num_decoder_layers=draw(SIZE),
        hidden_dim=num_heads * draw(SIZE),
        intermediate_dim=draw(SIZE),
        num_heads=num_heads,
        key_dim=draw(st.none() | SIZE),
        value_dim=draw(st.none() | SIZE),
        dropout=draw(RATE),
        attention_dropout=draw(RATE),
        activation_dropout=draw(RATE),
        activation=draw(st.sampled_from(["relu", "gelu", "silu"])),
        normalize_first=draw(st.booleans()),
        layer_norm_epsilon=draw(st.floats(1e-12, 1e-2)),
        use_bias=draw(st.booleans()),
        positions=positions,
        max_relative_position=draw(st.none() | SIZE) if positions == "relative" else None,
        first_position=draw(st.integers(0, 9)) if "s" in positions else 0,
        output_bias=output_bias,
        predict_padding=draw(st.booleans()) if output_bias else True,
        added_tokens=draw(st.integers(0, 1)) if output_bias else 0,
        source_end_token=draw(st.booleans()),
        max_sequence_length=draw(SIZE if positions == "learned" else st.none() | SIZE),
        tie_embeddings=tie_embeddings,
        pad_token_id=pad,
        start_token_id=start,
        end_token_id=end,
        unk_token_id=unk,
    )


@examples(short=25, long=200)
@given(configs())
def test_config_survives_yaml_and_dict(config):
    assert TransformerConfig.from_dict(read_yaml(config.to_yaml())) == config
    assert TransformerConfig.from_dict(config.to_dict()) == config
    assert yaml.safe_load(config.to_yaml()) == config.to_dict()


def test_config_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TransformerConfig.tiny(100).dropout = 0.5


@pytest.mark.parametrize(
    "size, layers, hidden_dim, intermediate_dim, num_heads, dropout",
    [
        ("tiny", 4, 128, 256, 4, 0.3),
        ("base", 6, 512, 2048, 8, 0.1),
        ("big", 6, 1024, 4096, 16, 0.3),
    ],
)
def test_presets_have_the_documented_sizes(
    size, layers, hidden_dim, intermediate_dim, num_heads, dropout
):
    fields = getattr(TransformerConfig, size)(100, value_dim=9).to_dict()
    expected = {
        "num_encoder_layers": layers,
        "num_decoder_layers": layers,
        "hidden_dim": hidden_dim,
        "intermediate_dim": intermediate_dim,
        "num_heads": num_heads,
        "key_dim": hidden_dim // num_heads,
        "value_dim": 9,
        "dropout": dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "positions": "sinusoidal",
        "tie_embeddings": "all",
        "normalize_first": False,
    }
    assert fields.items() >= expected.items()


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"num_heads": 3, "hidden_dim": 8}, "`num_heads` must divide.*num_heads=3, hidden_dim=8"),
        ({"positions": "learned"}, "`max_sequence_length` must.*max_sequence_length=None"),
        (
            {"positions": "learned", "max_sequence_length": 9, "first_position": 1},
            "`first_position` must be 0.*Received: first_position=1",
        ),
        ({"max_relative_position": 8}, "`max_relative_position` must be None.*position=8"),
        ({"predict_padding": False}, "`output_bias` must.*predict_padding.*output_bias=False"),
        ({"added_tokens": 1}, "`output_bias` must be True with `added_tokens`"),
        ({"source_vocabulary_size": 90}, "`tie_embed.*=100, source_vocabulary_size=90"),
        ({"end_token_id": 0}, "different.*pad_token_id=0, .*end_token_id=0"),
        ({"start_token_id": 3}, "different ids, but `start_token_id` may be `pad_token_id`"),
    ],
)
def test_inconsistent_fields_raise(fields, message):
    with pytest.raises(ValueError, match=message):
        TransformerConfig(vocabulary_size=100, **fields)


def test_start_may_be_padding_and_nothing_else():
    config = TransformerConfig.tiny(10, pad_token_id=9, start_token_id=9)
    assert config.forbidden_token_id == 9
    assert TransformerConfig.tiny(10).forbidden_token_id is None


def test_num_heads_need_not_divide_hidden_dim_if_head_widths_are_given():
    widths = {"num_heads": 3, "hidden_dim": 8, "key_dim": 2, "value_dim": 5}
    assert TransformerConfig(vocabulary_size=100, **widths).to_dict().items() >= widths.items()


def test_num_layers_sets_the_layers_of_both_sides_that_are_not_given():
    def layers(**fields):
        config = TransformerConfig(vocabulary_size=100, **fields)
        assert "num_layers" not in config.to_dict()
        return config.num_encoder_layers, config.num_decoder_layers

    assert layers() == (6, 6)
    assert layers(num_layers=2) == (2, 2)
    assert layers(num_layers=2, num_encoder_layers=5) == (5, 2)
    assert TransformerConfig.tiny(100, num_layers=1) == TransformerConfig.tiny(
        100, num_encoder_layers=1, num_decoder_layers=1
    )


def test_numpy_numbers_become_those_of_python():
    fields = {
        "vocabulary_size": np.int64(100),
        "num_layers": np.int32(2),
        "num_heads": np.uint8(4),
        "dropout": np.float64(0.1),
        "use_bias": np.bool_(False),
        "pad_token_id": np.int16(5),
    }
    plain = {name: value.item() for name, value in fields.items()}
    found, expected = (TransformerConfig(**each).to_dict() for each in (fields, plain))
    assert json.dumps(found) == json.dumps(expected)
