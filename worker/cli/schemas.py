"""`locseal schemas`: write the published contracts of this very version, made from its models, into a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from worker.cli import output
from worker.cli.asyncapi import asyncapi
from worker.cli.openapi import openapi
from worker.cli.output import Json, Refused
from worker.domain.contract import MODELS, json_schema

SCHEMAS: Final = "schemas"

app = typer.Typer(help="Write the JSON Schemas, the OpenAPI and the AsyncAPI document.")


def published() -> dict[str, str]:
    """Return the exact text of each file by its path below the directory."""
    documents: dict[str, Any] = {"asyncapi.json": asyncapi(), "openapi.json": openapi()}
    documents |= {f"{SCHEMAS}/{name}.schema.json": json_schema(name) for name in MODELS}
    return {path: json.dumps(document, ensure_ascii=False, indent=1) + "\n" for path, document in documents.items()}


@app.command()
def schemas(
    out: Annotated[Path, typer.Option("--out", help="Directory to write into; made when missing.")],
    as_json: Json = False,
) -> None:
    """Write a JSON Schema of every document, openapi.json and asyncapi.json. Files of other names stay."""
    files = published()
    try:
        for path, text in files.items():
            (out / path).parent.mkdir(parents=True, exist_ok=True)
            (out / path).write_text(text, encoding="utf-8")
    except OSError as fault:
        reason = fault.strerror or "it cannot be written"
        raise Refused("schemas.out.unwritable", f"{out}: {reason}; give another --out") from None
    written = sorted(files)
    output.put({"out": str(out), "files": written}, as_json=as_json, lines=[str(out / path) for path in written])
