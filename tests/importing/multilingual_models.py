"""Small random models of M2M-100 and NLLB-200, which `transformers` writes and computes."""

import functools
import json

import numpy as np
import sentencepiece
import tokenizer_agreement

from keras_transformer.data.number_corpus import number_names
from keras_transformer.importing.languages import NLLB_200


def stated_ids(tokens):
    """Settings of a tokenizer, not in the order of the ids; `tokens` maps each id to its token."""
    return {"added_tokens_decoder": {str(i): {"content": tokens[i]} for i in reversed(tokens)}}


# Places where versions of `transformers` list the languages of NLLB, given the id of the first one.
LISTED = {
    "additional": lambda first: {"additional_special_tokens": [*NLLB_200, "<mask>"]},
    "extra": lambda first: {"extra_special_tokens": [{"content": code} for code in NLLB_200]},
    "decoder": lambda first: stated_ids(dict(enumerate([*NLLB_200, "<mask>"], first))),
    "decoder with one more": lambda first: (
        {"additional_special_tokens": ["tyv_Cyrl"]}
        | stated_ids(dict(enumerate([*NLLB_200, "<mask>", "tyv_Cyrl"], first)))
    ),
    "nowhere": lambda first: {},
}
# By it, some translations end, and others do not.
END_BIAS = {"nllb": 8.0, "m2m": 5.0}
SIZES = {
    **{"d_model": 32, "encoder_layers": 2, "decoder_layers": 1, "max_position_embeddings": 512},
    **{"encoder_ffn_dim": 48, "decoder_ffn_dim": 48},
    **{"encoder_attention_heads": 4, "decoder_attention_heads": 4},
}


def lines(count=2000):
    return [text for pair in number_names("train", count, 0) for text in pair]


@functools.cache
def pieces_of_numbers():
    return tokenizer_agreement.train_sentencepiece(lines(), 200, character_coverage=1.0)


def write_tokenizer(folder, kind, listed="additional", content=None):
    """Writes the files of a tokenizer; returns the model of SentencePiece and the size of all.

    Of M2M-100, every 20th piece of the model is missing in the table. `content` is the model as
    bytes, by default one of number names.
    """
    content = content or pieces_of_numbers()
    processor = sentencepiece.SentencePieceProcessor(model_proto=content)
    (folder / "sentencepiece.bpe.model").write_bytes(content)
    count = processor.get_piece_size()
    if kind == "nllb":
        (folder / "tokenizer_config.json").write_text(json.dumps(LISTED[listed](count + 1)))
        return processor, count + 1 + len(NLLB_200) + 1 + 2
    pieces = [processor.id_to_piece(i) for i in range(3, count) if i % 20]
    table = ["<s>", "<pad>", "</s>", "<unk>", *pieces]
    (folder / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(table)}))
    return processor, len(table) + 100 + 8


def make_model(folder, kind, seed=1, gain=0.45, content=None, end_bias=None, **changes):
    """Writes a model into a folder; returns it, and the model of SentencePiece.

    Pairs of its embeddings are almost equal, so many hypotheses are near ties. `content` is as in
    `write_tokenizer`, `end_bias` by default that of `END_BIAS`.
    """
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    folder.mkdir()
    processor, size = write_tokenizer(folder, kind, content=content)
    model = M2M100ForConditionalGeneration(M2M100Config(vocab_size=size, **SIZES | changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            scale, shift = (gain, 0.0) if weight.ndim == 2 else (0.1, float("norm.weight" in name))
            weight.copy_(scale * noise + shift)
        embeddings = model.model.shared.weight
        half = (size - 4) // 2
        embeddings[4 + half : 4 + 2 * half] = embeddings[4 : 4 + half] * (1 + 1e-4)
        # The end is near the mean of what the decoder gives, so that translations end.
        embeddings[2] = (end_bias or END_BIAS[kind]) * model.model.decoder.layer_norm.bias
        embeddings[1] = 0.0  # as of published models: padding is never the best token
    model.save_pretrained(folder)
    return model, processor


def generated(model, sources, language_id, **options):
    """Returns the ids that `generate` gives, without the start and the language."""
    import torch

    longest = max(map(len, sources))
    ids = np.array([[*row, *[1] * (longest - len(row))] for row in sources])
    options = {"do_sample": False, "max_new_tokens": 21, "early_stopping": False} | options
    found = model.generate(
        input_ids=torch.tensor(ids),
        attention_mask=torch.tensor((ids != 1).astype("int64")),
        forced_bos_token_id=language_id,
        length_penalty=0.0,
        **options,
    )
    return [[i for i in row[2:] if i != 1] for row in found.tolist()]
