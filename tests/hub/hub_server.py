"""A hub as small as can be: the routes of Hugging Face's that a download uses.

  hub_server.py FOLDER LOG

FOLDER/ORG/NAME/FILE are the models' files. Prints the port and serves until
its standard input ends. Each request is a line of LOG:
  hub|store METHOD PATH first=FIRST_BYTE token=TOKEN
"hub" is the server with the tokens; "store", on a port of its own, has the
content of files above 100 bytes, to which the hub redirects.

A model's name says what is wrong with it:
  *gated*        401 unless the token is "secret"
  *interrupted*  each answer of the store ends after 1000 bytes
  *no-ranges*    the store ignores Range; its first answer ends early
  *damaged*      the store sends other bytes than announced
  *overloaded*   each first request of a path gets a 503
  *long*         the store sends more than announced
"""
import hashlib
import http.server
import json
import os
import sys
import threading

FOLDER, LOG = sys.argv[1:3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
seen = {}


def etag(content):
    if len(content) > 100:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, headers=(), body=b"", sent=None):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if sent is None else body[:sent])
        if sent is not None:
            self.close_connection = True

    def first_time(self):
        key = (self.command, self.path)
        seen[key] = seen.get(key, 0) + 1
        return seen[key] == 1

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        token = self.headers.get("Authorization", "none").split()[-1]
        span = self.headers.get("Range", "bytes=0-")
        first = int(span[len("bytes="):-1])
        with open(LOG, "a") as log:
            log.write(f"{self.server.role} {self.command} {self.path} "
                      f"first={first} token={token}\n")
        if "gated" in self.path and self.server.role == "hub" \
                and token != "secret":
            return self.answer(401, body=b'{"error":"Unauthorized"}')
        if "overloaded" in self.path and self.first_time():
            return self.answer(503)
        parts = self.path.split("/")
        if parts[1:3] == ["api", "models"]:
            folder = os.path.join(FOLDER, parts[3], parts[4])
            if parts[5:] != ["revision", "main"] or not os.path.isdir(folder):
                return self.answer(404, body=b'{"error":"not found"}')
            files = [{"rfilename": name} for name in os.listdir(folder)]
            return self.answer(200, body=json.dumps(
                {"sha": COMMIT, "siblings": files}).encode())
        org, name, verb, commit, file = parts[1:6]
        path = os.path.join(FOLDER, org, name, file)
        if verb != "resolve" or commit != COMMIT or not os.path.exists(path):
            return self.answer(404)
        with open(path, "rb") as source:
            content = source.read()
        if self.server.role == "store":
            return self.store(content, first)
        if len(content) > 100:
            return self.answer(302, {
                "X-Repo-Commit": COMMIT,
                "X-Linked-Etag": f'"{etag(content)}"',
                "X-Linked-Size": str(len(content)),
                "ETag": '"of-the-redirect"',
                "Location": f"http://127.0.0.1:{STORE_PORT}{self.path}"})
        self.answer(200, {"ETag": f'W/"{etag(content)}"',
                          "X-Repo-Commit": COMMIT,
                          "Content-Length": str(len(content))}, content)

    def store(self, content, first):
        if "damaged" in self.path:
            content = bytes(reversed(content))
        if "long" in self.path:
            content += b"surplus"
        if "no-ranges" in self.path:
            sent = 1000 if self.first_time() else None
            return self.answer(200, body=content, sent=sent)
        if first >= len(content):
            return self.answer(416)
        rest = content[first:]
        headers = {"Content-Range":
                   f"bytes {first}-{len(content) - 1}/{len(content)}"}
        sent = 1000 if "interrupted" in self.path and len(rest) > 1000 else None
        self.answer(206 if first else 200, headers if first else (), rest, sent)


def start(role):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.role = role
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


STORE_PORT = start("store")
print(start("hub"), flush=True)
sys.stdin.read()
