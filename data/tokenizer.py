"""A small byte-level BPE, trained on the training texts: any language, no unknown token."""

from __future__ import annotations

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

# Scripts without spaces: their characters stand alone, else a whole phrase becomes one token and
# another phrasing shares none with it.
UNSPACED = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]"


def train_tokenizer(texts: Iterable[str], *, vocab_size: int) -> Tokenizer:
    """Return a byte-level BPE of at most ``vocab_size`` tokens.

    Args:
        texts: Training texts, in any order (they are sorted, so that order does not matter).
        vocab_size: At least 256, one token a byte.

    Source: Sennrich et al., ACL 2016; bytes as in Radford et al., 2019 (GPT-2).
    """
    if vocab_size < 256:
        raise ValueError(f"vocab_size={vocab_size}: expected at least 256, one token a byte")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(" ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(UNSPACED), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sorted(texts), trainer)
    return tokenizer
