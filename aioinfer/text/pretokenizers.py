"""How byte-level vocabularies cut text before merging, by the name GGUF files give it (`tokenizer.ggml.pre`).

A table of facts: the cuts in the published tokenizer.json of each family, under the names that llama.cpp
gives them.  GGUF files carry the name alone, so a name that is not here cannot be guessed: a wrong cut gives
other tokens than the model was trained on.  Immutable; no threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenizers import Regex, normalizers, pre_tokenizers

from aioinfer.errors import UnsupportedModel

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from tokenizers.pre_tokenizers import PreTokenizer

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED_WORDS = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+%(suffix)s|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*%(suffix)s"
)

_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_GPT4O = (
    _CASED_WORDS % {"suffix": f"{_CONTRACTION}?"}
    + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_TEKKEN = _CASED_WORDS % {"suffix": ""} + rf"|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
_SEED_CODER = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}"
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_CJK_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_AND_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# Letters that have case, as DeepSeek's tokenizers list them.
_CASED_LETTERS = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_LLM = (
    "[\r\n]",
    f"\\s?[{_CASED_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _CJK_AND_HANGUL,
)
_DEEPSEEK_CODER = ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_AND_HANGUL)


@dataclass(frozen=True, slots=True)
class PreTokenization:
    """What happens to text before merging.

    Attributes:
        cuts: run one after the other, each on the pieces of the one before.
        normalizer: what is done to the text first.
        ignore_merges: a piece that is in the vocabulary as a whole is taken as it is.
        add_bos: whether prompts begin with BOS where the file does not say.
    """

    cuts: tuple[PreTokenizer, ...]
    normalizer: Normalizer | None = None
    ignore_merges: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        return pre_tokenizers.Sequence(list(self.cuts))


def _splits(*patterns: str) -> tuple[PreTokenizer, ...]:
    """Each match is a piece, and what lies between matches is."""
    return tuple(pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns)


def _regexes(*patterns: str) -> tuple[PreTokenizer, ...]:
    """Splits, and then bytes become characters."""
    return (*_splits(*patterns), _bytes())


def _bytes(*, use_regex: bool = False) -> PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _digits(*, individual: bool = True) -> PreTokenizer:
    return pre_tokenizers.Digits(individual_digits=individual)


def _table() -> dict[str, PreTokenization]:
    nfc = normalizers.NFC()
    gpt2 = PreTokenization((_bytes(use_regex=True),))
    digits = PreTokenization((_digits(), _bytes(use_regex=True)))
    llama3 = PreTokenization(_regexes(_LLAMA3))
    llama3_bos = PreTokenization(_regexes(_LLAMA3), ignore_merges=True, add_bos=True)
    qwen2 = PreTokenization(_regexes(_QWEN2))
    gpt4o = PreTokenization(_regexes(_GPT4O))
    deepseek3 = PreTokenization(_regexes(r"\p{N}{1,3}", _CJK_AND_KANA, _DEEPSEEK3))
    bailing = PreTokenization(_regexes(_BAILING))
    bloom = PreTokenization(_regexes(_BLOOM))
    families = {
        "default gpt-2 phi-2 mpt olmo jais trillion gigachat a.x-4.0 mellum exaone4 granite-docling": gpt2,
        "smollm starcoder refact codeshell exaone minerva-7b mellum2": digits,
        "command-r": PreTokenization(digits.cuts, normalizer=nfc),
        "llama3 llama-v3 llama-bpe falcon3 midm-2.0 lfm2": llama3_bos,
        "dbrx smaug-bpe glm4 chatglm-bpe": llama3,
        "qwen2": PreTokenization(qwen2.cuts, normalizer=nfc),
        "deepseek-r1-qwen stablelm2 hunyuan megrez kormo solar-open grok-2": qwen2,
        "qwen35": PreTokenization(_regexes(_QWEN35), normalizer=nfc),
        "gpt-4o llama4 kanana2 minimax-m2": gpt4o,
        "tekken": PreTokenization(_regexes(_TEKKEN), ignore_merges=True, add_bos=True),
        "deepseek-v3 hunyuan-dense joyai-llm": deepseek3,
        "deepseek-llm": PreTokenization((*_splits(*_DEEPSEEK_LLM), _digits(), _bytes())),
        "deepseek-coder": PreTokenization((*_splits(*_DEEPSEEK_CODER), _digits(), _bytes())),
        # Falcon cuts digits after bytes have become characters.
        "falcon": PreTokenization(
            (
                pre_tokenizers.Punctuation("contiguous"),
                _bytes(use_regex=True),
                _digits(individual=False),
                *_splits("[0-9][0-9][0-9]"),
            )
        ),
        "seed-coder": PreTokenization(_regexes(_SEED_CODER)),
        "bailingmoe bailingmoe2 llada-moe": bailing,
        "bloom poro-chat gpt3-finnish": bloom,
    }
    return {name: family for names, family in families.items() for name in names.split()}


_BY_NAME = _table()


def pre_tokenization(name: str) -> PreTokenization:
    """The pre-tokenisation that GGUF files call `name`.

    Raises:
        UnsupportedModel: the name is not known; the message lists those that are.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise UnsupportedModel(
            f"the GGUF file's pre-tokenizer {name!r} (tokenizer.ggml.pre) is not known; "
            f"known are: {', '.join(sorted(_BY_NAME))}"
        ) from None
