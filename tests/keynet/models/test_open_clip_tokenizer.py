from __future__ import annotations

import random
import unicodedata
from pathlib import Path

import open_clip
import pytest
from open_clip.tokenizer import HFTokenizer
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from keynet.models.open_clip_tokenizer import converted
from keynet.models.open_clip_towers import open_clip_tokenizer
from keynet.preprocess import Preprocessor

CLIP = "ViT-B-32"
HAND_PICKED = [
    "a photo of a cat.",
    "It\u2019s “fun” … isn't IT? WE'LL x'S",
    "ΔΩΣ ΣΔΣ'Δ Σ ΔΣ.",  # a sigma ends a word in another form
    "İstanbul STRASSE straße ﬁne ŉ ǆ",
    "x &amp; y &lt;b&gt; &quot;q&quot; it&#39;s",
    "\N{FACE PALM}\N{EMOJI MODIFIER FITZPATRICK TYPE-5}\u200d\u2642\ufe0f",
    "a\x00b\x1fc\ufeff d \t tab\nnew\u3000wide",
    "foo_bar-baz!!!???... 123 4½ Ⅷ <tag>",
    "日本語のテキスト، עברית हिन्दी",
]


def test_the_tokenizer_of_clip_gives_open_clips_ids() -> None:
    theirs = open_clip.get_tokenizer(CLIP)
    preprocessor = Preprocessor(32, open_clip_tokenizer(CLIP), 160)
    characters = [
        c
        for c in map(chr, range(33, 0x1FAFF))
        if unicodedata.category(c) not in ("Cn", "Cs", "Co", "Cc")
        # Forms of another width, which ftfy changes; open_clip's pattern drops a lone iota.
        and not "\uff00" < c < "\ufff0" and c != "\u0345"
    ]  # fmt: skip
    rng = random.Random(0)
    drawn = ["x" + "".join(rng.choices(characters, k=9)) for _ in range(500)]
    words = " ".join(HAND_PICKED).split()
    drawn += [" ".join(rng.choices(words, k=6)) for _ in range(500)]
    for text in map(str, HAND_PICKED + drawn):
        ids = theirs.encode(unicodedata.normalize("NFC", text))
        expected = [theirs.sot_token_id, *ids, theirs.eot_token_id]
        assert preprocessor.tokenise(text) == expected, text


def test_special_tokens_cannot_be_written_in_a_text() -> None:
    tokenizer = open_clip_tokenizer(CLIP)
    ids = Preprocessor(32, tokenizer, 32).tokenise("<end_of_text> <start_of_text>")
    assert [n for n in ids if n > 49405] == [49406, 49407] == [ids[0], ids[-1]]
    assert tokenizer.truncation is None and tokenizer.padding is None


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A tokenizer of transformers with words of its own and a token that ends a text."""
    words = ["<unk>", "<pad>", "</s>", *"abcdefghijklmnopqrstuvwxyz?", *"ABCDEFGHIJ", "_", "'"]
    inner = Tokenizer(BPE({word: n for n, word in enumerate(words)}, [], unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize("clean", ["whitespace", "canonicalize", "lower"])
def test_a_tokenizer_of_transformers_gives_open_clips_ids(folder: str, clean: str) -> None:
    theirs = HFTokenizer(folder, context_length=40, clean=clean)
    ours = converted(theirs)
    assert ours.truncation is None and ours.padding is None
    for text in [*HAND_PICKED, "A  cat?", " Big_house by \n sea ", "“ABC” it's"]:
        ids = theirs([text])[0].tolist()
        expected = [n for n in ids if n != 1][:40]
        assert ours.encode(text).ids[:39] == expected[:39], text


@pytest.mark.parametrize("setting", [{"tokenizer_mode": "clips"}, {"strip_sep_token": True}])
def test_a_tokenizer_with_steps_of_its_own_is_refused(
    folder: str, setting: dict[str, str | bool]
) -> None:
    with pytest.raises(ValueError, match=r"has no equal in tokenizer.json"):
        converted(HFTokenizer(folder, **setting))  # type: ignore[arg-type]


def test_a_tokenizer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="open_clip knows no model ViT-Q-99"):
        open_clip_tokenizer("ViT-Q-99")
    with pytest.raises(ValueError, match="the tokenizer of local-dir:nowhere cannot be read"):
        open_clip_tokenizer("local-dir:nowhere")
