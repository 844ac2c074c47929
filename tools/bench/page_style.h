// Copyright the stretto authors.
// SPDX-License-Identifier: Apache-2.0

#pragma once

namespace stretto::bench {

// The looks of the page: one column on a phone, two beside each other elsewhere; light or dark as
// the reader's system is.
inline constexpr const char* kPageStyle = R"(
:root {
  color-scheme: light dark;
  --paper: #fbfaf8; --card: #ffffff; --ink: #1d2329; --muted: #66707a; --rule: #e4e2dd;
  --first: #0f6fae; --second: #c2571a; --third: #7a4fb0; --reference: #2f8a4c; --wrong: #b3261e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171a; --card: #1b1f24; --ink: #e6e8ea; --muted: #98a2ac; --rule: #2d343b;
    --first: #5bb0ea; --second: #f0935a; --third: #b79af0; --reference: #67c587; --wrong: #ff8a80;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
}
main { max-width: 1320px; margin: 0 auto; padding: 2.2rem 1.1rem 4rem; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .2rem; }
p { margin: .2rem 0 1rem; max-width: 46rem; }
.muted { color: var(--muted); }
code { font: .88em ui-monospace, "SF Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .8rem;
  margin: 1.4rem 0; }
.tile, .card { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
.tile { padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.55rem; line-height: 1.25; font-weight: 650; }
.tile span { color: var(--muted); font-size: .86rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 350px), 1fr));
  gap: .8rem; margin: 1rem 0; }
.card { padding: .9rem .7rem .4rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--ink); font: 14px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
svg .title { font-size: 17px; font-weight: 650; }
svg .subtitle, svg .tick { fill: var(--muted); }
svg .tick { font-size: 13px; }
svg .grid { stroke: var(--rule); }
svg .axis { stroke: var(--muted); }
svg .reference { stroke: var(--reference); stroke-width: 1.5; stroke-dasharray: 5 4; }
svg .reference-name { fill: var(--reference); }
svg .line { fill: none; stroke-width: 2.2; stroke-linejoin: round; }
svg .band { opacity: .13; }
svg .s0 { --series: var(--first); }
svg .s1 { --series: var(--second); }
svg .s2 { --series: var(--third); }
svg .line { stroke: var(--series); }
svg .dot, svg .band { fill: var(--series); }
svg .dot { stroke: var(--series); stroke-width: 1.6; }
svg .hollow { fill: var(--card); }
svg .name { fill: var(--series); font-weight: 650; paint-order: stroke; stroke: var(--card);
  stroke-width: 4px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .86rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; }
th { color: var(--muted); font-weight: 500; border-bottom: 1px solid var(--rule); }
td { border-bottom: 1px solid var(--rule); }
.text { text-align: left; }
.wrong { color: var(--wrong); font-weight: 650; }
summary { cursor: pointer; color: var(--muted); padding: .2rem 0; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1.2rem; margin: .6rem 0; }
dt { color: var(--muted); }
dd { margin: 0; overflow-wrap: anywhere; }
#hint { position: fixed; pointer-events: none; background: var(--ink); color: var(--paper);
  font-size: .82rem; padding: .3rem .55rem; border-radius: 6px; white-space: pre-line; opacity: 0;
  transition: opacity .1s; z-index: 1; max-width: 18rem; }
)";

// Shows the values of the point that is nearest to the pointer.
inline constexpr const char* kPageScript = R"(
const hint = document.getElementById('hint');
const hide = () => { hint.style.opacity = 0; };
for (const chart of document.querySelectorAll('svg')) {
  const dots = [...chart.querySelectorAll('.dot')];
  chart.addEventListener('pointermove', event => {
    let nearest = null, best = 40;
    for (const dot of dots) {
      const box = dot.getBoundingClientRect();
      const x = box.x + box.width / 2, y = box.y + box.height / 2;
      const distance = Math.hypot(x - event.clientX, y - event.clientY);
      if (distance < best) { best = distance; nearest = { dot, x, y }; }
    }
    if (!nearest) return hide();
    hint.textContent = nearest.dot.dataset.hint;
    const left = Math.min(nearest.x + 12, innerWidth - hint.offsetWidth - 8);
    hint.style.left = Math.max(8, left) + 'px';
    hint.style.top = Math.max(8, nearest.y - hint.offsetHeight - 12) + 'px';
    hint.style.opacity = 1;
  });
  chart.addEventListener('pointerleave', hide);
}
)";

}  // namespace stretto::bench
