"""Small SentencePiece models, trained by SentencePiece itself."""

import io

import sentencepiece


def train_sentencepiece(lines, vocabulary_size, **options):
    """Returns a model of about `vocabulary_size` pieces as bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=vocabulary_size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()
