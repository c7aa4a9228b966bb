// Numbers as text, quantiles, and text of CSV files. No part of the page is used here.

// A number with its unit: "s", "1/s", "bytes", "bytes/s", or "" for a plain number.
export function scaled(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "s") {
    for (const [name, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6], ["ns", 1e-9]]) {
      if (value >= size) return short(value / size) + " " + name;
    }
    return "0 s";
  }
  if (unit === "1/s") return value >= 1e4 ? (value / 1e3).toFixed(1) + " k/s" : value.toFixed(0) + "/s";
  if (unit === "") return value >= 100 ? value.toFixed(0) : value.toFixed(2);
  const suffix = unit === "bytes/s" ? "/s" : "";
  let n = value;
  for (const name of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return (name === "B" ? n.toFixed(0) : short(n)) + " " + name + suffix;
    n /= 1024;
  }
  return short(n) + " TiB" + suffix;
}

// Three digits; the digits of a larger whole number are all shown.
function short(n) {
  return n >= 100 ? n.toFixed(0) : n.toPrecision(3);
}

// Upper bound in seconds of the latency that this share of the requests did not exceed. Element n of the counts is that of
// latencies below 2 to the power of n+1 nanoseconds.
export function quantile(counts, share) {
  const total = counts.reduce((sum, n) => sum + (n ?? 0), 0);
  let seen = 0;
  for (let n = 0; n < counts.length && total > 0; n++) {
    seen += counts[n] ?? 0;
    if (seen >= Math.max(1, Math.ceil(total * share))) return 2 ** (n + 1) / 1e9;
  }
  return undefined;
}

// A length of time in its two largest units.
export function lengthOf(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

// Text of a CSV file (RFC 4180). A value that is not known is an empty field.
export function csv(head, rows) {
  const field = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [head, ...rows].map((row) => row.map(field).join(",") + "\r\n").join("");
}

// Name of a file, of characters that each file system takes.
export function fileName(parts, ending) {
  return parts.join("-").replace(/[^A-Za-z0-9._]+/g, "-").replace(/^[.-]+|-+$/g, "").slice(0, 120) + "." + ending;
}
