"""Asks as Python's programs do that know nothing of a gateway."""

import json
import os
import urllib.request


def step(name, what):
    line = {"step": name, "ok": True}
    try:
        what()
    except Exception as error:  # whatever it is, it is the answer
        line = {"step": name, "ok": False, "error": repr(error)}
    print(json.dumps(line), flush=True)


def fetch(url, body=None):
    with urllib.request.urlopen(url, body, timeout=20) as answer:
        return answer.read().decode()


def expect(url, want, body=None):
    got = fetch(url, body)
    assert got == want, got


step("urllib http", lambda: expect(os.environ["PLAIN"] + "/hello", "hello"))
step("urllib https", lambda: expect(os.environ["SECURE"] + "/hello", "hello"))
step("urllib post", lambda: expect(os.environ["SECURE"] + "/echo", "a body", b"a body"))
step("urllib service", lambda: expect(os.environ["API_URL"] + "/hello", "hello"))
