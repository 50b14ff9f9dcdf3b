"""What every document on the wire has in common: strict frozen models, and one translation of their refusals.

A model refuses unknown members, wrong types and missing members by itself; the annotated types below add the rules of
texts and locales. Whatever a model refuses becomes one `Invalid` with a stable code and the path of the member, never
its value. Nothing here knows a particular document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import PydanticCustomError

from worker.domain.errors import Invalid
from worker.domain.locale import LONGEST_TAG, locale_fault
from worker.domain.text import LONGEST_TEXT_BYTES, text_fault

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
"""A member name that may stand in a path. Any other name came from outside and could be content."""


class Document(BaseModel):
    """A strict, frozen document: exact members, exact types, and no input in its error texts."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)

    def to_json(self) -> dict[str, Any]:
        """Return a fresh JSON object with the member names of the wire."""
        return self.model_dump(mode="json", by_alias=True)


ModelT = TypeVar("ModelT", bound=Document)


def refusal(kind: str, path: str = "") -> PydanticCustomError:
    """Return the error a validator raises: `kind` becomes `<area>.<kind>`, `path` is below the model it stands in."""
    return PydanticCustomError("locseal", "refused", {"kind": kind, "path": path})


def _text(value: str) -> str:
    if text_fault(value):
        raise refusal("text.invalid")
    return value


def _filled(value: str) -> str:
    if value == "":
        raise refusal("text.invalid")
    return value


def _locale(value: str) -> str:
    if locale_fault(value):
        raise refusal("locale.invalid")
    return value


def _json_text(value: Any) -> Any:
    if not texts_are_sound(value):
        raise refusal("text.invalid")
    return value


def texts_are_sound(value: Any) -> bool:
    """Tell whether every string and member name in a JSON value keeps the rules of texts."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            if text_fault(item):
                return False
        elif isinstance(item, dict):
            pending.extend(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return True


def _float(value: object) -> object:
    """Take an integral JSON number where seconds are meant, but never a bool."""
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:-]{1,256}$")]
Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[
    str,
    AfterValidator(_text),
    AfterValidator(_filled),
    Field(json_schema_extra={"minLength": 1, "maxLength": LONGEST_TEXT_BYTES, "description": "NFC, without NUL"}),
]
Locale = Annotated[
    str,
    AfterValidator(_locale),
    Field(json_schema_extra={"minLength": 2, "maxLength": LONGEST_TAG, "description": "canonical BCP 47 tag"}),
]
# The bounds stand before the validator, or the published schema would not know them as those of a number.
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_float)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_json_text)]


def parse_document(model: type[ModelT], value: object, *, area: str, path: str = "") -> ModelT:
    """Return the model of a parsed JSON value.

    `path` is where the value stands in the whole message (`event`, `results.3`). Raises `Invalid` with the code
    `<area>.invalid`, or `<area>.<kind>` where a rule names its kind, and the path of the first offending member.
    """
    try:
        return model.model_validate(value)
    except ValidationError as error:
        code, where = _first(error, area)
    # Raised outside the handler: the library's error would keep the input alive behind ours.
    raise Invalid(code, "the document breaks a rule at this member", path=join_path(path, where))


def join_path(*parts: str) -> str:
    """Join the parts of a path with dots, leaving out the empty ones."""
    return ".".join(part for part in parts if part)


def _first(error: ValidationError, area: str) -> tuple[str, str]:
    detail = error.errors(include_url=False, include_input=False)[0]
    context: Mapping[str, Any] = detail.get("ctx", {}) if detail["type"] == "locseal" else {}
    steps = [step for step in map(_step, detail["loc"]) if step]
    return f"{area}.{context.get('kind', 'invalid')}", join_path(*steps, context.get("path", ""))


def _step(part: int | str) -> str:
    if isinstance(part, int):
        return str(part)
    return part if _NAME.fullmatch(part) else ""
