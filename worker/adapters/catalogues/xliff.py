"""XLIFF 1.2 and 2.x, read by `lxml` without entities, network or document types.

The text of a unit whose source has inline elements is an XML fragment: the elements as tags in the file's own names,
everything else escaped. The text of any other unit is plain. Tags and escapes are undone by any XML parser.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from xml.sax.saxutils import escape, quoteattr

from lxml import etree

from worker.adapters.catalogues.reading import Reading
from worker.domain.catalogue import CatalogueFile, Entry, Reason, unit_key

ONE: Final = "urn:oasis:names:tc:xliff:document:1.2"
TWO: Final = ("urn:oasis:names:tc:xliff:document:2.0", "urn:oasis:names:tc:xliff:document:2.2")
FINISHED_ONE: Final = frozenset({"translated", "signed-off", "final"})
FINISHED_TWO: Final = frozenset({"translated", "reviewed", "final"})
MOST_TAGS: Final = 2_000_000  # a tree of them takes a few hundred megabytes
PLURAL_GROUP: Final = "x-gettext-plurals"
_PROLOG: Final = re.compile(r"(?:\s++|<\?(?:(?!\?>).)*+\?>|<!--(?:(?!-->).)*+-->)*+<!DOCTYPE", re.DOTALL)
_DECLARED: Final = re.compile(r"<\?xml[^>]*?encoding\s*=\s*[\"']([^\"']+)[\"']")

Element = etree._Element  # noqa: SLF001 - lxml's one public node type has no public name


class _Unit(NamedTuple):
    """A unit's elements: (source, target or None, finished) for each segment, in the order of its target."""

    element: Element
    file: str
    gap: Reason | None
    sources: list[Element]
    targets: list[Element]


def read_xliff(data: bytes, reading: Reading) -> CatalogueFile:
    """Return the entries of an XLIFF file; refuse with `import.xliff.…` and the line."""
    root = _parsed(reading.text(data, takes_mark=True), reading)
    name = etree.QName(root)
    version = root.get("version", "")
    if name.localname == "xliff" and name.namespace == ONE and version == "1.2":
        units = _units_one(root, reading)
    elif name.localname == "xliff" and name.namespace in TWO and version.startswith("2."):
        units = _units_two(root, str(name.namespace), reading)
    else:
        raise reading.refusal("invalid", "the file is neither XLIFF 1.2 nor 2.x", _line(root))
    entries: dict[str, Entry] = {}
    for unit in units:
        entry = _entry(unit, reading)
        if entry.key in entries:
            raise reading.refusal("duplicate", "a unit with this id was there before", entry.line)
        entries[entry.key] = entry
    reading.check_count(len(entries))
    return CatalogueFile(name=reading.name, locale=reading.locale, entries=tuple(entries.values()))


def _parsed(text: str, reading: Reading) -> Element:
    if text.count("<") > MOST_TAGS:
        raise reading.refusal("invalid", f"the file has more than {MOST_TAGS} tags")
    if _PROLOG.match(text):
        raise reading.refusal("doctype", "the file has a document type; XLIFF needs none, and it is not read")
    declared = _DECLARED.match(text)
    if declared is not None and declared[1].lower() not in {"utf-8", "utf8", "us-ascii"}:
        raise reading.refusal("encoding", "the file declares another encoding than UTF-8; convert it", 1)
    parser = etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        attribute_defaults=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        return etree.fromstring(text.encode(), parser)
    except etree.XMLSyntaxError as error:  # its message quotes the file
        raise reading.refusal("invalid", "the file is no well-formed XML within bounds", error.lineno) from None


def _line(element: Element) -> int:
    return element.sourceline or 1


# --- 1.2 ------------------------------------------------------------------------------------------------------------


def _units_one(root: Element, reading: Reading) -> Iterator[_Unit]:
    for file in root.iterchildren(f"{{{ONE}}}file"):
        reading.check_language(file.get("source-language"), reading.source_locale, _line(file))
        if not reading.is_source:
            reading.check_language(file.get("target-language"), reading.locale, _line(file))
        for element in file.iter(f"{{{ONE}}}trans-unit"):
            if _is_translated(element, file):
                source = element.find(f"{{{ONE}}}source")
                if source is None:
                    raise reading.refusal("invalid", "a unit has no source", _line(element))
                target = element.find(f"{{{ONE}}}target")
                gap = _gap_one(element, target)
                found = [target] if target is not None else []
                yield _Unit(element, file.get("original", ""), gap, [source], found)


def _gap_one(element: Element, target: Element | None) -> Reason | None:
    if any(group.get("restype") == PLURAL_GROUP for group in element.iterancestors(f"{{{ONE}}}group")):
        return "plural.group"
    if target is None:
        return "untranslated"
    state, approved = target.get("state"), element.get("approved")
    if state is None:
        return "state" if approved == "no" else None
    return None if state in FINISHED_ONE else "state"


# --- 2.x ------------------------------------------------------------------------------------------------------------


