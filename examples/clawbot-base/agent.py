#!/usr/bin/env python3
"""The smallest agent that does something, with nothing but the standard library. The same is in main.go and agent.sh."""

import http.server
import json
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request

NAME = os.environ.get("AGENT_NAME", "clawbot")
GATEWAY = os.environ.get("SHELL_URL", "http://gateway:3000").rstrip("/")
TOKEN_FILE = os.environ.get("CLAWBOT_TOKEN_FILE", "/run/hermit/token")
TARGET = os.environ.get("CLAWBOT_TARGET", "https://api.example.com/status")
PAUSE = float(os.environ.get("CLAWBOT_PAUSE", "60").rstrip("s"))
MOST = 1 << 20  # of an answer that is read

stop = threading.Event()
# The gateway is spoken to directly: it is the proxy of everything else.
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def say(kind, **more):
    """Prints one event: a JSON object on a line."""
    event = {"type": kind, "agent": NAME, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **more}
    print(json.dumps(event), flush=True)


def token():
    """Is read anew each time: it is rotated by replacing the file."""
    try:
        with open(TOKEN_FILE, encoding="ascii") as f:
            return f.read().strip()
    except OSError:
        return ""


def execute():
    """Asks the gateway to make a request. What it may ask for is in tools: of clawbots.yml."""
    request = urllib.request.Request(
        GATEWAY + "/v1/execute",
        data=json.dumps({"url": TARGET, "method": "GET"}).encode(),
        headers={"Content-Type": "application/json", "Authorization": "Bearer " + token()},
        method="POST",
    )
    try:
        with direct.open(request, timeout=40) as answer:
            answer.read(MOST)
            return answer.status
    except urllib.error.HTTPError as refused:
        refused.read(MOST)
        return refused.code


class Webhook(http.server.BaseHTTPRequestHandler):
    """POST /v1/agents/NAME/webhook of the API ends at port 8000, when clawbots.yml says webhook: true."""

    timeout = 30

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        if self.path != "/webhook" or not 0 <= length <= MOST:
            self.send_error(404)
            return
        say("webhook", bytes=len(self.rfile.read(length)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        """Nothing but events is printed."""


def main():
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stop.set())
    say("started")
    if os.environ.get("CLAWBOT_WEBHOOK"):
        host, _, port = os.environ["CLAWBOT_WEBHOOK"].rpartition(":")
        server = http.server.ThreadingHTTPServer((host, int(port)), Webhook)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    while not token() and not stop.wait(0.2):
        pass
    if not stop.is_set():
        say("token")
    while not stop.is_set():
        try:
            say("executed", status=execute())
        except OSError as error:
            say("failed", error=str(error))
        stop.wait(PAUSE)
    say("stopped")


if __name__ == "__main__":
    sys.exit(main())
