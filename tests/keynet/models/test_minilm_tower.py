from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from keynet.models.minilm_tower import (
    FrozenMiniLM,
    MiniLMTower,
    packaged_folder,
    packaged_tokenizer,
    word_pieces,
)
from keynet.preprocess import Preprocessor

TEXTS = ["a dog runs across the snow", "two children", "is there a bicycle in the picture?"]


@pytest.fixture(scope="module")
def tower() -> MiniLMTower:
    return MiniLMTower(vocab_size=30522, max_tokens=64).eval()


def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    tokens = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for n, ids in enumerate(rows):
        tokens[n, : len(ids)], mask[n, : len(ids)] = torch.tensor(ids), True
    return tokens, mask


@torch.no_grad()
def test_with_minilms_own_words_it_is_minilm(tower: MiniLMTower) -> None:
    transformers = pytest.importorskip("transformers")
    bert = transformers.AutoModel.from_pretrained(packaged_folder(), local_files_only=True).eval()
    tower.embedding.weight.copy_(bert.embeddings.word_embeddings.weight)
    ids = [packaged_tokenizer().encode(text).ids for text in TEXTS]
    tokens, mask = padded(ids)
    theirs = bert(input_ids=tokens, attention_mask=mask.long()).last_hidden_state
    weight = mask.unsqueeze(-1).float()
    expected = (theirs * weight).sum(1) / weight.sum(1)
    ours = tower(*padded([row[1:] for row in ids]))  # the start stands for [CLS]
    assert torch.allclose(ours, expected, atol=1e-5)


def test_a_token_starts_from_the_pieces_of_its_characters() -> None:
    vocab = {"Ġdog": 0, "ing": 1, "ĠDog": 2, "Ã": 3, "Ġmicrophones": 4}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tower = MiniLMTower(vocab_size=5, max_tokens=8)
    before = tower.embedding.weight[3].clone()
    tower.adopt_vocabulary(tokenizer.to_str())
    words = load_file(packaged_folder() / "model.safetensors")["embeddings.word_embeddings.weight"]
    pieces = packaged_tokenizer()
    rows = tower.embedding.weight
    assert torch.equal(rows[0], words[pieces.token_to_id("dog")])
    assert torch.equal(rows[2], rows[0])
    assert torch.equal(rows[1], words[pieces.token_to_id("##ing")])
    assert torch.equal(rows[3], before)  # half a character
    two = [pieces.token_to_id("microphone"), pieces.token_to_id("##s")]
    assert torch.allclose(rows[4], words[two].mean(0))


def test_without_the_weights_nothing_is_adopted() -> None:
    tower = MiniLMTower(vocab_size=3, max_tokens=8, depth=1, pretrained=False)
    before = tower.embedding.weight.clone()
    tower.adopt_vocabulary("no tokenizer")
    assert torch.equal(tower.embedding.weight, before)


@pytest.mark.parametrize("depth", [0, 7])
def test_a_depth_it_has_not_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth={depth}: expected 1 to 6"):
        MiniLMTower(vocab_size=3, max_tokens=8, depth=depth, pretrained=False)


@pytest.fixture(scope="module")
def frozen() -> FrozenMiniLM:
    return FrozenMiniLM(max_tokens=64)


@torch.no_grad()
def test_the_frozen_one_is_minilm_as_its_own_tokenizer_reads(frozen: FrozenMiniLM) -> None:
    transformers = pytest.importorskip("transformers")
    bert = transformers.AutoModel.from_pretrained(packaged_folder(), local_files_only=True).eval()
    theirs = packaged_tokenizer()
    for text in TEXTS:
        tokens = torch.tensor([theirs.encode(text).ids])
        expected = bert(tokens, torch.ones_like(tokens)).last_hidden_state.mean(1)
        ours = frozen(*padded([word_pieces().encode(text).ids]))
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


def test_the_frozen_one_is_never_trained(frozen: FrozenMiniLM) -> None:
    assert not frozen.train().training
    assert not [name for name, p in frozen.named_parameters() if p.requires_grad]


@torch.no_grad()
def test_stored_texts_pass_as_they_are(frozen: FrozenMiniLM) -> None:
    tokens, mask = padded([word_pieces().encode(text).ids for text in TEXTS])
    stored = frozen.stem(tokens, mask)
    assert stored.dtype == torch.bfloat16
    assert torch.equal(frozen(stored, mask.any(1, keepdim=True)), stored.float())
    assert torch.cosine_similarity(stored.float(), frozen(tokens, mask)).min() > 0.999


def test_the_frozen_one_refuses_another_tokenizer(frozen: FrozenMiniLM) -> None:
    frozen.adopt_vocabulary(word_pieces().to_str())
    other = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    with pytest.raises(ValueError, match="reads its own word pieces"):
        frozen.adopt_vocabulary(other.to_str())


def test_the_frozen_one_refuses_its_vocabulary_read_otherwise(frozen: FrozenMiniLM) -> None:
    cased = word_pieces()
    cased.normalizer = normalizers.BertNormalizer(lowercase=False)
    for other in (cased, packaged_tokenizer()):
        with pytest.raises(
            ValueError, match=r"take encoder=packaged.*encoder\.tokenizer\._target_"
        ):
            frozen.adopt_vocabulary(other.to_str())


def test_the_frozen_one_takes_its_tokenizer_as_data_hand_it_over(frozen: FrozenMiniLM) -> None:
    frozen.adopt_vocabulary(Preprocessor(16, word_pieces(), 64).tokenizer_json)
    padding = word_pieces()
    padding.enable_padding()
    padding.enable_truncation(8)
    frozen.adopt_vocabulary(padding.to_str())


@pytest.mark.parametrize("max_tokens", [0, 512])
def test_texts_of_more_tokens_than_minilm_reads_are_refused(max_tokens: int) -> None:
    with pytest.raises(ValueError, match=f"max_tokens={max_tokens}: expected 1 to 511; .*: 504$"):
        MiniLMTower(vocab_size=3, max_tokens=max_tokens, depth=1, pretrained=False)
