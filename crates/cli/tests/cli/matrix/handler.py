# Judges uploaded notes, and keeps those of a table that lives with it in notes.db.
import json, os, sqlite3, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE_ROWS = 5000
keeps = os.environ["KEEPS"] == "yes"
one_by_one = threading.Lock()


def judge(database, row):
    if row["operation"] == "delete":
        if not keeps:
            return {"verdict": "apply"}
        database.execute("DELETE FROM note WHERE id = ?", (row["key"]["id"],))
        return {"verdict": "handled"}
    new = row["new"]
    if not database.execute("SELECT 1 FROM topic WHERE id = ?", (new["topic"],)).fetchone():
        return {"verdict": "refuse", "reason": "the topic is closed"}
    if not keeps:
        return {"verdict": "change", "new": {"via": "handler"}}
    database.execute(
        "INSERT OR REPLACE INTO note VALUES (?, ?, ?, 'handler')",
        (new["id"], new["topic"], new["body"]),
    )
    return {"verdict": "handled"}


def judge_once(database, row):
    key = row["idempotency_key"]
    known = database.execute("SELECT verdict FROM answered WHERE key = ?", (key,)).fetchone()
    if not known:
        known = (json.dumps(judge(database, row)),)
        database.execute("INSERT INTO answered VALUES (?, ?)", (key, known[0]))
    return {"idempotency_key": key, **json.loads(known[0])}


def tell(database, request):
    seen = (request["cursor"] or {"seen": 0})["seen"]
    keys = {key["id"] for key in request.get("again", [])}
    end = seen
    news = "SELECT number, id FROM log WHERE number > ? ORDER BY number LIMIT ?"
    news = database.execute(news, (seen, PAGE_ROWS)).fetchall()
    for number, key in news:
        keys.add(key)
        end = number
    rows, removed = [], []
    for key in sorted(keys):
        row = database.execute("SELECT id, topic, body, via FROM note WHERE id = ?", (key,))
        row = row.fetchone()
        if row:
            rows.append(dict(zip(("id", "topic", "body", "via"), row)))
        else:
            removed.append({"id": key})
    return {"rows": rows, "removed": removed, "cursor": {"seen": end}, "more": len(news) == PAGE_ROWS}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with one_by_one, sqlite3.connect("notes.db", timeout=30) as database:
            if request["event"] == "upload":
                answer = {"rows": [judge_once(database, row) for row in request["rows"]]}
            else:
                answer = tell(database, request)
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(os.environ["PORT"])), Handler)
print("listening on", server.server_port, flush=True)
server.serve_forever()
