"""open_clip's tokenizers as one of ``tokenizers``, which exports carry and the runtime reads."""

from __future__ import annotations

from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from keynet.models.checkpoint import require

# Its pattern without the special tokens, which a text cannot name here.
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+"
CLEANINGS = ("lower", "whitespace", "canonicalize")

# &amp; first: open_clip unescapes twice.
ENTITIES = {
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": '"', "&apos;": "'", "&#39;": "'",
    "&#039;": "'", "&#x27;": "'", "&nbsp;": " ",
}  # fmt: skip
# Python lowers a sigma that ends a word to another letter; ``Lowercase`` goes by characters.
FINAL_SIGMA = r"\p{Cased}\p{Case_Ignorable}{0,9}\KΣ(?!\p{Case_Ignorable}{0,9}\p{Cased})"
PUNCTUATION = r"[!-/:-@\[-`{-~]"  # string.punctuation


def converted(tokenizer: Any) -> Tokenizer:
    """Return the equal of one of open_clip's tokenizers; see ``open_clip_tokenizer``.

    Raises:
        ValueError: When there is none.
    """
    inner = getattr(tokenizer, "tokenizer", None)
    result = _of_pairs(tokenizer) if inner is None else _of_transformers(tokenizer, inner)
    own = [] if result.normalizer is None else [result.normalizer]
    result.normalizer = normalizers.Sequence([*_cleaned(_cleaning(tokenizer)), *own])
    return result


def _of_pairs(tokenizer: Any) -> Tokenizer:
    """Return a SimpleTokenizer's byte-level BPE."""
    merges = sorted(tokenizer.bpe_ranks, key=tokenizer.bpe_ranks.__getitem__)
    result = Tokenizer(
        models.BPE(tokenizer.encoder, merges, end_of_word_suffix="</w>", fuse_unk=False)
    )
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    names = {number: name for name, number in tokenizer.encoder.items()}
    special = [names[number] for number in tokenizer.all_special_ids]
    result.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for name in special]
    )
    begin, end = names[tokenizer.sot_token_id], names[tokenizer.eot_token_id]
    result.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A {end}",
        special_tokens=[(begin, tokenizer.sot_token_id), (end, tokenizer.eot_token_id)],
    )
    return result


def _of_transformers(tokenizer: Any, inner: Any) -> Tokenizer:
    backend = getattr(inner, "backend_tokenizer", None)
    if backend is None:
        raise ValueError(
            f"{type(inner).__name__} has no tokenizer.json, which exports carry; take a model "
            "with a fast tokenizer"
        )
    for setting in ("tokenizer_mode", "strip_sep_token"):
        if getattr(tokenizer, setting, None):
            raise ValueError(
                f"{setting}={getattr(tokenizer, setting)} of open_clip's tokenizer has no equal "
                "in tokenizer.json; take a model without it"
            )
    result = Tokenizer.from_str(backend.to_str())
    result.no_padding()
    result.no_truncation()
    return result


def _cleaning(tokenizer: Any) -> str:
    get_clean_fn = require("open_clip.tokenizer").get_clean_fn
    function = getattr(tokenizer, "clean_fn", get_clean_fn("canonicalize"))  # SigLipTokenizer
    for name in CLEANINGS:
        if function is get_clean_fn(name):
            return name
    raise ValueError(f"cleaning {function} of open_clip's tokenizer, expected one of {CLEANINGS}")


def _cleaned(cleaning: str) -> list[normalizers.Normalizer]:
    # What ftfy, which open_clip calls, makes of single characters; its 226 forms of other width
    # would be a pass each, 4 seconds a megabyte.
    tables = require("ftfy.chardata")
    groups = {
        tables.SINGLE_QUOTE_RE.pattern: "'",
        tables.DOUBLE_QUOTE_RE.pattern: '"',
        "[" + "".join(rf"\x{{{c:x}}}" for c in tables.CONTROL_CHARS) + "]": "",
    }
    steps: list[Any] = [
        *(normalizers.Replace(chr(c), content) for c, content in tables.LIGATURES.items()),
        *(normalizers.Replace(Regex(group), content) for group, content in groups.items()),
        *(normalizers.Replace(name, content) for name, content in ENTITIES.items()),
        normalizers.NFC(),
    ]
    if cleaning == "canonicalize":
        steps.append(normalizers.Replace("_", " "))
        steps.append(normalizers.Replace(Regex(PUNCTUATION), ""))
    if cleaning != "whitespace":
        steps += [normalizers.Replace(Regex(FINAL_SIGMA), "ς"), normalizers.Lowercase()]
    return [*steps, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
