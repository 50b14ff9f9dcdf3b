"""What every reader is asked, how it refuses, and the one way from bytes to text: strict UTF-8."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from langcodes import Language
from langcodes.tag_parser import LanguageTagError

from worker.domain.errors import Invalid

LONGEST_FILE_BYTES: Final = 16 * 1024 * 1024
MOST_UNITS: Final = 100_000
_BOM: Final = "\ufeff"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One file to read: its name as the manifest has it, its locales, and what the manifest says of its kind."""

    name: str
    area: str  # import.po, import.xliff, import.json
    locale: str  # of the targets; of a source file, the source's own
    source_locale: str
    is_source: bool = False
    stateless_is_translated: bool = False
    plurals: frozenset[str] = frozenset()  # what the keys of plural forms begin with, by the source file

    def refusal(self, kind: str, message: str, line: int | None = None) -> Invalid:
        """Return the refusal of this file at a line; the message never holds anything of the file."""
        return Invalid(f"{self.area}.{kind}", message, path=self.name if line is None else f"{self.name}:{line}")

    def text(self, data: bytes, *, takes_mark: bool = False) -> str:
        """Return the file as text; refuse what is no UTF-8, and a byte order mark where the format has none."""
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self.refusal("encoding", "the file is not UTF-8; convert it", line) from None
        if text.startswith(_BOM):
            if not takes_mark:
                raise self.refusal("encoding", "the file begins with a byte order mark; save it without one", 1)
            text = text[1:]
        return text

    def check_language(self, tag: str | None, expected: str, line: int | None = None) -> None:
        """Refuse a file that says that it is in another language; scripts and regions are spelled in many ways."""
        if tag is None or tag.strip() == "":
            return
        if _language(tag) != _language(expected):
            raise self.refusal("language", "the file says that it is in another language than the manifest", line)

    def check_count(self, count: int) -> None:
        """Refuse a file with more units than anybody translates."""
        if count > MOST_UNITS:
            raise self.refusal("invalid", f"the file has more than {MOST_UNITS} units")


def _language(tag: str) -> str:
    """Return the primary language of a tag in the spelling of today: `pt_BR`, `sr@latin` and `iw` too."""
    first = tag.strip().replace("_", "-").partition("@")[0].partition(".")[0].partition("-")[0]
    try:
        return Language.get(first).language or first
    except LanguageTagError:
        return first.lower()
