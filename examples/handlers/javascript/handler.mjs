// A handler of Tidewater: the server asks it about uploads, conflicts, downloads and sign-ins.

import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

// The current secret and, while it is replaced, the one before: separated by a comma.
const SECRETS = (process.env.HANDLER_SECRETS ?? "").split(",").filter(Boolean);
const CLOCKS_DIFFER_S = 300;

const answered = new Map(); // What was said of rows, by their idempotency key.
const notes = []; // Every change of a note, in order: the cursor is how many a device has seen.

// Whether the server has sent this, within the last five minutes.
function isSigned(headers, body) {
  if (SECRETS.length === 0) return true; // On this machine only.
  const timestamp = headers["tidewater-timestamp"] ?? "";
  const age = Math.abs(Date.now() / 1000 - Number(timestamp));
  if (!/^\d+$/.test(timestamp) || age > CLOCKS_DIFFER_S) return false;
  const given = (headers["tidewater-signature"] ?? "").split(",").map((it) => Buffer.from(it));
  const matches = SECRETS.flatMap((secret) => {
    const hmac = createHmac("sha256", secret).update(`${timestamp}.`).update(body);
    const expected = Buffer.from(`v1=${hmac.digest("hex")}`);
    // timingSafeEqual takes the same time whatever differs.
    return given.map((it) => it.length === expected.length && timingSafeEqual(it, expected));
  });
  return matches.includes(true);
}

// What was said of a row before, or what is decided now: a request may come twice.
function once(row, decide) {
  const key = row.idempotency_key;
  if (!answered.has(key)) answered.set(key, decide(row));
  return { idempotency_key: key, ...answered.get(key) };
}

function judgeOrder(row) {
  if (row.operation === "delete") return { verdict: "apply" };
  const quantity = row.new.quantity ?? 0;
  if (quantity <= 0) return { verdict: "refuse", reason: "an order has a quantity of at least 1" };
  if (quantity > 100) return { verdict: "change", new: { quantity: 100 } };
  return { verdict: "apply" };
}

function keepNote(row) {
  notes.push({ key: row.key, note: row.new ?? null });
  return { verdict: "handled" };
}

function greaterQuantity(row) {
  if (!row.new || !row.theirs) return { verdict: "centre" };
  return {
    verdict: "merge",
    new: { quantity: Math.max(row.new.quantity, row.theirs.quantity) },
  };
}

function download(request) {
  const begin = request.cursor?.seen ?? 0;
  if (begin > notes.length) return { reset: true }; // It was started anew: so do all devices.
  const page = notes.slice(begin, begin + 100);
  const latest = new Map(page.map((it) => [JSON.stringify(it.key), it]));
  for (const key of request.again ?? []) {
    // The device could not use what it got before.
    const known = notes.filter((it) => JSON.stringify(it.key) === JSON.stringify(key));
    latest.set(JSON.stringify(key), known.at(-1) ?? { key, note: null });
  }
  const all = [...latest.values()];
  return {
    rows: all.filter((it) => it.note).map((it) => it.note),
    removed: all.filter((it) => !it.note).map((it) => it.key),
    cursor: { seen: begin + page.length },
    more: begin + page.length < notes.length,
  };
}

function answer(request) {
  switch (request.event) {
    case "upload": {
      const decide = request.table === "note" ? keepNote : judgeOrder;
      return { rows: request.rows.map((row) => once(row, decide)) };
    }
    case "resolve_conflict":
      return { rows: request.rows.map((row) => once(row, greaterQuantity)) };
    case "download":
      return download(request);
    case "authenticate_user":
      return request.user === "anna" && request.password === "annas password"
        ? { verdict: "accept", claims: { region: "north" } }
        : { verdict: "refuse" };
    default: // begin_synchronization, end_synchronization
      return { verdict: "accept" };
  }
}

const server = createServer((request, response) => {
  const pieces = [];
  request.on("data", (piece) => pieces.push(piece));
  request.on("end", () => {
    const body = Buffer.concat(pieces);
    const signed = isSigned(request.headers, body);
    const said = signed
      ? answer(JSON.parse(body.toString()))
      : { error: "the signature does not fit" };
    response.writeHead(signed ? 200 : 401, { "content-type": "application/json" });
    response.end(JSON.stringify(said));
  });
});
server.listen(Number(process.env.PORT ?? 8080), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}/`);
});
