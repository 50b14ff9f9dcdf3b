"""Checks that a translation is written in the script of its locale, and that no word mixes look-alike letters."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

from worker.domain.checks.pair import Pair

# BCP 47 script -> the words that the Unicode names of its letters begin with
_LETTERS: Final[dict[str, tuple[str, ...]]] = {
    "Arab": ("ARABIC",),
    "Armn": ("ARMENIAN",),
    "Beng": ("BENGALI",),
    "Cyrl": ("CYRILLIC",),
    "Deva": ("DEVANAGARI",),
    "Ethi": ("ETHIOPIC",),
    "Geor": ("GEORGIAN",),
    "Grek": ("GREEK",),
    "Gujr": ("GUJARATI",),
    "Guru": ("GURMUKHI",),
    "Hans": ("CJK", "BOPOMOFO"),
    "Hant": ("CJK", "BOPOMOFO"),
    "Hebr": ("HEBREW",),
    "Jpan": ("CJK", "HIRAGANA", "KATAKANA"),
    "Khmr": ("KHMER",),
    "Knda": ("KANNADA",),
    "Kore": ("HANGUL", "CJK"),
    "Laoo": ("LAO",),
    "Latn": ("LATIN",),
    "Mlym": ("MALAYALAM",),
    "Mong": ("MONGOLIAN",),
    "Mymr": ("MYANMAR",),
    "Orya": ("ORIYA",),
    "Sinh": ("SINHALA",),
    "Taml": ("TAMIL",),
    "Telu": ("TELUGU",),
    "Thaa": ("THAANA",),
    "Thai": ("THAI",),
    "Tibt": ("TIBETAN",),
}
_KNOWN: Final = frozenset(word for words in _LETTERS.values() for word in words)
_LOOKALIKES: Final = frozenset({"LATIN", "CYRILLIC", "GREEK"})
_WORD: Final = re.compile(r"[^\W\d_]++")
_ASCII: Final = re.compile(r"[A-Za-z]++")
_FEW: Final = 8  # letters of a short text that has none of its own script; fewer may be a name or a unit
_MANY: Final = 20  # letters that make a line of another script


def check_script(pair: Pair) -> Iterator[str]:
    """Yield `script.wrong` and `script.mixed`. Words that the source has too are names, and are left alone."""
    expected = _expected(pair.target_locale)
    if expected is None:
        return
    script, letters = expected
    known = {word.casefold() for word in _WORD.findall(pair.before.text)}
    if letters == ("LATIN",) and pair.after.prose.isascii():
        return
    wrong = mixed = False
    total: Counter[bool] = Counter()
    for words in filter(None, map(_WORD.findall, pair.after.prose.splitlines())):
        here: Counter[bool] = Counter()
        for word in words:
            scripts = _scripts(word, known)
            mixed = mixed or len(_LOOKALIKES & scripts.keys()) > 1
            for name, count in scripts.items():
                here[name in letters] += count
        total += here
        wrong = wrong or (here[False] >= _MANY and here[False] > here[True])
    if wrong or (total[False] >= _FEW and not total[True]) or _other_han(script, pair.after.prose):
        yield "script.wrong"
    if mixed:
        yield "script.mixed"


@lru_cache(maxsize=1024)
def _expected(locale: str) -> tuple[str, tuple[str, ...]] | None:
    try:
        script = Language.get(locale).maximize().script
    except LanguageTagError:
        return None
    return (script, _LETTERS[script]) if script in _LETTERS else None


def _scripts(word: str, known: set[str]) -> Counter[str]:
    """Count the letters of a word by script, without names of the source: `LogEntry` in `LogEntry对象`."""
    if word.casefold() in known:
        return Counter()
    if word.isascii():
        return Counter({"LATIN": len(word)})
    names = sum(len(part) for part in _ASCII.findall(word) if part.casefold() in known)
    found = Counter(_script_of(letter) for letter in word)
    found["LATIN"] -= names
    del found[""]
    return +found


@lru_cache(maxsize=65536)
def _script_of(letter: str) -> str:
    """Return the first word of a letter's Unicode name where it is a script, else an empty string."""
    name = unicodedata.name(letter, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    first = name.split(" ", 1)[0]
    return first if first in _KNOWN else ""


def _other_han(script: str, prose: str) -> bool:
    """Tell whether Chinese is in the other of its two scripts.

    The national character sets say which characters belong to one script only: GB 2312 has the simplified, Big 5 the
    traditional ones.
    """
    if script not in {"Hans", "Hant"}:
        return False
    simplified = traditional = 0
    for letter, count in Counter(prose).items():
        if "\u4e00" <= letter <= "\u9fff":
            in_simplified, in_traditional = _encodes(letter, "gb2312"), _encodes(letter, "big5hkscs")
            simplified += count * (in_simplified and not in_traditional)
            traditional += count * (in_traditional and not in_simplified)
    right, wrong = (simplified, traditional) if script == "Hans" else (traditional, simplified)
    return wrong >= 2 and wrong > right


@lru_cache(maxsize=65536)
def _encodes(letter: str, encoding: str) -> bool:
    try:
        letter.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True
