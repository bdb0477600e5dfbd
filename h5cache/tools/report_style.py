"""How the page of the report looks: two themes, wide screens, telephones and paper."""

from __future__ import annotations

__all__ = ["PAGE_CSS"]

# Text against its ground: at least 4.5:1 in both themes, bars and lines at least 3:1.
PAGE_CSS = """
:root{color-scheme:light dark;--ground:#f6f5f2;--card:#fff;--h5c-ink:#1d2126;--h5c-muted:#59616b;--h5c-line:#e2e1dc;
--h5c-soft:#efeeea;--h5c-faint:#a9aeb5;--h5c-accent:#2f6fc4;--h5c-second:#b4631a;--h5c-third:#2f7d4b;
--h5c-chan-r:#c9403a;--h5c-chan-g:#2f8a4a;--h5c-chan-b:#2f6fc4;--h5c-chan-k:#6b737d;
--good:#1f7a45;--warn:#9a5b00;--bad:#b3261e;--note:#2a65b2;--shade:0 1px 2px #0000000f,0 4px 16px #0000000a}
@media (prefers-color-scheme:dark){:root{--ground:#131518;--card:#1b1e22;--h5c-ink:#e9ebee;--h5c-muted:#a3abb5;
--h5c-line:#30353b;--h5c-soft:#282c31;--h5c-faint:#6a717a;--h5c-accent:#6ba6f2;--h5c-second:#e69b55;--h5c-third:#67bd86;
--h5c-chan-r:#f2827b;--h5c-chan-g:#6cc687;--h5c-chan-b:#7fb1f5;--h5c-chan-k:#a3abb5;
--good:#6cc98f;--warn:#e8b04f;--bad:#f2928b;--note:#86b6f5;--shade:none}}
*{box-sizing:border-box}
body{margin:0;background:var(--ground);color:var(--h5c-ink);-webkit-text-size-adjust:100%;
font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:1080px;margin:0 auto;padding:28px 20px 40px}
header p{margin:.15em 0 0}
h1{font-size:1.9rem;line-height:1.2;margin:0;letter-spacing:-.015em;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:0 0 .1em;letter-spacing:-.005em}
h3{font-size:.98rem;margin:0}
section{background:var(--card);border:1px solid var(--h5c-line);border-radius:14px;padding:20px 22px 16px;
margin:16px 0 0;box-shadow:var(--shade)}
section>p:first-of-type{margin-top:.1em}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin:20px 0 0;padding:0}
.facts div{background:var(--card);border:1px solid var(--h5c-line);border-radius:14px;padding:12px 16px;
box-shadow:var(--shade)}
.facts dd{margin:0;font-size:1.55rem;line-height:1.25;font-weight:680;letter-spacing:-.02em;white-space:nowrap}
.facts dt{color:var(--h5c-muted);font-size:.86rem}
.facts div{display:flex;flex-direction:column-reverse;justify-content:flex-end}
.class{display:grid;grid-template-columns:9.5em 1fr;gap:6px 16px;align-items:center;padding:10px 0;
border-top:1px solid var(--h5c-line)}
.class:first-of-type{border-top:0}
.class h3{overflow-wrap:anywhere}
.row{display:grid;grid-template-columns:repeat(8,minmax(0,1fr));gap:8px;margin:0;padding:0;list-style:none}
.row.loose{margin:.6em 0 .8em}
main .h5c-bars{max-width:none}
.duo{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr));gap:0 16px}
.h5c-scroll+p,h3+p{margin:.1em 0 .5em}
h2+.pair{margin-top:.5em}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,330px),1fr));gap:6px 36px}
.finding{border-left:4px solid var(--tone);padding:1px 0 1px 14px;margin:14px 0}
.finding p{margin:.1em 0}
.finding b{color:var(--tone)}
.finding .row{margin:.6em 0 .2em;max-width:720px}
.bad{--tone:var(--bad)}.warn{--tone:var(--warn)}.note{--tone:var(--note)}.good{--tone:var(--good)}
dl.plain{display:grid;grid-template-columns:max-content 1fr;gap:.3em 1.2em;margin:.6em 0}
dl.plain dt{color:var(--h5c-muted)}dl.plain dd{margin:0;overflow-wrap:anywhere;min-width:0}
code{font:0.9em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--h5c-soft);border-radius:5px;
padding:.1em .35em;overflow-wrap:anywhere}
details summary{cursor:pointer;color:var(--h5c-muted)}
footer{color:var(--h5c-muted);font-size:.88rem;margin:22px 4px 0}
@media (max-width:640px){main{padding:18px 12px 30px}section{padding:16px 14px 12px;border-radius:12px}
h1{font-size:1.5rem}.class{grid-template-columns:1fr}.row{grid-template-columns:repeat(4,minmax(0,1fr))}
.facts{grid-template-columns:1fr 1fr}.facts dd{font-size:1.3rem}dl.plain{grid-template-columns:1fr;gap:0}
dl.plain dd{margin-bottom:.5em}.h5c-chart text{font-size:16px}
.h5c-scroll .h5c-table th,.h5c-scroll .h5c-table td{padding-right:.6em}}
@media print{section{break-inside:avoid;box-shadow:none}body{background:none}}
"""
