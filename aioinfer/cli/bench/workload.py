"""What a benchmark sends: prompts that differ from their first token on, the same ones for the same seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

# Ordinary words, each of which is one token or little more in the vocabularies of most models.
_VOCABULARY = """
the a one two of in on to from with and but or as it they we she he was is are had will can may
house river road table letter garden market winter summer morning evening bridge window paper stone
water light glass story music number school teacher doctor farmer engine station island mountain
forest ship bread coffee apple horse clock picture question answer reason history country village
small large old new cold warm quiet long short early late simple common open clear heavy green blue
walk read write carry build bring close count measure find keep learn turn wait ask follow
"""
_WORDS = _VOCABULARY.split()
_WORDS_PER_SENTENCE = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One closed-loop run.

    Attributes:
        concurrency: requests in flight.
        num_requests: requests that count.
        prompt_tokens: about this many tokens in each prompt, beyond the shared ones.
        output_tokens: new tokens per request.
        shared_prefix: about this many tokens that all prompts begin with.
        seed: another seed gives other prompts.
    """

    concurrency: int
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    shared_prefix: int = 0
    seed: int = 0

    def prompts(self) -> list[str]:
        """One prompt per request."""
        prefix = _text(random.Random(f"prefix {self.seed}"), self.shared_prefix)
        bodies = (
            _text(random.Random(f"prompt {self.seed} {index}"), self.prompt_tokens)
            for index in range(self.num_requests)
        )
        return [f"{prefix} {body}".lstrip() for body in bodies]

    def warm_up_prompt(self) -> str:
        """A prompt that is none of those that count."""
        return _text(random.Random(f"warm-up {self.seed}"), self.prompt_tokens)


def _text(rng: random.Random, num_words: int) -> str:
    """Sentences of `num_words` words in all, full stops counted as words."""
    words: list[str] = []
    while len(words) < num_words:
        sentence = rng.choices(_WORDS, k=min(_WORDS_PER_SENTENCE, num_words - len(words)))
        words += [*sentence[:-1], sentence[-1] + "."]
    return " ".join(words).capitalize()
