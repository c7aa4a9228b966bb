//! Style of reports: light and dark, screen and paper, wide and narrow.

/// Style sheet.
pub const CSS: &str = "\
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#57606a;--paper:#fff;--line:#d0d7de;--warn:#fff3cd;--a:#0b63c5;--b:#b3470b;--c:#1a7f37;--d:#8250df;--e:#9a6700;--f:#cf222e;--shade:#1a7f3722}\
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9aa4ae;--paper:#0d1117;--line:#30363d;--warn:#3d2f00;--a:#6cb6ff;--b:#ffa657;--c:#56d364;--d:#d2a8ff;--e:#e3b341;--f:#ff7b72;--shade:#56d36422}}\
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
main{max-width:70rem;margin:0 auto;padding:1rem}\
h1{font-size:1.5rem;margin:.5rem 0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:1.6rem 0 .4rem}\
header p,main>p{color:var(--soft);margin:.2rem 0}\
.warnings{background:var(--warn);border-left:.3rem solid var(--e);padding:.2rem 1rem;margin:1rem 0}.warnings h2{margin:.4rem 0}\
ul{padding-left:1.2rem}.verdict li{margin:.25rem 0}\
table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{padding:.25rem .5rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}\
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.scroll{overflow-x:auto}\
.facts th{font-weight:400;color:var(--soft);width:14rem}.facts td{overflow-wrap:anywhere}\
.bars th{font-weight:400;min-width:13rem}.bars td:nth-child(2){width:100%}.bar{display:block;height:.9rem;border-radius:.2rem}.bar.ceiling{background:var(--line)}.bar.measured{background:var(--a)}\
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,28rem),1fr));gap:1rem}\
svg{width:100%;height:auto;break-inside:avoid}svg text{fill:var(--ink);font:11px system-ui,sans-serif}svg .soft{fill:var(--soft)}svg .grid{stroke:var(--line);stroke-width:1}\
svg .line{fill:none;stroke-width:2}svg .stamp{fill:var(--f);font-size:15px;font-weight:700}svg .shade{fill:var(--shade)}\
.s0{stroke:var(--a)}.s1{stroke:var(--b)}.s2{stroke:var(--c)}.s3{stroke:var(--d)}.s4{stroke:var(--e)}.s5{stroke:var(--f)}\
.f0{fill:var(--a)!important}.f1{fill:var(--b)!important}.f2{fill:var(--c)!important}.f3{fill:var(--d)!important}.f4{fill:var(--e)!important}.f5{fill:var(--f)!important}\
@media (max-width:40rem){.bars th{min-width:7rem}.facts th{width:auto}body{font-size:15px}}\
@media print{body{font-size:11pt}.charts{grid-template-columns:1fr 1fr}}";
