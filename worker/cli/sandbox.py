"""`locseal sandbox`: run the provider, verifier and CMS to play with. Everything it does stands in `adapters.sandbox`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from worker.adapters.sandbox.controls import Controls
from worker.adapters.sandbox.server import Listening, Options, serve
from worker.cli import output
from worker.cli.output import Json, Refused

app = typer.Typer(help="A provider, verifier and CMS to play with.")


@app.command()
def sandbox(
    directory: Annotated[Path, typer.Option("--dir", help="Where its keys are kept; made when missing.")] = Path(
        "locseal-sandbox"
    ),
    host: Annotated[str, typer.Option(help="Address to listen on; control is served on loopback only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 picks a free port.")] = 8750,
    site: Annotated[list[str] | None, typer.Option(help="Site its CMS speaks for; repeatable.")] = None,
    delay: Annotated[float, typer.Option(min=0, max=3600, help="Seconds before the provider answers.")] = 0.0,
    fail_times: Annotated[int, typer.Option(min=0, help="How many provider calls fail first.")] = 0,
    fail_ratio: Annotated[float, typer.Option(min=0, max=1, help="Share of provider calls that fail.")] = 0.0,
    fail_status: Annotated[int, typer.Option(min=400, max=599, help="Status of a failing call.")] = 503,
    refuse: Annotated[list[str] | None, typer.Option(help="LOCALE=CODE the provider refuses; repeatable.")] = None,
    escalation: Annotated[str, typer.Option(help="Who reviews low confidence: independent or human.")] = "independent",
    publication_trust: Annotated[
        Path | None, typer.Option(help="Our publication JWKS; with it the CMS verifies what it gets.")
    ] = None,
    tls_name: Annotated[
        list[str] | None, typer.Option(help="Serve https under a certificate of its own for this name; repeatable.")
    ] = None,
    behave: Annotated[str | None, typer.Option(help="A control document, as for POST /control.")] = None,
    as_json: Json = False,
) -> None:
    """Serve until interrupted. Prints where it listens, then `ready`."""
    controls = Controls()
    provider = {
        "delay_seconds": delay,
        "fail_times": fail_times,
        "fail_ratio": fail_ratio,
        "fail_status": fail_status,
        "refuse": dict(_pair(one) for one in refuse or ()),
    }
    controls.change({"provider": provider})
    if behave is not None:
        controls.change(_json(behave))

    def ready(listening: Listening) -> None:
        lines = [f"{name}: {value}" for name, value in listening.to_json().items() if isinstance(value, str)]
        if as_json:
            typer.echo(json.dumps({**listening.to_json(), "status": "ready"}))
        else:
            output.put(None, as_json=False, lines=[*lines, f"sites: {', '.join(listening.sites)}", "ready"])

    options = Options(
        host=host,
        port=port,
        sites=site or ("site-1",),
        escalation=_escalation(escalation),
        publication_trust=publication_trust,
        tls_names=tls_name or (),
    )
    serve(directory, options, controls=controls, on_ready=ready)


def _pair(text: str) -> tuple[str, str]:
    locale, sign, code = text.partition("=")
    if not (locale and sign and code):
        raise Refused("sandbox.refuse.invalid", "expected LOCALE=CODE, as in --refuse fr=terms.missing")
    return locale, code


def _escalation(text: str) -> Literal["human", "independent"]:
    if text == "human":
        return "human"
    if text == "independent":
        return "independent"
    raise Refused("sandbox.escalation.invalid", "expected independent or human")


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        raise Refused("sandbox.control.invalid", "--behave expects a JSON object") from None
