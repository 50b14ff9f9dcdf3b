"""Readers of translators' files: gettext PO, XLIFF, key/value JSON. They judge form; the domain judges completeness."""
