"""A handler of Tidewater: the server asks it about uploads, conflicts, downloads and sign-ins."""

import hashlib
import hmac
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

# The current secret and, while it is replaced, the one before: separated by a comma.
SECRETS = [it for it in os.environ.get("HANDLER_SECRETS", "").split(",") if it]
CLOCKS_DIFFER_S = 300

lock = threading.Lock()
answered = {}  # What was said of rows, by their idempotency key.
notes = []  # Every change of a note, in order: the cursor is how many a device has seen.


def is_signed(headers, body):
    """Whether the server has sent this, within the last five minutes."""
    if not SECRETS:
        return True  # On this machine only.
    timestamp = headers.get("Tidewater-Timestamp", "")
    if not timestamp.isdigit() or abs(time.time() - int(timestamp)) > CLOCKS_DIFFER_S:
        return False
    signed = timestamp.encode() + b"." + body
    expected = ["v1=" + hmac.new(it.encode(), signed, hashlib.sha256).hexdigest() for it in SECRETS]
    given = headers.get("Tidewater-Signature", "").split(",")
    # compare_digest takes the same time whatever differs.
    matches = [hmac.compare_digest(one, other) for one in given for other in expected]
    return any(matches)


def once(row, decide):
    """What was said of a row before, or what is decided now: a request may come twice."""
    key = row["idempotency_key"]
    if key not in answered:
        answered[key] = decide(row)
    return {"idempotency_key": key, **answered[key]}


def judge_order(row):
    quantity = (row.get("new") or {}).get("quantity")
    if row["operation"] == "delete":
        return {"verdict": "apply"}
    if quantity is None or quantity <= 0:
        return {"verdict": "refuse", "reason": "an order has a quantity of at least 1"}
    if quantity > 100:
        return {"verdict": "change", "new": {"quantity": 100}}
    return {"verdict": "apply"}


def keep_note(row):
    notes.append((row["key"], row.get("new")))
    return {"verdict": "handled"}


def greater_quantity(row):
    new, theirs = row.get("new"), row.get("theirs")
    if not new or not theirs:
        return {"verdict": "centre"}
    return {"verdict": "merge", "new": {"quantity": max(new["quantity"], theirs["quantity"])}}


def download(request):
    begin = request["cursor"]["seen"] if request["cursor"] else 0
    if begin > len(notes):
        return {"reset": True}  # It was started anew: all devices begin anew as well.
    page = notes[begin : begin + 100]
    latest = {json.dumps(key): (key, note) for key, note in page}
    for key in request.get("again", []):  # The device could not use what it got before.
        known = [note for of, note in notes if of == key]
        latest[json.dumps(key)] = (key, known[-1] if known else None)
    return {
        "rows": [note for _, note in latest.values() if note],
        "removed": [key for key, note in latest.values() if not note],
        "cursor": {"seen": begin + len(page)},
        "more": begin + len(page) < len(notes),
    }


def answer(request):
    event, table = request["event"], request.get("table")
    if event == "upload":
        decide = keep_note if table == "note" else judge_order
        return {"rows": [once(row, decide) for row in request["rows"]]}
    if event == "resolve_conflict":
        return {"rows": [once(row, greater_quantity) for row in request["rows"]]}
    if event == "download":
        return download(request)
    if event == "authenticate_user":
        if request["user"] == "anna" and request["password"] == "annas password":
            return {"verdict": "accept", "claims": {"region": "north"}}
        return {"verdict": "refuse"}
    return {"verdict": "accept"}  # begin_synchronization, end_synchronization


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if not is_signed(self.headers, body):
            return self.send(401, {"error": "the signature does not fit"})
        with lock:
            self.send(200, answer(json.loads(body)))

    def send(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", "8080"))), Handler)
print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
server.serve_forever()
