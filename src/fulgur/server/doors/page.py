"""A page of this server: one file, no assets from elsewhere, and a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib

from aiohttp import web

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1a1a1a;background:#fff}
h1{font-size:1.3rem}table{border-collapse:collapse;width:100%}td,th{text-align:left;padding:.3rem .6rem;
border-bottom:1px solid #ddd;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}
code{font-family:ui-monospace,monospace}svg{width:100%;height:9rem;background:#f6f6f6}polyline{fill:none;
stroke:#0a66c2;stroke-width:2}@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}
td,th{border-color:#333}svg{background:#202020}a{color:#7ab7ff}}
"""


def page(title: str, body: str, script: str = "") -> web.Response:
    """The page; its policy allows its style and script by their hashes, so nothing injected into it would run."""
    policy = (
        f"default-src 'none'; style-src '{_hash(_STYLE)}'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    if script:
        policy += f"; script-src '{_hash(script)}'"
    text = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>{body}"
        f"{f'<script>{script}</script>' if script else ''}</html>"
    )
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
    return web.Response(text=text, content_type="text/html", headers=headers)


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