def _units_two(root: Element, space: str, reading: Reading) -> Iterator[_Unit]:
    reading.check_language(root.get("srcLang"), reading.source_locale, _line(root))
    if not reading.is_source:
        reading.check_language(root.get("trgLang"), reading.locale, _line(root))
    for file in root.iterchildren(f"{{{space}}}file"):
        for element in file.iter(f"{{{space}}}unit"):
            if _is_translated(element, file):
                yield _unit_two(element, file.get("id", ""), space, reading)


def _unit_two(element: Element, file: str, space: str, reading: Reading) -> _Unit:
    """Join the segments of a unit, and what stands between them; targets in the order that they ask for."""
    gap: Reason | None = None
    sources: list[Element] = []
    targets: list[tuple[int, Element]] = []
    for part in element.iterchildren(f"{{{space}}}segment", f"{{{space}}}ignorable"):
        is_segment = etree.QName(part).localname == "segment"
        source, target = part.find(f"{{{space}}}source"), part.find(f"{{{space}}}target")
        if source is None:
            raise reading.refusal("invalid", "a segment has no source", _line(part))
        sources.append(source)
        if target is None and is_segment and (len(source) or source.text):
            gap = "untranslated"
        if gap is None and is_segment and not _is_finished_two(part, reading):
            gap = "state"
        chosen = source if target is None else target  # between segments the source stands for both
        targets.append((_order(chosen.get("order"), len(sources), reading, part), chosen))
    if not sources:
        raise reading.refusal("invalid", "a unit has no segment", _line(element))
    if len({order for order, _ in targets}) != len(targets):
        raise reading.refusal("invalid", "two segments ask for one place", _line(element))
    return _Unit(element, file, gap, sources, [target for _, target in sorted(targets, key=lambda one: one[0])])


def _is_finished_two(segment: Element, reading: Reading) -> bool:
    state = segment.get("state")
    return reading.stateless_is_translated if state is None else state in FINISHED_TWO


def _order(order: str | None, place: int, reading: Reading, part: Element) -> int:
    if order is None:
        return place
    if not re.fullmatch(r"[1-9][0-9]{0,5}", order):
        raise reading.refusal("invalid", "the order of a segment is no number", _line(part))
    return int(order)


# --- texts ----------------------------------------------------------------------------------------------------------


def _is_translated(element: Element, file: Element) -> bool:
    """Tell whether a unit is to be translated: the nearest `translate` from it up to the file decides."""
    for one in (element, *element.iterancestors()):
        if one.get("translate") is not None:
            return one.get("translate") != "no"
        if one is file:
            break
    return True


def _entry(unit: _Unit, reading: Reading) -> Entry:
    line = _line(unit.element)
    own = unit.element.get("id", "")
    if own == "":
        raise reading.refusal("invalid", "a unit has no id", line)
    has_inline = _has_inline(unit.sources)
    source = _joined(unit.sources, reading, as_fragment=has_inline)
    gap = None if reading.is_source else unit.gap
    target: str | None = None
    if gap is None and not reading.is_source:
        if not has_inline and _has_inline(unit.targets):
            gap = "inline.unexpected"
        else:
            target = _joined(unit.targets, reading, as_fragment=has_inline)
    return Entry(key=unit_key(unit.file, own), source=source, target=target, gap=gap, line=line)


def _has_inline(elements: Iterable[Element]) -> bool:
    return any(not _is_segmentation(child) for element in elements for child in element.iterdescendants())


def _is_segmentation(element: Element) -> bool:
    """Tell whether an element only marks a sentence (`mrk mtype="seg"` of 1.2), which is no part of the text."""
    name = etree.QName(element)
    return name.namespace == ONE and name.localname == "mrk" and element.get("mtype") == "seg"


def _joined(elements: Iterable[Element], reading: Reading, *, as_fragment: bool) -> str:
    return "".join(_content(element, reading, as_fragment=as_fragment) for element in elements)


def _content(element: Element, reading: Reading, *, as_fragment: bool) -> str:
    written = escape if as_fragment else str
    parts = [written(element.text or "")]
    for child in element:
        name = etree.QName(child)
        if name.namespace != etree.QName(element).namespace:
            raise reading.refusal("invalid", "a text has an element that is not XLIFF's", _line(child))
        inside = _content(child, reading, as_fragment=as_fragment)
        parts += [inside if _is_segmentation(child) else _tag(child, name.localname, inside), written(child.tail or "")]
    return "".join(parts)


def _tag(element: Element, name: str, inside: str) -> str:
    """Write an inline element with XLIFF's own attributes in the order of their names; tools' attributes stay out."""
    own = sorted((str(key), str(value)) for key, value in element.attrib.items() if not str(key).startswith("{"))
    opened = f"{name}{''.join(f' {key}={quoteattr(value)}' for key, value in own)}"
    return f"<{opened}>{inside}</{name}>" if inside else f"<{opened}/>"
